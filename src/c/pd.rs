//! Protection domains.

use std::ffi::c_int;

use super::abi::context::ibv_context;
use super::abi::ibv_pd;
use super::context::context;
use super::failure::pointer;
use super::object::{CStruct, Object, destroy};
use crate::pd::Pd;

/// A protection domain as C programs have it.
#[repr(C)]
pub(super) struct PdObject {
    c: CStruct<ibv_pd>,
    pd: Pd,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for PdObject {
    type C = ibv_pd;
}

/// `ibv_alloc_pd(3)`.
pub unsafe extern "C" fn ibv_alloc_pd(c: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context.
    let allocated = unsafe { context(c) }.and_then(|context| {
        let pd = context.context().alloc_pd()?;
        let handle = pd.handle().0;
        let c = CStruct::new(ibv_pd { context: c, handle });
        Ok(Box::new(PdObject { c, pd }).give())
    });
    pointer(allocated)
}

/// `ibv_dealloc_pd(3)`.
pub unsafe extern "C" fn ibv_dealloc_pd(c: *mut ibv_pd) -> c_int {
    // SAFETY: the caller passes a PD, for the last time if this succeeds.
    unsafe {
        destroy(c, |object: &mut PdObject| {
            Ok(object.pd.dealloc_in_place()?)
        })
    }
}
