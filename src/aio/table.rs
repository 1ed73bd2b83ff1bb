//! The slots of a queue pair: one for each request that it has room for, allocated once.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::task::{Context, Poll, Waker};

use super::error::{Completed, OpError, Origin};
use super::slot::{self, After, Look, NAME_BITS, NEXT, PHASE_BITS, Success};
use crate::buf::Buf;
use crate::buf::free::{Places, Stack, Ticket};
use crate::qp::Control;
use crate::wc::{Completion, WcStatus};
use crate::work::PdTag;

/// How an operation ended, if there is more to report than its success.
pub(super) type Ending = Result<Completed, OpError>;

/// A slot of a table.
pub(super) type Slot = slot::Slot<Buf, Ending>;

// A request's id is its slot's key: the slot's index, the number of its table, and how often the slot was
// used before. The lowest bits are zero, where the slot's state has its phase.

/// Bits of a slot's index in a request's id.
const INDEX_BITS: u32 = 20;
/// Bits of a table's number, above the index.
const NUMBER_BITS: u32 = 20;

const NUMBER_SHIFT: u32 = PHASE_BITS + INDEX_BITS;
const _: () = assert!(NUMBER_SHIFT + NUMBER_BITS == NAME_BITS);

const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

/// The most slots of a table.
pub(super) const MOST_SLOTS: u32 = 1 << INDEX_BITS;
/// The most tables of a completion queue.
pub(super) const MOST_TABLES: usize = 1 << NUMBER_BITS;

/// In place of a queue pair's number, which has 24 bits: a table of receives that any queue pair may take.
const ANY_QP: u32 = u32::MAX;

/// The index of a request's slot in its table.
#[inline(always)]
pub(super) fn index(id: u64) -> u32 {
    (id >> PHASE_BITS) as u32 & INDEX_MASK
}

/// The key that a completion's id names. The phase bits are cleared, whatever the device says.
#[inline(always)]
fn key(id: u64) -> u64 {
    id & !((1 << PHASE_BITS) - 1)
}

/// The number of its table.
#[inline(always)]
pub(super) fn number(id: u64) -> usize {
    ((id >> NUMBER_SHIFT) as u32 & NUMBER_MASK) as usize
}

impl Places for [Slot] {
    #[inline(always)]
    fn next(&self, number: u32) -> Option<&AtomicU32> {
        Some(&self.get(number as usize)?.link)
    }
}

/// The queue pair that a table belongs to.
pub(super) struct Owner {
    pub(super) control: Control,
    /// A request that fails takes the queue pair to the state ERR, whatever the reason.
    pub(super) fails_as_one: bool,
}

/// The slots of a queue pair: those of sends, then those of receives.
pub(super) struct Table {
    slots: Box<[Slot]>,
    /// The indices of slots that are free.
    sends: Stack,
    receives: Stack,
    /// Slots of sends: not more than there are.
    send_count: u32,
    /// The number of the batch that is being filled, or was when it was forgotten, which is odd; even while
    /// there is none. Changed only by the poster. No number comes twice, so a batch's slots are those with
    /// its number.
    ///
    /// Relaxed: for others than the poster, the slots' states order it.
    batch: AtomicU64,
    /// The queue pair's number, or [`ANY_QP`].
    qpn: u32,
    pub(super) pd: PdTag,
    /// Nobody takes completions any more. Futures load it relaxed: each future that waits is roused after the
    /// store, and the slot's state orders the two.
    broken: AtomicBool,
    /// It is broken because the queue pair's halves are gone. Relaxed: `broken`, which is stored after it,
    /// orders it.
    orphaned: AtomicBool,
    /// The queue pair; `None` for a shared receive queue.
    owner: Option<Owner>,
    /// The queue pair is in the state ERR, or about to be.
    ///
    /// Sequentially consistent throughout, with the fence in [`has_failed_since`](Self::has_failed_since): if
    /// a poster does not see it after posting a receive, it has posted before the kernel fails the queue
    /// pair.
    failed: AtomicBool,
}

