//! Memory regions of the program's own memory. What happens to that memory is the program's business.

use std::ffi::{c_int, c_void};

use uverbs_uapi::flags::{AccessFlags, CoreSupport};
use uverbs_uapi::handle::MrHandle;

use super::abi::ibv_pd;
use super::abi::queue::ibv_mr;
use super::failure::{Result, pointer};
use super::object::{CStruct, Object, destroy};
use super::pd::{PdObject, pd};
use crate::command::{Destroy, RegMr};
use crate::pd::{PdUse, User};

/// A memory region as C programs have it.
#[repr(C)]
pub(super) struct MrObject {
    c: CStruct<ibv_mr>,
    handle: MrHandle,
    pd: PdUse,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for MrObject {
    type C = ibv_mr;
}

/// What a region is to be.
struct Wanted {
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
}

/// The rights in this range may be ignored by whoever does not know them.
const OPTIONAL: u32 = AccessFlags::OPTIONAL.bits();

fn register(pd: &PdObject, c: *mut ibv_pd, wanted: Wanted) -> Result<*mut ibv_mr> {
    let context = pd.pd().context();
    let knows_optional = context
        .core_support()
        .contains(CoreSupport::OPTIONAL_MR_ACCESS);
    let access = match knows_optional {
        true => wanted.access,
        false => wanted.access & !OPTIONAL,
    };
    let reply = context.fd().execute(&RegMr {
        pd: pd.pd().handle(),
        address: wanted.address.addr() as u64,
        length: wanted.length as u64,
        iova: wanted.iova,
        access,
    })?;
    let mr = ibv_mr {
        context: pd.c_context(),
        pd: c,
        addr: wanted.address,
        length: wanted.length,
        handle: reply.handle.0,
        lkey: reply.lkey,
        rkey: reply.rkey,
    };
    let object = MrObject {
        c: CStruct::new(mr),
        handle: reply.handle,
        pd: pd.pd().user(User::Mr),
    };
    Ok(Box::new(object).give())
}

/// `ibv_reg_mr(3)`.
pub unsafe extern "C" fn ibv_reg_mr(
    c: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract is that of the function called.
    unsafe { ibv_reg_mr_iova2(c, address, length, address.addr() as u64, access as u32) }
}

/// `ibv_reg_mr_iova(3)`.
pub unsafe extern "C" fn ibv_reg_mr_iova(
    c: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract is that of the function called.
    unsafe { ibv_reg_mr_iova2(c, address, length, iova, access as u32) }
}

/// What the header's `ibv_reg_mr` and `ibv_reg_mr_iova` call if the access is not constant.
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    c: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    let wanted = Wanted {
        address,
        length,
        iova,
        access,
    };
    // SAFETY: the caller passes a PD.
    pointer(unsafe { pd(c) }.and_then(|pd| register(pd, c, wanted)))
}

/// `ibv_dereg_mr(3)`.
pub unsafe extern "C" fn ibv_dereg_mr(c: *mut ibv_mr) -> c_int {
    // SAFETY: the caller passes an MR, for the last time if this succeeds.
    unsafe {
        destroy(c, |mr: &mut MrObject| {
            Ok(mr.pd.context().fd().execute(&Destroy(mr.handle))?)
        })
    }
}
