//! Shared receive queues of identifiers.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::abi::rdma_cm_id;
use super::id::id;
use super::{device, qp, verbs};
use crate::c::abi::attr::{ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::c::abi::ibv_pd;
use crate::c::abi::queue::{ibv_cq, ibv_srq};
use crate::c::failure::{Failure, Result, minus_one};

/// `rdma_create_srq_ex(3)`. By default, an XRC queue is in the library's domain and reports to the
/// identifier's completion queue.
pub unsafe extern "C" fn rdma_create_srq_ex(
    c: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    // SAFETY: the caller passes an identifier and attributes.
    minus_one(unsafe {
        id(c).and_then(|_| {
            let attr = attr.as_mut().ok_or(Failure::INVALID)?;
            if attr.comp_mask & verbs::SRQ_INIT_ATTR_TYPE == 0 {
                return Err(Failure::INVALID);
            }
            match attr.srq_type {
                verbs::SRQT_BASIC | verbs::SRQT_XRC => create(c, attr),
                _ => Err(Failure::UNSUPPORTED),
            }
        })
    })
}

/// Creates a queue. Missing attributes are taken from the identifier.
///
/// # Safety
/// The identifier exists, and the attributes are as their mask says.
unsafe fn create(c: *mut rdma_cm_id, attr: &mut ibv_srq_init_attr_ex) -> Result<()> {
    // SAFETY: the caller vouches for it.
    unsafe {
        if attr.comp_mask & verbs::SRQ_INIT_ATTR_PD == 0 || attr.pd.is_null() {
            attr.pd = (*c).pd;
            attr.comp_mask |= verbs::SRQ_INIT_ATTR_PD;
        }
        if (*c).verbs.is_null() || attr.pd.is_null() {
            return Err(Failure::INVALID);
        }
        (*c).srq = match attr.srq_type {
            verbs::SRQT_XRC => create_of_xrc(c, attr)?,
            _ => verbs::create_srq_ex((*c).verbs, attr.pd, attr)?,
        };
        if (*c).pd.is_null() {
            (*c).pd = attr.pd;
        }
    }
    Ok(())
}

/// Creates an XRC queue.
///
/// # Safety
/// The contract of [`create`].
unsafe fn create_of_xrc(
    c: *mut rdma_cm_id,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq> {
    // SAFETY: the caller vouches for it.
    unsafe {
        if attr.comp_mask & verbs::SRQ_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null() {
            attr.xrcd = device::xrcd((*c).verbs)?;
            attr.comp_mask |= verbs::SRQ_INIT_ATTR_XRCD;
        }
        let has_cq = attr.comp_mask & verbs::SRQ_INIT_ATTR_CQ != 0 && !attr.cq.is_null();
        if !has_cq {
            attr.cq = cq_for(c, attr.attr.max_wr)?;
            attr.comp_mask |= verbs::SRQ_INIT_ATTR_CQ;
        }
        let made = verbs::create_srq_ex((*c).verbs, attr.pd, attr);
        if made.is_err() && !has_cq && qp::is_target(c) {
            qp::destroy_cqs(c);
        }
        made
    }
}

/// The identifier's completion queue, with room for `size` receives. If its target has a smaller one that is
/// replaced, since a target has no completions.
///
/// # Safety
/// The identifier's objects exist.
unsafe fn cq_for(c: *mut rdma_cm_id, size: u32) -> Result<*mut ibv_cq> {
    // SAFETY: the caller vouches for it.
    unsafe {
        let holds = |cq: &ibv_cq| u32::try_from(cq.cqe).is_ok_and(|entries| entries >= size);
        if !(*c).recv_cq.as_ref().is_some_and(holds) {
            if qp::is_target(c) {
                qp::destroy_cqs(c);
            }
            qp::create_cqs(c, 0, size.max(1))?;
        }
        Ok((*c).recv_cq)
    }
}

/// `rdma_create_srq(3)`.
pub unsafe extern "C" fn rdma_create_srq(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the caller passes an identifier, a domain or NULL, and attributes.
    minus_one(unsafe {
        id(c).and_then(|_| {
            let attr = attr.as_mut().ok_or(Failure::INVALID)?;
            let mut long = ibv_srq_init_attr_ex {
                srq_context: attr.srq_context,
                attr: attr.attr,
                comp_mask: verbs::SRQ_INIT_ATTR_TYPE | verbs::SRQ_INIT_ATTR_PD,
                srq_type: match qp::is_target(c) {
                    true => verbs::SRQT_XRC,
                    false => verbs::SRQT_BASIC,
                },
                pd,
                xrcd: null_mut(),
                cq: null_mut(),
            };
            let made = create(c, &mut long);
            attr.attr = long.attr;
            made
        })
    })
}

/// `rdma_destroy_srq(3)`.
pub unsafe extern "C" fn rdma_destroy_srq(c: *mut rdma_cm_id) {
    // SAFETY: the caller passes an identifier, and does not use its queue any more.
    unsafe {
        if c.is_null() {
            return;
        }
        if !(*c).srq.is_null() {
            verbs::ibv_destroy_srq((*c).srq);
            (*c).srq = null_mut();
        }
        qp::destroy_cqs(c);
    }
}
