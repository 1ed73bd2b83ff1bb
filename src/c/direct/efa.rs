//! Direct verbs of Elastic Fabric Adapters (`efadv(7)`), over the crate's own. They fail with `EOPNOTSUPP` on
//! other devices.
//!
//! Structs grow at their ends, so a program passes the length of its own. Bytes after that length are not
//! accessed, and bytes after the end of the newest struct here must be zero.

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use uverbs_uapi::efa::{DeviceCaps, QP_DRIVER_TYPE_SRD};
use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::QpCreateFlags;
use zerocopy::{FromBytes, IntoBytes};

use crate::c::abi::attr::{ibv_cq_init_attr_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use crate::c::abi::context::ibv_context;
use crate::c::abi::ibv_pd;
use crate::c::abi::port::ibv_gid;
use crate::c::abi::queue::{ibv_ah, ibv_cq, ibv_cq_ex, ibv_mr, ibv_qp, ibv_qp_ex};
use crate::c::ah::{AhObject, ah};
use crate::c::context::context;
use crate::c::cq::{CqObject, cq};
use crate::c::failure::{Failure, Result, pointer, status};
use crate::c::mr::kernel_of;
use crate::c::object::object;
use crate::c::pd::pd;
use crate::c::poll::own;
use crate::c::poll_ex::create_cq_ex;
use crate::c::qp::{Own, create_with, qp};
use crate::c::qp_ex;
use crate::c::query::fill;
use crate::context::Context;
use crate::driver::contract::{self, Completion as _, Cq as _};
use crate::driver::efa::{Efa, Limits};
use crate::driver::{Listed as _, OneOf};
use crate::error::Errno;

/// `struct efadv_device_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct efadv_device_attr {
    comp_mask: u64,
    max_sq_wr: u32,
    max_rq_wr: u32,
    max_sq_sge: u16,
    max_rq_sge: u16,
    inline_buf_size: u16,
    inline_buf_size_ex: u16,
    device_caps: u32,
    max_rdma_size: u32,
}

/// `struct efadv_ah_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct efadv_ah_attr {
    comp_mask: u64,
    ahn: u16,
    reserved: [u8; 6],
}

/// `struct efadv_mr_attr`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct efadv_mr_attr {
    comp_mask: u64,
    ic_id_validity: u16,
    recv_ic_id: u16,
    rdma_read_ic_id: u16,
    rdma_recv_ic_id: u16,
}

/// `struct efadv_sq_depth_attr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct efadv_sq_depth_attr {
    comp_mask: u64,
    flags: u32,
    max_send_sge: u32,
    max_rdma_sge: u32,
    max_inline_data: u32,
}

/// `struct efadv_rq_depth_attr`, without the padding at its end.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct efadv_rq_depth_attr {
    comp_mask: u64,
    max_recv_sge: u32,
    _end: u32,
}

/// `struct efadv_qp_init_attr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct efadv_qp_init_attr {
    comp_mask: u64,
    driver_qp_type: u32,
    flags: u16,
    sl: u8,
    reserved: u8,
    wr_flags: u64,
}

/// `struct efadv_cq_init_attr`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes)]
#[repr(C)]
pub struct efadv_cq_init_attr {
    comp_mask: u64,
    wc_flags: u64,
    flags: u64,
    ext_mem_dmabuf: [u64; 4],
}

/// `struct efadv_wq_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct efadv_wq_attr {
    comp_mask: u64,
    buffer: *mut u8,
    entry_size: u32,
    num_entries: u32,
    doorbell: *mut u32,
    max_batch: u32,
    caps: u16,
    reserved: [u8; 2],
}

/// `struct efadv_cq_attr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct efadv_cq_attr {
    comp_mask: u64,
    buffer: *mut u8,
    entry_size: u32,
    num_entries: u32,
    doorbell: *mut u32,
}

/// `struct efadv_cq`: the functions that programs call while they poll. Both are set, whether they were
/// requested or not.
#[derive(Debug)]
#[repr(C)]
pub struct efadv_cq {
    comp_mask: u64,
    wc_read_sgid: Option<unsafe extern "C" fn(*mut efadv_cq, *mut ibv_gid) -> c_int>,
    wc_is_unsolicited: Option<unsafe extern "C" fn(*mut efadv_cq) -> bool>,
}

