//! A step in progress: it can be waited for with a deadline, checked without blocking, or cancelled.

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use uverbs_uapi::rdma_cm::EventResp;

use super::file;
use super::readable::Finish;
use crate::error::{Cause, Error, Result, Subject, Verb};
use crate::readable::Readable;

/// A failed step, with the values that were put into it.
pub struct Failed<B> {
    /// The values that were put into it, returned to the caller.
    pub back: B,
    /// Why it failed.
    pub error: Error,
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<B> std::error::Error for Failed<B> {}

impl<B> From<Failed<B>> for Error {
    /// Keeps the error and drops the rest.
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

/// The state of a step.
#[derive(Debug)]
pub enum Step<P: Pending> {
    /// It is done.
    Done(P::Output),
    /// It is still in progress.
    Pending(P),
}

/// The names in a step's errors.
pub(crate) mod describe {
    use crate::error::{Subject, Verb};

    /// The verb in progress, and its object.
    pub trait Describe {
        #[doc(hidden)]
        fn describe(&self) -> (Verb, Subject);
    }
}

/// A step in progress whose end the connection manager reports.
///
/// The file becomes readable when there may be news; [`try_finish`](Self::try_finish) then checks. Dropping a
/// step cancels it, without waiting for a peer.
pub trait Pending: AsFd + Sized + describe::Describe {
    /// The result.
    type Output;
    /// What was put into it; it is returned if the step fails or is cancelled.
    type Back;

    /// Checks whether it is done, without waiting.
    ///
    /// # Errors
    ///
    /// It failed; the error gives back what was put into it.
    fn try_finish(self) -> Result<Step<Self>, Failed<Self::Back>>;

    /// Cancels it and returns what was put into it.
    fn cancel(self) -> Self::Back;

    /// Waits for it for at most `limit`. If it is not done by then, it is still in progress.
    ///
    /// # Errors
    ///
    /// It failed; the error gives back what was put into it.
    fn wait_for(self, limit: Duration) -> Result<Step<Self>, Failed<Self::Back>> {
        // If the clock cannot hold the deadline there is none: nobody waits so long.
        wait_until(self, Instant::now().checked_add(limit))
    }

    /// Waits for it for at most `limit`, and then cancels it.
    ///
    /// # Errors
    ///
    /// It failed, or was not done in time ([`Cause::TimedOut`]); the error returns what was put into it.
    fn within(self, limit: Duration) -> Result<Self::Output, Failed<Self::Back>> {
        match self.wait_for(limit)? {
            Step::Done(output) => Ok(output),
            Step::Pending(pending) => {
                let (verb, subject) = pending.describe();
                let cause = Cause::nothing_within(limit);
                Err(Failed {
                    back: pending.cancel(),
                    error: Error::new(verb, subject, cause),
                })
            }
        }
    }

    /// The step as a future; `by` integrates a runtime.
    fn finish<W: Readable>(self, by: W) -> Finish<Self, W> {
        Finish::new(self, by)
    }

    /// Waits for it without a limit. The kernel gives up on a silent host after more than a minute, and on a
    /// program that does not answer much later.
    ///
    /// # Errors
    ///
    /// It failed; the error gives back what was put into it.
    fn wait(self) -> Result<Self::Output, Failed<Self::Back>> {
        let mut pending = self;
        loop {
            match wait_until(pending, None)? {
                Step::Done(output) => return Ok(output),
                Step::Pending(still) => pending = still,
            }
        }
    }
}

/// Waits until it is done or the deadline has passed.
fn wait_until<P: Pending>(
    mut pending: P,
    deadline: Option<Instant>,
) -> Result<Step<P>, Failed<P::Back>> {
    loop {
        pending = match pending.try_finish()? {
            Step::Pending(still) => still,
            done => return Ok(done),
        };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(Step::Pending(pending));
        }
        if let Err(errno) = file::wait(pending.as_fd(), left) {
            let (_, subject) = pending.describe();
            return Err(Failed {
                back: pending.cancel(),
                error: Error::os(Verb::GetCmEvent, subject, errno),
            });
        }
    }
}

/// One look at a step that gives nothing back. `advanced` is the event that it waits for, if that has come,
/// and `done` makes the result from it.
pub(super) fn step<P: Pending<Back = ()>>(
    pending: P,
    advanced: Result<Option<EventResp>>,
    done: impl FnOnce(P, &EventResp) -> Result<P::Output>,
) -> Result<Step<P>, Failed<()>> {
    let step = match advanced {
        Ok(Some(raw)) => done(pending, &raw).map(Step::Done),
        Ok(None) => Ok(Step::Pending(pending)),
        Err(error) => Err(error),
    };
    step.map_err(|error| Failed { back: (), error })
}

/// Looks until there is something, for at most `limit`.
pub(super) fn poll_until<V>(
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<V>>,
    wait: impl Fn(Option<Duration>) -> Result<()>,
) -> Result<Option<V>> {
    let deadline = Instant::now().checked_add(limit);
    loop {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        wait(left)?;
    }
}

/// The name of a connection in errors.
pub(super) fn subject_of(kind: &str, address: impl fmt::Display) -> Subject {
    Subject::named("connection", format_args!("{kind} {address}"))
}
