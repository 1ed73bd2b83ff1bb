//! The functions of libibverbs that this library calls. They belong to the `libibverbs.so.1` that the process
//! has loaded; a program's objects belong to it. Only the package `library/` links them.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;

use super::last_errno;
use crate::c::abi::attr::{
    ibv_ece, ibv_qp_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};
use crate::c::abi::context::{ibv_context, verbs_context};
use crate::c::abi::device::{ibv_device, ibv_device_attr};
use crate::c::abi::domain::{ibv_xrcd, ibv_xrcd_init_attr};
use crate::c::abi::ibv_pd;
use crate::c::abi::port::ibv_gid;
use crate::c::abi::queue::{ibv_comp_channel, ibv_cq, ibv_qp, ibv_srq};
use crate::c::failure::{Failure, Result};
use crate::error::Errno;

unsafe extern "C" {
    pub(super) fn ibv_get_device_list(number: *mut c_int) -> *mut *mut ibv_device;
    pub(super) fn ibv_free_device_list(list: *mut *mut ibv_device);
    pub(super) fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    pub(super) fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
    pub(super) fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    pub(super) fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub(super) fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    pub(super) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(super) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub(super) fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(super) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(super) fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: c_int,
    ) -> *mut ibv_cq;
    pub(super) fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    pub(super) fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    pub(super) fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    pub(super) fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
}

/// The result of a function that returns an errno.
fn checked(errno: c_int) -> Result<()> {
    match errno {
        0 => Ok(()),
        // Functions of old providers return -1.
        ..0 => Err(last_errno()),
        _ => Err(Failure(Errno::from_raw_os_error(errno))),
    }
}

/// The result of a function that returns an object.
pub(super) fn made<T>(object: *mut T) -> Result<*mut T> {
    match object.is_null() {
        true => Err(last_errno()),
        false => Ok(object),
    }
}

/// `ibv_modify_qp(3)`.
///
/// # Safety
/// The queue pair exists.
pub(super) unsafe fn modify_qp(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_int) -> Result<()> {
    // SAFETY: the caller vouches for the queue pair.
    checked(unsafe { ibv_modify_qp(qp, attr, mask) })
}

/// The options of a queue pair; 0 if the device has none.
///
/// # Safety
/// The queue pair exists.
pub(super) unsafe fn query_ece(qp: *mut ibv_qp) -> Result<ibv_ece> {
    let mut ece = ibv_ece {
        vendor_id: 0,
        options: 0,
        comp_mask: 0,
    };
    // SAFETY: the caller vouches for the queue pair.
    match checked(unsafe { ibv_query_ece(qp, &mut ece) }) {
        Err(failure) if failure != Failure::UNSUPPORTED => Err(failure),
        _ => Ok(ece),
    }
}

/// Sets the options, if the device has any.
///
/// # Safety
/// The queue pair exists.
pub(super) unsafe fn set_ece(qp: *mut ibv_qp, mut ece: ibv_ece) -> Result<()> {
    // SAFETY: the caller vouches for the queue pair.
    match checked(unsafe { ibv_set_ece(qp, &mut ece) }) {
        Err(failure) if failure != Failure::UNSUPPORTED => Err(failure),
        _ => Ok(()),
    }
}

/// `ibv_attach_mcast(3)`.
///
/// # Safety
/// The queue pair exists.
pub(super) unsafe fn attach_mcast(qp: *mut ibv_qp, gid: &ibv_gid, lid: u16) -> Result<()> {
    // SAFETY: the caller vouches for the queue pair.
    checked(unsafe { ibv_attach_mcast(qp, gid, lid) })
}

/// Bits of `comp_mask` of queue pairs and of shared receive queues.
pub(super) const QP_INIT_ATTR_PD: u32 = 1 << 0;
/// See [`QP_INIT_ATTR_PD`].
pub(super) const QP_INIT_ATTR_XRCD: u32 = 1 << 1;
/// See [`QP_INIT_ATTR_PD`].
pub(super) const SRQ_INIT_ATTR_TYPE: u32 = 1 << 0;
/// See [`QP_INIT_ATTR_PD`].
pub(super) const SRQ_INIT_ATTR_PD: u32 = 1 << 1;
/// See [`QP_INIT_ATTR_PD`].
pub(super) const SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
/// See [`QP_INIT_ATTR_PD`].
pub(super) const SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
/// `IBV_SRQT_BASIC`.
pub(super) const SRQT_BASIC: u32 = 0;
/// `IBV_SRQT_XRC`.
pub(super) const SRQT_XRC: u32 = 1;

