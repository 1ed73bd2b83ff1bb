//! Messages of any length between two programs, over one reliable queue pair.
//!
//! It does what programs with SEND and RECEIVE otherwise implement by hand. Receives are posted ahead, and
//! credits inform the peer how many, so that a message always finds one (no RNR). Short messages are copied
//! into one SEND. Long ones stay in place: the peer is notified and READs them into a buffer of its own.
//!
//! A channel makes progress while one of its methods is awaited. A program that only sends and never receives
//! stops its peer. If a peer by address disconnects or its program is killed, pending calls and operations
//! end. A host that vanishes is not reported, and the kernel of a killed program reports only once: set your
//! own time limit when waiting for messages.
//!
//! The pool should have twice as many buffers of the receive size as are posted ahead, and must let peers
//! read for long messages ([`PoolBuilder::remote_read`](crate::buf::PoolBuilder::remote_read)).

mod close;
mod credits;
mod error;
mod header;
mod link;
mod receive;
mod send;
mod start;

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

pub use error::{ChannelCause, ChannelError};
pub use start::{Prepared, Settings};

use self::credits::{Answers, Credits};
use self::header::{HEADER, Header, Kind};
use self::link::Link;
use super::op::{self, Op, Read, Receive, SentInline};
use super::qp::Qp;
use super::send::Post;
use super::steps::AT_ONCE;
use super::table::Room;
use crate::buf::{Buf, GetError, Pool, Wanted};
use crate::qp::transport::Rc;
use crate::work::RemoteSlice;

/// A channel: messages of any length, in order, in both directions.
///
/// ```no_run
/// use uverbs::aio::{Cq, channel::{Channel, Settings}};
/// use uverbs::{Rc, buf::Pool, cm::{self, Params, Pending}};
/// # async fn run(by: impl uverbs::aio::Readable + Send + Sync + 'static) -> Result<(), Box<dyn std::error::Error>> {
/// # let limit = std::time::Duration::from_secs(1);
/// let way = cm::resolve::<Rc>("10.9.0.2:4420")?.start()?.within(limit)?;
/// let context = way.device()?.open()?;
/// let pd = context.alloc_pd()?;
/// let pool = Pool::on(&pd).remote_read().build()?;
/// let cq = Cq::new(&context, 1024)?;
/// let prepared = Channel::prepare(&cq, &pd, &pool, &Settings::default())?;
/// let mut channel = prepared.connect_to(way, &Params::default(), by).await?;
/// let mut buf = pool.get(1 << 20).await?;
/// buf.set_len(1 << 20)?;
/// let (sent, _buf) = channel.send(buf).await;
/// sent?;
/// while let Some(message) = channel.recv().await? {
///     println!("{} bytes", message.len());
/// }
/// channel.close().await?;
/// # Ok(()) }
/// ```
pub struct Channel {
    // Dropped before the link, whose end notifies the peer.
    qp: Qp<Rc>,
    link: Option<Link>,
    /// Waits for room for a send.
    room: Room,
    pool: Pool,
    /// Waits for a buffer to receive into.
    inlet: Wanted,
    /// Who it is, for errors.
    peer: String,
    settings: Settings,
    /// Bytes of the peer's receives, once it has greeted.
    peer_size: Option<usize>,
    credits: Credits,
    posted: VecDeque<Op<Receive>>,
    /// Messages that have come and that nobody has taken.
    inbox: VecDeque<Message>,
    /// The READ of the first message in the inbox.
    reading: Option<Op<Read>>,
    /// Buffers that the peer may read, by number.
    offers: Vec<(u32, Buf)>,
    next_offer: u32,
    /// The offer whose answer is awaited.
    awaited: Option<u32>,
    /// The answer to it.
    answered: Option<(bool, Buf)>,
    /// Answers to the peer that have to wait for credits.
    due: Answers,
    /// Sends that nobody waits for.
    quiet: VecDeque<Op<SentInline>>,
    peer_closed: bool,
    /// The first error that broke the channel.
    broken: Option<ChannelCause>,
}

/// Limits a buffer to `size` bytes, the size that the peer knows; blocks may be larger.
fn exactly(mut buf: Buf, size: usize) -> Buf {
    drop(buf.split_off(size));
    buf
}

/// A message that has come.
enum Message {
    Small(Buf),
    Offer(u32, RemoteSlice),
}

/// Sends of the channel's own that may be under way.
const QUIET: usize = 16;

