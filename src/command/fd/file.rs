//! An open file that can be closed before its owner is dropped.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// No file has this number: the kernel's limit is lower (`sysctl_nr_open_max` in `fs/file.c`). Every system
/// call refuses it with `EBADF`, so code that still has the file need not check whether it is open.
const CLOSED: RawFd = RawFd::MAX;

/// An open file, closed when dropped or by [`close`](Self::close).
#[derive(Debug)]
pub(crate) struct File(AtomicI32);

// Relaxed throughout: `close` has no concurrent user.
impl File {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(AtomicI32::new(fd.into_raw_fd()))
    }

    /// Closes it, if it is open.
    ///
    /// # Safety
    ///
    /// Nothing uses the file meanwhile, or keeps what [`as_fd`](AsFd::as_fd) has returned.
    #[cfg(feature = "c-abi")]
    pub(crate) unsafe fn close(&self) {
        drop(own(self.0.swap(CLOSED, Ordering::Relaxed)));
    }
}

/// The file with a number that this type has kept, to close it.
fn own(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: the number came from an `OwnedFd`, and the caller has taken it out of its place, so it owns it
    // alone.
    (number != CLOSED).then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

impl AsFd for File {
    #[inline(always)]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the file is open as long as this is borrowed, or the number belongs to no file.
        unsafe { BorrowedFd::borrow_raw(self.0.load(Ordering::Relaxed)) }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(own(*self.0.get_mut()));
    }
}

#[cfg(all(test, feature = "c-abi"))]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// Would catch a file that stays open, or is closed twice.
    #[test]
    fn a_closed_file_is_refused() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let file = File::new(write);
        rustix::io::write(&file, b"x").unwrap();
        // SAFETY: nothing else has it.
        unsafe { file.close() };
        assert_eq!(rustix::io::write(&file, b"x"), Err(Errno::BADF));
        let mut bytes = [0; 2];
        assert_eq!(rustix::io::read(&read, &mut bytes), Ok(1));
        assert_eq!(
            rustix::io::read(&read, &mut bytes),
            Ok(0),
            "no writer is left"
        );
        // SAFETY: as above.
        unsafe { file.close() };
    }
}
