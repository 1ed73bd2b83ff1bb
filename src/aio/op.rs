//! Operations under way, as futures.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cargo::{INSIDE, Payload};
use super::error::{Completed, OpError};
use super::slot::{Glance, Look};
use super::table::{Ending, Held, Slot, Table};
use crate::ah::{AddressVector, Way};
use crate::buf::Buf;
use crate::grh::GRH_LENGTH;

mod kind {
    use super::{Buf, Ending};

    /// How an operation ended, if there is more to report than its success. For a signature that no other
    /// crate can write.
    pub struct Ended<'e>(pub(super) Option<&'e Ending>, pub(super) Buf);
}

use kind::Ended;

/// The result type of an operation: one of the types of this module.
pub trait Kind: Sized {
    /// Whether it succeeded, with the values that were passed to it.
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

/// A READ: returns the buffer with the bytes that were read.
#[derive(Debug)]
pub struct Read(());

/// An atomic operation: returns the old value of the word, in this host's byte order, and the buffer.
#[derive(Debug)]
pub struct Fetched(());

/// A receive: returns a description of the message, and the buffer with the message.
#[derive(Debug)]
pub struct Receive(());

/// The description of a received message; its bytes are in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The number of bytes of the message. For a WRITE with immediate data the number of bytes that went to
    /// the memory that it names; the buffer is then empty.
    pub len: u32,
    /// The number that came with it, if any.
    pub imm: Option<u32>,
    /// Whether it was a message, not a WRITE with immediate data.
    pub is_message: bool,
    /// The number of the queue pair that received it, if several receive from one queue
    /// ([`Srq`](super::Srq)).
    pub qpn: u32,
    /// For a datagram, the number of the queue pair that sent it.
    pub src_qpn: u32,
    way: Way,
}

impl Received {
    /// The bytes of a datagram. In the buffer, 40 bytes for a header precede them.
    pub fn datagram<'b>(&self, buf: &'b Buf) -> &'b [u8] {
        buf.get(GRH_LENGTH..).unwrap_or_default()
    }

    /// The path back to the sender of a datagram that was received into this buffer: see
    /// [`AddressVector::reply_to`]. `sgid_index` is the index of the GID from which to answer.
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
        (success(ending), B::unload(buf, INSIDE))
    }
}

impl Kind for SentInline {
    type Output = Result<(), OpError>;

    #[inline(always)]
    fn end(Ended(ending, _): Ended<'_>) -> Self::Output {
        success(ending)
    }
}

/// Whether it succeeded, without the device's report.
#[inline(always)]
fn success(ending: Option<&Ending>) -> Result<(), OpError> {
    match ending {
        None | Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(*error),
    }
}