impl Channel {
    /// The peer: its address, or the number of its queue pair.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    fn failed(&self, cause: impl Into<ChannelCause>) -> ChannelError {
        let cause = match (cause.into(), self.end()) {
            (ChannelCause::Op(error), Some(end)) if error.may_be_an_end() => end.clone(),
            (cause, _) => cause,
        };
        ChannelError {
            peer: self.peer.clone(),
            cause,
        }
    }

    /// Why the connection has ended, if it has.
    fn end(&self) -> Option<&ChannelCause> {
        self.link.as_ref()?.end()
    }

    /// Posts receives in place of those whose messages the user has taken. As long as the pool has no buffer
    /// for one, the task waits for it, also if others are posted: the peer may need each of them to go on.
    ///
    /// # Errors
    ///
    /// No receive is posted, and the pool will never have a buffer.
    fn refill(&mut self, cx: &mut Context<'_>) -> Result<(), GetError> {
        if self.end().is_some() || self.broken.is_some() {
            return Ok(());
        }
        while self.posted.len() + self.inbox.len() < self.settings.receives as usize {
            match self.inlet.poll(cx) {
                Poll::Ready(Ok(buf)) => self.post(buf),
                Poll::Ready(Err(error)) if self.posted.is_empty() => return Err(error),
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn post(&mut self, buf: Buf) {
        self.posted
            .push_back(self.qp.recv(exactly(buf, self.settings.size)));
        self.credits.post();
    }

    /// Sends the channel's own messages, as far as there are credits and free slots. A send of the user whose
    /// future was dropped keeps its slot until it is acknowledged.
    fn flush(&mut self, cx: &mut Context<'_>) {
        while self.may_say_more(cx)
            && let Some((number, taken)) = self.due.first()
            && let Some(credits) = self.credits.spend()
        {
            self.due.pop();
            self.control(Kind::Answer { number, taken }, credits);
        }
        if self.may_say_more(cx)
            && let Some(credits) = self.credits.tell()
        {
            self.control(Kind::Credit, credits);
        }
    }

    fn may_say_more(&mut self, cx: &mut Context<'_>) -> bool {
        self.quiet.len() < QUIET && self.room.poll(cx).is_ready()
    }

    /// Sends a header alone.
    fn control(&mut self, kind: Kind, credits: u16) {
        let bytes = Header { kind, credits }.to_bytes();
        let op = self.qp.send_inline(&bytes);
        self.quiet.push_back(op);
    }

    /// Takes one message that has come; pending if there is none.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ChannelCause>> {
        self.refill(cx)?;
        let Some(op) = self.posted.front_mut() else {
            return Poll::Pending;
        };
        let (received, buf) = ready!(Pin::new(op).poll(cx));
        self.posted.pop_front();
        let handled = match received {
            Ok(_) => self.handle(buf),
            Err(error) => Err(error.into()),
        };
        if handled.is_err() {
            // Receives after a failed one do not count.
            self.posted.clear();
        }
        Poll::Ready(handled)
    }

    /// Takes the messages that have come, sends the channel's own, and looks whether the connection has
    /// ended. Once the channel is broken, each call returns the error, after messages that arrived before.
    fn poll_all(&mut self, cx: &mut Context<'_>) -> Result<(), ChannelCause> {
        let advanced = self.advance(cx);
        // A flush has another cause, which may be reported later.
        let is_flushed = |cause: &_| matches!(cause, ChannelCause::Op(error) if error.is_flushed());
        if let Err(cause @ (ChannelCause::Op(_) | ChannelCause::Protocol(_))) = &advanced
            && self.broken.as_ref().is_none_or(is_flushed)
        {
            self.broken = Some(cause.clone());
        }
        self.broken.clone().map_or(advanced, Err)
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Result<(), ChannelCause> {
        let taken = self.poll_turn(cx);
        // Also after a failure: the end of the connection may explain it.
        self.look(cx)?;
        taken?;
        match self.end() {
            Some(end) if self.posted.is_empty() => Err(end.clone()),
            _ => Ok(()),
        }
    }

    /// If more messages have come than one task may take at once, it continues after the other tasks.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Result<(), ChannelCause> {
        // Before anything else: messages that have come must be taken, even if nothing can be sent any more.
        let received = self.poll_inbox(cx);
        let sent = self.poll_quiet(cx);
        match received {
            // A failed send says more than the receives that were flushed because of it.
            Err(ChannelCause::Op(error)) if error.is_flushed() => sent.and(Err(error.into()))?,
            received => received.and(sent)?,
        }
        loop {
            self.flush(cx);
            if self.quiet.len() < QUIET {
                return Ok(());
            }
            // There may be more to send: the task is woken when one of those under way has ended.
            self.poll_quiet(cx)?;
            if self.quiet.len() == QUIET {
                return Ok(());
            }
        }
    }

    fn poll_inbox(&mut self, cx: &mut Context<'_>) -> Result<(), ChannelCause> {
        for _ in 0..AT_ONCE {
            match self.poll_receive(cx) {
                Poll::Ready(received) => received?,
                Poll::Pending => return Ok(()),
            }
        }
        cx.waker().wake_by_ref();
        Ok(())
    }

    /// Takes the results of the channel's own messages.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Result<(), ChannelCause> {
        while let Some(op) = self.quiet.front_mut()
            && let Poll::Ready(sent) = Pin::new(op).poll(cx)
        {
            self.quiet.pop_front();
            sent?;
        }
        Ok(())
    }

    /// Looks whether the connection has ended.
    fn look(&mut self, cx: &mut Context<'_>) -> Result<(), ChannelCause> {
        match &mut self.link {
            Some(link) => link.look(&self.qp, cx),
            None => Ok(()),
        }
    }

    /// Waits for an operation, which also ends when the connection does.
    async fn ended<K: op::Kind>(&mut self, mut op: Op<K>) -> Result<K::Output, ChannelCause> {
        poll_fn(|cx| {
            let looked = self.look(cx);
            match Pin::new(&mut op).poll(cx) {
                Poll::Ready(ended) => Poll::Ready(Ok(ended)),
                Poll::Pending => match looked {
                    Ok(()) => Poll::Pending,
                    Err(cause) => Poll::Ready(Err(cause)),
                },
            }
        })
        .await
    }

    /// The future that waited for the answer to an offer was dropped.
    fn give_up(&mut self) {
        self.awaited = None;
        self.answered = None;
    }

    /// Waits for a buffer of `bytes` bytes, and handles messages that arrive meanwhile.
    async fn get(&mut self, bytes: usize) -> Result<Buf, ChannelCause> {
        let mut wanted = Wanted::of(self.pool.clone(), bytes);
        self.until(|_, cx| match wanted.poll(cx) {
            Poll::Ready(got) => Some(got.map_err(ChannelCause::from)),
            Poll::Pending => None,
        })
        .await
    }

    /// Handles one message.
    fn handle(&mut self, mut buf: Buf) -> Result<(), ChannelCause> {
        let Header { kind, credits } = Header::of(&buf).map_err(ChannelCause::Protocol)?;
        if !self.credits.came(credits) {
            return Err(ChannelCause::Protocol(
                "it sends more than it has credits for",
            ));
        }
        match (kind, self.peer_size) {
            (Kind::Hello { size }, None) if size as usize > HEADER => {
                self.peer_size = Some(size as usize);
            }
            (Kind::Hello { .. }, None) => {
                return Err(ChannelCause::Protocol("its receives are too short"));
            }
            (Kind::Hello { .. }, Some(_)) => {
                return Err(ChannelCause::Protocol("it greets a second time"));
            }
            (_, None) => return Err(ChannelCause::Protocol("it does not greet first")),
            (Kind::Small | Kind::Offer { .. } | Kind::Bye, _) if self.peer_closed => {
                return Err(ChannelCause::Protocol("it goes on after its end"));
            }
            (Kind::Small, _) => {
                let message = buf.split_off(HEADER);
                self.inbox.push_back(Message::Small(message));
            }
            (Kind::Offer { .. }, _) if !self.due.may_grow(self.inbox.len()) => {
                return Err(ChannelCause::Protocol(
                    "it takes no answers to what it offers",
                ));
            }
            (Kind::Offer { number, at }, _) => self.inbox.push_back(Message::Offer(number, at)),
            (Kind::Answer { number, taken }, _) => {
                let of = self.offers.iter().position(|(own, _)| *own == number);
                let Some(of) = of else {
                    return Err(ChannelCause::Protocol("it answers what it was not offered"));
                };
                let (number, bytes) = self.offers.swap_remove(of);
                // Nobody waits any more for the answer to any other offer.
                if self.awaited == Some(number) {
                    self.answered = Some((taken, bytes));
                }
            }
            (Kind::Credit, _) => {}
            (Kind::Bye, _) => self.peer_closed = true,
        }
        Ok(())
    }

    /// Waits until `done` returns a value, and handles messages that come meanwhile.
    async fn until<V>(
        &mut self,
        mut done: impl FnMut(&mut Self, &mut Context<'_>) -> Option<Result<V, ChannelCause>>,
    ) -> Result<V, ChannelCause> {
        poll_fn(|cx| {
            let advanced = self.poll_all(cx);
            match done(self, cx) {
                Some(ended) => Poll::Ready(ended),
                None => match advanced {
                    Ok(()) => Poll::Pending,
                    Err(cause) => Poll::Ready(Err(cause)),
                },
            }
        })
        .await
    }

    /// Waits for a credit and a slot for a message of the user, and returns the credits that go with it. The
    /// message must be sent before anything else is awaited.
    async fn credit(&mut self) -> Result<u16, ChannelCause> {
        self.until(|channel, cx| {
            if let Some(cause) = &channel.broken {
                return Some(Err(cause.clone()));
            }
            if channel.peer_closed {
                return Some(Err(ChannelCause::Closed));
            }
            channel.try_credit(cx).map(Ok)
        })
        .await
    }

    fn try_credit(&mut self, cx: &mut Context<'_>) -> Option<u16> {
        match self.room.poll(cx) {
            Poll::Ready(()) => self.credits.spend(),
            Poll::Pending => None,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("peer", &self.peer)
            .field("qp", &self.qp)
            .field("credits", &self.credits)
            .field("inbox", &self.inbox.len())
            .finish()
    }
}
