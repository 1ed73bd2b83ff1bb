//! Operations under way, as futures.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cargo::Payload;
use super::cargo::sealed::Load;
use super::error::{Completed, OpError};
use super::slot::Look;
use super::table::{Ending, OVER, Slot, Table, key};
use crate::ah::{AddressVector, Way};
use crate::buf::Buf;
use crate::grh::GRH_LENGTH;

mod kind {
    use super::{Buf, Ending};

    /// How an operation ended, if more is told than that it succeeded, for a signature that nobody outside
    /// can write.
    pub struct Ended<'e>(pub(super) Option<&'e Ending>, pub(super) Buf);
}

use kind::Ended;

/// The result type of an operation: one of the types of this module.
pub trait Kind: Sized {
    /// Whether it succeeded, with what went into it.
    type Output;

    #[doc(hidden)]
    fn end(ended: Ended<'_>) -> Self::Output;
}

/// A SEND or a WRITE: returns the buffer.
#[derive(Debug)]
pub struct Sent<B>(PhantomData<B>);

/// A SEND or a WRITE of bytes that were copied into the request.
#[derive(Debug)]
pub struct SentInline(());

/// A READ: gives the buffer with what was read.
#[derive(Debug)]
pub struct Read(());

/// An atomic operation: gives what the word was before, in this host's byte order, and the buffer.
#[derive(Debug)]
pub struct Fetched(());

/// A receive: returns a description of the message, and the buffer with the message.
#[derive(Debug)]
pub struct Receive(());

/// The description of a received message; its bytes are in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The number of bytes of the message; or of the WRITE with immediate data, whose bytes went elsewhere:
    /// the buffer is then empty.
    pub len: u32,
    /// The number that came with it, if any.
    pub imm: Option<u32>,
    /// Whether it was a message, not a WRITE with immediate data.
    pub is_message: bool,
    /// The number of the queue pair that it came to: of those that receive from one queue
    /// ([`Srq`](super::Srq)).
    pub qpn: u32,
    /// The number of the queue pair that sent it, of a datagram.
    pub src_qpn: u32,
    way: Way,
}

impl Received {
    /// The bytes of a datagram. In the buffer, 40 bytes for a header precede them.
    pub fn datagram<'b>(&self, buf: &'b Buf) -> &'b [u8] {
        buf.get(GRH_LENGTH..).unwrap_or_default()
    }

    /// The path back to whoever sent a datagram, which was received into this buffer: see
    /// [`AddressVector::reply_to`]. `sgid_index` is that of the GID to answer from.
    pub fn reply_to(&self, buf: &Buf, port: u8, sgid_index: u8) -> AddressVector {
        let none = [0; GRH_LENGTH];
        let grh = buf.first_chunk().unwrap_or(&none);
        AddressVector::back(self.way, grh, port, sgid_index)
    }
}

impl<B: Payload> Kind for Sent<B> {
    type Output = (Result<(), OpError>, B);

    #[inline(always)]
    fn end(Ended(ending, buf): Ended<'_>) -> Self::Output {
        (success(ending), B::unload(Load(buf)))
    }
}

impl Kind for SentInline {
    type Output = Result<(), OpError>;

    #[inline(always)]
    fn end(Ended(ending, _): Ended<'_>) -> Self::Output {
        success(ending)
    }
}

/// Whether it succeeded, without what the device told.
#[inline(always)]
fn success(ending: Option<&Ending>) -> Result<(), OpError> {
    match ending {
        None | Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(*error),
    }
}

/// The buffer with so many bytes filled; the device cannot have written more than it holds.
fn filled(mut buf: Buf, length: usize) -> Buf {
    let length = length.min(buf.capacity());
    // It was bounded just now.
    let _ = buf.set_len(length);
    buf
}

impl Kind for Read {
    type Output = (Result<(), OpError>, Buf);

    #[inline(always)]
    fn end(Ended(ending, mut buf): Ended<'_>) -> Self::Output {
        let result = success(ending);
        if result.is_err() {
            buf.clear();
        }
        (result, buf)
    }
}

impl Kind for Fetched {
    type Output = (Result<u64, OpError>, Buf);

    #[inline(always)]
    fn end(Ended(ending, buf): Ended<'_>) -> Self::Output {
        let result = success(ending);
        let buf = match result {
            Ok(()) => filled(buf, size_of::<u64>()),
            Err(_) => filled(buf, 0),
        };
        let word = result.map(|()| match buf.first_chunk() {
            Some(word) => u64::from_ne_bytes(*word),
            None => 0,
        });
        (word, buf)
    }
}

impl Kind for Receive {
    type Output = (Result<Received, OpError>, Buf);

    #[inline(always)]
    fn end(Ended(ending, buf): Ended<'_>) -> Self::Output {
        // Of every receive it is told.
        let ending = ending.copied().unwrap_or_else(|| Ok(Completed::default()));
        let received = ending.map(|completed| Received {
            len: completed.byte_len,
            imm: completed.imm,
            is_message: completed.is_message,
            qpn: completed.origin.qpn,
            src_qpn: completed.origin.src_qpn,
            way: completed.origin.way,
        });
        let length = match received {
            Ok(Received {
                len,
                is_message: true,
                ..
            }) => len as usize,
            _ => 0,
        };
        (received, filled(buf, length))
    }
}

