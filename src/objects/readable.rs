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

/// What waits for a file as long as this is there; then it is told that nobody waits any more.
pub(crate) struct Watching<R: Readable>(pub(crate) R);

impl<R: Readable> Drop for Watching<R> {
    fn drop(&mut self) {
        self.0.done();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::task::Waker;

    use super::*;

    /// Would catch something that is lent and goes on watching a file which is gone: the next one may have
    /// its number.
    #[test]
    fn what_is_lent_is_told_when_nobody_waits() {
        struct Watch(u32);
        impl Readable for Watch {
            fn poll_readable(
                &mut self,
                _: BorrowedFd<'_>,
                _: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                Poll::Pending
            }

            fn done(&mut self) {
                self.0 += 1;
            }
        }
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let mut watch = Watch(0);
        let watching = Watching(&mut watch);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(watching.0.poll_readable(read.as_fd(), &mut cx).is_pending());
        drop(watching);
        assert_eq!(watch.0, 1);
    }
}
