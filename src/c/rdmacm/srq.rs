//! Shared receive queues of identifiers.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::abi::rdma_cm_id;
use super::id::id;
use super::{qp, verbs};
use crate::c::abi::attr::{ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::c::abi::ibv_pd;
use crate::c::failure::{Failure, Result, minus_one};

/// `rdma_create_srq_ex(3)`. There are no XRC domains of the library's own.
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
            if attr.srq_type != verbs::SRQT_BASIC {
                return Err(Failure::UNSUPPORTED);
            }
            let pd = match attr.comp_mask & verbs::SRQ_INIT_ATTR_PD {
                0 => null_mut(),
                _ => attr.pd,
            };
            create(c, pd, attr)
        })
    })
}

/// Creates a queue in a domain, or in that of the identifier if it is NULL.
///
/// # Safety
/// The identifier exists, and the attributes are as their mask says.
unsafe fn create(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr_ex,
) -> Result<()> {
    // SAFETY: the caller vouches for it.
    unsafe {
        let c = &mut *c;
        let pd = if pd.is_null() { c.pd } else { pd };
        if c.verbs.is_null() || pd.is_null() {
            return Err(Failure::INVALID);
        }
        c.srq = verbs::create_srq_ex(c.verbs, pd, attr)?;
        if c.pd.is_null() {
            c.pd = pd;
        }
    }
    Ok(())
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
                comp_mask: verbs::SRQ_INIT_ATTR_TYPE,
                srq_type: verbs::SRQT_BASIC,
                pd,
                xrcd: null_mut(),
                cq: null_mut(),
            };
            let made = create(c, pd, &mut long);
            attr.attr = long.attr;
            made
        })
    })
}

/// `rdma_destroy_srq(3)`.
pub unsafe extern "C" fn rdma_destroy_srq(c: *mut rdma_cm_id) {
    // SAFETY: the caller passes an identifier, and uses its queue no more.
    unsafe {
        let Some(c) = c.as_mut() else {
            return;
        };
        if !c.srq.is_null() {
            verbs::ibv_destroy_srq(c.srq);
            c.srq = null_mut();
        }
        qp::destroy_cqs(c);
    }
}