impl Table {
    /// `number` is the table's index in its completion queue. `qpn` is `None` for a shared receive queue.
    pub(super) fn new(
        number: u32,
        (qpn, pd): (Option<u32>, PdTag),
        (sends, receives): (u32, u32),
        owner: Option<Owner>,
    ) -> Self {
        let key = |index| NEXT | u64::from(number) << NUMBER_SHIFT | u64::from(index) << PHASE_BITS;
        let table = Self {
            owner,
            failed: AtomicBool::new(false),
            slots: (0..sends + receives)
                .map(|index| Slot::new(key(index)))
                .collect(),
            sends: Stack::empty(),
            receives: Stack::empty(),
            send_count: sends,
            batch: AtomicU64::new(0),
            qpn: qpn.unwrap_or(ANY_QP),
            pd,
            broken: AtomicBool::new(false),
            orphaned: AtomicBool::new(false),
        };
        for slot in table.slots.iter().rev() {
            table.give(slot, slot.key());
        }
        table
    }

    /// All slots.
    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The numbers of slots for sends and for receives.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.send_count, self.len() - self.send_count)
    }

    /// Takes a free slot of a send.
    #[inline(always)]
    pub(super) fn take_send(&self) -> Option<&Slot> {
        self.slot(self.sends.take(&*self.slots)?)
    }

    /// Takes a free slot of a receive.
    #[inline(always)]
    pub(super) fn take_receive(&self) -> Option<&Slot> {
        self.slot(self.receives.take(&*self.slots)?)
    }

    /// The slot of this index, if there is one.
    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index as usize)
    }

    /// Takes back a free slot that had this key.
    #[inline(always)]
    pub(super) fn give(&self, slot: &Slot, key: u64) {
        let index = index(key);
        match self.is_send(index) {
            true => self.sends.give(index, &slot.link),
            false => self.receives.give(index, &slot.link),
        }
    }

    #[inline(always)]
    fn is_send(&self, index: u32) -> bool {
        index < self.send_count
    }

    /// Whether a completion with this number belongs to this table's queue pair.
    #[inline(always)]
    pub(super) fn is_of(&self, qpn: u32) -> bool {
        self.qpn == qpn || self.qpn == ANY_QP
    }

    /// Takes the buffer out of a slot that was found done, and gives the slot back.
    ///
    /// # Safety
    ///
    /// The caller found the slot done, with this key, and does this once.
    #[inline(always)]
    pub(super) unsafe fn unload(&self, slot: &Slot, key: u64) -> Buf {
        // SAFETY: by this function's contract; the slot is given back afterwards.
        let buf = unsafe { slot.unload() };
        self.give(slot, key);
        buf
    }

    /// Gives a released slot's buffer back to its pool, and then frees the slot. In this order: a thread that
    /// finds nothing in flight finds all buffers in the pool.
    ///
    /// # Safety
    ///
    /// The slot was released, and the caller does this once.
    pub(super) unsafe fn release(&self, index: u32) {
        /// Frees the slot, even if a task that waits for the buffer panics when it is woken.
        struct Vacate<'t>(&'t Table, &'t Slot);
        impl Drop for Vacate<'_> {
            fn drop(&mut self) {
                // SAFETY: by the function's contract; it was unloaded below.
                unsafe { self.1.vacate() };
                self.0.give(self.1, self.1.key());
            }
        }
        let slot = &self.slots[index as usize];
        let _vacate = Vacate(self, slot);
        // SAFETY: by this function's contract.
        drop(unsafe { slot.unload() });
    }

    /// A future is dropped: returns its buffer, if the device has finished with it.
    #[inline(never)]
    pub(super) fn cancel(&self, slot: &Slot, key: u64) -> Option<Buf> {
        let (found, waker) = slot.cancel(key);
        let buf = match found {
            // SAFETY: it was found done.
            Look::Done | Look::Told => Some(unsafe { self.unload(slot, key) }),
            Look::Gone => {
                self.give(slot, key);
                None
            }
            Look::Pending | Look::Other => None,
        };
        // Last, since dropping a waker runs user code, which may panic. The buffer then goes to its pool.
        drop(waker);
        buf
    }

    /// The slot of the send that a completion of this queue pair reports.
    #[inline(always)]
    pub(super) fn send_of(&self, id: u64, qpn: u32) -> Option<&Slot> {
        let index = index(id);
        // A table for any queue pair has no sends.
        if self.qpn != qpn || !self.is_send(index) {
            return None;
        }
        // SAFETY: there are that many slots of sends.
        Some(unsafe { self.slots.get_unchecked(index as usize) })
    }

    /// Notes any completion. Only for the thread that has the completion queue.
    pub(super) fn complete(&self, id: u64, completion: &Completion) -> After {
        match self.slots.get(index(id) as usize) {
            // SAFETY: as in `succeed`.
            Some(slot) => unsafe { slot.complete(key(id), Some(ending(completion))) },
            None => After::Nothing,
        }
    }

    /// Starts a batch, and returns its number. Only for the poster.
    #[inline]
    pub(super) fn start_batch(&self) -> u64 {
        let number = self.batch.load(Ordering::Relaxed) + 1;
        self.batch.store(number, Ordering::Relaxed);
        number
    }

    /// The batch is about to be rung, or never will be. Only for the poster.
    #[inline]
    pub(super) fn end_batch(&self) {
        let next = self.batch.load(Ordering::Relaxed) + 1;
        self.batch.store(next, Ordering::Relaxed);
    }

    /// The batch that is being filled, or was when it was forgotten.
    #[inline]
    pub(super) fn open_batch(&self) -> Option<u64> {
        let number = self.batch.load(Ordering::Relaxed);
        (number % 2 == 1).then_some(number)
    }

    /// Notes that no request of a batch was posted.
    ///
    /// # Safety
    ///
    /// None was, and none will be.
    pub(super) unsafe fn take_back(
        &self,
        batch: u64,
        error: OpError,
        mut after: impl FnMut(u32, After),
    ) {
        for (index, slot) in self.slots.iter().enumerate() {
            // Relaxed: the poster has stored it.
            if slot.batch.load(Ordering::Relaxed) == batch
                && let Some(key) = slot.in_flight()
            {
                // SAFETY: by this function's contract the device never gets the request, so no completion of
                // it comes.
                let ended = unsafe { slot.complete(key, Some(Err(error))) };
                after(index as u32, ended);
            }
        }
    }

    /// Notes that the device has forgotten all requests. Only for the thread that has the completion queue.
    ///
    /// # Safety
    ///
    /// The device has forgotten them, and no more are posted.
    pub(super) unsafe fn forget_all(&self, mut after: impl FnMut(u32, After)) {
        for (index, slot) in self.slots.iter().enumerate() {
            if let Some(key) = slot.in_flight() {
                // SAFETY: by this function's contract; only one thread has the completion queue.
                let ended = unsafe { slot.complete(key, Some(Err(OpError::Gone))) };
                after(index as u32, ended);
            }
        }
    }

    /// Notes that nobody takes completions any more, and takes the wakers of all tasks that wait, for
    /// completions or for room. Only for the thread that has the completion queue.
    pub(super) fn break_off(&self, mut wake: impl FnMut(Waker)) {
        // Release: pairs with the acquire in `why_broken`.
        self.broken.store(true, Ordering::Release);
        self.slots
            .iter()
            .filter_map(Slot::rouse)
            .for_each(&mut wake);
        self.sends.take_waiting().for_each(wake);
    }

    /// Like [`break_off`](Self::break_off), because the halves of the queue pair, or the shared receive
    /// queue, are gone.
    pub(super) fn orphan(&self, wake: impl FnMut(Waker)) {
        self.orphaned.store(self.qpn != ANY_QP, Ordering::Relaxed);
        self.break_off(wake);
    }

    /// Notes that the queue pair is in the state ERR, or about to be; true if this is the first time.
    pub(super) fn note_failure(&self) -> bool {
        self.owner.is_some() && !self.failed.swap(true, Ordering::SeqCst)
    }

    /// Notes that a request has failed; true if this shows for the first time that the queue pair has.
    pub(super) fn note_failed_request(&self, id: u64, status: WcStatus) -> bool {
        // A send may fail alone, and take others with it, while messages still arrive.
        let is_flushed_receive = !self.is_send(index(id)) && status == WcStatus::WR_FLUSH_ERR;
        let fails_as_one = self.owner.as_ref().is_some_and(|owner| owner.fails_as_one);
        (fails_as_one || is_flushed_receive) && self.note_failure()
    }

    /// Whether nothing can be received any more.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether it has failed meanwhile. Called after a receive was posted.
    #[inline]
    pub(super) fn has_failed_since(&self) -> bool {
        fence(Ordering::SeqCst);
        self.failed.load(Ordering::SeqCst)
    }

    /// Takes the queue pair to the state ERR, once more.
    #[cold]
    pub(super) fn fail(&self) {
        if let Some(owner) = &self.owner {
            // The queue pair may be gone, or the device.
            let _ = owner.control.fail();
        }
    }

    #[inline]
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Why it is broken.
    #[cold]
    pub(super) fn why_broken(&self) -> OpError {
        match self.broken.load(Ordering::Acquire) && self.orphaned.load(Ordering::Relaxed) {
            true => OpError::Gone,
            false => OpError::Broken,
        }
    }

    /// Whether a receive can be posted.
    pub(super) fn has_room_to_receive(&self) -> bool {
        self.receives.has_any()
    }

    /// Operations whose buffers the device may have. It does not have those of a batch that is not rung, and
    /// never gets them if the batch has been forgotten.
    pub(super) fn in_flight(&self) -> usize {
        let has_it = |slot: &&Slot| {
            // In this order: a slot that was used again has its batch's number from before, and who sees its
            // state sees that this batch was over.
            slot.in_flight().is_some()
                && self.open_batch() != Some(slot.batch.load(Ordering::Relaxed))
        };
        self.slots.iter().filter(has_it).count()
    }

    /// The buffers of all operations that are done and whose results were not taken.
    pub(super) fn reclaim(&self) -> impl Iterator<Item = Buf> {
        self.slots.iter().filter_map(Slot::reclaim)
    }
}