/// A function in the table around a context, found as in the header: by its distance from the end of the
/// table, if the library's table is long enough.
///
/// # Safety
/// The context is open, and the function at this offset is an `F`.
unsafe fn operation<F: Copy>(context: *mut ibv_context, offset: usize) -> Option<F> {
    const OF_CONTEXT: usize = offset_of!(verbs_context, context);
    // SAFETY: the context is open. A context with this mark lies at the end of a table, and the word `sz`
    // before it has the table's length.
    unsafe {
        if (*context).abi_compat as usize != usize::MAX {
            return None;
        }
        let at = |offset: usize| context.wrapping_byte_sub(OF_CONTEXT - offset);
        let length = *at(offset_of!(verbs_context, sz)).cast::<usize>();
        match length >= size_of::<verbs_context>() - offset {
            true => *at(offset).cast::<Option<F>>(),
            false => None,
        }
    }
}

/// `ibv_create_qp_ex(3)`, which is inline in the header.
///
/// # Safety
/// The context is open, and the attributes are as their mask says; it names the domain.
pub(super) unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp> {
    type Function = unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    // SAFETY: the caller vouches for it. Attributes that add only the domain start like plain ones.
    made(unsafe {
        if (*attr).comp_mask == QP_INIT_ATTR_PD {
            ibv_create_qp((*attr).pd, attr)
        } else {
            match operation::<Function>(context, offset_of!(verbs_context, create_qp_ex)) {
                Some(create) => create(context, attr),
                None => return Err(Failure::UNSUPPORTED),
            }
        }
    })
}

/// `ibv_create_srq_ex(3)`, which is inline in the header: of the basic type in the domain `pd`, or of another
/// type.
///
/// # Safety
/// The contract of [`create_qp_ex`].
pub(super) unsafe fn create_srq_ex(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq> {
    type Function =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
    // SAFETY: the caller vouches for it. The attributes start like plain ones.
    made(unsafe {
        let basic = (*attr).comp_mask & !(SRQ_INIT_ATTR_TYPE | SRQ_INIT_ATTR_PD) == 0
            && (*attr).srq_type == SRQT_BASIC;
        if basic {
            ibv_create_srq(pd, attr.cast())
        } else {
            match operation::<Function>(context, offset_of!(verbs_context, create_srq_ex)) {
                Some(create) => create(context, attr),
                None => return Err(Failure::UNSUPPORTED),
            }
        }
    })
}

/// `ibv_open_xrcd(3)`, which is inline in the header, for a domain without a file.
///
/// # Safety
/// The context is open.
pub(super) unsafe fn open_xrcd(context: *mut ibv_context) -> Result<*mut ibv_xrcd> {
    type Function =
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;
    const FD_AND_OFLAGS: u32 = 1 << 0 | 1 << 1;
    let mut attr = ibv_xrcd_init_attr {
        comp_mask: FD_AND_OFLAGS,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the caller vouches for the context, and the attributes are whole.
    made(unsafe {
        match operation::<Function>(context, offset_of!(verbs_context, open_xrcd)) {
            Some(open) => open(context, &mut attr),
            None => return Err(Failure::UNSUPPORTED),
        }
    })
}

/// `ibv_close_xrcd(3)`, which is inline in the header.
///
/// # Safety
/// The domain was opened by [`open_xrcd`] with this context, and is passed for the last time if this
/// succeeds.
pub(super) unsafe fn close_xrcd(context: *mut ibv_context, xrcd: *mut ibv_xrcd) -> Result<()> {
    type Function = unsafe extern "C" fn(*mut ibv_xrcd) -> c_int;
    // SAFETY: the caller vouches for it.
    unsafe {
        match operation::<Function>(context, offset_of!(verbs_context, close_xrcd)) {
            Some(close) => checked(close(xrcd)),
            None => Err(Failure::UNSUPPORTED),
        }
    }
}

/// Destroys completion queues and channels that an identifier has created for its queue pair. The field of a
/// missing one is NULL.
///
/// # Safety
/// The objects in the fields exist, and nothing uses them any more.
pub(super) unsafe fn destroy_cqs(
    cqs: [&mut *mut ibv_cq; 2],
    channels: [&mut *mut ibv_comp_channel; 2],
) {
    let [recv, send] = cqs;
    if *send == *recv {
        *send = null_mut();
    }
    for cq in [recv, send] {
        if !cq.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { ibv_destroy_cq(*cq) };
            *cq = null_mut();
        }
    }
    let [recv, send] = channels;
    if *send == *recv {
        *send = null_mut();
    }
    for channel in [recv, send] {
        if !channel.is_null() {
            // SAFETY: the caller vouches for it.
            unsafe { ibv_destroy_comp_channel(*channel) };
            *channel = null_mut();
        }
    }
}
