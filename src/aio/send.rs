//! Posting sends, writes, reads and atomic operations.

use std::fmt;
use std::future::poll_fn;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cargo::sealed::Inside;
use super::cargo::{INSIDE, Payload};
use super::error::OpError;
use super::op::{Fetched, Kind, Op, Read, Sent, SentInline};
use super::qp::Anchor;
use super::steps::Step;
use super::table::{Room, Slot, Table};
use crate::buf::Buf;
use crate::callbacks::each;
use crate::qp::transport::{Atomic, RdmaRead, RdmaWrite, Transport};
use crate::qp::{self, Inline, Names, Peer, Reaches, Request, SendHalf};
use crate::work::{LocalSlice, PostError, RemoteSlice};

/// The send half of a queue pair.
pub struct Sender<T: Transport> {
    // Dropped before the anchor, which checks what has become of it.
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
    /// other operations must be awaited elsewhere, or dropped.
    ///
    /// It also ends, without room, when the device has been removed or its completion queue has failed: the
    /// next operation is then refused, or ends with [`OpError::Broken`].
    pub async fn room(&mut self) {
        // SAFETY: the half is the table's, and nobody else has it.
        unsafe { take_back_forgotten(&self.anchor.table) };
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

/// Posts operations. A queue pair or its send half posts each at once, with a doorbell of its own. A
/// [`Batch`] posts all with one doorbell. Either of them with a destination ([`to`](Self::to)) posts to that,
/// where `D` is not the [`Peer`].
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
    /// connections. Keep the address handle until they have ended, also those whose futures were dropped: see
    /// [`Ah`](crate::Ah).
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

    /// Writes to the peer's memory and notifies the peer with a number. That consumes one of the peer's
    /// receives, unless its queue pair was created for [unsolicited
    /// writes](crate::qp::QpBuilder::unsolicited_writes).
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

/// Posts operations to a destination ([`Post::to`]).
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

/// Bytes of the operand of an atomic operation.
const WORD: u64 = 8;

/// Operations that are handed to the device with one doorbell, by [`ring`](Self::ring). If it is dropped
/// before, nothing is posted, and they end with [`OpError::NotRung`].
///
/// Those of a batch that is forgotten ([`mem::forget`]) end in the same way, but later: when the next batch
/// is started, when an operation finds the queue full, in [`Sender::room`] or in
/// [`Qp::abort`](super::Qp::abort); or with [`OpError::Gone`], when the queue pair is dropped.
#[must_use = "a batch that is not rung posts nothing"]
pub struct Batch<'q, T: Transport> {
    // Dropped before the operations end: what is dropped was not posted.
    raw: qp::Batch<'q, T>,
    unrung: Unrung<'q>,
}

/// The operations of a batch. They end when this is dropped, even if a subscriber of traces panics who hears
/// of the requests that are lost.
struct Unrung<'q> {
    table: &'q Arc<Table>,
    /// The batch's, which the slots of its operations have too.
    number: u64,
    is_empty: bool,
}

impl Drop for Unrung<'_> {
    #[inline]
    fn drop(&mut self) {
        self.table.end_batch();
        if !self.is_empty {
            // SAFETY: the batch was not rung, and is no more.
            unsafe { take_back(self.table, self.number, OpError::NotRung) };
        }
    }
}

impl<'q> Unrung<'q> {
    /// Starts a batch.
    ///
    /// # Safety
    ///
    /// The caller has the table's send half exclusively, as long as this lives.
    #[inline]
    unsafe fn start(table: &'q Arc<Table>) -> Self {
        // SAFETY: by this function's contract.
        unsafe { take_back_forgotten(table) };
        Self {
            table,
            number: table.start_batch(),
            is_empty: true,
        }
    }

    /// Adds an operation.
    #[inline(always)]
    fn add(&mut self, slot: &Slot) {
        // Relaxed: others look at it only to count, and then the operation counts for a moment.
        slot.batch.store(self.number, Ordering::Relaxed);
        self.is_empty = false;
    }
}

impl<'q, T: Transport> Batch<'q, T> {
    #[inline]
    pub(super) fn new(half: &'q mut SendHalf<T>, table: &'q Arc<Table>) -> Self {
        let raw = half.batch();
        // SAFETY: the half is the table's, and the batch borrows it exclusively.
        let unrung = unsafe { Unrung::start(table) };
        Self { raw, unrung }
    }

