//! Commands of C programs to the device (`mlx5dv_devx_obj_create(3)` and others), over the crate's own.
//!
//! If the device refuses, the error is `EREMOTEIO`, and the device's answer is in the program's output, as
//! with libmlx5.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::slice;
use std::sync::{Mutex, PoisonError};

use uverbs_uapi::enums::QpState;
use zerocopy::IntoBytes;

use crate::c::abi::context::ibv_context;
use crate::c::abi::queue::{ibv_cq, ibv_qp, ibv_srq};
use crate::c::context::context;
use crate::c::cq::cq;
use crate::c::failure::{Failure, Result, pointer, status};
use crate::c::qp::{QpObject, qp};
use crate::c::srq::srq;
use crate::direct::mlx5::command::{ObjectHandle, RegUmem, UmemHandle};
use crate::direct::mlx5::object::{modify, query};
use crate::direct::mlx5::{DevxObject, Direct, EventChannel, EventType, Uar, UarKind};
use crate::error::{Errno, Error};
use crate::owned::Owned;

/// The bytes of a command.
///
/// # Safety
///
/// That many bytes may be read there, as long as the slice is used.
unsafe fn input<'a>(from: *const c_void, length: usize) -> Result<&'a [u8]> {
    match from.is_null() {
        true => Err(Failure::INVALID),
        // SAFETY: by this function's contract.
        false => Ok(unsafe { slice::from_raw_parts(from.cast(), length) }),
    }
}

/// Room for an answer.
///
/// # Safety
///
/// That many bytes may be written there, as long as the slice is used, and all are initialised.
unsafe fn output<'a>(to: *mut c_void, length: usize) -> Result<&'a mut [u8]> {
    match to.is_null() {
        true => Err(Failure::INVALID),
        // SAFETY: by this function's contract.
        false => Ok(unsafe { slice::from_raw_parts_mut(to.cast(), length) }),
    }
}

/// The commands of an open context.
///
/// # Safety
///
/// The pointer is to an open context.
unsafe fn direct(c: *mut ibv_context) -> Result<Direct> {
    // SAFETY: by this function's contract.
    Ok(Direct::of(unsafe { context(c)? }.context())?)
}

/// `mlx5dv_devx_general_cmd(3)`.
pub unsafe extern "C" fn mlx5dv_devx_general_cmd(
    c: *mut ibv_context,
    command: *const c_void,
    length: usize,
    answer: *mut c_void,
    room: usize,
) -> c_int {
    // SAFETY: the caller passes an open context, a command and room, and vouches for what it does.
    status(unsafe {
        direct(c).and_then(|direct| {
            let done = direct.command(input(command, length)?, output(answer, room)?);
            Ok(done.map_err(Error::from)?)
        })
    })
}

/// `mlx5dv_devx_obj_create(3)`.
pub unsafe extern "C" fn mlx5dv_devx_obj_create(
    c: *mut ibv_context,
    command: *const c_void,
    length: usize,
    answer: *mut c_void,
    room: usize,
) -> *mut DevxObject {
    // SAFETY: as above.
    pointer(unsafe {
        direct(c).and_then(|direct| {
            let made = direct.create(input(command, length)?, output(answer, room)?);
            let object = made.map_err(Error::from)?;
            Ok(Box::into_raw(Box::new(object)))
        })
    })
}

/// `mlx5dv_devx_obj_query(3)`.
pub unsafe extern "C" fn mlx5dv_devx_obj_query(
    object: *mut DevxObject,
    command: *const c_void,
    length: usize,
    answer: *mut c_void,
    room: usize,
) -> c_int {
    // SAFETY: the caller passes an object, a command and room.
    status(unsafe {
        object.as_ref().ok_or(Failure::INVALID).and_then(|object| {
            let done = object.query(input(command, length)?, output(answer, room)?);
            Ok(done.map_err(Error::from)?)
        })
    })
}