/// `struct efadv_qp`: what programs call while they post.
#[derive(Debug)]
#[repr(C)]
pub struct efadv_qp {
    comp_mask: u64,
    wr_set_processing_hints: unsafe extern "C" fn(*mut efadv_qp, u32),
}

const _: () = {
    assert!(size_of::<efadv_device_attr>() == 32 && size_of::<efadv_ah_attr>() == 16);
    assert!(size_of::<efadv_mr_attr>() == 16 && size_of::<efadv_sq_depth_attr>() == 24);
    assert!(size_of::<efadv_rq_depth_attr>() == 16 && size_of::<efadv_qp_init_attr>() == 24);
    assert!(size_of::<efadv_cq_init_attr>() == 56 && size_of::<efadv_wq_attr>() == 40);
    assert!(size_of::<efadv_cq_attr>() == 32 && size_of::<efadv_cq>() == 24);
};

/// `enum` of `EFADV_DEVICE_ATTR_CAPS_*`, with the kernel's bit for each. Not reported: completion queues in
/// given memory, and counters, which this library does not have.
const CAPS: [(DeviceCaps, u32); 5] = [
    (DeviceCaps::RDMA_READ, 1 << 0),
    (DeviceCaps::RNR_RETRY, 1 << 1),
    (DeviceCaps::CQ_WITH_SGID, 1 << 2),
    (DeviceCaps::RDMA_WRITE, 1 << 3),
    (DeviceCaps::UNSOLICITED_WRITE_RECV, 1 << 4),
];

/// `EFADV_QP_FLAGS_*`.
mod qp_flags {
    pub(super) const UNSOLICITED_WRITE_RECV: u16 = 1 << 0;
    pub(super) const INLINE_WRITE: u16 = 1 << 1;
}

/// `EFADV_WR_EX_WITH_PROCESSING_HINTS`.
const WITH_HINTS: u64 = 1 << 0;

/// `EFADV_WC_EX_WITH_*`.
mod wc_flags {
    pub(super) const SGID: u64 = 1 << 0;
    pub(super) const IS_UNSOLICITED: u64 = 1 << 1;
}

/// The device, if it is an EFA.
fn device(context: &Context) -> Result<&Efa> {
    match context.driver() {
        OneOf::Efa(device) => Ok(device),
        #[allow(unreachable_patterns, reason = "there may be no other driver")]
        _ => Err(Failure::UNSUPPORTED),
    }
}

/// Writes an answer to a program's struct of `room` bytes, at least up to the end of a field.
///
/// # Safety
///
/// The pointer is NULL, or `room` bytes may be written there.
unsafe fn give<T>(answer: T, to: *mut T, room: u32, least: usize) -> Result<()> {
    let room = room as usize;
    if to.is_null() || room < least {
        return Err(Failure::INVALID);
    }
    // SAFETY: by this function's contract. The sizes above leave no room between fields.
    unsafe { fill(to.cast(), room, &answer) };
    Ok(())
}

/// Reads a program's struct of this length, at least up to the end of a field.
///
/// # Safety
///
/// The pointer is NULL, or that many bytes may be read there.
unsafe fn wish<T: FromBytes + IntoBytes + Default>(
    from: *const T,
    length: u32,
    least: usize,
) -> Result<T> {
    let length = length as usize;
    if from.is_null() || length < least {
        return Err(Failure::INVALID);
    }
    let mut wish = T::default();
    let known = size_of::<T>().min(length);
    // SAFETY: by this function's contract.
    let (own, beyond) =
        unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length).split_at(known) };
    wish.as_mut_bytes()[..known].copy_from_slice(own);
    match beyond.iter().all(|byte| *byte == 0) {
        true => Ok(wish),
        false => Err(Failure::INVALID),
    }
}