/// The buffer with `length` bytes filled; the device cannot have written more than the buffer holds.
fn filled(mut buf: Buf, length: usize) -> Buf {
    let length = length.min(buf.capacity());
    // `length` was just bounded.
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
        // Every receive has an ending.
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

/// An operation in flight. Awaiting it returns its result.
///
/// It was posted when it was created, so one task may have several in flight, and it makes progress without
/// being polled. It borrows nothing.
///
/// Dropping it does not cancel the operation: the buffer stays with its queue pair until the device has
/// finished with it, and then returns to its pool. [`Control::abort`](super::Control::abort) returns
/// everything at once. A forgotten future ([`std::mem::forget`]) also forgets its buffer, once the operation
/// has ended; [`Control::reclaim`](super::Control::reclaim) recovers it.
#[must_use = "without a look at the result a failure goes unnoticed"]
pub struct Op<K: Kind> {
    // `Drop` is written by hand, so that dropping a finished operation costs one comparison.
    at: ManuallyDrop<At>,
    kind: PhantomData<fn() -> K>,
}

enum At {
    /// In a slot.
    Slot(Held),
    /// It was refused; the values that were passed to it are returned.
    Refused(OpError, Buf),
    /// Its result has been taken.
    Over,
}

impl<K: Kind> Op<K> {
    #[inline(always)]
    fn at(at: At) -> Self {
        Self {
            at: ManuallyDrop::new(at),
            kind: PhantomData,
        }
    }

    /// An operation in a slot of a table.
    #[inline(always)]
    pub(super) fn posted(table: &Arc<Table>, slot: &Slot, key: u64) -> Self {
        Self::at(At::Slot(Held::new(table, slot, key)))
    }

    #[cold]
    pub(super) fn refused(error: impl Into<OpError>, buf: Buf) -> Self {
        Self::at(At::Refused(error.into(), buf))
    }

    /// Whether it was refused: nothing was posted, and its result is ready.
    pub fn is_refused(&self) -> bool {
        matches!(*self.at, At::Refused(..))
    }

    /// Takes the state out, and leaves `Over`.
    #[inline(always)]
    fn take(&mut self) -> At {
        mem::replace(&mut *self.at, At::Over)
    }
}

impl<K: Kind> Op<K> {
    /// Waits for an operation that is under way, in this slot of this table.
    #[inline(never)]
    fn wait(
        &mut self,
        cx: &mut Context<'_>,
        (table, slot): (NonNull<Table>, NonNull<Slot>),
        key: u64,
    ) -> Poll<K::Output> {
        // SAFETY: the slot and its table are those of `at`, which keeps them alive.
        let (table, slot) = unsafe { (table.as_ref(), slot.as_ref()) };
        match slot.wait(key, cx.waker().clone()) && !table.is_broken() {
            true => Poll::Pending,
            false => self.poll_closer(cx),
        }
    }

    /// Polls an operation for which a glance was not enough.
    #[cold]
    #[inline(never)]
    fn poll_closer(&mut self, cx: &mut Context<'_>) -> Poll<K::Output> {
        let look = match &*self.at {
            At::Slot(held) => held.slot().poll(held.key(), cx),
            At::Refused(..) => Look::Other,
            At::Over => return Poll::Pending,
        };
        if let At::Slot(held) = &*self.at
            && look == Look::Pending
            && !held.table().is_broken()
        {
            return Poll::Pending;
        }
        let (ending, buf) = match self.take() {
            At::Slot(held) => {
                let (table, slot, key) = (held.table(), held.slot(), held.key());
                if look == Look::Done {
                    // SAFETY: it was found done, and its buffer is only taken here.
                    let buf = unsafe { table.unload(slot, key) };
                    return Poll::Ready(K::end(Ended(None, buf)));
                }
                closer(table, (slot, key), look)
            }
            At::Refused(error, buf) => (Err(error), buf),
            At::Over => return Poll::Pending,
        };
        Poll::Ready(K::end(Ended(Some(&ending), buf)))
    }
}

/// How an operation ended, and its buffer.
fn closer(table: &Table, (slot, key): (&Slot, u64), look: Look) -> (Ending, Buf) {
    match look {
        Look::Told => {
            // SAFETY: it was found in the phase `TOLD`, and is given back below.
            let ending = unsafe { slot.ending() };
            // SAFETY: as before; its buffer is only taken here.
            (ending, unsafe { table.unload(slot, key) })
        }
        Look::Gone => {
            table.give(slot, key);
            (Err(OpError::Reclaimed), Buf::default())
        }
        // No completion comes any more. The buffer stays until the queue pair is gone, unless the operation
        // was done meanwhile.
        _ => (
            Err(table.why_broken()),
            table.cancel(slot, key).unwrap_or_default(),
        ),
    }
}

impl<K: Kind> Future for Op<K> {
    type Output = K::Output;

    /// # Panics
    /// Never. If polled again after its end, it is pending forever.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<K::Output> {
        // The kind is only a type.
        let this = self.get_mut();
        let At::Slot(held) = &*this.at else {
            return this.poll_closer(cx);
        };
        let ((table, slot), key) = (held.parts(), held.key());
        match held.slot().glance(key) {
            Glance::Done => {}
            Glance::UnderWay => return this.wait(cx, (table, slot), key),
            Glance::Other => return this.poll_closer(cx),
        }
        let ended = EndedIn(table, slot);
        // SAFETY: `ended` takes over the share in the table, and the old value is overwritten, not dropped.
        // (`mem::replace` would move all variants of an operation.)
        unsafe { ptr::write(&mut *this.at, At::Over) };
        // SAFETY: it was found done, and its buffer is only taken here.
        let buf = unsafe { ended.1.as_ref().unload() };
        Poll::Ready(K::end(Ended(None, buf)))
    }
}

/// Gives the slot back after the buffer was moved to its destination, so that the buffer is moved only once.
struct EndedIn(NonNull<Table>, NonNull<Slot>);

impl Drop for EndedIn {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it has a share in the slot's table, and gives it up here.
        let (table, slot) = unsafe { (Arc::from_raw(self.0.as_ptr()), self.1.as_ref()) };
        table.give(slot, slot.key());
    }
}

impl<K: Kind> Op<K> {
    /// Drops an operation whose result was not taken.
    #[cold]
    #[inline(never)]
    fn give_up(&mut self) {
        match self.take() {
            At::Slot(held) => drop(held.table().cancel(held.slot(), held.key())),
            At::Refused(_, buf) => drop(buf),
            At::Over => {}
        }
    }
}

impl<K: Kind> Drop for Op<K> {
    #[inline(always)]
    fn drop(&mut self) {
        if !matches!(*self.at, At::Over) {
            self.give_up();
        }
    }
}

impl<K: Kind> fmt::Debug for Op<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = match &*self.at {
            At::Over => "over",
            At::Slot(_) => "posted",
            At::Refused(..) => "refused",
        };
        f.debug_tuple("Op").field(&at).finish()
    }
}
