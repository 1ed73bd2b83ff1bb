//! Addresses by name, through the resolver of libc.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use uverbs_uapi::enums::QpType;
use uverbs_uapi::rdma_cm::PortSpace;

use super::abi::rdma_addrinfo;
use super::command::AF_IB;
use crate::c::failure::Failure;
use crate::cm::IbAddr;
use crate::cm::address::{Address, Wire};
use crate::gid::Gid;

/// `RAI_PASSIVE`: an address to listen on.
pub(super) const PASSIVE: c_int = 0x1;
/// `RAI_NUMERICHOST`.
const NUMERIC_HOST: c_int = 0x2;
/// `RAI_FAMILY`: the hints request a family.
const FAMILY: c_int = 0x8;
/// `RAI_SA`: a service that the subnet administrator knows.
pub(super) const SA: c_int = 0x10;
/// `RAI_DNS`: names that the resolver knows; this is also the default.
pub(super) const DNS: c_int = 0x20;

/// `rdma_getaddrinfo(3)`. If resolving fails it returns a number for `gai_strerror(3)`.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    to: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller passes names or NULL, hints or NULL, and room for a pointer. Zeros are an empty
    // answer, which `rdma_freeaddrinfo` accepts.
    unsafe {
        let hints = hints.as_ref();
        let named = !node.is_null() || !service.is_null();
        let failure = match hints {
            None if !named => Some(Failure::INVALID),
            Some(hints) if hints.ai_flags & SA != 0 => Some(Failure::UNSUPPORTED),
            _ => None,
        };
        if let Some(failure) = failure {
            failure.tell();
            return -1;
        }
        let found: *mut rdma_addrinfo = libc::calloc(1, size_of::<rdma_addrinfo>()).cast();
        let Some(info) = found.as_mut() else {
            return -1;
        };
        let result = match hints {
            Some(hints) if !named => copy(info, hints),
            _ => resolve(info, node, service, hints),
        };
        let result = result.and_then(|()| match hints {
            Some(hints) if info.ai_src_len == 0 && hints.ai_src_len != 0 => {
                duplicate(&mut info.ai_src_addr, hints.ai_src_addr, hints.ai_src_len)?;
                info.ai_src_len = hints.ai_src_len;
                Ok(())
            }
            _ => Ok(()),
        });
        match result {
            Ok(()) => {
                to.write(found);
                0
            }
            Err(number) => {
                rdma_freeaddrinfo(found);
                number
            }
        }
    }
}

/// The result of resolving. An error is a number of the resolver's, or -1 with the reason in `errno`.
type Result = std::result::Result<(), c_int>;

/// Nothing has to be resolved: the answer is a copy of the hints.
///
/// # Safety
/// The hints' address has the length in the hints.
unsafe fn copy(info: &mut rdma_addrinfo, hints: &rdma_addrinfo) -> Result {
    info.ai_flags = hints.ai_flags;
    info.ai_family = hints.ai_family;
    info.ai_qp_type = hints.ai_qp_type;
    info.ai_port_space = hints.ai_port_space;
    if hints.ai_dst_len != 0 {
        // SAFETY: the caller vouches for it.
        unsafe { duplicate(&mut info.ai_dst_addr, hints.ai_dst_addr, hints.ai_dst_len) }?;
        info.ai_dst_len = hints.ai_dst_len;
    }
    Ok(())
}

/// Copies an address into memory allocated by libc.
///
/// # Safety
/// The address has this length.
unsafe fn duplicate(
    to: &mut *mut libc::sockaddr,
    from: *const libc::sockaddr,
    length: u32,
) -> Result {
    // SAFETY: the caller vouches for the source, and the copy is as long.
    unsafe {
        let copy: *mut c_void = libc::malloc(length as usize);
        if copy.is_null() || from.is_null() {
            libc::free(copy);
            return Err(-1);
        }
        libc::memcpy(copy, from.cast(), length as usize);
        *to = copy.cast();
    }
    Ok(())
}

/// Whether a name is a GID as text, which the resolver reads as an IPv6 address.
fn names_gid(hints: &rdma_addrinfo) -> bool {
    let flags = NUMERIC_HOST | FAMILY;
    hints.ai_family == AF_IB && hints.ai_flags & flags == flags
}