/// `efadv_query_device(3)`.
pub unsafe extern "C" fn efadv_query_device(
    c: *mut ibv_context,
    attr: *mut efadv_device_attr,
    length: u32,
) -> c_int {
    const LEAST: usize = offset_of!(efadv_device_attr, device_caps);
    // SAFETY: the caller passes an open context and attributes.
    status(unsafe {
        context(c).and_then(|context| {
            let limits = device(context.context())?.limits();
            let caps = CAPS.iter().filter(|(cap, _)| limits.caps.contains(*cap));
            let answer = efadv_device_attr {
                comp_mask: 0,
                max_sq_wr: limits.max_send_wr,
                max_rq_wr: limits.max_recv_wr,
                max_sq_sge: limits.max_send_sge as u16,
                max_rq_sge: limits.max_recv_sge as u16,
                inline_buf_size: limits.inline as u16,
                inline_buf_size_ex: limits.wide_inline.max(limits.inline) as u16,
                device_caps: caps.fold(0, |all, (_, bit)| all | bit),
                max_rdma_size: limits.max_rdma_bytes,
            };
            give(answer, attr, length, LEAST)
        })
    })
}

/// `efadv_query_ah(3)`.
pub unsafe extern "C" fn efadv_query_ah(
    c: *mut ibv_ah,
    attr: *mut efadv_ah_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller passes an address handle and attributes.
    status(unsafe {
        let answer = match ah(c).map(AhObject::vector) {
            Ok(OneOf::Efa(ahn)) => Ok(efadv_ah_attr {
                ahn: *ahn,
                ..Default::default()
            }),
            Err(failure) => Err(failure),
            #[allow(unreachable_patterns, reason = "there may be no other driver")]
            Ok(_) => Err(Failure::UNSUPPORTED),
        };
        answer.and_then(|answer| give(answer, attr, length, offset_of!(efadv_ah_attr, reserved)))
    })
}

/// `efadv_query_mr(3)`.
pub unsafe extern "C" fn efadv_query_mr(
    c: *mut ibv_mr,
    attr: *mut efadv_mr_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller passes a region and attributes.
    status(unsafe {
        kernel_of(c).and_then(|(context, handle)| {
            device(context)?;
            let told = context.driver().interconnects(context.fd(), handle)?;
            let all = [told.receive, told.read, told.rdma_receive];
            let valid = all.iter().rev();
            let answer = efadv_mr_attr {
                comp_mask: 0,
                ic_id_validity: valid.fold(0, |bits, of| bits << 1 | u16::from(of.is_some())),
                recv_ic_id: told.receive.unwrap_or_default(),
                rdma_read_ic_id: told.read.unwrap_or_default(),
                rdma_recv_ic_id: told.rdma_receive.unwrap_or_default(),
            };
            give(answer, attr, length, size_of::<efadv_mr_attr>())
        })
    })
}

/// `efadv_get_max_sq_depth(3)`: the most requests, or the errno below zero.
pub unsafe extern "C" fn efadv_get_max_sq_depth(
    c: *mut ibv_context,
    attr: *const efadv_sq_depth_attr,
    length: u32,
) -> c_int {
    // SAFETY: the caller passes an open context and attributes.
    below_zero(unsafe {
        context(c).and_then(|context| {
            let limits = device(context.context())?.limits();
            let asked = wish(attr, length, size_of::<efadv_sq_depth_attr>())?;
            most_sends(limits, &asked)
        })
    })
}

fn most_sends(limits: &Limits, asked: &efadv_sq_depth_attr) -> Result<u32> {
    const INLINE_WRITE: u32 = 1 << 0;
    let fits = asked.comp_mask == 0
        && asked.max_send_sge <= limits.max_send_sge
        && asked.max_rdma_sge <= Limits::RDMA_SGES
        && asked.max_inline_data <= limits.wide_inline.max(limits.inline);
    if !fits {
        return Err(Failure::INVALID);
    }
    let is_wide = asked.max_inline_data > limits.inline
        || asked.flags & INLINE_WRITE != 0 && asked.max_inline_data > 0;
    let is_strange = asked.flags & !INLINE_WRITE != 0;
    match is_strange || is_wide && limits.wide_inline == 0 {
        true => Err(Failure::UNSUPPORTED),
        false => Ok(limits.most_sends(is_wide)),
    }
}

