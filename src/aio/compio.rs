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
use std::time::Duration;

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

/// Waits for a step of the connection manager for at most `limit`, and then cancels it.
///
/// # Errors
///
/// It failed, was not done in time ([`Cause::TimedOut`](crate::Cause::TimedOut)), or has to wait on a thread
/// without a runtime. The error returns the values that were passed to it.
pub async fn within<P: Pending + Unpin>(
    limit: Duration,
    pending: P,
) -> Result<P::Output, Failed<P::Back>> {
    let sleep = compio_runtime::time::sleep(limit);
    finish_before(limit, pending, Watch::new(), sleep).await
}

/// Awaits requests for connections.
pub type Listener<T> = super::Listener<T, Watch>;
