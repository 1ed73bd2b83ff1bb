//! Futures without a runtime: the caller supplies what waits for a file.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::event::Event;
use super::pending::{Failed, Pending, Step};
use super::space::Listens;
use super::{Link, Listener, Request};
use crate::error::{Cause, Errno, Error, Result, Verb};
use crate::event_file::is_readable;
use crate::readable::{Readable, Watching};

/// A step in progress as a future. Dropping it cancels the step.
///
/// It tells its [`Readable`] that it is [done](Readable::done) before it looks at what has come, and so
/// before the file may be closed.
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct Finish<P: Pending, W: Readable> {
    /// `None` once it has ended.
    pending: Option<P>,
    by: W,
    /// `by` may be waiting for the file.
    is_watched: bool,
}

impl<P: Pending, W: Readable> Finish<P, W> {
    pub(super) fn new(pending: P, by: W) -> Self {
        Self {
            pending: Some(pending),
            by,
            is_watched: false,
        }
    }

    /// Cancels it and returns what was put into it; `None` if it has already finished.
    pub fn cancel(mut self) -> Option<P::Back> {
        self.forget();
        self.pending.take().map(P::cancel)
    }

    /// Before the file may be closed: its number may be another file's from then on.
    fn forget(&mut self) {
        self.is_watched = false;
        self.by.done();
    }
}

impl<P: Pending, W: Readable> Drop for Finish<P, W> {
    fn drop(&mut self) {
        self.forget();
    }
}

impl<P: Pending + Unpin, W: Readable + Unpin> Future for Finish<P, W> {
    type Output = Result<P::Output, Failed<P::Back>>;

    /// # Panics
    ///
    /// Never. Once it has finished, it stays pending.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let polled = this.look(cx);
        if polled.is_ready() {
            this.forget();
        }
        polled
    }
}

impl<P: Pending, W: Readable> Finish<P, W> {
    fn look(&mut self, cx: &mut Context<'_>) -> Poll<Result<P::Output, Failed<P::Back>>> {
        let Some(mut pending) = self.pending.take() else {
            return Poll::Pending;
        };
        loop {
            // A step ends with an event, and one that fails closes its file. If the file cannot be checked,
            // the step reports why.
            if !self.is_watched || is_readable(pending.as_fd()).unwrap_or(true) {
                if self.is_watched {
                    self.forget();
                }
                pending = match pending.try_finish() {
                    Ok(Step::Done(output)) => return Poll::Ready(Ok(output)),
                    Ok(Step::Pending(still)) => still,
                    Err(failed) => return Poll::Ready(Err(failed)),
                };
            }
            self.is_watched = true;
            match self.by.poll_readable(pending.as_fd(), cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let (_, subject) = pending.describe();
                    let error = Error::new(Verb::GetCmEvent, subject, cause(&error));
                    self.forget();
                    let back = pending.cancel();
                    return Poll::Ready(Err(Failed { back, error }));
                }
                Poll::Pending => {
                    self.pending = Some(pending);
                    return Poll::Pending;
                }
            }
        }
    }
}

