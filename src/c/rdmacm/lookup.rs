//! Addresses that are looked up for an identifier and reported by an event, and events of the program's own.

use std::ffi::{CStr, c_char, c_int};
use std::mem::take;
use std::ptr::{null_mut, write_bytes};

use uverbs_uapi::rdma_cm::{
    Event as Kind, IB_SERVICE_NAME_SIZE, IbService, IbServiceFlags, Param, PortSpace,
    ResolveIbService, UserServiceRec, WriteCmEvent,
};
use zerocopy::{FromZeros, IntoBytes};

use super::abi::{rdma_addrinfo, rdma_cm_id};
use super::addrinfo::{DNS, SA, rdma_freeaddrinfo, rdma_getaddrinfo};
use super::command::{AF_IB, QueryServices};
use super::event::complete;
use super::id::{IdObject, id};
use super::last_errno;
use super::resolve::query_addr;
use crate::c::failure::{Failure, Result, minus_one};
use crate::cm::IbAddr;
use crate::cm::address::Address;
use crate::error::Errno;
use crate::gid::Gid;

/// The state of an identifier's lookup.
#[derive(Default)]
pub(super) enum Lookup {
    /// There is no lookup, or the program has taken its answer.
    #[default]
    Nothing,
    /// The lookup is in progress.
    Asked,
    /// There is an answer that the program has not taken.
    Found(Answer),
}

/// An answer with one address or several.
pub(super) struct Answer(*mut rdma_addrinfo);

// SAFETY: nothing else points to this memory, and any thread may free memory of libc.
unsafe impl Send for Answer {}

impl Drop for Answer {
    fn drop(&mut self) {
        // SAFETY: it is an answer of this library, which nothing else has.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

/// `rdma_resolve_addrinfo(3)`.
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    c: *mut rdma_cm_id,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller passes an identifier, names or NULL, and hints or NULL.
    minus_one(unsafe {
        id(c).and_then(|id| {
            match &mut id.state().lookup {
                lookup @ Lookup::Nothing => *lookup = Lookup::Asked,
                _ => return Err(Failure(Errno::BUSY)),
            }
            let begun = begin(id, node, service, hints);
            if begun.is_err() {
                id.state().lookup = Lookup::Nothing;
            }
            begun
        })
    })
}

/// # Safety
/// As for [`rdma_resolve_addrinfo`].
unsafe fn begin(
    id: &IdObject,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<()> {
    // SAFETY: the caller passes hints or NULL.
    let flags = unsafe { hints.as_ref() }.map_or(0, |hints| hints.ai_flags);
    match (flags & SA != 0, flags & DNS != 0) {
        (true, true) => Err(Failure::UNSUPPORTED),
        // The subnet administrator knows services, not hosts.
        (true, false) if !node.is_null() => Err(Failure::UNSUPPORTED),
        (true, false) if service.is_null() => Err(Failure::INVALID),
        // SAFETY: the caller passes a name.
        (true, false) => ask_for(id, unsafe { CStr::from_ptr(service) }),
        // SAFETY: the caller vouches for it.
        (false, _) => unsafe { resolve(id, node, service, hints) },
    }
}

/// Resolves names here, and makes the kernel report that with an event.
///
/// # Safety
/// As for [`rdma_resolve_addrinfo`].
unsafe fn resolve(
    id: &IdObject,
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<()> {
    let mut found = null_mut();
    // SAFETY: the caller vouches for the arguments.
    match unsafe { rdma_getaddrinfo(node, service, hints, &mut found) } {
        0 => {}
        -1 | libc::EAI_SYSTEM => return Err(last_errno()),
        // The resolver's errors have no numbers of their own in errno.
        _ => return Err(Failure(Errno::NOENT)),
    }
    // Before the event: another thread may read it at once.
    id.state().lookup = Lookup::Found(Answer(found));
    write_event(id, Kind::INTERNAL, 0, Kind::ADDRINFO_RESOLVED.0.into())?;
    complete(id)
}

/// Queries the subnet administrator for the providers of a service, by its number or its name.
fn ask_for(id: &IdObject, service: &CStr) -> Result<()> {
    let mut ibs = IbService::default();
    match service.to_str().ok().and_then(number) {
        Some(number) => {
            ibs.service_id = number;
            ibs.flags = IbServiceFlags::ID.bits();
        }
        None => {
            let name = service.to_bytes();
            let length = name.len().min(IB_SERVICE_NAME_SIZE - 1);
            ibs.service_name.0[..length].copy_from_slice(&name[..length]);
            ibs.flags = IbServiceFlags::NAME.bits();
        }
    }
    id.send(&ResolveIbService {
        id: id.handle(),
        ibs,
        ..Default::default()
    })?;
    complete(id)
}

/// A number in the notation of C: decimal, or hexadecimal with `0x`, or octal with `0`.
fn number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
        (None, Some(digits)) if !digits.is_empty() => u64::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// The kernel has reported the answer: for names this library has resolved them before; services are fetched
/// now. If there are none, the program may start another lookup.
pub(super) fn arrived(id: &IdObject) -> Result<()> {
    if let Lookup::Found(_) = id.state().lookup {
        return Ok(());
    }
    match services(id) {
        Ok(answer) => {
            id.state().lookup = Lookup::Found(answer);
            Ok(())
        }
        Err(failure) => {
            failed(id);
            Err(failure)
        }
    }
}

/// The lookup has found nothing, and the program may start another.
pub(super) fn failed(id: &IdObject) {
    id.state().lookup = Lookup::Nothing;
}

/// The services that the kernel has found, as addresses.
fn services(id: &IdObject) -> Result<Answer> {
    let reply = id.send(&QueryServices::of(id.handle()))?;
    let records = reply.records();
    if records.is_empty() {
        return Err(Failure(Errno::NOENT));
    }
    query_addr(id)?;
    let mut answer = Answer(null_mut());
    // Each is put before the existing ones.
    for record in records.iter().rev() {
        answer.0 = address_of(record, answer.0)?;
    }
    Ok(answer)
}

/// The address of a service, before others.
fn address_of(record: &UserServiceRec, next: *mut rdma_addrinfo) -> Result<*mut rdma_addrinfo> {
    let port = IbAddr::new(Gid::new(record.gid), 0);
    let mut wire = Address::Ib(port).wire(PortSpace::IB);
    let bytes = &mut wire.bytes.0;
    // The fields of `struct sockaddr_ib`.
    bytes[2..4].copy_from_slice(record.pkey.as_bytes());
    bytes[24..32].copy_from_slice(record.id.as_bytes());
    bytes[32..40].fill(u8::MAX);
    let length = usize::from(wire.length);
    // SAFETY: both were allocated by libc, as `rdma_freeaddrinfo` requires, with the sizes that are written;
    // zeros are a valid answer.
    unsafe {
        let info: *mut rdma_addrinfo = libc::malloc(size_of::<rdma_addrinfo>()).cast();
        let address = libc::malloc(length);
        if info.is_null() || address.is_null() {
            libc::free(info.cast());
            libc::free(address);
            return Err(Failure(Errno::NOMEM));
        }
        write_bytes(info, 0, 1);
        libc::memcpy(address, bytes.as_ptr().cast(), length);
        (*info).ai_flags = SA;
        (*info).ai_family = AF_IB;
        (*info).ai_port_space = PortSpace::IB.0 as c_int;
        (*info).ai_dst_addr = address.cast();
        (*info).ai_dst_len = length as u32;
        (*info).ai_next = next;
        Ok(info)
    }
}

/// `rdma_query_addrinfo(3)`.
pub unsafe extern "C" fn rdma_query_addrinfo(
    c: *mut rdma_cm_id,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller passes an identifier and room for a pointer, or NULL.
    minus_one(unsafe {
        id(c).and_then(|id| {
            let to = to.as_mut().ok_or(Failure::INVALID)?;
            let mut state = id.state();
            match take(&mut state.lookup) {
                Lookup::Found(mut answer) => {
                    *to = std::mem::replace(&mut answer.0, null_mut());
                    Ok(())
                }
                other => {
                    state.lookup = other;
                    Err(Failure(Errno::NOENT))
                }
            }
        })
    })
}

/// `rdma_write_cm_event(3)`.
pub unsafe extern "C" fn rdma_write_cm_event(
    c: *mut rdma_cm_id,
    event: u32,
    status: c_int,
    argument: u64,
) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| match Kind(event) {
        Kind::USER => write_event(id, Kind::USER, status, argument),
        _ => Err(Failure::INVALID),
    }))
}