/// `mlx5dv_devx_obj_modify(3)`.
pub unsafe extern "C" fn mlx5dv_devx_obj_modify(
    object: *mut DevxObject,
    command: *const c_void,
    length: usize,
    answer: *mut c_void,
    room: usize,
) -> c_int {
    // SAFETY: the caller passes an object, a command and room, and vouches for what it does.
    status(unsafe {
        object.as_ref().ok_or(Failure::INVALID).and_then(|object| {
            let done = object.modify(input(command, length)?, output(answer, room)?);
            Ok(done.map_err(Error::from)?)
        })
    })
}

/// `mlx5dv_devx_obj_destroy(3)`.
pub unsafe extern "C" fn mlx5dv_devx_obj_destroy(object: *mut DevxObject) -> c_int {
    // SAFETY: it was made by `mlx5dv_devx_obj_create`, and has no other user.
    status(unsafe {
        let found = object.as_mut().ok_or(Failure::INVALID);
        found.and_then(|found| {
            found.destroy_in_place()?;
            drop(Box::from_raw(object));
            Ok(())
        })
    })
}

macro_rules! about {
    ($($(#[$doc:meta])* $name:ident: $C:ty, $find:ident => $does:ident $(, then $then:ident)?;)*) => {
        $(
            $(#[$doc])*
            pub unsafe extern "C" fn $name(
                c: *mut $C,
                command: *const c_void,
                length: usize,
                answer: *mut c_void,
                room: usize,
            ) -> c_int {
                // SAFETY: the caller passes an object, a command and room, and vouches for what it does.
                status(unsafe {
                    $find(c).and_then(|object| {
                        let (command, answer) = (input(command, length)?, output(answer, room)?);
                        let handle = u32::from(object.handle());
                        let done = $does(object.context(), handle, command, answer);
                        done.map_err(Error::from)?;
                        $($then(object, command);)?
                        Ok(())
                    })
                })
            }
        )*
    };
}

about! {
    /// `mlx5dv_devx_qp_query(3)`.
    mlx5dv_devx_qp_query: ibv_qp, qp => query;
    /// `mlx5dv_devx_qp_modify(3)`. As with libmlx5, posts are taken or refused by the new state, of which
    /// neither the kernel nor `ibv_qp.state` tells.
    mlx5dv_devx_qp_modify: ibv_qp, qp => modify, then come_to;
    /// `mlx5dv_devx_cq_query(3)`.
    mlx5dv_devx_cq_query: ibv_cq, cq => query;
    /// `mlx5dv_devx_cq_modify(3)`.
    mlx5dv_devx_cq_modify: ibv_cq, cq => modify;
    /// `mlx5dv_devx_srq_query(3)`.
    mlx5dv_devx_srq_query: ibv_srq, srq => query;
    /// `mlx5dv_devx_srq_modify(3)`.
    mlx5dv_devx_srq_modify: ibv_srq, srq => modify;
}

/// Opens or shuts the queues of a queue pair by the state to which a command has taken it.
fn come_to(qp: &QpObject, command: &[u8]) {
    if let Some(state) = state_after(command) {
        qp.came_to(state);
    }
}

/// The state to which a command takes a queue pair, by the command's number in its first two bytes.
fn state_after(command: &[u8]) -> Option<QpState> {
    match u16::from_be_bytes(*command.first_chunk()?) {
        RST2INIT_QP | INIT2INIT_QP => Some(QpState::INIT),
        INIT2RTR_QP => Some(QpState::RTR),
        RTR2RTS_QP | RTS2RTS_QP | SQERR2RTS_QP | SQD_RTS_QP => Some(QpState::RTS),
        TO_ERR_QP => Some(QpState::ERR),
        TO_RST_QP => Some(QpState::RESET),
        _ => None,
    }
}

// Commands to the device, as `enum` in Linux's `include/linux/mlx5/mlx5_ifc.h` has them.
const RST2INIT_QP: u16 = 0x502;
const INIT2RTR_QP: u16 = 0x503;
const RTR2RTS_QP: u16 = 0x504;
const RTS2RTS_QP: u16 = 0x505;
const SQERR2RTS_QP: u16 = 0x506;
const TO_ERR_QP: u16 = 0x507;
const TO_RST_QP: u16 = 0x50a;
const SQD_RTS_QP: u16 = 0x50c;
const INIT2INIT_QP: u16 = 0x50e;

/// `mlx5dv_devx_query_eqn(3)`.
pub unsafe extern "C" fn mlx5dv_devx_query_eqn(
    c: *mut ibv_context,
    vector: u32,
    eqn: *mut u32,
) -> c_int {
    // SAFETY: the caller passes an open context and room for a number.
    status(unsafe {
        direct(c).and_then(|direct| {
            eqn.write(direct.eqn(vector)?);
            Ok(())
        })
    })
}

/// `struct mlx5dv_devx_umem`, and this library's fields after it.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_devx_umem {
    umem_id: u32,
    object: Owned<UmemHandle>,
}

/// `struct mlx5dv_devx_umem_in`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_devx_umem_in {
    addr: *mut c_void,
    size: usize,
    access: u32,
    pgsz_bitmap: u64,
    comp_mask: u64,
    dmabuf_fd: c_int,
}

const _: () = assert!(size_of::<mlx5dv_devx_umem_in>() == 48);

/// All sizes of pages from 4 KiB on: libmlx5 sends them if a program sets none.
const PAGE_SIZES: u64 = !0xfff;

/// # Safety
///
/// The pointer is to an open context, and the program is responsible for the memory.
unsafe fn register(c: *mut ibv_context, command: RegUmem) -> Result<*mut mlx5dv_devx_umem> {
    // SAFETY: by this function's contract.
    let direct = unsafe { direct(c)? };
    let context = direct.context();
    let (handle, umem_id) = context.fd().execute(&command)?;
    let object = Owned::new(context, handle);
    Ok(Box::into_raw(Box::new(mlx5dv_devx_umem {
        umem_id,
        object,
    })))
}

/// `mlx5dv_devx_umem_reg(3)`.
pub unsafe extern "C" fn mlx5dv_devx_umem_reg(
    c: *mut ibv_context,
    address: *mut c_void,
    size: usize,
    access: u32,
) -> *mut mlx5dv_devx_umem {
    let command = RegUmem {
        address: address.expose_provenance() as u64,
        length: size as u64,
        access,
        page_sizes: PAGE_SIZES,
        dmabuf: None,
    };
    // SAFETY: the caller passes an open context, and memory that stays.
    pointer(unsafe { register(c, command) })
}

/// `mlx5dv_devx_umem_reg_ex(3)`.
pub unsafe extern "C" fn mlx5dv_devx_umem_reg_ex(
    c: *mut ibv_context,
    wanted: *const mlx5dv_devx_umem_in,
) -> *mut mlx5dv_devx_umem {
    const DMABUF: u64 = 1 << 0;
    // SAFETY: the caller passes an open context, and what to register.
    pointer(unsafe {
        let wanted = wanted.as_ref().ok_or(Failure::INVALID);
        wanted.and_then(|wanted| {
            if wanted.comp_mask & !DMABUF != 0 {
                return Err(Failure::UNSUPPORTED);
            }
            let dmabuf = match wanted.comp_mask & DMABUF {
                0 => None,
                _ if wanted.dmabuf_fd == -1 => return Err(Failure(Errno::BADF)),
                _ => Some(wanted.dmabuf_fd),
            };
            let command = RegUmem {
                address: wanted.addr.expose_provenance() as u64,
                length: wanted.size as u64,
                access: wanted.access,
                page_sizes: wanted.pgsz_bitmap,
                dmabuf,
            };
            register(c, command)
        })
    })
}

/// `mlx5dv_devx_umem_dereg(3)`.
pub unsafe extern "C" fn mlx5dv_devx_umem_dereg(umem: *mut mlx5dv_devx_umem) -> c_int {
    // SAFETY: it was made by one of the functions above, and has no other user.
    status(unsafe {
        let found = umem.as_mut().ok_or(Failure::INVALID);
        found.and_then(|found| {
            found.object.destroy()?;
            drop(Box::from_raw(umem));
            Ok(())
        })
    })
}

/// The description of an exported object.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Exported {
    handle: u32,
    /// The number of exported memory.
    umem_id: u32,
}