    /// Hands the operations to the device with one doorbell, and returns their number.
    ///
    /// # Errors
    ///
    /// As for [`uverbs::Batch::ring`](qp::Batch::ring). If nothing was posted, the operations end with the
    /// same error.
    #[inline]
    pub fn ring(self) -> Result<usize, PostError> {
        let Self { raw, unrung } = self;
        let (table, number) = (unrung.table, unrung.number);
        // From here on the device may have the requests: also if a subscriber panics who hears of the
        // doorbell.
        mem::forget(unrung);
        table.end_batch();
        match raw.ring() {
            // The requests are in the ring, and their operations end when the device executes or flushes
            // them.
            rung @ (Ok(_) | Err(PostError::Doorbell(_))) => rung,
            Err(error) => {
                // SAFETY: as the error says.
                unsafe { take_back(table, number, OpError::Post(error)) };
                Err(error)
            }
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
        let table = self.unrung.table;
        // By hand, as in `post_alone`.
        let buf = ManuallyDrop::new(buf);
        let Some(slot) = table.take_send() else {
            return full(table, ManuallyDrop::into_inner(buf));
        };
        let id = slot.key();
        // SAFETY: the slot was just taken out of the free list.
        unsafe { slot.fill(id, ManuallyDrop::into_inner(buf)) };
        // SAFETY: it was just filled, and the device does not have it before the batch is rung.
        let bytes = unsafe { slot.cargo() };
        let request = self.raw.signaled(id);
        let posted = match (bytes.is_empty(), bytes.filled(table.pd)) {
            (true, _) => push(request, &[]),
            (false, Some(slice)) => push(request, std::slice::from_ref(&slice)),
            (false, None) => Err(PostError::ForeignPd),
        };
        if let Err(error) = posted {
            return not_posted(table, (slot, id), error);
        }
        // Not before it is in the batch: the slot of a request that is refused is free for others.
        self.unrung.add(slot);
        Op::posted(table, slot, id)
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("raw", &self.raw).finish()
    }
}

/// Posts one operation with one request, which takes fewer instructions than a batch of one.
#[inline(always)]
pub(super) fn post_alone<'q, T: Transport, K: Kind>(
    half: &'q mut SendHalf<T>,
    table: &Arc<Table>,
    buf: Buf,
    push: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
) -> Op<K> {
    // Without a guard, which would cost a second move: nothing here panics. But a subscriber of traces may
    // who hears of the doorbell: the operation goes on then, as one whose future was forgotten.
    let buf = ManuallyDrop::new(buf);
    if buf.is_empty() {
        return post_empty(half, table, ManuallyDrop::into_inner(buf), push);
    }
    let Some(slot) = table.take_send() else {
        return full_alone(half, table, ManuallyDrop::into_inner(buf));
    };
    let id = slot.key();
    // Filled first: the request may complete before `push` returns. SAFETY: the slot was just taken out of
    // the free list.
    unsafe { slot.fill(id, ManuallyDrop::into_inner(buf)) };
    // SAFETY: it was just filled, and the device does not have it yet.
    let named = unsafe { slot.cargo() }.filled(table.pd);
    let posted = match named {
        // A list whose length the compiler knows.
        Some(slice) => push(half.one(id), std::slice::from_ref(&slice)),
        None => Err(PostError::ForeignPd),
    };
    posted_as(posted, table, (slot, id))
}

