//! Completion channels. Their files block until the program says otherwise.

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::abi::context::ibv_context;
use super::abi::queue::ibv_comp_channel;
use super::context::context;
use super::failure::{Failure, pointer};
use super::object::{CStruct, Object, destroy};
use crate::command::CreateCompChannel;
use crate::context::Context;
use crate::error::Errno;

/// A completion channel of a C program.
#[repr(C)]
pub(super) struct ChannelObject {
    c: CStruct<ibv_comp_channel>,
    fd: OwnedFd,
    /// Its file belongs to this context.
    _context: Context,
}

// SAFETY: the C struct is the first field.
unsafe impl Object for ChannelObject {
    type C = ibv_comp_channel;
}

impl ChannelObject {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many completion queues report to it: the field that the program sees too.
    pub(super) fn users(&self) -> &AtomicU32 {
        // SAFETY: the field is the object's, and is only accessed atomically.
        unsafe { &(*self.c.get()).refcnt }
    }
}

/// `ibv_create_comp_channel(3)`.
pub unsafe extern "C" fn ibv_create_comp_channel(c: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: the caller passes an open context.
    pointer(unsafe { context(c) }.and_then(|context| {
        let fd = context.context().fd().execute(&CreateCompChannel)?;
        let channel = ibv_comp_channel {
            context: c,
            fd: fd.as_raw_fd(),
            refcnt: AtomicU32::new(0),
        };
        let object = ChannelObject {
            c: CStruct::new(channel),
            fd,
            _context: context.context().clone(),
        };
        Ok(Box::new(object).give())
    }))
}

/// `ibv_destroy_comp_channel(3)`: busy while completion queues report to it.
pub unsafe extern "C" fn ibv_destroy_comp_channel(c: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller passes a channel, for the last time if this succeeds.
    unsafe {
        destroy(c, |channel: &mut ChannelObject| {
            // Acquire: what a destroyed queue did happens before this. Pairs with the release in
            // `ibv_destroy_cq`.
            match channel.users().load(Ordering::Acquire) {
                0 => Ok(()),
                _ => Err(Failure(Errno::BUSY)),
            }
        })
    }
}