fn cause(error: &io::Error) -> Cause {
    Cause::Os(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Waits for a file through the caller's runtime.
async fn readable(fd: BorrowedFd<'_>, by: &mut impl Readable) -> Result<(), Cause> {
    let waited = poll_fn(|cx| by.poll_readable(fd, cx)).await;
    waited.map_err(|error| cause(&error))
}

impl<T: Listens> Listener<T> {
    /// The next request, asynchronously.
    ///
    /// # Errors
    ///
    /// As for [`try_next`](Self::try_next), or the runtime cannot watch the file.
    pub async fn next_by(&self, by: &mut impl Readable) -> Result<Request<T>> {
        let lent = Watching(by);
        self.next_kept(lent.0).await
    }

    /// As [`next_by`](Self::next_by), for callers that will wait for the same file again.
    pub(crate) async fn next_kept(&self, by: &mut impl Readable) -> Result<Request<T>> {
        loop {
            if let Some(request) = self.try_next()? {
                return Ok(request);
            }
            let waited = readable(self.as_fd(), by).await;
            waited.map_err(|cause| Error::new(Verb::GetRequest, self.subject(), cause))?;
        }
    }
}

impl Link {
    /// The next event, asynchronously.
    ///
    /// # Errors
    ///
    /// As for [`try_event`](Self::try_event), or the runtime cannot watch the file.
    pub async fn event_by(&self, by: &mut impl Readable) -> Result<Event> {
        let lent = Watching(by);
        let mut looked = false;
        poll_fn(|cx| self.poll_event(lent.0, &mut looked, cx)).await
    }

    /// Like [`event_by`](Self::event_by); `looked` says whether the last look found nothing.
    pub(crate) fn poll_event(
        &self,
        by: &mut impl Readable,
        looked: &mut bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Event>> {
        loop {
            if !*looked {
                if let Some(event) = self.try_event()? {
                    return Poll::Ready(Ok(event));
                }
                *looked = true;
            }
            let waited = ready!(by.poll_readable(self.as_fd(), cx));
            let waited = waited.map_err(|error| cause(&error));
            waited.map_err(|cause| Error::new(Verb::GetCmEvent, self.subject(), cause))?;
            *looked = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, OwnedFd, RawFd};
    use std::task::Waker;

    use super::super::pending::describe::Describe;
    use super::*;
    use crate::error::Subject;

    /// Finishes with the first byte that can be read. If it fails, it gives back its number.
    struct Byte(OwnedFd, u32);

    impl AsFd for Byte {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Describe for Byte {
        fn describe(&self) -> (Verb, Subject) {
            (Verb::Connect, Subject::the("pipe"))
        }
    }

    impl Pending for Byte {
        type Output = u8;
        type Back = u32;

        fn try_finish(self) -> Result<Step<Self>, Failed<u32>> {
            let mut byte = [0];
            match rustix::io::read(&self.0, &mut byte) {
                Ok(1) => Ok(Step::Done(byte[0])),
                Err(Errno::AGAIN) => Ok(Step::Pending(self)),
                other => Err(Failed {
                    back: self.1,
                    error: Error::malformed(
                        Verb::Connect,
                        Subject::the("pipe"),
                        format!("{other:?}"),
                    ),
                }),
            }
        }

        fn cancel(self) -> u32 {
            self.1
        }
    }

    /// Answers from a list, which `done` empties.
    struct Script<'a>(&'a mut Vec<Poll<io::Result<()>>>);

    impl Readable for Script<'_> {
        fn poll_readable(
            &mut self,
            _: BorrowedFd<'_>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.0.pop().unwrap_or(Poll::Pending)
        }

        fn done(&mut self) {
            self.0.clear();
        }
    }

    fn pipe() -> (Byte, OwnedFd) {
        let flags = rustix::pipe::PipeFlags::NONBLOCK;
        let (read, write) = rustix::pipe::pipe_with(flags).unwrap();
        (Byte(read, 7), write)
    }

    fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn looks_before_it_waits_and_after() {
        let (byte, write) = pipe();
        // Spuriously readable once, then not readable. The list is taken from its end.
        let mut answers = vec![Poll::Pending, Poll::Ready(Ok(()))];
        let mut finish = byte.finish(Script(&mut answers));
        assert!(poll(&mut finish).is_pending());
        rustix::io::write(&write, &[42]).unwrap();
        assert!(matches!(poll(&mut finish), Poll::Ready(Ok(42))));
        assert!(poll(&mut finish).is_pending(), "it has ended");
        assert!(finish.cancel().is_none());
        assert!(answers.is_empty());
    }

    /// Catches a file that stays registered, so that a later file with its number would be taken for it.
    #[test]
    fn who_waits_is_told_that_it_is_done() {
        let kept = || vec![Poll::Pending, Poll::Pending];
        let (byte, write) = pipe();
        let mut answers = kept();
        let mut finish = byte.finish(Script(&mut answers));
        assert!(poll(&mut finish).is_pending());
        drop(finish);
        assert!(answers.is_empty(), "it was dropped");
        drop(write);
        let (byte, write) = pipe();
        let mut answers = kept();
        rustix::io::write(&write, &[42]).unwrap();
        let mut script = Script(&mut answers);
        assert!(matches!(
            poll(&mut byte.finish(&mut script)),
            Poll::Ready(Ok(42))
        ));
        assert!(script.0.is_empty(), "it has ended");
    }

    /// Notes whether the file that was asked for last is open when nobody waits for it any more.
    struct Number(Option<RawFd>, Vec<bool>);

    impl Readable for &mut Number {
        fn poll_readable(
            &mut self,
            fd: BorrowedFd<'_>,
            _: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            self.0 = Some(fd.as_raw_fd());
            Poll::Pending
        }

        fn done(&mut self) {
            if let Some(number) = self.0.take() {
                let file = std::path::PathBuf::from(format!("/proc/self/fd/{number}"));
                self.1.push(file.exists() || file.is_symlink());
            }
        }
    }

    /// Catches a file that is closed while it is still registered: meanwhile another thread may open one of
    /// the same number, which would then be taken from the registry.
    #[test]
    fn who_waits_is_told_before_the_file_closes() {
        let mut told = Number(None, Vec::new());
        for how in ["cancelled", "dropped", "failed", "done"] {
            let (byte, write) = pipe();
            let mut finish = byte.finish(&mut told);
            assert!(poll(&mut finish).is_pending());
            match how {
                "cancelled" => assert_eq!(finish.cancel(), Some(7)),
                "dropped" => drop(finish),
                "failed" => {
                    drop(write);
                    assert!(matches!(poll(&mut finish), Poll::Ready(Err(_))));
                }
                _ => {
                    rustix::io::write(&write, &[42]).unwrap();
                    assert!(matches!(poll(&mut finish), Poll::Ready(Ok(42))));
                }
            }
        }
        assert_eq!(told.1, [true; 4]);
    }

    #[test]
    fn what_was_put_in_comes_back() {
        let (byte, _write) = pipe();
        let mut none = Vec::new();
        let mut finish = byte.finish(Script(&mut none));
        assert!(poll(&mut finish).is_pending());
        assert_eq!(finish.cancel(), Some(7));
        let (byte, _write) = pipe();
        let mut error = vec![Poll::Ready(Err(io::Error::from_raw_os_error(12)))];
        let mut finish = byte.finish(Script(&mut error));
        let Poll::Ready(Err(failed)) = poll(&mut finish) else {
            panic!("the runtime cannot watch it");
        };
        assert_eq!((failed.back, failed.error.errno()), (7, Some(Errno::NOMEM)));
    }

    #[test]
    fn waiting_ends_in_time_and_gives_back() {
        let (byte, write) = pipe();
        let limit = std::time::Duration::from_millis(5);
        let Ok(Step::Pending(byte)) = byte.wait_for(limit) else {
            panic!("nothing came");
        };
        let Err(late) = byte.within(limit) else {
            panic!("nothing came");
        };
        assert_eq!(late.back, 7);
        assert!(matches!(late.error.cause(), Cause::TimedOut(_)), "{late}");
        drop(write);
        let (byte, write) = pipe();
        rustix::io::write(&write, &[1]).unwrap();
        assert_eq!(byte.wait().map_err(Error::from), Ok(1));
    }
}
