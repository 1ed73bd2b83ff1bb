//! Event channels: open files of the connection manager.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::OFlags;

use super::abi::rdma_event_channel;
use crate::c::failure::{Failure, Result, pointer};
use crate::cm::command::Command;
use crate::cm::file;
use crate::device::Manager;
use crate::error::Errno;

/// Opens a channel. Its file blocks; programs can change that themselves. Without a connection manager it
/// fails as rdma-core's does without a device.
pub(super) fn open() -> Result<*mut rdma_event_channel> {
    let (_, file) =
        Manager::find_open(OFlags::empty()).map_err(|error| match Failure::from(error) {
            Failure::UNSUPPORTED => Failure(Errno::NODEV),
            other => other,
        })?;
    let fd = file.into_raw_fd();
    Ok(Box::into_raw(Box::new(rdma_event_channel { fd })))
}

/// `rdma_create_event_channel(3)`.
pub extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(open())
}

/// `rdma_destroy_event_channel(3)`.
pub unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    if channel.is_null() {
        return;
    }
    // SAFETY: the caller passes a channel for the last time.
    let rdma_event_channel { fd } = *unsafe { Box::from_raw(channel) };
    if fd >= 0 {
        // SAFETY: the file is the channel's own.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// Sends a command on a channel's file.
pub(super) fn send<C: Command>(fd: c_int, command: &C) -> Result<C::Reply> {
    if fd < 0 {
        return Err(Failure::INVALID);
    }
    // SAFETY: the program keeps the channel open during the call; a number without a file gives EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(file::send(fd, command)?)
}
