//! What waits for a file on behalf of a future.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

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

/// Whether a file is readable now. A signal does not end the look, which finds nothing then.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut files = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut files, Some(&Timespec::default())))? > 0)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Waker;
    use std::thread;

    use super::*;

    /// Would catch a look that a signal ends with an error.
    #[test]
    #[cfg_attr(miri, ignore = "it has no signals")]
    fn a_signal_ends_no_look() {
        extern "C" fn nothing(_: libc::c_int) {}
        let (read, write) = rustix::pipe::pipe().unwrap();
        let is_over = AtomicBool::new(false);
        // SAFETY: the handler does nothing; the thread that is signalled waits for the one that signals it.
        let looks: Vec<_> = unsafe {
            let handler = nothing as extern "C" fn(libc::c_int) as usize;
            libc::signal(libc::SIGUSR2, handler);
            let here = libc::pthread_self();
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        libc::pthread_kill(here, libc::SIGUSR2);
                    }
                });
                let looks = (0..20_000).map(|_| is_readable(read.as_fd()).ok());
                let looks = looks.collect();
                is_over.store(true, Ordering::Relaxed);
                looks
            })
        };
        assert!(looks.iter().all(|look| *look == Some(false)));
        rustix::io::write(&write, b"x").unwrap();
        assert!(is_readable(read.as_fd()).unwrap());
    }

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