/// `mlx5dv_get_export_sizes(3)`: three sizes of one type, whichever that is. Pages of registers (VAR) are not
/// exported.
pub unsafe extern "C" fn mlx5dv_get_export_sizes(sizes: *mut c_void, length: usize) {
    let size = size_of::<Exported>() as u8;
    // SAFETY: the caller passes room for that many bytes.
    let sizes = unsafe { output(sizes, length) }.unwrap_or_default();
    sizes.fill(0);
    let each = length / 3;
    for place in [each, 2 * each] {
        if let Some(lowest) = sizes.get_mut(place) {
            *lowest = size;
        }
    }
}

/// `mlx5dv_devx_umem_export(3)`.
pub unsafe extern "C" fn mlx5dv_devx_umem_export(
    umem: *mut mlx5dv_devx_umem,
    data: *mut Exported,
) -> c_int {
    // SAFETY: the caller passes memory of the functions above, and room.
    status(unsafe {
        umem.as_ref().ok_or(Failure::INVALID).map(|umem| {
            data.write_unaligned(Exported {
                handle: umem.object.handle().into(),
                umem_id: umem.umem_id,
            });
        })
    })
}

/// `mlx5dv_devx_umem_import(3)`. Whether such memory exists cannot be checked.
pub unsafe extern "C" fn mlx5dv_devx_umem_import(
    c: *mut ibv_context,
    data: *const Exported,
) -> *mut mlx5dv_devx_umem {
    // SAFETY: the caller passes an open context, and what was exported.
    pointer(unsafe {
        direct(c).map(|direct| {
            let Exported { handle, umem_id } = data.read_unaligned();
            let object = Owned::new(direct.context(), UmemHandle(handle));
            Box::into_raw(Box::new(mlx5dv_devx_umem { umem_id, object }))
        })
    })
}

