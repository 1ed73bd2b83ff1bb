//! What waits for a file on behalf of a future.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

/// What a runtime contributes: it tells when a file is readable.
///
/// A file is asked for only after a look at it has found nothing. So readiness that was noticed before that
/// look counts no more.
pub trait Readable {
    /// Whether the file is readable; if not, wakes the task of `cx` when it is.
    ///
    /// # Errors
    ///
    /// The runtime cannot watch the file.
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Nobody waits any more for the file that was asked for last, and it may be closed: what is kept of it
    /// is to go, for the next file may have the same number.
    fn done(&mut self) {}
}

/// Lends what waits for a file.
impl<R: Readable + ?Sized> Readable for &mut R {
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(fd, cx)
    }

    fn done(&mut self) {
        (**self).done();
    }
}

/// Of a kind that is known when the program runs.
impl<R: Readable + ?Sized> Readable for Box<R> {
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(fd, cx)
    }

    fn done(&mut self) {
        (**self).done();
    }
}
