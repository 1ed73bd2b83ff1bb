//! The memory of objects (`mlx5dv_init_obj(3)`), for programs that post and poll by themselves, and objects
//! with properties that only this device has: completion queues, contexts, device memory, regions in
//! dma-bufs.
//!
//! A program that writes to a ring must be its only user: this library does not notice what it writes.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use uverbs_uapi::mlx5::RegDmabufFlags;

use crate::c::abi::attr::ibv_cq_init_attr_ex;
use crate::c::abi::context::ibv_context;
use crate::c::abi::device::ibv_device;
use crate::c::abi::dm::{ibv_alloc_dm_attr, ibv_dm};
use crate::c::abi::ibv_pd;
use crate::c::abi::queue::{ibv_ah, ibv_cq, ibv_cq_ex, ibv_mr, ibv_qp, ibv_srq};
use crate::c::ah::ah;
use crate::c::context::{context, ibv_close_device, ibv_open_device};
use crate::c::cq::cq;
use crate::c::device::driver_of;
use crate::c::dm::{alloc_dm, device_memory};
use crate::c::failure::{Failure, Result, pointer, status};
use crate::c::mr::reg_dmabuf_mr;
use crate::c::pd::pd;
use crate::c::poll_ex::create_extended;
use crate::c::qp::qp;
use crate::c::srq::srq;
use crate::device::DriverId;
use crate::direct::mlx5::{DevxObject, Direct, data_direct};
use crate::driver::Listed as _;
use crate::driver::mlx5::Device;
use crate::driver::mlx5::place::{CqPlace, QpPlace, RingPlace, SrqPlace};
use crate::error::Errno;

/// A ring in the structs below: its address, the number of elements, the bytes of one.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(in crate::c) struct Ring {
    buf: *mut c_void,
    wqe_cnt: u32,
    stride: u32,
}

impl From<RingPlace> for Ring {
    fn from(place: RingPlace) -> Self {
        Self {
            buf: place.first.as_ptr().cast(),
            wqe_cnt: place.entries,
            stride: place.entry_bytes,
        }
    }
}

/// `struct mlx5dv_qp`. Fields without a name here are for raw packets.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_qp {
    dbrec: *mut u32,
    sq: Ring,
    rq: Ring,
    bf_reg: *mut c_void,
    bf_size: u32,
    /// The requested fields, then the reported ones.
    comp_mask: u64,
    uar_mmap_offset: i64,
    _of_raw_packets: [u32; 4],
    _tir_icm_addr: u64,
}