/// `mlx5dv_devx_umem_unimport(3)`.
pub unsafe extern "C" fn mlx5dv_devx_umem_unimport(umem: *mut mlx5dv_devx_umem) {
    if umem.is_null() {
        return;
    }
    // SAFETY: the caller has imported it, and does not use it any more.
    let mut umem = unsafe { Box::from_raw(umem) };
    umem.object.leave();
}

/// `mlx5dv_devx_obj_export(3)`.
pub unsafe extern "C" fn mlx5dv_devx_obj_export(
    object: *mut DevxObject,
    data: *mut Exported,
) -> c_int {
    // SAFETY: the caller passes an object, and room.
    status(unsafe {
        object.as_ref().ok_or(Failure::INVALID).map(|object| {
            data.write_unaligned(Exported {
                handle: object.handle(),
                umem_id: 0,
            });
        })
    })
}

/// `mlx5dv_devx_obj_import(3)`. Whether such an object exists cannot be checked.
pub unsafe extern "C" fn mlx5dv_devx_obj_import(
    c: *mut ibv_context,
    data: *const Exported,
) -> *mut DevxObject {
    // SAFETY: the caller passes an open context, and what was exported.
    pointer(unsafe {
        direct(c).map(|direct| {
            let Exported { handle, .. } = data.read_unaligned();
            let object = DevxObject::imported(direct.context(), ObjectHandle(handle));
            Box::into_raw(Box::new(object))
        })
    })
}