/// An operation in flight. Awaiting it gives its result.
///
/// It was posted when it was created, so one task may have several in flight, and it makes progress without
/// being polled. It borrows nothing.
///
/// Dropping it does not cancel the operation: the buffer stays with its queue pair until the device is done
/// with it, and then returns to its pool. [`Control::abort`](super::Control::abort) gets everything back at
/// once. A forgotten future ([`std::mem::forget`]) also forgets its buffer, once the operation has ended;
/// [`Control::reclaim`](super::Control::reclaim) recovers it.
#[must_use = "without a look at the result a failure goes unnoticed"]
pub struct Op<K: Kind> {
    at: At,
    kind: PhantomData<fn() -> K>,
}

enum At {
    /// In a slot; or, with [`OVER`] for an id, its result has been taken.
    Slot { table: Arc<Table>, id: u64 },
    /// It was refused, with what went into it.
    Refused(Option<(OpError, Buf)>),
}

impl<K: Kind> Op<K> {
    #[inline(always)]
    pub(super) fn posted(table: &Arc<Table>, id: u64) -> Self {
        Self {
            at: At::Slot {
                table: Arc::clone(table),
                id,
            },
            kind: PhantomData,
        }
    }

    #[cold]
    pub(super) fn refused(error: impl Into<OpError>, buf: Buf) -> Self {
        Self {
            at: At::Refused(Some((error.into(), buf))),
            kind: PhantomData,
        }
    }

    /// Whether it was refused: nothing was posted, and its result is there.
    pub fn is_refused(&self) -> bool {
        matches!(self.at, At::Refused(Some(_)))
    }
}

impl<K: Kind> Op<K> {
    /// Looks at an operation that has not simply succeeded, or that is not there any more.
    #[inline(never)]
    fn look_closer(&mut self, look: Look) -> Poll<K::Output> {
        let (ending, buf) = match &mut self.at {
            At::Slot { id: OVER, .. } => return Poll::Pending,
            At::Slot { table, id } => closer(table, mem::replace(id, OVER), look),
            At::Refused(None) => return Poll::Pending,
            At::Refused(refused) => match refused.take() {
                Some((error, buf)) => (Err(error), buf),
                None => return Poll::Pending,
            },
        };
        Poll::Ready(K::end(Ended(Some(&ending), buf)))
    }
}

/// How an operation ended, and its buffer.
fn closer(table: &Table, id: u64, look: Look) -> (Ending, Buf) {
    let Some((index, slot)) = table.slot_of(id) else {
        return (Err(OpError::Gone), Buf::default());
    };
    match look {
        Look::Told => {
            // SAFETY: it was found told, and its number is given back below.
            let ending = unsafe { slot.ending() };
            // SAFETY: as before; this is the only time.
            (ending, unsafe { table.unload(index, slot) })
        }
        Look::Gone => {
            table.give(index, slot);
            (Err(OpError::Reclaimed), Buf::default())
        }
        // Nobody completes it any more. Its buffer stays until the queue pair is gone, unless it was done
        // meanwhile.
        _ => (
            Err(table.why_broken()),
            table.cancel(id).unwrap_or_default(),
        ),
    }
}

/// Gives a slot back when the buffer is where it goes.
struct Emptied<'t> {
    table: &'t Table,
    index: u32,
    slot: &'t Slot,
}

impl Drop for Emptied<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.table.give(self.index, self.slot);
    }
}

impl<K: Kind> Future for Op<K> {
    type Output = K::Output;

    /// # Panics
    ///
    /// Never; once it has ended it is pending for ever.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<K::Output> {
        // The kind is a name alone.
        let this = self.get_mut();
        let At::Slot { table, id } = &mut this.at else {
            return this.look_closer(Look::Other);
        };
        let Some((index, slot)) = table.slot_of(*id) else {
            return Poll::Pending;
        };
        let look = slot.poll(key(*id), cx);
        match look {
            Look::Pending if !table.is_broken() => Poll::Pending,
            Look::Done => {
                *id = OVER;
                let _back = Emptied { table, index, slot };
                // SAFETY: it was found done, and this is the only time.
                let buf = unsafe { slot.unload() };
                Poll::Ready(K::end(Ended(None, buf)))
            }
            _ => this.look_closer(look),
        }
    }
}

impl<K: Kind> Drop for Op<K> {
    #[inline]
    fn drop(&mut self) {
        if let At::Slot { table, id } = &self.at
            && *id != OVER
        {
            drop(table.cancel(*id));
        }
    }
}

impl<K: Kind> fmt::Debug for Op<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = match &self.at {
            At::Slot { id: OVER, .. } | At::Refused(None) => "over",
            At::Slot { .. } => "posted",
            At::Refused(Some(_)) => "refused",
        };
        f.debug_tuple("Op").field(&at).finish()
    }
}