/// `struct mlx5dv_cq`.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_cq {
    buf: *mut c_void,
    dbrec: *mut u32,
    cqe_cnt: u32,
    cqe_size: u32,
    cq_uar: *mut c_void,
    cqn: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_srq`.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_srq {
    buf: *mut c_void,
    dbrec: *mut u32,
    stride: u32,
    head: u32,
    tail: u32,
    /// The requested fields, then the reported ones.
    comp_mask: u64,
    srqn: u32,
}

/// `struct mlx5dv_dm`.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_dm {
    buf: *mut c_void,
    length: u64,
    /// The requested fields, then the reported ones.
    comp_mask: u64,
    remote_va: u64,
}

/// `struct mlx5dv_ah`.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_ah {
    /// `struct mlx5_wqe_av`.
    av: *const c_void,
    comp_mask: u64,
}

/// `struct mlx5dv_pd`.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_pd {
    pdn: u32,
    comp_mask: u64,
}

/// `struct mlx5dv_devx`.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_devx {
    handle: u32,
}

/// An object, and the room for the answer about it.
#[repr(C)]
struct Asked<C, Told> {
    object: *mut C,
    told: *mut Told,
}

/// `struct mlx5dv_obj`.
#[repr(C)]
pub struct mlx5dv_obj {
    qp: Asked<ibv_qp, mlx5dv_qp>,
    cq: Asked<ibv_cq, mlx5dv_cq>,
    srq: Asked<ibv_srq, mlx5dv_srq>,
    _rwq: Asked<c_void, c_void>,
    dm: Asked<ibv_dm, mlx5dv_dm>,
    ah: Asked<ibv_ah, mlx5dv_ah>,
    pd: Asked<ibv_pd, mlx5dv_pd>,
    devx: Asked<DevxObject, mlx5dv_devx>,
}

/// `enum mlx5dv_obj_type`.
mod kind {
    pub(super) const QP: u64 = 1 << 0;
    pub(super) const CQ: u64 = 1 << 1;
    pub(super) const SRQ: u64 = 1 << 2;
    pub(super) const RWQ: u64 = 1 << 3;
    pub(super) const DM: u64 = 1 << 4;
    pub(super) const AH: u64 = 1 << 5;
    pub(super) const PD: u64 = 1 << 6;
    pub(super) const DEVX: u64 = 1 << 7;
    pub(super) const ALL: u64 = (1 << 8) - 1;
}

/// The value, or a refusal if there is none.
fn of_this_device<T>(found: Option<T>) -> Result<T> {
    found.ok_or(Failure::UNSUPPORTED)
}

fn record(first: NonNull<u8>) -> *mut u32 {
    first.as_ptr().cast()
}

/// The bits that are both requested and known.
fn told(asked: u64, known: u64) -> u64 {
    asked & known
}

/// # Safety
///
/// The pointers are to an object and to room for the answer.
unsafe fn tell_qp(asked: &Asked<ibv_qp, mlx5dv_qp>) -> Result<()> {
    const UAR_MMAP_OFFSET: u64 = 1 << 0;
    // SAFETY: by this function's contract.
    let (qp, to) = unsafe { (qp(asked.object)?, &mut *asked.told) };
    // Targets of dynamic connections and of XRC have no rings.
    let QpPlace {
        send,
        receive,
        record: words,
        register,
    } = of_this_device(qp.backing.as_ref().and_then(Device::get))?.place();
    to.dbrec = record(words);
    (to.sq, to.rq) = (send.into(), receive.into());
    to.bf_reg = register.first.as_ptr().cast();
    to.bf_size = register.half;
    to.comp_mask = told(to.comp_mask, UAR_MMAP_OFFSET);
    if to.comp_mask & UAR_MMAP_OFFSET != 0 {
        to.uar_mmap_offset = register.page_offset.cast_signed();
    }
    Ok(())
}

/// # Safety
///
/// As for [`tell_qp`].
unsafe fn tell_cq(asked: &Asked<ibv_cq, mlx5dv_cq>) -> Result<()> {
    // SAFETY: by this function's contract.
    let (cq, to) = unsafe { (cq(asked.object)?, asked.told) };
    let CqPlace {
        ring,
        record: words,
        page,
        number,
    } = of_this_device(Device::get(cq.backing()))?.place();
    let answer = mlx5dv_cq {
        buf: ring.first.as_ptr().cast(),
        dbrec: record(words),
        cqe_cnt: ring.entries,
        cqe_size: ring.entry_bytes,
        cq_uar: page.as_ptr().cast(),
        cqn: number,
        comp_mask: 0,
    };
    // SAFETY: as above.
    unsafe { to.write(answer) };
    Ok(())
}

/// # Safety
///
/// As for [`tell_qp`].
unsafe fn tell_srq(asked: &Asked<ibv_srq, mlx5dv_srq>) -> Result<()> {
    const SRQN: u64 = 1 << 0;
    // SAFETY: by this function's contract.
    let (srq, to) = unsafe { (srq(asked.object)?, &mut *asked.told) };
    let SrqPlace {
        ring,
        record: words,
        head,
        number,
    } = of_this_device(Device::get(srq.backing()))?.place();
    to.buf = ring.first.as_ptr().cast();
    to.dbrec = record(words);
    to.stride = ring.entry_bytes;
    to.head = head;
    // In a queue to which nothing was posted yet, the element before the head is the last free one.
    to.tail = head.wrapping_sub(1) & (ring.entries - 1);
    to.comp_mask = told(to.comp_mask, SRQN);
    if to.comp_mask & SRQN != 0 {
        to.srqn = number;
    }
    Ok(())
}

/// # Safety
///
/// As for [`tell_qp`].
unsafe fn tell_dm(asked: &Asked<ibv_dm, mlx5dv_dm>) -> Result<()> {
    const REMOTE_VA: u64 = 1 << 0;
    // SAFETY: by this function's contract.
    let (memory, to) = unsafe { (device_memory(asked.object)?, &mut *asked.told) };
    let first = of_this_device(Device::get(memory))?.first();
    to.buf = first.as_ptr().cast();
    to.length = memory.length();
    to.comp_mask = told(to.comp_mask, REMOTE_VA);
    if to.comp_mask & REMOTE_VA != 0 {
        // Only other kinds of memory have an address of their own for peers.
        to.remote_va = 0;
    }
    Ok(())
}

/// # Safety
///
/// As for [`tell_qp`].
unsafe fn tell_ah(asked: &Asked<ibv_ah, mlx5dv_ah>) -> Result<()> {
    // SAFETY: by this function's contract.
    let (ah, to) = unsafe { (ah(asked.object)?, asked.told) };
    let answer = mlx5dv_ah {
        av: ptr::from_ref(of_this_device(Device::get(ah.vector()))?.vector()).cast(),
        comp_mask: 0,
    };
    // SAFETY: as above.
    unsafe { to.write(answer) };
    Ok(())
}

/// # Safety
///
/// As for [`tell_qp`].
unsafe fn tell_pd(asked: &Asked<ibv_pd, mlx5dv_pd>) -> Result<()> {
    // SAFETY: by this function's contract.
    let (pd, to) = unsafe { (pd(asked.object)?.pd(), asked.told) };
    let answer = mlx5dv_pd {
        pdn: Direct::of(pd.context())?.pdn(pd)?,
        comp_mask: 0,
    };
    // SAFETY: as above.
    unsafe { to.write(answer) };
    Ok(())
}

/// # Safety
///
/// As for [`tell_qp`].
unsafe fn tell_devx(asked: &Asked<DevxObject, mlx5dv_devx>) -> Result<()> {
    // SAFETY: by this function's contract.
    unsafe {
        let object = asked.object.as_ref().ok_or(Failure::INVALID)?;
        let handle = object.handle();
        asked.told.write(mlx5dv_devx { handle });
    }
    Ok(())
}

/// Answers for all objects of these kinds, up to the first for which it cannot.
///
/// # Safety
///
/// The pointer is to objects of these kinds and room for the answers, or NULL.
unsafe fn tell(objects: *mut mlx5dv_obj, kinds: u64) -> Result<()> {
    // SAFETY: by this function's contract.
    unsafe {
        let asked = objects.as_ref().ok_or(Failure::INVALID)?;
        let has = |kind| kinds & kind != 0;
        if !has(kind::ALL) {
            return Err(Failure::INVALID);
        }
        if has(kind::QP) {
            tell_qp(&asked.qp)?;
        }
        if has(kind::CQ) {
            tell_cq(&asked.cq)?;
        }
        if has(kind::SRQ) {
            tell_srq(&asked.srq)?;
        }
        if has(kind::RWQ) {
            // This library has no work queues.
            return Err(Failure::UNSUPPORTED);
        }
        if has(kind::DM) {
            tell_dm(&asked.dm)?;
        }
        if has(kind::AH) {
            tell_ah(&asked.ah)?;
        }
        if has(kind::PD) {
            tell_pd(&asked.pd)?;
        }
        if has(kind::DEVX) {
            tell_devx(&asked.devx)?;
        }
        Ok(())
    }
}

/// `mlx5dv_init_obj(3)`.
pub unsafe extern "C" fn mlx5dv_init_obj(objects: *mut mlx5dv_obj, kinds: u64) -> c_int {
    // SAFETY: the caller passes objects, with room for the answers.
    status(unsafe { tell(objects, kinds) })
}

/// `mlx5dv_is_supported(3)`.
pub unsafe extern "C" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool {
    // SAFETY: the caller passes a device of a list.
    !device.is_null() && unsafe { driver_of(device) } == Some(DriverId::MLX5)
}

/// `struct mlx5dv_context_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_context_attr {
    flags: u32,
    comp_mask: u64,
    _fds: *mut c_void,
}

