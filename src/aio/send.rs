//! Posting sends, writes, reads and atomic operations.

use std::fmt;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cargo::sealed::Inside;
use super::cargo::{INSIDE, Payload};
use super::error::OpError;
use super::op::{Fetched, Kind, Op, Read, Sent, SentInline};
use super::qp::Anchor;
use super::steps::Step;
use super::table::{Room, Slot, Table, index};
use crate::buf::Buf;
use crate::buf::free::NONE;
use crate::qp::transport::{Atomic, RdmaRead, RdmaWrite, Transport};
use crate::qp::{self, Inline, Names, Peer, Reaches, Request, SendHalf};
use crate::work::{LocalSlice, PostError, RemoteSlice};

/// The send half of a queue pair.
pub struct Sender<T: Transport> {
    // Dropped before the anchor, which asks what became of it.
    half: SendHalf<T>,
    anchor: Arc<Anchor>,
}

impl<T: Transport> Sender<T> {
    pub(super) fn new(half: SendHalf<T>, anchor: Arc<Anchor>) -> Self {
        Self { half, anchor }
    }

    pub(super) fn into_parts(self) -> (SendHalf<T>, Arc<Anchor>) {
        (self.half, self.anchor)
    }

    /// Waits until another operation can be posted. An operation counts until its result has been taken, so
    /// others must be awaited elsewhere, or dropped.
    ///
    /// It also ends, without room, when the device has been removed or its completion queue has failed: the
    /// next operation is then refused, or ends with [`OpError::Broken`].
    pub async fn room(&mut self) {
        let mut room = Room::of(&self.anchor.table);
        poll_fn(|cx| room.poll(cx)).await;
    }

    /// Starts a batch of operations.
    #[inline]
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch::new(&mut self.half, &self.anchor.table)
    }
}

impl<T: Transport> Post<T> for Sender<T> {
    #[inline(always)]
    fn post<K: Kind>(
        &mut self,
        buf: Buf,
        push: impl FnOnce(Request<'_, '_, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
        _: Inside,
    ) -> Op<K> {
        post_alone(&mut self.half, &self.anchor.table, buf, push)
    }
}

impl<T: Transport> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("half", &self.half).finish()
    }
}

