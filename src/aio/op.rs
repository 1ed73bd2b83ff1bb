//! Operations under way, as futures.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::cargo::sealed::Load;
use super::cargo::{Cargo, Payload};
use super::error::OpError;
use super::slot::{Ending, Look};
use super::table::Table;
use crate::ah::{AddressVector, Way};
use crate::buf::Buf;
use crate::grh::GRH_LENGTH;

mod kind {
    use super::{Cargo, Ending};

    /// How an operation ended, for a signature that nobody outside can write.
    pub struct Ended<'e>(pub(super) &'e Ending, pub(super) Cargo);
}

use kind::Ended;

/// What an operation gives when it ends: one of the types of this module.
pub trait Kind: Sized {
    /// Whether it succeeded, with what went into it.
    type Output;

    #[doc(hidden)]
    fn end(ended: Ended<'_>) -> Self::Output;
}

/// A SEND or a WRITE: gives what went into it back.
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

/// A receive: gives what has come, and the buffer with it.
#[derive(Debug)]
pub struct Receive(());

/// What a receive tells besides the bytes, which are in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// Bytes of the message; or of the WRITE with immediate data, which went elsewhere: the buffer is empty
    /// then.
    pub len: u32,
    /// The number that came with it, if any.
    pub imm: Option<u32>,
    /// Whether it was a message. A WRITE with immediate data is none.
    pub is_message: bool,
    /// The number of the queue pair that it came to: of those that receive from one queue
    /// ([`Srq`](super::Srq)).
    pub qpn: u32,
    /// The number of the queue pair that sent it, of a datagram.
    pub src_qpn: u32,
    way: Way,
}

impl Received {
    /// The bytes of a datagram. In front of them, in the buffer, are 40 bytes for a header.
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

    #[inline]
    fn end(Ended(ending, cargo): Ended<'_>) -> Self::Output {
        (success(ending), B::unload(Load(cargo)))
    }
}

impl Kind for SentInline {
    type Output = Result<(), OpError>;

    #[inline]
    fn end(Ended(ending, _): Ended<'_>) -> Self::Output {
        success(ending)
    }
}

/// Whether it succeeded, without what the device told.
#[inline]
fn success(ending: &Ending) -> Result<(), OpError> {
    match ending {
        Ok(_) => Ok(()),
        Err(error) => Err(*error),
    }
}

/// The buffer with so many bytes filled; the device cannot have written more than it holds.
fn filled(cargo: Cargo, length: usize) -> Buf {
    let mut buf = cargo.into_buf();
    let length = length.min(buf.capacity());
    // It was bounded just now.
    let _ = buf.set_len(length);
    buf
}

impl Kind for Read {
    type Output = (Result<(), OpError>, Buf);

    #[inline]
    fn end(Ended(ending, cargo): Ended<'_>) -> Self::Output {
        let mut buf = cargo.into_buf();
        if ending.is_err() {
            buf.clear();
        }
        (success(ending), buf)
    }
}

impl Kind for Fetched {
    type Output = (Result<u64, OpError>, Buf);

    #[inline]
    fn end(Ended(ending, cargo): Ended<'_>) -> Self::Output {
        let buf = match ending {
            Ok(_) => filled(cargo, size_of::<u64>()),
            Err(_) => filled(cargo, 0),
        };
        let word = success(ending).map(|()| match buf.first_chunk() {
            Some(word) => u64::from_ne_bytes(*word),
            None => 0,
        });
        (word, buf)
    }
}

impl Kind for Receive {
    type Output = (Result<Received, OpError>, Buf);

    #[inline]
    fn end(Ended(ending, cargo): Ended<'_>) -> Self::Output {
        let received = ending.as_ref().map(|completed| Received {
            len: completed.byte_len,
            imm: completed.imm,
            is_message: completed.is_message,
            qpn: completed.origin.qpn,
            src_qpn: completed.origin.src_qpn,
            way: completed.origin.way,
        });
        let received = received.map_err(|error| *error);
        let length = match received {
            Ok(Received {
                len,
                is_message: true,
                ..
            }) => len as usize,
            _ => 0,
        };
        (received, filled(cargo, length))
    }
}