/// `mlx5dv_open_device(3)`: an ordinary context; with the flag it fails if the context takes no commands.
pub unsafe extern "C" fn mlx5dv_open_device(
    device: *mut ibv_device,
    attr: *const mlx5dv_context_attr,
) -> *mut ibv_context {
    const DEVX: u32 = 1 << 0;
    // SAFETY: the caller passes a device of a list, and attributes or NULL.
    pointer(unsafe {
        let attr = attr.as_ref();
        let flags = attr.map_or(0, |attr| attr.flags);
        if !mlx5dv_is_supported(device) || attr.is_some_and(|attr| attr.comp_mask != 0) {
            return pointer(Err(Failure::UNSUPPORTED));
        }
        if flags & !DEVX != 0 {
            return pointer(Err(Failure::INVALID));
        }
        let opened = ibv_open_device(device);
        let refused = match context(opened) {
            Ok(found) if flags & DEVX != 0 => Direct::of(found.context()).err(),
            // `ibv_open_device` has set errno if it failed.
            Ok(_) | Err(_) => None,
        };
        match refused {
            None => return opened,
            Some(error) => {
                ibv_close_device(opened);
                Err(error.into())
            }
        }
    })
}

/// `struct mlx5dv_cq_init_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_cq_init_attr {
    comp_mask: u64,
    _cqe_comp_res_format: u8,
    flags: u32,
    cqe_size: u16,
}