/// What operations are posted to: a queue pair or its send half, which post each at once with a doorbell of
/// its own; a [`Batch`], which posts all with one doorbell; or one of them with a destination
/// ([`to`](Self::to)), where `D` is not the [`Peer`].
///
/// If posting fails, the future is ready at once, with the error.
pub trait Post<T: Transport, D: Names = Peer> {
    /// Adds an operation whose request `push` writes, with a slice of the bytes of the buffer that are
    /// filled, or none if there are no bytes. `push` neither keeps the slice nor posts without saying so: the
    /// buffer is the device's by its answer. So only this module may call it, and implement it.
    #[doc(hidden)]
    fn post<K: Kind>(
        &mut self,
        buf: Buf,
        push: impl FnOnce(Request<'_, '_, T, D>, &[LocalSlice<'static>]) -> Result<(), PostError>,
        _: Inside,
    ) -> Op<K>;

    /// Names the destination of the operations that follow: of a datagram, or a target of dynamic
    /// connections. An address handle is used only by the calls that post.
    ///
    /// ```no_run
    /// # use uverbs::aio::{Post, Qp};
    /// # async fn send(qp: &mut Qp<uverbs::Ud>, ah: &uverbs::Ah, buf: uverbs::buf::Buf) {
    /// let (sent, buf) = qp.to(ah.to(0x17, 0x1234)).send(buf).await;
    /// # }
    /// ```
    #[inline(always)]
    fn to<N: Names>(&mut self, to: N) -> Towards<'_, Self, N>
    where
        Self: Post<T> + Sized,
        T: Reaches<N>,
    {
        Towards { post: self, to }
    }

    /// Sends a message: the filled bytes.
    #[inline]
    fn send<B: Payload>(&mut self, bytes: B) -> Op<Sent<B>>
    where
        T: Reaches<D>,
    {
        self.post(
            bytes.load(INSIDE),
            |request, slices| request.send(slices),
            INSIDE,
        )
    }

    /// Sends a message with immediate data: a number for the receiver.
    #[inline]
    fn send_imm<B: Payload>(&mut self, bytes: B, imm: u32) -> Op<Sent<B>>
    where
        T: Reaches<D>,
    {
        self.post(
            bytes.load(INSIDE),
            |request, slices| request.send_imm(slices, imm),
            INSIDE,
        )
    }

    /// Sends a few bytes, which are copied into the request.
    #[inline]
    fn send_inline(&mut self, bytes: &[u8]) -> Op<SentInline>
    where
        T: Reaches<D>,
    {
        self.post(
            Buf::default(),
            |request, _| request.send(Inline(bytes)),
            INSIDE,
        )
    }

    /// Writes the filled bytes to the peer's memory.
    #[inline]
    fn write<B: Payload>(&mut self, bytes: B, to: RemoteSlice) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.post(
            bytes.load(INSIDE),
            |request, slices| request.write(slices, to),
            INSIDE,
        )
    }

    /// Writes to the peer's memory and notifies it with a number. That takes one of its receives, unless its
    /// queue pair was made for [unsolicited writes](crate::qp::QpBuilder::unsolicited_writes).
    #[inline]
    fn write_imm<B: Payload>(&mut self, bytes: B, to: RemoteSlice, imm: u32) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.post(
            bytes.load(INSIDE),
            |request, slices| request.write_imm(slices, to, imm),
            INSIDE,
        )
    }

    /// Reads all of a slice of the peer's memory into the buffer, from its beginning, and sets the buffer's
    /// length.
    #[inline]
    fn read(&mut self, into: Buf, from: RemoteSlice) -> Op<Read>
    where
        T: RdmaRead + Reaches<D>,
    {
        post_filling(self, into, from.length, |request, slices| {
            request.read(slices, from)
        })
    }

    /// Adds a number to 8 bytes of the peer's memory, in host byte order, and returns their old value. The
    /// buffer must have room for 8 bytes.
    #[inline]
    fn fetch_add(&mut self, into: Buf, at: RemoteSlice, add: u64) -> Op<Fetched>
    where
        T: Atomic + Reaches<D>,
    {
        post_filling(self, into, WORD, |request, slices| {
            request.fetch_add(slices[0], at, add)
        })
    }

    /// Stores a number in 8 bytes of the peer's memory if they have the given value, and returns their old
    /// value. The buffer must have room for 8 bytes.
    #[inline]
    fn compare_swap(&mut self, into: Buf, at: RemoteSlice, compare: u64, swap: u64) -> Op<Fetched>
    where
        T: Atomic + Reaches<D>,
    {
        post_filling(self, into, WORD, |request, slices| {
            request.compare_swap(slices[0], at, compare, swap)
        })
    }
}

/// What posts operations to a destination that is named ([`Post::to`]).
#[derive(Debug)]
pub struct Towards<'p, P, D> {
    post: &'p mut P,
    to: D,
}

impl<T: Transport, P: Post<T>, D: Names> Post<T, D> for Towards<'_, P, D> {
    #[inline(always)]
    fn post<K: Kind>(
        &mut self,
        buf: Buf,
        push: impl FnOnce(Request<'_, '_, T, D>, &[LocalSlice<'static>]) -> Result<(), PostError>,
        inside: Inside,
    ) -> Op<K> {
        let to = self.to;
        self.post
            .post(buf, |request, slices| push(request.to(to), slices), inside)
    }
}

/// Bytes that an atomic operation works on.
const WORD: u64 = 8;

/// Operations that are handed to the device with one doorbell, by [`ring`](Self::ring). If it is dropped
/// before, nothing is posted, and they end with [`OpError::NotRung`].
#[must_use = "a batch that is not rung posts nothing"]
pub struct Batch<'q, T: Transport> {
    /// `None` once it is rung.
    raw: Option<qp::Batch<'q, T>>,
    table: &'q Arc<Table>,
    /// The slot of the last operation; each has the one before it.
    last: Option<&'q Slot>,
}

