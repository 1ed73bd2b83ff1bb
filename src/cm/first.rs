//! One wait for two things: an event of the connection, and completions or a future.
//!
//! If a peer dies, this side's queue pair does not change: only the link reports it. So a thread that waits
//! only for completions may wait forever.

use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Link;
use super::event::Event;
use crate::cq::{Completions, Cq, Notify};
use crate::error::{Errno, Error, Result, Verb};
use crate::readable::{Readable, Watching};

/// What came first.
#[derive(Debug)]
pub enum First<T> {
    /// What was waited for: completions, or the output of a future.
    Output(T),
    /// An event of the connection, most often its end.
    Event(Event),
}

impl Link {
    /// Waits for completions or for the connection's next event, whichever comes first, for at most `limit`;
    /// `None` if neither has come by then. If both have come, it returns the completions: what the peer sent
    /// before it ended the connection is not lost.
    ///
    /// It sleeps on the queue's [channel](crate::cq::CqBuilder::channel), which should not be shared: events
    /// of other queues that it reads are dropped.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use uverbs::{Qp, Rc, Cq, cm::{Connection, First}};
    ///
    /// fn serve(connection: &Connection<Qp<Rc>>, cq: &mut Cq) -> uverbs::Result<()> {
    ///     loop {
    ///         match connection.link().completions_or_event(cq, Duration::MAX)? {
    ///             Some(First::Output(mut completions)) => {
    ///                 for completion in &mut completions { println!("{completion:?}") }
    ///             }
    ///             Some(First::Event(event)) if event.ends() => return Ok(()),
    ///             Some(First::Event(event)) => println!("{event:?}"),
    ///             None => {}
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Cq::wait`] and [`Link::try_event`].
    pub fn completions_or_event<'q>(
        &self,
        cq: &'q mut Cq,
        limit: Duration,
    ) -> Result<Option<First<Completions<'q>>>> {
        let channel = cq.channel()?.clone();
        // `None` if the deadline is too far away for the clock: it never comes.
        let deadline = Instant::now().checked_add(limit);
        while cq.is_empty()? {
            cq.arm(Notify::Next)?;
            if !cq.is_empty()? {
                break;
            }
            if let Some(event) = self.try_event()? {
                return Ok(Some(First::Event(event)));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            self.wait_beside(&channel, left)?;
            while channel.try_next()?.is_some() {}
        }
        Ok(Some(First::Output(cq.poll()?)))
    }

    /// Waits until there may be an event or completions, for at most `limit`.
    fn wait_beside(&self, other: &impl AsFd, limit: Option<Duration>) -> Result<()> {
        let mut files = [
            PollFd::new(other, PollFlags::IN),
            PollFd::new(self, PollFlags::IN),
        ];
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut files, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::os(Verb::GetCmEvent, self.subject(), errno)),
        }
    }

    /// Awaits a future or the connection's next event, whichever comes first; if both have come, it returns
    /// the future's output. Lend the future (`&mut operation`) to continue with it after an event.
    ///
    /// ```no_run
    /// # async fn receive(
    /// #     connection: &mut uverbs::aio::Connection<uverbs::Rc>, buf: uverbs::buf::Buf,
    /// #     watch: &mut impl uverbs::cm::Readable,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use uverbs::cm::First;
    ///
    /// let operation = connection.qp().recv(buf);
    /// match connection.link().or_event_by(operation, watch).await? {
    ///     First::Output((received, buf)) => println!("{received:?}: {:?}", &*buf),
    ///     First::Event(event) => println!("{event:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`event_by`](Self::event_by).
    pub async fn or_event_by<F: Future>(
        &self,
        future: F,
        by: &mut impl Readable,
    ) -> Result<First<F::Output>> {
        let lent = Watching(by);
        let mut future = pin!(future);
        let mut looked = false;
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(First::Output(output)));
            }
            self.poll_event(lent.0, &mut looked, cx)
                .map_ok(First::Event)
        })
        .await
    }
}