/// The requested length of entries, if the program requests one.
fn entry_bytes(attr: Option<&mlx5dv_cq_init_attr>) -> Result<Option<u32>> {
    /// `enum mlx5dv_cq_init_attr_mask`. Entries are not compressed here.
    const COMPRESSED: u64 = 1 << 0;
    const FLAGS: u64 = 1 << 1;
    const CQE_SIZE: u64 = 1 << 2;
    let Some(attr) = attr else {
        return Ok(None);
    };
    let has = |bit| attr.comp_mask & bit != 0;
    if attr.comp_mask & !(COMPRESSED | FLAGS | CQE_SIZE) != 0 {
        return Err(Failure::INVALID);
    }
    if has(COMPRESSED) || has(FLAGS) && attr.flags != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    match (has(CQE_SIZE), attr.cqe_size) {
        (false, _) => Ok(None),
        (true, size @ (64 | 128)) => Ok(Some(size.into())),
        (true, _) => Err(Failure::INVALID),
    }
}

/// `mlx5dv_create_cq(3)`: the queue also works with `ibv_poll_cq`.
pub unsafe extern "C" fn mlx5dv_create_cq(
    c: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
    attr: *const mlx5dv_cq_init_attr,
) -> *mut ibv_cq_ex {
    // SAFETY: the caller passes an open context, and attributes with objects of it, the second ones or NULL.
    let made = unsafe {
        of_mlx5(c)
            .and_then(|()| entry_bytes(attr.as_ref()))
            .and_then(|bytes| create_extended(c, init, bytes))
    };
    pointer(made).cast()
}

/// # Safety
///
/// The pointer is to an open context.
unsafe fn of_mlx5(c: *mut ibv_context) -> Result<()> {
    // SAFETY: by this function's contract.
    super::dc::device(unsafe { context(c)? }.context()).map(drop)
}

/// `struct mlx5dv_alloc_dm_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct mlx5dv_alloc_dm_attr {
    kind: u32,
    comp_mask: u64,
}

/// `mlx5dv_alloc_dm(3)`: the memory of `ibv_alloc_dm(3)`. The other kinds are for steering.
pub unsafe extern "C" fn mlx5dv_alloc_dm(
    c: *mut ibv_context,
    dm: *mut ibv_alloc_dm_attr,
    attr: *const mlx5dv_alloc_dm_attr,
) -> *mut ibv_dm {
    const MEMIC: u32 = 0;
    // SAFETY: the caller passes an open context and attributes.
    unsafe {
        let is_known = of_mlx5(c).and(match attr.as_ref() {
            None => Err(Failure::INVALID),
            Some(attr) if attr.kind == MEMIC && attr.comp_mask == 0 => Ok(()),
            Some(_) => Err(Failure::UNSUPPORTED),
        });
        match is_known {
            Ok(()) => alloc_dm(c, dm),
            Err(failure) => pointer(Err(failure)),
        }
    }
}