/// The hints for the resolver.
fn question(hints: &rdma_addrinfo) -> libc::addrinfo {
    let socket = match QpType(hints.ai_qp_type as u32) {
        QpType::RC | QpType::UC | QpType::XRC_SEND | QpType::XRC_RECV => libc::SOCK_STREAM,
        QpType::UD => libc::SOCK_DGRAM,
        _ => 0,
    };
    let protocol = match (PortSpace(hints.ai_port_space as u32), socket) {
        (PortSpace::TCP, _) | (PortSpace::IB, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (PortSpace::IPOIB | PortSpace::UDP, _) | (PortSpace::IB, libc::SOCK_DGRAM) => {
            libc::IPPROTO_UDP
        }
        _ => 0,
    };
    let flag = |rdma: c_int, plain: c_int| match hints.ai_flags & rdma {
        0 => 0,
        _ => plain,
    };
    libc::addrinfo {
        ai_flags: flag(PASSIVE, libc::AI_PASSIVE) | flag(NUMERIC_HOST, libc::AI_NUMERICHOST),
        ai_family: match hints.ai_family {
            AF_IB => libc::AF_UNSPEC,
            family => family,
        },
        ai_socktype: socket,
        ai_protocol: protocol,
        ai_addrlen: 0,
        ai_addr: null_mut(),
        ai_canonname: null_mut(),
        ai_next: null_mut(),
    }
}

/// Calls the resolver, and takes its first answer.
///
/// # Safety
/// The names are strings or NULL.
unsafe fn resolve(
    info: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result {
    let asked = hints.map(question);
    let mut found = null_mut();
    // SAFETY: the caller vouches for the names. The answer is freed once it is copied.
    unsafe {
        let hints_of_libc = asked.as_ref().map_or(null(), |asked| &raw const *asked);
        let number = libc::getaddrinfo(node, service, hints_of_libc, &mut found);
        if number != 0 {
            return Err(number);
        }
        let copied = take(info, &*found, hints);
        libc::freeaddrinfo(found);
        copied
    }
}

/// Copies the resolver's answer.
///
/// # Safety
/// `found` is an answer of getaddrinfo(3).
unsafe fn take(
    info: &mut rdma_addrinfo,
    found: &libc::addrinfo,
    hints: Option<&rdma_addrinfo>,
) -> Result {
    let (qp_type, space) = match found.ai_socktype {
        libc::SOCK_DGRAM => (QpType::UD, PortSpace::UDP),
        _ => (QpType::RC, PortSpace::TCP),
    };
    let told = |of: fn(&rdma_addrinfo) -> c_int| hints.map(of).filter(|number| *number != 0);
    info.ai_qp_type = told(|hints| hints.ai_qp_type).unwrap_or(qp_type.0 as c_int);
    info.ai_port_space = told(|hints| hints.ai_port_space).unwrap_or(space.0 as c_int);
    info.ai_family = found.ai_family;
    let (to, length) = match found.ai_flags & libc::AI_PASSIVE {
        0 => (&mut info.ai_dst_addr, &mut info.ai_dst_len),
        _ => {
            info.ai_flags = PASSIVE;
            (&mut info.ai_src_addr, &mut info.ai_src_len)
        }
    };
    if hints.is_some_and(names_gid) {
        info.ai_family = AF_IB;
        // SAFETY: it is the resolver's answer.
        let wire = unsafe { of_gid(found, PortSpace(info.ai_port_space as u32)) }?;
        *length = u32::from(wire.length);
        // SAFETY: it is an address of that length.
        return unsafe { duplicate(to, wire.bytes.0.as_ptr().cast(), *length) };
    }
    // SAFETY: the address is as long as the answer says.
    unsafe { duplicate(to, found.ai_addr, found.ai_addrlen) }?;
    *length = found.ai_addrlen;
    Ok(())
}

/// The InfiniBand address for a GID that the resolver has read as an IPv6 address, in the default partition.
///
/// # Safety
/// `found` is an answer of getaddrinfo(3).
unsafe fn of_gid(found: &libc::addrinfo, space: PortSpace) -> std::result::Result<Wire, c_int> {
    if found.ai_family != libc::AF_INET6 {
        return Err(libc::EAI_FAMILY);
    }
    // SAFETY: an answer of this family has such an address.
    let found = unsafe { found.ai_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
    let port = u16::from_be(found.sin6_port);
    let address = IbAddr::new(Gid::new(found.sin6_addr.s6_addr), port);
    Ok(Address::Ib(address).wire(space))
}

/// `rdma_freeaddrinfo(3)`.
pub unsafe extern "C" fn rdma_freeaddrinfo(first: *mut rdma_addrinfo) {
    let mut next = first;
    // SAFETY: the caller passes an answer for the last time. All its memory was allocated by libc, or is
    // NULL.
    unsafe {
        while let Some(info) = next.as_ref() {
            let this = next;
            next = info.ai_next;
            libc::free(info.ai_connect);
            libc::free(info.ai_route);
            libc::free(info.ai_src_canonname.cast());
            libc::free(info.ai_dst_canonname.cast());
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            libc::free(this.cast());
        }
    }
}
