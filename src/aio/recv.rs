//! Receiving.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::error::OpError;
use super::op::{Op, Receive, Received};
use super::qp::Anchor;
use super::table::Table;
use crate::buf::{Buf, GetError, Pool, Wanted};
use crate::qp::transport::{Transport, receives_in_order};
use crate::qp::{QpState, RecvBatch, RecvHalf};
use crate::work::PostError;

/// The receive half of a queue pair.
pub struct Receiver<T: Transport> {
    // Dropped before the anchor, which checks what has become of it.
    half: RecvHalf<T>,
    anchor: Arc<Anchor>,
}

impl<T: Transport> Receiver<T> {
    pub(super) fn new(half: RecvHalf<T>, anchor: Arc<Anchor>) -> Self {
        Self { half, anchor }
    }

    pub(super) fn into_parts(self) -> (RecvHalf<T>, Arc<Anchor>) {
        (self.half, self.anchor)
    }

    /// Receives a message into the whole buffer. The filled bytes are then the message. Messages consume
    /// posted receives in order, except on [`Srd`](crate::Srd). Once the queue pair is in the state ERR, it
    /// ends as refused or as flushed.
    #[inline]
    pub fn recv(&mut self, buf: Buf) -> Op<Receive> {
        // SAFETY: the table belongs to the half.
        unsafe { post(self.half.batch(), &self.anchor.table, buf) }
    }

    /// Receives messages one after the other into buffers of a pool. Up to `ahead` receives are kept posted,
    /// as far as the pool has buffers and the queue has room: never more than the receives that the queue
    /// pair was created for. None is posted before [`Incoming::refill`] or [`Incoming::next`].
    pub fn incoming(self, pool: &Pool, size: usize, ahead: usize) -> Incoming<T> {
        let ahead = as_far_as_fits(&self.anchor.table, ahead);
        Incoming {
            posted: VecDeque::with_capacity(ahead),
            receiver: self,
            inlet: Wanted::of(pool.clone(), size),
            pool: pool.clone(),
            size,
            ahead,
        }
    }
}

/// How many receives are kept posted if `ahead` are wanted.
fn as_far_as_fits(table: &Table, ahead: usize) -> usize {
    ahead.min(table.counts().1 as usize)
}

/// Posts a receive.
///
/// # Safety
/// The batch belongs to the table's receive half, or to its shared queue.
#[inline]
pub(super) unsafe fn post(
    mut batch: RecvBatch<'_>,
    table: &Arc<Table>,
    mut buf: Buf,
) -> Op<Receive> {
    buf.clear();
    if table.has_failed() {
        let state = QpState::ERR;
        return Op::refused(PostError::WrongState { state }, buf);
    }
    let mut slices = arrayvec::ArrayVec::<_, 1>::new();
    if buf.capacity() > 0 {
        match buf.slice(table.pd, buf.capacity()) {
            Some(slice) => slices.push(slice),
            None => return Op::refused(PostError::ForeignPd, buf),
        }
    }
    let Some(slot) = table.take_receive() else {
        let capacity = table.counts().1;
        return Op::refused(PostError::QueueFull { capacity }, buf);
    };
    let id = slot.key();
    if let Err(error) = batch.post(id, slices) {
        table.give(slot, id);
        return Op::refused(error, buf);
    }
    // SAFETY: the slot was just taken out of the free list.
    unsafe { slot.fill(id, buf) };
    batch.ring();
    // Before anything that tells a subscriber of traces, who may panic.
    let op = Op::posted(table, slot, id);
    if table.has_failed_since() {
        // It was posted too late to be flushed with the other receives.
        table.fail();
    }
    op
}

impl<T: Transport> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("half", &self.half)
            .finish()
    }
}

/// A stream of messages: the receive half, with receives posted ahead.
///
/// Messages come out in the order in which they were sent. [`Srd`](crate::Srd) has no order: there they come
/// out as they are ready.
pub struct Incoming<T: Transport> {
    posted: VecDeque<Op<Receive>>,
    receiver: Receiver<T>,
    /// Waits for a buffer to receive into.
    inlet: Wanted,
    pool: Pool,
    size: usize,
    ahead: usize,
}