/// `mlx5dv_devx_obj_unimport(3)`.
pub unsafe extern "C" fn mlx5dv_devx_obj_unimport(object: *mut DevxObject) {
    if object.is_null() {
        return;
    }
    // SAFETY: the caller has imported it, and does not use it any more.
    unsafe { Box::from_raw(object) }.leave();
}

/// `mlx5dv_query_port(3)`: as much of the answer as fits into the program's struct.
pub unsafe extern "C" fn mlx5dv_query_port(
    c: *mut ibv_context,
    port: u32,
    info: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes an open context and room.
    status(unsafe {
        direct(c).and_then(|direct| {
            let port = u8::try_from(port).map_err(|_| Failure::INVALID)?;
            let told = direct.query_port(port)?;
            let room = output(info, length)?;
            for (to, from) in room.iter_mut().zip(told.as_bytes()) {
                *to = *from;
            }
            Ok(())
        })
    })
}

/// `struct mlx5dv_devx_uar`, and this library's fields after it.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_devx_uar {
    reg_addr: *mut c_void,
    base_addr: *mut c_void,
    page_id: u32,
    mmap_off: u64,
    comp_mask: u64,
    uar: Uar,
    /// It is the context's, and not freed before that.
    is_contexts: bool,
}

// SAFETY: the addresses are those of the page, which may be used in any thread, and go with it.
unsafe impl Send for mlx5dv_devx_uar {}

impl mlx5dv_devx_uar {
    fn new(direct: &Direct, kind: UarKind, is_contexts: bool) -> Result<Box<Self>> {
        let uar = direct.alloc_uar(kind)?;
        Ok(Box::new(Self {
            reg_addr: uar.send_register().as_ptr().cast(),
            base_addr: uar.base().as_ptr().cast(),
            page_id: uar.page_id(),
            mmap_off: uar.offset(),
            comp_mask: 0,
            uar,
            is_contexts,
        }))
    }
}

/// The uncached page of a context, for all who ask for one: stores to it are whole, so any number of queues
/// may have their doorbells there. Programs ask for each of theirs, and a device has few pages.
#[derive(Debug, Default)]
pub(in crate::c) struct CommonUar(Mutex<Option<Box<mlx5dv_devx_uar>>>);

impl CommonUar {
    fn get(&self, direct: &Direct) -> Result<*mut mlx5dv_devx_uar> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uar = match kept.take() {
            Some(uar) => uar,
            None => mlx5dv_devx_uar::new(direct, UarKind::Uncached, true)?,
        };
        Ok(&raw mut **kept.insert(uar))
    }
}

/// `mlx5dv_devx_alloc_uar(3)`: a page whose first register is told; without other flags the uncached one is
/// the same each time, as with libmlx5.
pub unsafe extern "C" fn mlx5dv_devx_alloc_uar(
    c: *mut ibv_context,
    flags: u32,
) -> *mut mlx5dv_devx_uar {
    const COMBINING: u32 = 0;
    const UNCACHED: u32 = 1;
    const UNCACHED_DEDICATED: u32 = 1 << 31;
    // SAFETY: the caller passes an open context.
    pointer(unsafe {
        context(c).and_then(|context| {
            let direct = Direct::of(context.context())?;
            let new = |kind| mlx5dv_devx_uar::new(&direct, kind, false).map(Box::into_raw);
            match flags {
                COMBINING => new(UarKind::Combining),
                UNCACHED => context.kept().uncached.get(&direct),
                UNCACHED_DEDICATED => new(UarKind::Uncached),
                _ => Err(Failure::UNSUPPORTED),
            }
        })
    })
}

/// `mlx5dv_devx_free_uar(3)`: that of the context stays.
pub unsafe extern "C" fn mlx5dv_devx_free_uar(uar: *mut mlx5dv_devx_uar) {
    // SAFETY: it was made by the function above.
    match unsafe { uar.as_ref() } {
        None => (),
        Some(found) if found.is_contexts => (),
        // SAFETY: as above, and it has no other user.
        Some(_) => drop(unsafe { Box::from_raw(uar) }),
    }
}