/// Puts an event into the channel of an identifier.
fn write_event(id: &IdObject, event: Kind, status: c_int, argument: u64) -> Result<()> {
    let mut param = Param::new_zeroed();
    param.0[..8].copy_from_slice(&argument.to_ne_bytes());
    let written = id.send(&WriteCmEvent {
        id: id.handle(),
        event: event.0,
        status: status as u32,
        param,
        ..Default::default()
    });
    // Since Linux 6.18. Older kernels do not know the number of the command; a kernel that knows it accepts
    // this event.
    written.map_err(|failure| match failure.0 {
        Errno::INVAL => Failure::UNSUPPORTED,
        _ => failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a name that is taken for a number, and a number read in the wrong base.
    #[test]
    fn services_have_numbers_as_c_writes_them() {
        for (text, told) in [
            ("4660", Some(4660)),
            ("0x1234", Some(0x1234)),
            ("0X1fffffffffffffff", Some(0x1fff_ffff_ffff_ffff)),
            ("010", Some(8)),
            ("0", Some(0)),
            ("storage", None),
            ("0x", None),
            ("12a", None),
            ("", None),
            ("0x10000000000000000", None),
        ] {
            assert_eq!(number(text), told, "{text}");
        }
    }

    /// Catches a service whose address is at a wrong offset, and a service that is lost.
    #[test]
    fn services_become_addresses() {
        let mut record = UserServiceRec::new_zeroed();
        record.gid[15] = 7;
        record.id = 0x0102_0304_0506_0708_u64.into();
        record.pkey = 0x8001_u16.into();
        let second = address_of(&record, null_mut()).unwrap_or_else(|_| panic!("no memory"));
        record.gid[15] = 6;
        let first = address_of(&record, second).unwrap_or_else(|_| panic!("no memory"));
        let answer = Answer(first);
        // SAFETY: the answer was made by `address_of`.
        unsafe {
            for (info, port) in [(&*answer.0, 6), (&*(*answer.0).ai_next, 7)] {
                assert_eq!((info.ai_family, info.ai_dst_len), (AF_IB, 48));
                assert_eq!((info.ai_flags, info.ai_port_space), (SA, 0x013f));
                let bytes = std::slice::from_raw_parts(info.ai_dst_addr.cast::<u8>(), 48);
                assert_eq!(bytes[..4], [27, 0, 0x80, 0x01]);
                assert_eq!(bytes[23], port);
                assert_eq!(bytes[24..32], [1, 2, 3, 4, 5, 6, 7, 8]);
                assert_eq!(bytes[32..40], [0xff; 8]);
            }
            assert!((*second).ai_next.is_null());
        }
    }
}
