//! What compio contributes: it watches files, by io_uring or by epoll, and keeps time.
//!
//! compio runs a thread's tasks on that thread only. So these types stay there too: they are not `Send`.
//!
//! ```no_run
//! use std::time::Duration;
//! use uverbs::aio::{self, Cq, Post, Wait};
//! use uverbs::{Caps, Rc, buf::Pool, cm::{self, Params}};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Duration::from_secs(5);
//! let way = aio::compio::within(limit, cm::resolve::<Rc>("10.9.0.2:4420")?.start()?).await?;
//! let context = way.device()?.open()?;
//! let pd = context.alloc_pd()?;
//! let (pool, cq) = (Pool::on(&pd).build()?, Cq::new(&context, 256)?);
//! compio_runtime::spawn(aio::compio::serve(cq.clone(), Wait::default())).detach();
//!
//! let qp = cq.create_qp::<Rc>(&pd, Caps::default())?;
//! let connecting = qp.connect_to(way, &Params::default(), b"")?;
//! let mut connection = aio::compio::within(limit, connecting).await?;
//! let mut buf = pool.get(64).await?;
//! buf.extend_from_slice(b"hello")?;
//! let (sent, buf) = connection.qp().send(buf).await;
//! # drop((sent, buf)); Ok(()) }
//! ```

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use compio_runtime::Runtime;
use compio_runtime::fd::PollFd;

use super::cq::{Cq, Wait};
use super::watched::finish_before;
use crate::cm::{Failed, Pending};
use crate::error::Error;
use crate::event_file::is_readable;
use crate::readable::Readable;

/// Waits for a file to be readable, by compio's driver. Each value watches one file, through a duplicate of
/// its descriptor.
#[derive(Debug, Default)]
pub struct Watch(Option<(RawFd, PollFd<OwnedFd>)>);

impl Watch {
    /// A value that watches the file that it is asked for first.
    pub fn new() -> Self {
        Self::default()
    }

    /// The file as registered with the driver.
    fn registered(&mut self, fd: BorrowedFd<'_>) -> io::Result<&PollFd<OwnedFd>> {
        // Before the runtime is called, which panics without one.
        if Runtime::try_current().is_none() {
            let why = "this thread runs no compio runtime at the moment";
            return Err(io::Error::other(why));
        }
        let number = fd.as_raw_fd();
        if self.0.as_ref().is_none_or(|(of, _)| *of != number) {
            let file = PollFd::new(fd.try_clone_to_owned()?)?;
            self.0 = Some((number, file));
        }
        match &self.0 {
            Some((_, file)) => Ok(file),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Readable for Watch {
    fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let file = self.registered(fd)?;
        loop {
            // The driver may report the answer to an earlier wait, and the data may have been read since.
            ready!(file.poll_read_ready(cx))?;
            if is_readable(fd)? {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn done(&mut self) {
        self.0 = None;
    }
}

/// Delivers completions to the operations that wait for them: a future to spawn. See [`Cq::serve`].
///
/// # Errors
///
/// As for [`Cq::serve`]; it ends only with an error.
pub async fn serve(cq: Cq, wait: Wait) -> Error {
    cq.serve(Watch::new(), wait).await
}

/// Waits for a step of the connection manager for at most `limit`, and then cancels it. It waits without
/// end if the clock cannot hold the deadline.
///
/// # Errors
///
/// It failed, was not done in time ([`Cause::TimedOut`](crate::Cause::TimedOut)), or has to wait on a thread
/// without a runtime. The error returns the values that were passed to it.
pub async fn within<P: Pending + Unpin>(
    limit: Duration,
    pending: P,
) -> Result<P::Output, Failed<P::Back>> {
    let deadline = Instant::now().checked_add(limit);
    let sleep = async {
        match deadline {
            Some(deadline) => compio_runtime::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    finish_before(limit, pending, Watch::new(), sleep).await
}

/// Awaits requests for connections.
pub type Listener<T> = super::Listener<T, Watch>;

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use crate::cm::Step;
    use crate::cm::pending::describe::Describe;
    use crate::error::{Subject, Verb};

    /// A step that is done at the second look.
    struct Second {
        file: OwnedFd,
        looked: bool,
    }

    impl AsFd for Second {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.file.as_fd()
        }
    }

    impl Describe for Second {
        fn describe(&self) -> (Verb, Subject) {
            (Verb::Connect, Subject::the("pipe"))
        }
    }

    impl Pending for Second {
        type Output = ();
        type Back = ();

        fn try_finish(self) -> Result<Step<Self>, Failed<()>> {
            match self.looked {
                true => Ok(Step::Done(())),
                false => Ok(Step::Pending(Self {
                    looked: true,
                    ..self
                })),
            }
        }

        fn cancel(self) {}
    }

    /// Would catch a panic at a deadline that the clock cannot hold: the step is lost with it.
    #[test]
    fn a_limit_beyond_the_clock_is_none() {
        let (file, write) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&write, &[1]).unwrap();
        let step = Second {
            file,
            looked: false,
        };
        let runtime = Runtime::new().unwrap();
        let ended = runtime.block_on(within(Duration::MAX, step));
        assert!(ended.is_ok(), "{ended:?}");
    }
}