/// Notes the completion of a send that succeeded. Only for the thread that has the completion queue.
#[inline(always)]
pub(super) fn succeed(slot: &Slot, id: u64) -> Success {
    // SAFETY: the device reports the request as done, by its id and its queue pair's number; only one thread
    // has the completion queue.
    unsafe { slot.succeed(key(id)) }
}

/// The rest of [`succeed`], for a future that is gone or busy.
#[cold]
pub(super) fn succeed_closer(slot: &Slot, id: u64) -> After {
    // SAFETY: as in `succeed`.
    unsafe { slot.complete(key(id), None) }
}

/// Waits for room for a send. It leaves no waker behind.
pub(super) struct Room {
    table: Arc<Table>,
    ticket: Ticket,
}

impl Room {
    pub(super) fn of(table: &Arc<Table>) -> Self {
        Self {
            table: Arc::clone(table),
            ticket: Ticket::default(),
        }
    }

    /// Waits until another send can be posted, or nothing will end any more.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.table.sends.poll_any(cx, &mut self.ticket) {
            // `break_off` takes the wakers after its store, under the lock under which this one was left.
            Poll::Pending if !self.table.is_broken() => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.table.sends.leave(&mut self.ticket);
    }
}

/// An operation's slot, and a share in its table.
pub(super) struct Held {
    table: Arc<Table>,
    slot: NonNull<Slot>,
    /// The slot's key for this operation.
    key: u64,
}