impl<'q, T: Transport> Batch<'q, T> {
    #[inline]
    pub(super) fn new(half: &'q mut SendHalf<T>, table: &'q Arc<Table>) -> Self {
        Self {
            raw: Some(half.batch()),
            table,
            last: None,
        }
    }

    /// Hands the operations to the device with one doorbell, and returns their number.
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Batch::ring`](qp::Batch::ring). If nothing was posted, the operations end with the
    /// same error.
    #[inline]
    pub fn ring(mut self) -> Result<usize, PostError> {
        let Some(raw) = self.raw.take() else {
            return Ok(0);
        };
        match raw.ring() {
            // The requests are in the ring, and their operations end when the device executes or flushes
            // them.
            rung @ (Ok(_) | Err(PostError::Doorbell(_))) => {
                self.last = None;
                rung
            }
            Err(error) => {
                self.take_back(OpError::Post(error));
                Err(error)
            }
        }
    }

    /// Ends the operations, none of which was posted.
    #[cold]
    fn take_back(&mut self, error: OpError) {
        let mut last = self.last.take();
        while let Some(slot) = last {
            last = self.table.slot(slot.link.load(Ordering::Relaxed));
            // SAFETY: the batch was not rung, so the device never gets the request.
            unsafe { unposted(self.table, slot, error) };
        }
    }
}

impl<T: Transport> Post<T> for Batch<'_, T> {
    #[inline(always)]
    fn post<K: Kind>(
        &mut self,
        buf: Buf,
        push: impl FnOnce(Request<'_, '_, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
        _: Inside,
    ) -> Op<K> {
        let table = self.table;
        // By hand, as in `post_alone`.
        let buf = ManuallyDrop::new(buf);
        let (Some(raw), Some(slot)) = (&mut self.raw, table.take_send()) else {
            return full(table, ManuallyDrop::into_inner(buf));
        };
        let id = slot.key();
        // SAFETY: the slot was taken out of the free list just now.
        unsafe { slot.fill(id, ManuallyDrop::into_inner(buf)) };
        // SAFETY: it was filled just now, and the device does not have it before the batch is rung.
        let bytes = unsafe { slot.cargo() };
        let request = raw.signaled(id);
        let posted = match (bytes.is_empty(), bytes.filled(table.pd)) {
            (true, _) => push(request, &[]),
            (false, Some(slice)) => push(request, std::slice::from_ref(&slice)),
            (false, None) => Err(PostError::ForeignPd),
        };
        if let Err(error) = posted {
            return not_posted(table, (slot, id), error);
        }
        let before = self.last.replace(slot);
        let before = before.map_or(NONE, |slot| index(slot.key()));
        // Relaxed: only this batch has the slot until it is rung.
        slot.link.store(before, Ordering::Relaxed);
        Op::posted(table, slot, id)
    }
}

impl<T: Transport> Drop for Batch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.last.is_some() {
            // The requests go first: what is dropped was not posted.
            drop(self.raw.take());
            self.take_back(OpError::NotRung);
        }
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("raw", &self.raw).finish()
    }
}

/// Posts one operation with one request, which is shorter than a batch of one.
#[inline(always)]
pub(super) fn post_alone<'q, T: Transport, K: Kind>(
    half: &'q mut SendHalf<T>,
    table: &Arc<Table>,
    buf: Buf,
    push: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
) -> Op<K> {
    // Without a guard: nothing here panics, and a guard would cost a second move.
    let buf = ManuallyDrop::new(buf);
    if buf.is_empty() {
        return post_empty(half, table, ManuallyDrop::into_inner(buf), push);
    }
    let Some(slot) = table.take_send() else {
        return full(table, ManuallyDrop::into_inner(buf));
    };
    let id = slot.key();
    // Filled first: the request may complete before `push` returns. SAFETY: it was taken from the free ones
    // just now.
    unsafe { slot.fill(id, ManuallyDrop::into_inner(buf)) };
    // SAFETY: it was filled just now, and the device does not have it yet.
    let named = unsafe { slot.cargo() }.filled(table.pd);
    let posted = match named {
        // A list whose length the compiler knows.
        Some(slice) => push(half.one(id), std::slice::from_ref(&slice)),
        None => Err(PostError::ForeignPd),
    };
    posted_as(posted, table, (slot, id))
}

/// As [`post_alone`], of a request that names no memory.
#[inline(never)]
fn post_empty<'q, T: Transport, K: Kind>(
    half: &'q mut SendHalf<T>,
    table: &Arc<Table>,
    buf: Buf,
    push: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
) -> Op<K> {
    let Some(slot) = table.take_send() else {
        return full(table, buf);
    };
    let id = slot.key();
    // SAFETY: the slot was taken out of the free list just now.
    unsafe { slot.fill(id, buf) };
    let posted = push(half.one(id), &[]);
    posted_as(posted, table, (slot, id))
}

/// Posts an operation that fills `length` bytes of the buffer.
#[inline(always)]
fn post_filling<T: Transport, D: Names, K: Kind>(
    to: &mut (impl Post<T, D> + ?Sized),
    mut buf: Buf,
    length: u64,
    push: impl FnOnce(Request<'_, '_, T, D>, &[LocalSlice<'static>]) -> Result<(), PostError>,
) -> Op<K> {
    match make_room(&mut buf, length) {
        Ok(()) => to.post(buf, push, INSIDE),
        Err(error) => Op::refused(error, buf),
    }
}

/// Counts the bytes that a request will fill as filled.
#[inline]
fn make_room(buf: &mut Buf, length: u64) -> Result<(), PostError> {
    let bytes = usize::try_from(length).unwrap_or(usize::MAX);
    buf.set_len(bytes).map_err(|_| PostError::MessageTooLong {
        given: length,
        max: buf.capacity() as u64,
    })
}

#[cold]
#[inline(never)]
fn full<K: Kind>(table: &Table, buf: Buf) -> Op<K> {
    let capacity = table.counts().0;
    Op::refused(PostError::QueueFull { capacity }, buf)
}

/// The operation of a slot whose request was posted, or was not.
#[inline(always)]
fn posted_as<K: Kind>(
    posted: Result<(), PostError>,
    table: &Arc<Table>,
    (slot, id): (&Slot, u64),
) -> Op<K> {
    match posted {
        // The request is in the ring, and the operation ends when the device executes or flushes it.
        Ok(()) | Err(PostError::Doorbell(_)) => Op::posted(table, slot, id),
        Err(error) => not_posted(table, (slot, id), error),
    }
}

/// Takes back an operation whose request was not posted.
#[cold]
#[inline(never)]
fn not_posted<K: Kind>(table: &Table, (slot, id): (&Slot, u64), error: PostError) -> Op<K> {
    // SAFETY: the device never gets the request, and there is no future yet.
    let _ = unsafe { slot.complete(id, None) };
    Op::refused(error, table.cancel(slot, id).unwrap_or_default())
}

/// Ends an operation that is not posted after all.
///
/// # Safety
///
/// The device never gets its request.
#[cold]
pub(super) unsafe fn unposted(table: &Arc<Table>, slot: &Slot, error: OpError) {
    let index = index(slot.key());
    // SAFETY: by this function's contract.
    let after = unsafe { Table::unposted(slot, error) };
    Step::of(table, index, after)
        .into_iter()
        .for_each(Step::follow);
}