/// `efadv_get_max_rq_depth(3)`: the most requests, or the errno below zero.
pub unsafe extern "C" fn efadv_get_max_rq_depth(
    c: *mut ibv_context,
    attr: *const efadv_rq_depth_attr,
    length: u32,
) -> c_int {
    const LEAST: usize = offset_of!(efadv_rq_depth_attr, _end);
    // SAFETY: the caller passes an open context and attributes.
    below_zero(unsafe {
        context(c).and_then(|context| {
            let limits = device(context.context())?.limits();
            let asked = wish(attr, length, LEAST)?;
            match asked.comp_mask == 0 && asked.max_recv_sge <= limits.max_recv_sge {
                true => Ok(limits.most_receives(asked.max_recv_sge.max(1))),
                false => Err(Failure::INVALID),
            }
        })
    })
}

fn below_zero(result: Result<u32>) -> c_int {
    match result {
        Ok(most) => most as c_int,
        Err(failure) => -failure.tell(),
    }
}

/// `efadv_create_driver_qp(3)`: SRD. Lists of requests can only have SENDs: they have no room for the
/// destination of a WRITE or a READ.
pub unsafe extern "C" fn efadv_create_driver_qp(
    c: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
    driver_qp_type: u32,
) -> *mut ibv_qp {
    // SAFETY: the caller passes a PD, and attributes with objects of the same context.
    pointer(unsafe {
        pd(c).and_then(|pd| {
            device(pd.pd().context())?;
            let init = init.as_mut().ok_or(Failure::INVALID)?;
            if init.qp_type != QpType::DRIVER.0 {
                return Err(Failure::INVALID);
            }
            if driver_qp_type != QP_DRIVER_TYPE_SRD {
                return Err(Failure::UNSUPPORTED);
            }
            let own = Own {
                by_lists: true,
                ..Own::default()
            };
            create_with(c, init, QpCreateFlags::empty(), None, own)
        })
    })
}

/// `efadv_create_qp_ex(3)`. Processing hints are taken and not passed on.
pub unsafe extern "C" fn efadv_create_qp_ex(
    c: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    attr: *const efadv_qp_init_attr,
    length: u32,
) -> *mut ibv_qp {
    const LEAST: usize = offset_of!(efadv_qp_init_attr, flags);
    // SAFETY: the caller passes an open context, and attributes with objects of it.
    pointer(unsafe {
        context(c).and_then(|context| {
            let context = context.context();
            let limits = device(context)?.limits();
            let asked = wish(attr, length, LEAST)?;
            let init = init.as_mut().ok_or(Failure::INVALID)?;
            let is_driver = init.qp_type == QpType::DRIVER.0;
            if !is_driver || asked.comp_mask != 0 || asked.reserved != 0 {
                return Err(Failure::INVALID);
            }
            let known = qp_flags::UNSOLICITED_WRITE_RECV | qp_flags::INLINE_WRITE;
            let inline_writes = asked.flags & qp_flags::INLINE_WRITE != 0;
            let has_writes = limits.caps.contains(DeviceCaps::RDMA_WRITE);
            let is_too_narrow = init.cap.max_inline_data > 0 && limits.wide_inline == 0;
            let lacks_writes = inline_writes && (!has_writes || is_too_narrow);
            let is_strange = asked.flags & !known != 0 || asked.wr_flags & !WITH_HINTS != 0;
            if asked.driver_qp_type != QP_DRIVER_TYPE_SRD || is_strange || lacks_writes {
                return Err(Failure::UNSUPPORTED);
            }
            if inline_writes && init.cap.max_inline_data > 0 {
                // Only the longer requests have room for it.
                let least = limits.inline + 1;
                init.cap.max_inline_data = init.cap.max_inline_data.max(least);
            }
            let own = Own {
                by_lists: true,
                unsolicited_writes: asked.flags & qp_flags::UNSOLICITED_WRITE_RECV != 0,
                // Older kernels do not have service levels.
                service_level: (asked.sl != 0).then_some(asked.sl),
                ..Own::default()
            };
            qp_ex::create(init, &context.driver().refusals(), own)
        })
    })
}