/// As [`post_alone`], for a request that names no memory.
#[inline(never)]
fn post_empty<'q, T: Transport, K: Kind>(
    half: &'q mut SendHalf<T>,
    table: &Arc<Table>,
    buf: Buf,
    push: impl FnOnce(Request<'_, 'q, T>, &[LocalSlice<'static>]) -> Result<(), PostError>,
) -> Op<K> {
    let Some(slot) = table.take_send() else {
        return full_alone(half, table, buf);
    };
    let id = slot.key();
    // SAFETY: the slot was just taken out of the free list.
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

/// As [`full`], of an operation that is posted alone. The next one finds the slots free that a forgotten
/// batch has.
#[cold]
#[inline(never)]
fn full_alone<T: Transport, K: Kind>(
    _half: &mut SendHalf<T>,
    table: &Arc<Table>,
    buf: Buf,
) -> Op<K> {
    // SAFETY: the half is the table's.
    unsafe { take_back_forgotten(table) };
    full(table, buf)
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

/// Ends the operations of a batch, none of which was posted.
///
/// # Safety
///
/// None was, and none will be.
#[cold]
#[inline(never)]
unsafe fn take_back(table: &Arc<Table>, batch: u64, error: OpError) {
    let mut steps = Vec::new();
    // SAFETY: by this function's contract.
    unsafe {
        table.take_back(batch, error, |index, after| {
            steps.extend(Step::of(table, index, after));
        });
    }
    each(steps, Step::follow);
}

/// Ends the operations of a batch that was forgotten, if there is one.
///
/// # Safety
///
/// The caller has the table's send half exclusively. So the batch, which borrowed it, is no more, and the
/// device never gets its requests: the next ones go where they are.
#[inline]
pub(super) unsafe fn take_back_forgotten(table: &Arc<Table>) {
    if let Some(batch) = table.open_batch() {
        table.end_batch();
        // SAFETY: by this function's contract.
        unsafe { take_back(table, batch, OpError::NotRung) };
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::super::steps::tests::{Count, Panics};
    use super::*;
    use crate::work::PdTag;

    fn table() -> Arc<Table> {
        let (qpn, counts) = (Some(1), (4, 0));
        Arc::new(Table::new(0, (qpn, PdTag::new(1, 1)), counts, None))
    }

    fn start(table: &Arc<Table>) -> Unrung<'_> {
        // SAFETY: there is no half, and what was started before has been forgotten.
        unsafe { Unrung::start(table) }
    }

    fn take_back_forgotten(table: &Arc<Table>) {
        // SAFETY: as in `start`.
        unsafe { super::take_back_forgotten(table) };
    }

    /// A slot with an operation.
    fn filled(table: &Arc<Table>) -> (&Slot, u64) {
        let slot = table.take_send().unwrap();
        let id = slot.key();
        // SAFETY: it was taken from the free ones just now.
        unsafe { slot.fill(id, Buf::default()) };
        (slot, id)
    }

    /// Adds an operation to a batch, as `Batch::post` does.
    fn add(unrung: &mut Unrung<'_>) -> Op<Sent<Buf>> {
        let (slot, id) = filled(unrung.table);
        unrung.add(slot);
        Op::posted(unrung.table, slot, id)
    }

    /// How an operation ended, if it has.
    fn ended<K: Kind>(op: &mut Op<K>, waker: &Waker) -> Option<K::Output> {
        match Future::poll(Pin::new(op), &mut Context::from_waker(waker)) {
            Poll::Ready(ended) => Some(ended),
            Poll::Pending => None,
        }
    }

    /// Would catch operations of a dropped batch that never end, because the waker of another one panics:
    /// who waits for what is in flight would then wait for ever.
    #[test]
    fn a_waker_that_panics_costs_no_other_operation_of_the_batch() {
        let table = table();
        let mut unrung = start(&table);
        let count = Arc::new(Count::default());
        let (good, bad) = (
            Waker::from(Arc::clone(&count)),
            Waker::from(Arc::new(Panics)),
        );
        let wakers = [&good, &bad, &good];
        let mut ops = wakers.map(|waker| {
            let mut op = add(&mut unrung);
            assert!(ended(&mut op, waker).is_none());
            op
        });
        assert!(catch_unwind(AssertUnwindSafe(|| drop(unrung))).is_err());
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        for op in &mut ops {
            let (sent, _) = ended(op, Waker::noop()).unwrap();
            assert_eq!(sent, Err(OpError::NotRung));
        }
        assert_eq!(table.in_flight(), 0);
    }

    /// Would catch an abort that waits for ever for what a forgotten batch was to post, and slots and buffers
    /// that such a batch keeps.
    #[test]
    fn a_forgotten_batch_is_not_in_flight_and_is_taken_back() {
        let table = table();
        let mut unrung = start(&table);
        let (mut kept, dropped) = (add(&mut unrung), add(&mut unrung));
        assert_eq!(table.in_flight(), 0, "the device does not have it");
        drop(dropped);
        mem::forget(unrung);
        assert_eq!(table.in_flight(), 0, "the device never gets it");
        assert!(ended(&mut kept, Waker::noop()).is_none());

        // What is posted alone meanwhile counts, and is nobody else's.
        let _ = filled(&table);
        assert_eq!(table.in_flight(), 1);

        let mut next = start(&table);
        let (sent, _) = ended(&mut kept, Waker::noop()).unwrap();
        assert_eq!(sent, Err(OpError::NotRung));
        assert_eq!(table.in_flight(), 1, "what was posted is still under way");
        let more = [(); 3].map(|()| add(&mut next));
        assert!(table.take_send().is_none());
        // As `Batch::ring`.
        mem::forget(next);
        table.end_batch();
        assert_eq!(table.in_flight(), 4, "the device has it");
        take_back_forgotten(&table);
        assert_eq!(table.in_flight(), 4, "it was rung");
        drop(more);
    }

    /// Would catch a slot that a refused request leaves to the batch that refused it: what is posted in it
    /// next, alone, would go back to its pool with a forgotten batch, and the device writes to it.
    #[test]
    fn a_refused_request_leaves_its_slot() {
        let table = table();
        let mut unrung = start(&table);
        let op = add(&mut unrung);
        let (slot, id) = filled(&table);
        let refused: Op<Sent<Buf>> = not_posted(&table, (slot, id), PostError::ForeignPd);
        assert!(refused.is_refused());
        mem::forget(unrung);
        let (again, _) = filled(&table);
        assert!(std::ptr::eq(again, slot));
        assert_eq!(table.in_flight(), 1);
        take_back_forgotten(&table);
        assert_eq!(table.in_flight(), 1);
        drop(op);
    }

    /// Would catch room that a forgotten batch keeps.
    #[test]
    fn each_operation_of_a_forgotten_batch_gives_its_slot_back() {
        let table = table();
        for _ in 0..3 {
            let mut unrung = start(&table);
            let ops = [(); 4].map(|()| add(&mut unrung));
            drop(ops);
            mem::forget(unrung);
        }
        assert!(table.take_send().is_none());
        take_back_forgotten(&table);
        assert!(table.take_send().is_some());
    }
}