impl<T: Transport> Incoming<T> {
    /// Posts receives up to the configured number, as far as the pool has buffers now and the queue has room,
    /// and returns how many are posted.
    ///
    /// # Errors
    ///
    /// The pool could not grow, or has no buffers of the size.
    pub fn refill(&mut self) -> Result<usize, GetError> {
        while self.wants_more() {
            match self.pool.try_get(self.size) {
                Ok(buf) => self.posted.push_back(self.receiver.recv(buf)),
                Err(GetError::Empty { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(self.posted.len())
    }

    /// Whether another receive is to be posted.
    fn wants_more(&self) -> bool {
        // Others may be posted that were asked for before.
        self.posted.len() < self.ahead && self.receiver.anchor.table.has_room_to_receive()
    }

    /// As [`refill`](Self::refill), and at least one. As long as the pool has no buffer for a receive, the
    /// task waits for it, also if others are posted.
    fn poll_refill(&mut self, cx: &mut Context<'_>) -> Result<(), GetError> {
        while self.posted.is_empty() || self.wants_more() {
            match self.inlet.poll(cx) {
                Poll::Ready(Ok(buf)) => self.posted.push_back(self.receiver.recv(buf)),
                Poll::Ready(Err(error)) if self.posted.is_empty() => return Err(error),
                Poll::Ready(Err(_)) | Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// The next message. While it waits, it posts receives as buffers come back to the pool.
    ///
    /// Dropping this future loses no message.
    ///
    /// # Errors
    ///
    /// The receive failed, and so will those posted after it; or none is posted, and the pool will never have
    /// a buffer.
    pub async fn next(&mut self) -> Result<(Received, Buf), IncomingError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Received, Buf), IncomingError>> {
        self.poll_refill(cx).map_err(IncomingError::Pool)?;
        // Without an order, the next message may be in any of them.
        let candidates = match T::TYPE.is_none_or(receives_in_order) {
            true => 1,
            false => self.posted.len(),
        };
        let mut posted = self.posted.iter_mut().take(candidates).enumerate();
        let ended = posted.find_map(|(at, receive)| match Pin::new(receive).poll(cx) {
            Poll::Ready(ended) => Some((at, ended)),
            Poll::Pending => None,
        });
        let Some((at, (received, buf))) = ended else {
            return Poll::Pending;
        };
        self.posted.remove(at);
        Poll::Ready(match received {
            Ok(received) => Ok((received, buf)),
            Err(error) => Err(IncomingError::Op(error)),
        })
    }

    /// The receive half. Posted receives are given up: messages that consume them are lost.
    pub fn into_receiver(self) -> Receiver<T> {
        self.receiver
    }
}

impl<T: Transport> fmt::Debug for Incoming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("receiver", &self.receiver)
            .field("posted", &self.posted.len())
            .finish()
    }
}

/// Why there is no next message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IncomingError {
    /// The receive failed.
    Op(OpError),
    /// There is no buffer to receive into.
    Pool(GetError),
}

impl fmt::Display for IncomingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(error) => write!(f, "the receive failed: {error}"),
            Self::Pool(error) => write!(f, "there is no buffer to receive into: {error}"),
        }
    }
}

impl std::error::Error for IncomingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Op(error) => Some(error),
            Self::Pool(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::PdTag;

    /// Would catch a list for as many receives as somebody asks for, which no memory holds, and receives that
    /// are posted although the queue has no room for them.
    #[test]
    fn no_more_is_posted_ahead_than_the_queue_holds() {
        let table = Table::new(0, (Some(1), PdTag::new(1, 1)), (7, 2), None);
        for (asked, posted) in [(0, 0), (1, 1), (2, 2), (3, 2), (usize::MAX, 2)] {
            assert_eq!(as_far_as_fits(&table, asked), posted);
        }
        let taken = [(); 2].map(|()| {
            assert!(table.has_room_to_receive());
            table.take_receive()
        });
        assert!(taken.iter().all(Option::is_some));
        assert!(!table.has_room_to_receive());
    }
}
