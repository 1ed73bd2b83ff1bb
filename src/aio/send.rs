//! Posting sends, writes, reads and atomic operations.

use std::fmt;
use std::future::poll_fn;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cargo::Payload;
use super::error::OpError;
use super::op::{Fetched, Kind, Op, Read, Sent, SentInline};
use super::qp::Anchor;
use super::steps::Step;
use super::table::{Slot, Table, index};
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
        poll_fn(|cx| self.anchor.table.poll_room(cx)).await;
    }
}

impl<T: Transport> Post<T> for Sender<T> {
    #[inline(always)]
    fn start(&mut self) -> Start<'_, T> {
        Start::new(&mut self.half, &self.anchor.table)
    }
}

impl<T: Transport> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("half", &self.half).finish()
    }
}

/// What posts operations: a queue pair, or its send half.
///
/// Each method posts at once, with a doorbell of its own; [`batch`](Self::batch) posts several with one
/// doorbell. If posting fails, the future is ready at once, with the error.
pub trait Post<T: Transport> {
    #[doc(hidden)]
    fn start(&mut self) -> Start<'_, T>;

    /// Starts a batch of operations.
    #[inline]
    fn batch(&mut self) -> Batch<'_, T> {
        self.start().batch()
    }

    /// Sends a message: the filled bytes.
    #[inline]
    fn send<B: Payload>(&mut self, bytes: B) -> Op<Sent<B>>
    where
        T: Reaches<Peer>,
    {
        self.start()
            .alone(bytes, |request, slices| request.send(slices))
    }

    /// Sends a message with immediate data: a number for the receiver.
    #[inline]
    fn send_imm<B: Payload>(&mut self, bytes: B, imm: u32) -> Op<Sent<B>>
    where
        T: Reaches<Peer>,
    {
        self.batch().only(|batch| batch.send_imm(bytes, imm))
    }

    /// Sends a few bytes, which are copied into the request.
    #[inline]
    fn send_inline(&mut self, bytes: &[u8]) -> Op<SentInline>
    where
        T: Reaches<Peer>,
    {
        self.start()
            .post_empty(Buf::default(), |request| request.send(Inline(bytes)))
    }

    /// Sends the filled bytes to a destination that is named: as a datagram, or to a target of dynamic
    /// connections. The address handle is used only during this call.
    #[inline]
    fn send_to<D: Names, B: Payload>(&mut self, to: D, bytes: B) -> Op<Sent<B>>
    where
        T: Reaches<D>,
    {
        self.batch().only(|batch| batch.send_to(to, bytes))
    }

    /// As [`send_to`](Self::send_to), with immediate data.
    #[inline]
    fn send_imm_to<D: Names, B: Payload>(&mut self, to: D, bytes: B, imm: u32) -> Op<Sent<B>>
    where
        T: Reaches<D>,
    {
        self.batch().only(|batch| batch.send_imm_to(to, bytes, imm))
    }

    /// As [`send_to`](Self::send_to), of a few bytes, which are copied into the request.
    #[inline]
    fn send_inline_to<D: Names>(&mut self, to: D, bytes: &[u8]) -> Op<SentInline>
    where
        T: Reaches<D>,
    {
        self.batch().only(|batch| batch.send_inline_to(to, bytes))
    }

    /// Writes the filled bytes to the peer's memory.
    #[inline]
    fn write<B: Payload>(&mut self, bytes: B, to: RemoteSlice) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<Peer>,
    {
        self.start()
            .alone(bytes, move |request, slices| request.write(slices, to))
    }

    /// Writes to the peer's memory and notifies it with a number, which takes one of its receives.
    #[inline]
    fn write_imm<B: Payload>(&mut self, bytes: B, to: RemoteSlice, imm: u32) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<Peer>,
    {
        self.batch().only(|batch| batch.write_imm(bytes, to, imm))
    }

    /// Writes the filled bytes to memory of a peer that is named: on reliable datagrams, which have no order,
    /// and dynamic connections. The address handle is used only during this call.
    #[inline]
    fn write_to<D: Names, B: Payload>(&mut self, to: D, bytes: B, there: RemoteSlice) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.batch().only(|batch| batch.write_to(to, bytes, there))
    }

    /// As [`write_to`](Self::write_to), and notifies the peer with a number. That takes one of its receives,
    /// unless its queue pair was made for
    /// [unsolicited writes](crate::qp::QpBuilder::unsolicited_writes).
    #[inline]
    fn write_imm_to<D: Names, B: Payload>(
        &mut self,
        to: D,
        bytes: B,
        there: RemoteSlice,
        imm: u32,
    ) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.batch()
            .only(|batch| batch.write_imm_to(to, bytes, there, imm))
    }

    /// Reads all of a slice of memory of a peer that is named, as [`read`](Self::read) does.
    #[inline]
    fn read_of<D: Names>(&mut self, peer: D, into: Buf, from: RemoteSlice) -> Op<Read>
    where
        T: RdmaRead + Reaches<D>,
    {
        self.batch().only(|batch| batch.read_of(peer, into, from))
    }

    /// Reads all of a slice of the peer's memory into the buffer, from its beginning, and sets the buffer's
    /// length.
    #[inline]
    fn read(&mut self, into: Buf, from: RemoteSlice) -> Op<Read>
    where
        T: RdmaRead + Reaches<Peer>,
    {
        self.start()
            .alone_filling(into, from.length, move |request, slices| {
                request.read(slices, from)
            })
    }

    /// Adds a number to 8 bytes of the peer's memory, in host byte order, and returns their old value. The
    /// buffer must have room for 8 bytes.
    #[inline]
    fn fetch_add(&mut self, into: Buf, at: RemoteSlice, add: u64) -> Op<Fetched>
    where
        T: Atomic + Reaches<Peer>,
    {
        self.batch().only(|batch| batch.fetch_add(into, at, add))
    }

    /// Stores a number in 8 bytes of the peer's memory if they have the given value, and returns their old
    /// value. The buffer must have room for 8 bytes.
    #[inline]
    fn compare_swap(&mut self, into: Buf, at: RemoteSlice, compare: u64, swap: u64) -> Op<Fetched>
    where
        T: Atomic + Reaches<Peer>,
    {
        self.batch()
            .only(|batch| batch.compare_swap(into, at, compare, swap))
    }

    /// As [`fetch_add`](Self::fetch_add), of memory of a peer that is named.
    #[inline]
    fn fetch_add_of<D: Names>(
        &mut self,
        peer: D,
        into: Buf,
        at: RemoteSlice,
        add: u64,
    ) -> Op<Fetched>
    where
        T: Atomic + Reaches<D>,
    {
        self.batch()
            .only(|batch| batch.fetch_add_of(peer, into, at, add))
    }

    /// As [`compare_swap`](Self::compare_swap), of memory of a peer that is named.
    #[inline]
    fn compare_swap_of<D: Names>(
        &mut self,
        peer: D,
        into: Buf,
        at: RemoteSlice,
        compare: u64,
        swap: u64,
    ) -> Op<Fetched>
    where
        T: Atomic + Reaches<D>,
    {
        self.batch()
            .only(|batch| batch.compare_swap_of(peer, into, at, compare, swap))
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
    /// Posts one operation.
    #[inline]
    fn only<K: Kind>(mut self, add: impl FnOnce(&mut Self) -> Op<K>) -> Op<K> {
        let op = add(&mut self);
        if self.last.is_some() {
            // The operation has the error.
            let _ = self.ring_here();
        }
        op
    }

    /// Adds an operation whose request `push` writes, with a slice of the bytes of the buffer that are
    /// filled, or none if there are no bytes.
    #[inline(always)]
    fn add<K: Kind>(
        &mut self,
        buf: Buf,
        push: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
    ) -> Op<K> {
        let table = self.table;
        // By hand, as in `Start::post`.
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

    /// Adds an operation that takes bytes.
    #[inline(always)]
    fn add_payload<B: Payload>(
        &mut self,
        bytes: B,
        push: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
    ) -> Op<Sent<B>> {
        self.add(bytes.load().0, push)
    }

    /// Adds an operation that fills `length` bytes of the buffer.
    #[inline(always)]
    fn add_filling<K: Kind>(
        &mut self,
        mut buf: Buf,
        length: u64,
        push: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
    ) -> Op<K> {
        match make_room(&mut buf, length) {
            Ok(()) => self.add(buf, push),
            Err(error) => Op::refused(error, buf),
        }
    }

    /// Adds a message.
    #[inline]
    pub fn send<B: Payload>(&mut self, bytes: B) -> Op<Sent<B>>
    where
        T: Reaches<Peer>,
    {
        self.add_payload(bytes, |request, slices| request.send(slices))
    }

    /// Adds a message with immediate data.
    #[inline]
    pub fn send_imm<B: Payload>(&mut self, bytes: B, imm: u32) -> Op<Sent<B>>
    where
        T: Reaches<Peer>,
    {
        self.add_payload(bytes, |request, slices| request.send_imm(slices, imm))
    }

    /// Adds a message of bytes that are copied into the request.
    #[inline]
    pub fn send_inline(&mut self, bytes: &[u8]) -> Op<SentInline>
    where
        T: Reaches<Peer>,
    {
        self.add(Buf::default(), |request, _| request.send(Inline(bytes)))
    }

    /// Adds a message to a destination that is named.
    #[inline]
    pub fn send_to<D: Names, B: Payload>(&mut self, to: D, bytes: B) -> Op<Sent<B>>
    where
        T: Reaches<D>,
    {
        self.add_payload(bytes, |request, slices| request.to(to).send(slices))
    }

    /// Adds a message with immediate data to a destination that is named.
    #[inline]
    pub fn send_imm_to<D: Names, B: Payload>(&mut self, to: D, bytes: B, imm: u32) -> Op<Sent<B>>
    where
        T: Reaches<D>,
    {
        self.add_payload(bytes, |request, slices| {
            request.to(to).send_imm(slices, imm)
        })
    }

    /// Adds a message of bytes that are copied into the request, to a destination that is named.
    #[inline]
    pub fn send_inline_to<D: Names>(&mut self, to: D, bytes: &[u8]) -> Op<SentInline>
    where
        T: Reaches<D>,
    {
        self.add(Buf::default(), |request, _| {
            request.to(to).send(Inline(bytes))
        })
    }

    /// Adds a WRITE.
    #[inline]
    pub fn write<B: Payload>(&mut self, bytes: B, to: RemoteSlice) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<Peer>,
    {
        self.add_payload(bytes, |request, slices| request.write(slices, to))
    }

    /// Adds a WRITE with immediate data.
    #[inline]
    pub fn write_imm<B: Payload>(&mut self, bytes: B, to: RemoteSlice, imm: u32) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<Peer>,
    {
        self.add_payload(bytes, |request, slices| request.write_imm(slices, to, imm))
    }

    /// Adds a WRITE to a peer that is named.
    #[inline]
    pub fn write_to<D: Names, B: Payload>(
        &mut self,
        to: D,
        bytes: B,
        there: RemoteSlice,
    ) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.add_payload(bytes, |request, slices| request.to(to).write(slices, there))
    }

    /// Adds a WRITE with immediate data to a peer that is named.
    #[inline]
    pub fn write_imm_to<D: Names, B: Payload>(
        &mut self,
        to: D,
        bytes: B,
        there: RemoteSlice,
        imm: u32,
    ) -> Op<Sent<B>>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.add_payload(bytes, |request, slices| {
            request.to(to).write_imm(slices, there, imm)
        })
    }

    /// Adds a READ of memory of a peer that is named.
    #[inline]
    pub fn read_of<D: Names>(&mut self, peer: D, into: Buf, from: RemoteSlice) -> Op<Read>
    where
        T: RdmaRead + Reaches<D>,
    {
        self.add_filling(into, from.length, |request, slices| {
            request.to(peer).read(slices, from)
        })
    }

    /// Adds a READ.
    #[inline]
    pub fn read(&mut self, into: Buf, from: RemoteSlice) -> Op<Read>
    where
        T: RdmaRead + Reaches<Peer>,
    {
        self.add_filling(into, from.length, |request, slices| {
            request.read(slices, from)
        })
    }

    /// Adds an atomic addition.
    #[inline]
    pub fn fetch_add(&mut self, into: Buf, at: RemoteSlice, add: u64) -> Op<Fetched>
    where
        T: Atomic + Reaches<Peer>,
    {
        self.add_filling(into, WORD, |request, slices| {
            request.fetch_add(slices[0], at, add)
        })
    }

    /// Adds an atomic compare-and-swap.
    #[inline]
    pub fn compare_swap(
        &mut self,
        into: Buf,
        at: RemoteSlice,
        compare: u64,
        swap: u64,
    ) -> Op<Fetched>
    where
        T: Atomic + Reaches<Peer>,
    {
        self.add_filling(into, WORD, |request, slices| {
            request.compare_swap(slices[0], at, compare, swap)
        })
    }

    /// Adds an atomic addition to memory of a peer that is named.
    #[inline]
    pub fn fetch_add_of<D: Names>(
        &mut self,
        peer: D,
        into: Buf,
        at: RemoteSlice,
        add: u64,
    ) -> Op<Fetched>
    where
        T: Atomic + Reaches<D>,
    {
        self.add_filling(into, WORD, |request, slices| {
            request.to(peer).fetch_add(slices[0], at, add)
        })
    }

    /// Adds an atomic compare-and-swap of memory of a peer that is named.
    #[inline]
    pub fn compare_swap_of<D: Names>(
        &mut self,
        peer: D,
        into: Buf,
        at: RemoteSlice,
        compare: u64,
        swap: u64,
    ) -> Op<Fetched>
    where
        T: Atomic + Reaches<D>,
    {
        self.add_filling(into, WORD, |request, slices| {
            request.to(peer).compare_swap(slices[0], at, compare, swap)
        })
    }

    /// Hands the operations to the device with one doorbell, and returns their number.
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Batch::ring`](qp::Batch::ring). If nothing was posted, the operations end with the
    /// same error.
    #[inline]
    pub fn ring(mut self) -> Result<usize, PostError> {
        self.ring_here()
    }

    /// As [`ring`](Self::ring), without moving the batch.
    #[inline]
    fn ring_here(&mut self) -> Result<usize, PostError> {
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

/// What operations are posted with.
#[allow(missing_debug_implementations, reason = "nobody outside has one")]
pub struct Start<'q, T: Transport> {
    half: &'q mut SendHalf<T>,
    table: &'q Arc<Table>,
}

impl<'q, T: Transport> Start<'q, T> {
    #[inline(always)]
    pub(super) fn new(half: &'q mut SendHalf<T>, table: &'q Arc<Table>) -> Self {
        Self { half, table }
    }

    #[inline]
    fn batch(self) -> Batch<'q, T> {
        Batch {
            raw: Some(self.half.batch()),
            table: self.table,
            last: None,
        }
    }

    /// Posts one operation with one request, which is shorter than a batch of one. The request names the
    /// bytes of the buffer that are filled.
    #[inline(always)]
    fn post<K: Kind>(
        self,
        buf: Buf,
        post: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
    ) -> Op<K> {
        let Self { half, table } = self;
        // Without a guard: nothing here panics, and a guard would cost a second move.
        let buf = ManuallyDrop::new(buf);
        if buf.is_empty() {
            let buf = ManuallyDrop::into_inner(buf);
            return Self { half, table }.post_empty(buf, move |request| post(request, &[]));
        }
        let Some(slot) = table.take_send() else {
            return full(table, ManuallyDrop::into_inner(buf));
        };
        let id = slot.key();
        // Filled first: the request may complete before `post` returns. SAFETY: it was taken from the free
        // ones just now.
        unsafe { slot.fill(id, ManuallyDrop::into_inner(buf)) };
        // SAFETY: it was filled just now, and the device does not have it yet.
        let named = unsafe { slot.cargo() }.filled(table.pd);
        let posted = match named {
            // A list whose length the compiler knows.
            Some(slice) => post(half.one(id), std::slice::from_ref(&slice)),
            None => Err(PostError::ForeignPd),
        };
        posted_as(posted, table, (slot, id))
    }

    /// As [`post`](Self::post), of a request that names no memory.
    #[inline(never)]
    fn post_empty<K: Kind>(
        self,
        buf: Buf,
        post: impl FnOnce(Request<'_, 'q, T>) -> Result<(), PostError>,
    ) -> Op<K> {
        let Self { half, table } = self;
        let Some(slot) = table.take_send() else {
            return full(table, buf);
        };
        let id = slot.key();
        // SAFETY: the slot was taken out of the free list just now.
        unsafe { slot.fill(id, buf) };
        let posted = post(half.one(id));
        posted_as(posted, table, (slot, id))
    }

    /// Posts an operation that takes bytes.
    #[inline(always)]
    fn alone<B: Payload>(
        self,
        bytes: B,
        post: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
    ) -> Op<Sent<B>> {
        self.post(bytes.load().0, post)
    }

    /// Posts an operation that fills `length` bytes of the buffer.
    #[inline(always)]
    fn alone_filling<K: Kind>(
        self,
        mut buf: Buf,
        length: u64,
        post: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
    ) -> Op<K> {
        match make_room(&mut buf, length) {
            Ok(()) => self.post(buf, post),
            Err(error) => Op::refused(error, buf),
        }
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