/// `struct mlx5dv_devx_event_channel`, and this library's fields after it.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_devx_event_channel {
    fd: c_int,
    channel: EventChannel,
}

/// `mlx5dv_devx_create_event_channel(3)`.
pub unsafe extern "C" fn mlx5dv_devx_create_event_channel(
    c: *mut ibv_context,
    flags: u32,
) -> *mut mlx5dv_devx_event_channel {
    const OMIT_DATA: u32 = 1 << 0;
    // SAFETY: the caller passes an open context.
    pointer(unsafe {
        direct(c).and_then(|direct| {
            let channel = match flags {
                0 => direct.event_channel(true)?,
                OMIT_DATA => direct.event_channel(false)?,
                _ => return Err(Failure::INVALID),
            };
            let fd = channel.as_fd().as_raw_fd();
            Ok(Box::into_raw(Box::new(mlx5dv_devx_event_channel {
                fd,
                channel,
            })))
        })
    })
}

/// `mlx5dv_devx_destroy_event_channel(3)`.
pub unsafe extern "C" fn mlx5dv_devx_destroy_event_channel(
    channel: *mut mlx5dv_devx_event_channel,
) {
    if !channel.is_null() {
        // SAFETY: it was made by the function above, and has no other user.
        drop(unsafe { Box::from_raw(channel) });
    }
}

/// `mlx5dv_devx_subscribe_devx_event(3)`. The size of the list is in bytes.
pub unsafe extern "C" fn mlx5dv_devx_subscribe_devx_event(
    channel: *mut mlx5dv_devx_event_channel,
    object: *mut DevxObject,
    size: u16,
    events: *const u16,
    cookie: u64,
) -> c_int {
    // SAFETY: the caller passes a channel, an object or NULL, and a list of that many bytes.
    status(unsafe {
        let channel = channel.as_ref().ok_or(Failure::INVALID);
        channel.and_then(|channel| {
            if events.is_null() || !size.is_multiple_of(2) {
                return Err(Failure::INVALID);
            }
            let numbers = slice::from_raw_parts(events, usize::from(size) / 2);
            let kinds: Vec<EventType> = numbers.iter().copied().map(EventType).collect();
            let object = object.as_ref().map(DevxObject::handle);
            Ok(channel.channel.subscribe_to(object, &kinds, cookie)?)
        })
    })
}

/// `mlx5dv_devx_get_event(3)`: the number of bytes read, or -1.
pub unsafe extern "C" fn mlx5dv_devx_get_event(
    channel: *mut mlx5dv_devx_event_channel,
    event: *mut c_void,
    length: usize,
) -> isize {
    // SAFETY: the caller passes a channel, and room for that many bytes.
    let read = unsafe {
        let channel = channel.as_ref().ok_or(Failure::INVALID);
        channel.and_then(|channel| {
            let room = output(event, length)?;
            Ok(rustix::io::read(&channel.channel, room)?)
        })
    };
    match read {
        Ok(length) => length as isize,
        Err(failure) => {
            failure.tell();
            -1
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_lie_where_the_header_has_them() {
        assert_eq!(offset_of!(mlx5dv_devx_umem, umem_id), 0);
        assert_eq!(offset_of!(mlx5dv_devx_umem_in, pgsz_bitmap), 24);
        assert_eq!(offset_of!(mlx5dv_devx_umem_in, dmabuf_fd), 40);
        assert_eq!(offset_of!(mlx5dv_devx_uar, page_id), 16);
        assert_eq!(offset_of!(mlx5dv_devx_uar, mmap_off), 24);
        assert_eq!(offset_of!(mlx5dv_devx_uar, comp_mask), 32);
        assert_eq!(offset_of!(mlx5dv_devx_event_channel, fd), 0);
    }
}
