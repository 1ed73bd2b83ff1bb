//! Waits for a file on behalf of a future.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

/// What a runtime contributes: it wakes a task when a file is readable.
///
/// The library asks only after a look at the file has found nothing. So readiness that the runtime noticed
/// before that look no longer counts.
pub trait Readable {
    /// Whether the file is readable; if not, wakes the task of `cx` when it is.
    ///
    /// # Errors
    ///
    /// The runtime cannot watch the file.
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// The library no longer waits for the file that it asked for last, and may close it. The runtime must
    /// forget it: the next file may have the same number.
    fn done(&mut self) {}
}

/// Lends a [`Readable`].
impl<R: Readable + ?Sized> Readable for &mut R {
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(fd, cx)
    }

    fn done(&mut self) {
        (**self).done();
    }
}

/// A [`Readable`] of a type that is only known at run time.
impl<R: Readable + ?Sized> Readable for Box<R> {
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        (**self).poll_readable(fd, cx)
    }

    fn done(&mut self) {
        (**self).done();
    }
}

/// A [`Readable`] that waits for a file as long as this lives; dropping this calls [`Readable::done`].
#[derive(Debug)]
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

    /// Would catch a lent [`Readable`] that keeps watching a file which is closed: the next file may have its
    /// number.
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