/// An operation under way, and its result when it is awaited.
///
/// It was posted when it was made, so several may be under way from one task, and it need not be polled to go on.
/// It borrows nothing.
///
/// Dropping it cancels nothing: what it was given stays with its queue pair until the device has done with it,
/// and then goes back to its pool. To get everything back soon there is [`Control::abort`](super::Control::abort).
/// A future that is forgotten ([`std::mem::forget`]) forgets its buffer too, once the operation has ended;
/// [`Control::reclaim`](super::Control::reclaim) finds such.
#[must_use = "without a look at the result a failure goes unnoticed"]
pub struct Op<K: Kind> {
    at: At,
    kind: PhantomData<fn() -> K>,
}

enum At {
    /// In a slot.
    Slot {
        table: Arc<Table>,
        index: u32,
        generation: u32,
    },
    /// It was refused, with what went into it.
    Refused(OpError, Cargo),
    /// Its result has been taken.
    Over,
}

impl<K: Kind> Op<K> {
    #[inline]
    pub(super) fn posted(table: &Arc<Table>, index: u32, generation: u32) -> Self {
        Self {
            at: At::Slot {
                table: Arc::clone(table),
                index,
                generation,
            },
            kind: PhantomData,
        }
    }

    pub(super) fn refused(error: impl Into<OpError>, cargo: Cargo) -> Self {
        Self {
            at: At::Refused(error.into(), cargo),
            kind: PhantomData,
        }
    }

    /// Whether it was refused: nothing was posted, and its result is there.
    pub fn is_refused(&self) -> bool {
        matches!(self.at, At::Refused(..))
    }
}

/// Ends an operation that no completion comes for any more. Its buffer stays until the queue pair is gone, unless
/// it was done meanwhile.
#[cold]
fn broken<K: Kind>(table: &Table, index: u32, generation: u32) -> K::Output {
    let cargo = table.slot(index).cancel(generation);
    if cargo.is_some() {
        table.give(index);
    }
    K::end(Ended(&Err(OpError::Broken), cargo.unwrap_or_default()))
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
        let output = match &this.at {
            At::Slot {
                table,
                index,
                generation,
            } => {
                let slot = table.slot(*index);
                match slot.poll(*generation, cx) {
                    Look::Pending if !table.is_broken() => return Poll::Pending,
                    Look::Pending => broken::<K>(table, *index, *generation),
                    Look::Mine => {
                        // SAFETY: it was found done, and its number is given back below.
                        let ending = unsafe { *slot.ending() };
                        // SAFETY: as before; what was referred to has been copied.
                        let cargo = unsafe { slot.unload() };
                        table.give(*index);
                        K::end(Ended(&ending, cargo))
                    }
                    Look::Gone => {
                        table.give(*index);
                        K::end(Ended(&Err(OpError::Reclaimed), Cargo::None))
                    }
                }
            }
            At::Refused(..) => match std::mem::replace(&mut this.at, At::Over) {
                At::Refused(error, cargo) => K::end(Ended(&Err(error), cargo)),
                _ => return Poll::Pending,
            },
            At::Over => return Poll::Pending,
        };
        this.at = At::Over;
        Poll::Ready(output)
    }
}

impl<K: Kind> Drop for Op<K> {
    #[inline]
    fn drop(&mut self) {
        if let At::Slot {
            table,
            index,
            generation,
        } = &self.at
            && let Some(cargo) = table.slot(*index).cancel(*generation)
        {
            drop(cargo);
            table.give(*index);
        }
    }
}

impl<K: Kind> fmt::Debug for Op<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = match &self.at {
            At::Slot { .. } => "posted",
            At::Refused(..) => "refused",
            At::Over => "over",
        };
        f.debug_tuple("Op").field(&at).finish()
    }
}