// SAFETY: it consists of a share in a table and a reference to one of the table's slots.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    /// `slot` is one of the table's slots.
    #[inline(always)]
    pub(super) fn new(table: &Arc<Table>, slot: &Slot, key: u64) -> Self {
        debug_assert!(
            table
                .slots
                .as_ptr_range()
                .contains(&std::ptr::from_ref(slot))
        );
        Self {
            table: Arc::clone(table),
            slot: NonNull::from(slot),
            key,
        }
    }

    #[inline(always)]
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> &Slot {
        // SAFETY: the table does not move its slots, and lives as long as this.
        unsafe { self.slot.as_ref() }
    }

    #[inline(always)]
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// The table, as from [`Arc::as_ptr`], and the slot: for a caller that drops the share in the table by
    /// hand.
    #[inline(always)]
    pub(super) fn parts(&self) -> (NonNull<Table>, NonNull<Slot>) {
        // SAFETY: nothing has the address zero.
        let table = unsafe { NonNull::new_unchecked(Arc::as_ptr(&self.table).cast_mut()) };
        (table, self.slot)
    }
}

/// The ending that a completion reports.
fn ending(completion: &Completion) -> Ending {
    match completion.result() {
        Ok(opcode) => Ok(Completed {
            byte_len: completion.byte_len(),
            imm: completion.imm(),
            is_message: opcode == crate::wc::WcOpcode::RECV,
            origin: match completion.is_recv() {
                true => Origin::of(completion),
                false => Origin::default(),
            },
        }),
        Err(error) => Err(OpError::Completion(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_all_that_finds_an_operation() {
        let last = MOST_TABLES as u32 - 1;
        let table = Table::new(last, (Some(1), PdTag::new(1, 1)), (1, 0), None);
        for generation in 1..4 {
            let slot = table.take_send().unwrap();
            let id = slot.key();
            assert_eq!((index(id), number(id)), (0, MOST_TABLES - 1));
            assert_eq!(
                id,
                generation << NAME_BITS | u64::from(last) << NUMBER_SHIFT
            );
            // SAFETY: it was just taken out of the free list.
            unsafe { slot.fill(id, Buf::default()) };
            assert!(table.send_of(id, 2).is_none(), "of another queue pair");
            // A completion of zeros.
            assert!(matches!(succeed(&table.slots[0], 0), Success::Closer));
            let found = table.send_of(id, 1).unwrap();
            assert!(std::ptr::eq(found, slot));
            // Phase bits in the id are ignored.
            assert!(matches!(succeed(found, id | 3), Success::Nobody));
            assert!(table.cancel(slot, id).is_some());
        }
    }

    /// Panics when its last waker is dropped.
    struct Fragile;

    impl std::task::Wake for Fragile {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("a waker's destructor");
        }
    }

    /// Would catch a slot and a buffer that are lost because of a waker whose destructor panics.
    #[test]
    fn a_waker_that_panics_when_it_goes_costs_no_slot() {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        let table = Table::new(0, (Some(1), PdTag::new(1, 1)), (1, 0), None);
        for is_send in [false, true] {
            let slot = table.take_send().unwrap();
            let id = slot.key();
            // SAFETY: it was just taken out of the free list.
            unsafe { slot.fill(id, Buf::default()) };
            let waker = Waker::from(Arc::new(Fragile));
            assert_eq!(
                slot.poll(id, &mut Context::from_waker(&waker)),
                Look::Pending
            );
            drop(waker);
            let cancelled = catch_unwind(AssertUnwindSafe(|| table.cancel(slot, id)));
            assert!(cancelled.is_err(), "the waker is still there");
            assert_eq!(table.in_flight(), 1);
            // By both ways in which a success is noted.
            if is_send {
                assert!(matches!(succeed(slot, id), Success::Closer));
            }
            assert!(matches!(succeed_closer(slot, id), After::Release));
            // SAFETY: it was just released.
            unsafe { table.release(0) };
            assert_eq!(table.in_flight(), 0);
        }
    }

    #[test]
    fn sends_and_receives_have_slots_of_their_own() {
        let table = Table::new(0, (Some(1), PdTag::new(1, 1)), (2, 1), None);
        let taken = |slot: Option<&Slot>| slot.map(|slot| index(slot.key()));
        assert_eq!(table.counts(), (2, 1));
        assert_eq!(taken(table.take_receive()), Some(2));
        assert_eq!(taken(table.take_receive()), None);
        assert_eq!(taken(table.take_send()), Some(0));
        table.give(&table.slots[2], table.slots[2].key());
        assert_eq!(taken(table.take_receive()), Some(2));
        let receive = table.slots[2].key();
        assert!(table.send_of(receive, 1).is_none(), "it is no send");
    }
}
