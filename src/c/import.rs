//! Import: objects that another holder of a context's command file has created.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use uverbs_uapi::handle::{MrHandle, PdHandle};

use super::abi::context::ibv_context;
use super::abi::ibv_pd;
use super::abi::queue::ibv_mr;
use super::context::{ContextObject, context};
use super::device;
use super::failure::{Failure, Result, pointer};
use super::mr::MrObject;
use super::object::{Object, destroy};
use super::pd::{PdObject, pd};
use crate::context::Context;
use crate::device::find_by_file;
use crate::error::{Cause, Errno, Verb};

/// `ibv_import_device(3)`.
pub unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(import_device(cmd_fd))
}

/// Takes the file once it is known to belong to a device.
fn import_device(cmd_fd: c_int) -> Result<*mut ibv_context> {
    if cmd_fd < 0 {
        return Err(Failure::INVALID);
    }
    // SAFETY: it is not -1, and fstat(2) says whether it is open.
    let file = unsafe { BorrowedFd::borrow_raw(cmd_fd) };
    let found = find_by_file(file, Verb::ImportDevice).map_err(|error| match error.cause() {
        Cause::NotFound(_) => Failure(Errno::NODEV),
        _ => Failure::INVALID,
    })?;
    let device = device::known(&found)?;
    // SAFETY: it is open, and the caller gives it to the context.
    let file = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
    let context = Context::import(file)?;
    Ok(ContextObject::new(device, context)?.give())
}

/// `ibv_import_pd(3)`.
pub unsafe extern "C" fn ibv_import_pd(c: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    // SAFETY: the caller passes an open context.
    pointer(unsafe { context(c) }.and_then(|context| {
        let imported = context.context().import_pd(PdHandle(handle))?;
        Ok(PdObject::give(c, imported.into()))
    }))
}

/// `ibv_import_mr(3)`. The address of its memory is not known.
pub unsafe extern "C" fn ibv_import_mr(c: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    // SAFETY: the caller passes a PD.
    pointer(unsafe { pd(c) }.and_then(|pd| MrObject::import(pd, c, MrHandle(handle))))
}

/// `ibv_unimport_mr(3)`.
pub unsafe extern "C" fn ibv_unimport_mr(c: *mut ibv_mr) {
    // SAFETY: the caller passes a region, for the last time. Dropping it calls nothing.
    unsafe { destroy(c, |_: &mut MrObject| Ok(())) };
}