/// `efadv_qp_from_ibv_qp_ex(3)`: NULL on other devices.
pub unsafe extern "C" fn efadv_qp_from_ibv_qp_ex(c: *mut ibv_qp_ex) -> *mut efadv_qp {
    /// The same for all: nothing is kept of a queue pair's hints.
    static ALL: efadv_qp = efadv_qp {
        comp_mask: 0,
        wr_set_processing_hints: ignore_hints,
    };
    // SAFETY: the caller passes a queue pair, whose other form begins in the same place.
    pointer(unsafe {
        qp(c.cast()).and_then(|qp| {
            device(&qp.context)?;
            Ok(ptr::from_ref(&ALL).cast_mut())
        })
    })
}

/// `efadv_wr_set_processing_hints(3)`: a device may do without them.
unsafe extern "C" fn ignore_hints(_: *mut efadv_qp, _hints: u32) {}

/// `efadv_create_cq(3)`. There is no given memory for its entries.
pub unsafe extern "C" fn efadv_create_cq(
    c: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
    attr: *const efadv_cq_init_attr,
    length: u32,
) -> *mut ibv_cq_ex {
    const LEAST: usize = offset_of!(efadv_cq_init_attr, flags);
    // SAFETY: the caller passes an open context, and attributes with objects of it.
    let allowed = unsafe {
        context(c).and_then(|context| {
            let limits = device(context.context())?.limits();
            let asked = wish(attr, length, LEAST)?;
            if asked.comp_mask != 0 {
                return Err(Failure::INVALID);
            }
            let mut known = 0;
            if limits.caps.contains(DeviceCaps::CQ_WITH_SGID) {
                known |= wc_flags::SGID;
            }
            if limits.caps.contains(DeviceCaps::UNSOLICITED_WRITE_RECV) {
                known |= wc_flags::IS_UNSOLICITED;
            }
            match asked.wc_flags & !known == 0 && asked.flags == 0 {
                true => Ok(()),
                false => Err(Failure::UNSUPPORTED),
            }
        })
    };
    match allowed {
        // SAFETY: as above.
        Ok(()) => unsafe { create_cq_ex(c, init) },
        Err(failure) => pointer(Err(failure)),
    }
}

/// The struct that [`efadv_cq_from_ibv_cq_ex`] returns, with a pointer back to the queue.
#[derive(Debug)]
#[repr(C)]
pub(in crate::c) struct DirectCq {
    c: efadv_cq,
    queue: *mut ibv_cq,
}

/// `efadv_cq_from_ibv_cq_ex(3)`: NULL on other devices.
pub unsafe extern "C" fn efadv_cq_from_ibv_cq_ex(c: *mut ibv_cq_ex) -> *mut efadv_cq {
    // SAFETY: the caller passes a completion queue.
    pointer(unsafe {
        cq(c.cast()).and_then(|cq| {
            device(cq.context())?;
            let direct = cq.direct.get_or_init(|| {
                Box::new(DirectCq {
                    c: efadv_cq {
                        comp_mask: 0,
                        wc_read_sgid: Some(wc_read_sgid),
                        wc_is_unsolicited: Some(wc_is_unsolicited),
                    },
                    queue: c.cast(),
                })
            });
            let direct = direct.downcast_ref::<DirectCq>();
            let direct = direct.ok_or(Failure::UNSUPPORTED)?;
            Ok(ptr::from_ref(direct).cast_mut().cast())
        })
    })
}

/// The completion that a program reads.
///
/// # Safety
///
/// The pointer is one of [`efadv_cq_from_ibv_cq_ex`], to a queue that the caller polls.
unsafe fn shown(
    c: *mut efadv_cq,
) -> Option<<<Efa as contract::Driver>::Cq as contract::Cq>::Completion> {
    // SAFETY: by this function's contract.
    unsafe {
        let queue = object::<CqObject>((*c.cast::<DirectCq>()).queue)?;
        own::<Efa>(queue.ring.held()).shown()
    }
}

