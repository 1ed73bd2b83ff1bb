//! What tokio contributes: it watches files, and keeps time.
//!
//! ```no_run
//! use std::time::Duration;
//! use uverbs::aio::{self, Cq, Post, Wait};
//! use uverbs::{Caps, Rc, buf::Pool, cm::{self, Params}};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let limit = Duration::from_secs(5);
//! let way = aio::tokio::within(limit, cm::resolve::<Rc>("10.9.0.2:4420")?.start()?).await?;
//! let context = way.device()?.open()?;
//! let pd = context.alloc_pd()?;
//! let (pool, cq) = (Pool::on(&pd).build()?, Cq::new(&context, 256)?);
//! tokio::spawn(aio::tokio::serve(cq.clone(), Wait::default()));
//!
//! let qp = cq.create_qp::<Rc>(&pd, Caps::default())?;
//! let connecting = qp.connect_to(way, &Params::default(), b"")?;
//! let mut connection = aio::tokio::within(limit, connecting).await?;
//! let mut buf = pool.get(64).await?;
//! buf.extend_from_slice(b"hello")?;
//! let (sent, buf) = connection.qp().send(buf).await;
//! # drop((sent, buf)); Ok(()) }
//! ```

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::cq::{Cq, Wait};
use super::watched::finish_before;
use crate::cm::{Failed, Pending};
use crate::error::Error;
use crate::event_file::is_readable;
use crate::readable::Readable;

/// What is wrong with a runtime that panics when it is to watch a file.
const NO_IO: &str = "this tokio runtime watches no files: it needs `enable_io`";

/// Waits for a file to be readable, by tokio's reactor. Each watches one file, by a duplicate of its
/// descriptor.
///
/// Needs a runtime with I/O (`enable_io`). Without, waiting is an error, for which the panic hook says that
/// tokio panicked; in a program that is built to abort on panics, that is its end.
#[derive(Debug, Default)]
pub struct Watch(Option<(RawFd, AsyncFd<OwnedFd>)>);

impl Watch {
    /// A value that watches the file that it is asked for first.
    pub fn new() -> Self {
        Self::default()
    }

    /// The file as registered with the reactor.
    fn registered(&mut self, fd: BorrowedFd<'_>) -> io::Result<&AsyncFd<OwnedFd>> {
        let number = fd.as_raw_fd();
        if self.0.as_ref().is_none_or(|(of, _)| *of != number) {
            // Before the reactor is called, which panics without a runtime.
            Handle::try_current().map_err(io::Error::other)?;
            let interest = tokio::io::Interest::READABLE;
            let own = fd.try_clone_to_owned()?;
            // A runtime that was built without I/O panics here, and cannot be asked before. Nothing is half
            // done then: it is the first thing that it looks at.
            let registered = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: the descriptor is its own, so it stays open, and that of the same file, until it is
                // dropped with the registration; nobody else has it.
                unsafe { AsyncFd::register_with_interest(own, interest) }
            }));
            match registered {
                Ok(file) => self.0 = Some((number, file?)),
                Err(panic) => {
                    // What it says may panic in its turn when it is dropped.
                    std::mem::forget(panic);
                    return Err(io::Error::other(NO_IO));
                }
            }
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
            let read = file.poll_read_ready(cx)?;
            // The reactor takes an error alone, as from a removed device, for the end of writing and not of
            // reading. The error stays.
            let failed = file.poll_write_ready(cx)?.is_ready();
            let told = read.map(|mut ready| {
                // The reactor reports edges: the data that it has reported may have been read since, and it
                // reports data that arrive from here on again. So the file itself is checked once, in
                // between.
                ready.clear_ready();
            });
            if (told.is_ready() || failed) && is_readable(fd)? {
                return Poll::Ready(Ok(()));
            }
            ready!(told);
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
/// As for [`Cq::serve`]; it ends only with an error. A runtime without I/O (`enable_io`) is one.
pub async fn serve(cq: Cq, wait: Wait) -> Error {
    cq.serve(Watch::new(), wait).await
}

/// Waits for a step of the connection manager for at most `limit`, and then cancels it.
///
/// Needs a runtime with I/O and time.
///
/// # Errors
///
/// It failed, or was not done in time ([`Cause::TimedOut`](crate::Cause::TimedOut)). The error returns the
/// values that were passed to it.
pub async fn within<P: Pending + Unpin>(
    limit: Duration,
    pending: P,
) -> Result<P::Output, Failed<P::Back>> {
    finish_before(limit, pending, Watch::new(), tokio::time::sleep(limit)).await
}

/// Awaits requests for connections.
pub type Listener<T> = super::Listener<T, Watch>;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use tokio::runtime::Builder;

    use super::*;

    /// Would catch a panic in who waits on a runtime without I/O: operations in flight would then never end.
    #[test]
    fn a_runtime_without_io_is_an_error() {
        let (file, _write) = rustix::pipe::pipe().unwrap();
        let mut watch = Watch::new();
        let mut look = || {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            watch.poll_readable(file.as_fd(), &mut cx)
        };
        assert!(matches!(look(), Poll::Ready(Err(_))), "without a runtime");
        let runtime = Builder::new_current_thread().build().unwrap();
        let Poll::Ready(Err(error)) = runtime.block_on(async { look() }) else {
            panic!("it watches the file");
        };
        assert_eq!(error.to_string(), NO_IO);
        // What was tried before does not keep another runtime from it.
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        assert!(runtime.block_on(async { look() }).is_pending());
    }
}
