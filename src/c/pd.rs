//! Protection domains.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::abi::context::ibv_context;
use super::abi::ibv_pd;
use super::context::context;
use super::failure::{Failure, Result, pointer};
use super::object::{CStruct, Object, destroy, object};
use crate::pd::Pd;

/// A protection domain of a C program.
#[repr(C)]
pub(super) struct PdObject {
    c: CStruct<ibv_pd>,
    pd: Pd,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for PdObject {
    type C = ibv_pd;
}

impl PdObject {
    /// Gives a new one to the program.
    pub(super) fn give(context: *mut ibv_context, pd: Pd) -> *mut ibv_pd {
        Self::give_at(Box::new_uninit(), context, pd)
    }

    /// Like [`PdObject::give`], at an address that is known before.
    pub(super) fn give_at(
        place: Box<MaybeUninit<Self>>,
        context: *mut ibv_context,
        pd: Pd,
    ) -> *mut ibv_pd {
        let handle = pd.handle().0;
        let c = CStruct::new(ibv_pd { context, handle });
        Object::give(Box::write(place, Self { c, pd }))
    }

    /// The crate's PD.
    pub(super) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// The program's pointer to the context.
    pub(super) fn c_context(&self) -> *mut ibv_context {
        // SAFETY: the struct is the object's, and no program writes to it.
        unsafe { (*self.c.get()).context }
    }
}

/// The object of a C program's PD.
///
/// # Safety
///
/// The contract of [`object`].
pub(super) unsafe fn pd<'a>(c: *mut ibv_pd) -> Result<&'a PdObject> {
    // SAFETY: the caller vouches for it.
    unsafe { object::<PdObject>(c) }.ok_or(Failure::INVALID)
}

/// `ibv_alloc_pd(3)`.
pub unsafe extern "C" fn ibv_alloc_pd(c: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context.
    pointer(unsafe { context(c) }.and_then(|context| {
        let pd = context.context().alloc_pd()?;
        Ok(PdObject::give(c, pd))
    }))
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

/// `ibv_unimport_pd(3)`.
pub unsafe extern "C" fn ibv_unimport_pd(c: *mut ibv_pd) {
    // SAFETY: the caller passes a PD, for the last time if nothing of this process uses it.
    unsafe {
        destroy(c, |object: &mut PdObject| {
            Ok(object.pd.release_in_place()?)
        });
    }
}