/// `mlx5dv_reg_dmabuf_mr(3)`: like `ibv_reg_dmabuf_mr(3)`, or by the function that reaches memory past the
/// processor.
pub unsafe extern "C" fn mlx5dv_reg_dmabuf_mr(
    c: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
    mlx5_access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller passes a PD.
    let found = unsafe { pd(c) }.and_then(|pd| super::dc::device(pd.pd().context()).map(drop));
    let known = RegDmabufFlags::from_bits(mlx5_access as u32).ok_or(Failure::UNSUPPORTED);
    match found.and(known) {
        Err(failure) => pointer(Err(failure)),
        // SAFETY: as above.
        Ok(how) => unsafe {
            reg_dmabuf_mr(
                c,
                (offset, length),
                iova,
                fd,
                access,
                data_direct::told(how),
            )
        },
    }
}

/// `mlx5dv_get_data_direct_sysfs_path(3)`: the path is without "/sys".
pub unsafe extern "C" fn mlx5dv_get_data_direct_sysfs_path(
    c: *mut ibv_context,
    path: *mut c_char,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes an open context, and room for `length` bytes.
    status(unsafe {
        of_mlx5(c).and_then(|()| {
            let found = context(c)?.context().fd().execute(&data_direct::Path)?;
            if path.is_null() || length <= found.len() {
                return Err(Failure(Errno::NOSPC));
            }
            path.cast::<u8>()
                .copy_from_nonoverlapping(found.as_ptr(), found.len());
            path.cast::<u8>().add(found.len()).write(0);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn fields_lie_where_the_header_has_them() {
        assert_eq!(offset_of!(mlx5dv_qp, sq), 8);
        assert_eq!(offset_of!(mlx5dv_qp, rq), 24);
        assert_eq!(offset_of!(mlx5dv_qp, bf_reg), 40);
        assert_eq!(offset_of!(mlx5dv_qp, bf_size), 48);
        assert_eq!(offset_of!(mlx5dv_qp, comp_mask), 56);
        assert_eq!(offset_of!(mlx5dv_qp, uar_mmap_offset), 64);
        assert_eq!(size_of::<mlx5dv_qp>(), 96);
        assert_eq!(offset_of!(mlx5dv_cq, cq_uar), 24);
        assert_eq!(offset_of!(mlx5dv_cq, cqn), 32);
        assert_eq!(offset_of!(mlx5dv_cq, comp_mask), 40);
        assert_eq!(offset_of!(mlx5dv_srq, tail), 24);
        assert_eq!(offset_of!(mlx5dv_srq, comp_mask), 32);
        assert_eq!(offset_of!(mlx5dv_srq, srqn), 40);
        assert_eq!(offset_of!(mlx5dv_dm, remote_va), 24);
        assert_eq!(offset_of!(mlx5dv_obj, dm), 64);
        assert_eq!(offset_of!(mlx5dv_obj, devx), 112);
        assert_eq!(offset_of!(mlx5dv_cq_init_attr, flags), 12);
        assert_eq!(offset_of!(mlx5dv_cq_init_attr, cqe_size), 16);
        assert_eq!(offset_of!(mlx5dv_context_attr, comp_mask), 8);
        assert_eq!(offset_of!(mlx5dv_alloc_dm_attr, comp_mask), 8);
    }

    #[test]
    fn entries_have_the_bytes_that_are_asked_for() {
        let attr = |comp_mask, flags, cqe_size| mlx5dv_cq_init_attr {
            comp_mask,
            _cqe_comp_res_format: 1,
            flags,
            cqe_size,
        };
        let bytes = |comp_mask, flags, size| entry_bytes(Some(&attr(comp_mask, flags, size)));
        assert_eq!(entry_bytes(None), Ok(None));
        assert_eq!(bytes(0, 1, 99), Ok(None));
        assert_eq!(bytes(4, 0, 64), Ok(Some(64)));
        assert_eq!(bytes(4, 0, 128), Ok(Some(128)));
        assert_eq!(bytes(4, 0, 32), Err(Failure::INVALID));
        assert_eq!(bytes(8, 0, 64), Err(Failure::INVALID));
        assert_eq!(bytes(1, 0, 64), Err(Failure::UNSUPPORTED));
        assert_eq!(bytes(2, 1, 64), Err(Failure::UNSUPPORTED));
        assert_eq!(bytes(2, 0, 64), Ok(None));
    }
}
