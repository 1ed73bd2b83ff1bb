//! Multicast groups.

use std::ffi::c_int;

use super::abi::port::ibv_gid;
use super::abi::queue::ibv_qp;
use super::failure::{Failure, Result, status};
use super::qp::{QpObject, qp};
use crate::command::{AttachMcast, DetachMcast};
use crate::gid::Gid;

/// The queue pair and the group of a call.
///
/// # Safety
///
/// The pointers are to a queue pair and to a GID, or NULL.
unsafe fn parts<'a>(c: *mut ibv_qp, gid: *const ibv_gid) -> Result<(&'a QpObject, Gid)> {
    // SAFETY: by this function's contract. All bytes of the union are initialised.
    unsafe {
        let gid = gid.as_ref().ok_or(Failure::INVALID)?;
        Ok((qp(c)?, Gid::new(gid.raw)))
    }
}

/// `ibv_attach_mcast(3)`.
pub unsafe extern "C" fn ibv_attach_mcast(c: *mut ibv_qp, gid: *const ibv_gid, mlid: u16) -> c_int {
    // SAFETY: the caller passes a queue pair and a group.
    status(unsafe { parts(c, gid) }.and_then(|(qp, gid)| {
        let command = AttachMcast {
            qp: qp.handle,
            gid,
            mlid,
        };
        Ok(qp.context.fd().execute(&command)?)
    }))
}

/// `ibv_detach_mcast(3)`.
pub unsafe extern "C" fn ibv_detach_mcast(c: *mut ibv_qp, gid: *const ibv_gid, mlid: u16) -> c_int {
    // SAFETY: the caller passes a queue pair and a group.
    status(unsafe { parts(c, gid) }.and_then(|(qp, gid)| {
        let command = DetachMcast {
            qp: qp.handle,
            gid,
            mlid,
        };
        Ok(qp.context.fd().execute(&command)?)
    }))
}
