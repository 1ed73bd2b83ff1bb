//! Waiting for two descriptors.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{ErrorKind, Result};

/// Waits until one of two descriptors can be read, has an error or is at its end; tells which. A negative
/// time has no end. A signal counts as the end of the time.
pub fn poll_readable2(fd_a: RawFd, fd_b: RawFd, timeout_ms: i32) -> Result<(bool, bool)> {
    if fd_a < 0 || fd_b < 0 {
        return Err(ErrorKind::PollFdFail.because()("a descriptor is negative"));
    }
    // SAFETY: they are not negative. poll(2) says of one that is closed that it is invalid, and does nothing
    // to one that is somebody else's by now.
    let [a, b] = [fd_a, fd_b].map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
    let mut both = [a, b].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let timeout = u32::try_from(timeout_ms).ok().map(|milliseconds| Timespec {
        tv_sec: (milliseconds / 1000).into(),
        tv_nsec: (milliseconds % 1000 * 1_000_000).into(),
    });
    match poll(&mut both, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(ErrorKind::PollFdFail.because()(error)),
    }
    let [a, b] = both.map(|fd| !fd.revents().is_empty());
    Ok((a, b))
}