/// `efadv_wc_read_sgid(3)`: negative `ENOENT` if the completion does not have it.
unsafe extern "C" fn wc_read_sgid(c: *mut efadv_cq, gid: *mut ibv_gid) -> c_int {
    // SAFETY: the caller passes a completion queue that it polls, and room for a GID.
    unsafe {
        match shown(c).and_then(|completion| completion.sender_gid()) {
            Some(raw) => {
                gid.write(ibv_gid { raw });
                0
            }
            None => -Errno::NOENT.raw_os_error(),
        }
    }
}

/// `efadv_wc_is_unsolicited(3)`.
unsafe extern "C" fn wc_is_unsolicited(c: *mut efadv_cq) -> bool {
    // SAFETY: the caller passes a completion queue that it polls.
    unsafe { shown(c) }.is_some_and(|completion| completion.is_unsolicited())
}

/// `efadv_query_cq(3)`: the memory of its rings, for programs that poll by themselves.
pub unsafe extern "C" fn efadv_query_cq(
    c: *mut ibv_cq,
    attr: *mut efadv_cq_attr,
    length: u32,
) -> c_int {
    const LEAST: usize = offset_of!(efadv_cq_attr, doorbell);
    // SAFETY: the caller passes a completion queue and attributes.
    status(unsafe {
        cq(c).and_then(|cq| {
            device(cq.context())?;
            let core = Efa::get(cq.backing()).ok_or(Failure::UNSUPPORTED)?;
            let memory = core.memory();
            let answer = efadv_cq_attr {
                comp_mask: 0,
                buffer: memory.first,
                entry_size: memory.entry_bytes,
                num_entries: memory.entries,
                doorbell: memory.doorbell,
            };
            give(answer, attr, length, LEAST)
        })
    })
}

/// `efadv_query_qp_wqs(3)`: the memory of its rings and its doorbells, for programs that post by themselves.
pub unsafe extern "C" fn efadv_query_qp_wqs(
    c: *mut ibv_qp,
    sends: *mut efadv_wq_attr,
    receives: *mut efadv_wq_attr,
    length: u32,
) -> c_int {
    const LEAST: usize = offset_of!(efadv_wq_attr, caps);
    // SAFETY: the caller passes a queue pair and attributes.
    status(unsafe {
        qp(c).and_then(|qp| {
            device(&qp.context)?;
            let lacking = || Failure::UNSUPPORTED;
            let of_sends = qp.with_sender(|sender| {
                let queue = sender.queue.as_mut().and_then(Efa::get_mut);
                queue.map(|queue| queue.memory()).ok_or_else(lacking)
            })?;
            let mut receiver = qp.recv.lock();
            let queue = receiver.as_mut().and_then(Efa::get_mut);
            let of_receives = queue.map(|queue| queue.memory()).ok_or_else(lacking)?;
            for (to, memory) in [(sends, of_sends), (receives, of_receives)] {
                let answer = efadv_wq_attr {
                    comp_mask: 0,
                    buffer: memory.first,
                    entry_size: memory.entry_bytes,
                    num_entries: memory.entries,
                    doorbell: memory.doorbell,
                    max_batch: memory.max_batch,
                    caps: 0,
                    reserved: [0; 2],
                };
                give(answer, to, length, LEAST)?;
            }
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wish beyond the device's limits that is called unsupported, by which programs take it that
    /// the function is.
    #[test]
    fn what_does_not_fit_is_invalid_and_what_the_device_lacks_unsupported() {
        let mut narrow = Limits::default();
        (narrow.inline, narrow.max_send_sge) = (32, 2);
        let asked = |max_inline_data, flags| efadv_sq_depth_attr {
            max_inline_data,
            flags,
            max_send_sge: 1,
            ..Default::default()
        };
        let most = |asked| most_sends(&narrow, &asked).err();
        assert_eq!(most(asked(32, 0)), None);
        assert_eq!(most(asked(33, 0)), Some(Failure::INVALID));
        assert_eq!(most(asked(33, 1)), Some(Failure::INVALID));
        assert_eq!(most(asked(32, 1)), Some(Failure::UNSUPPORTED));
        assert_eq!(most(asked(0, 2)), Some(Failure::UNSUPPORTED));
    }
}
