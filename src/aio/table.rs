//! The slots of a queue pair: as many as it has places for requests, made once.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::task::{Context, Poll, Waker};

use super::error::{Completed, OpError, Origin};
use super::slot::{self, After, Look, PHASE_BITS};
use crate::buf::{Buf, Link, Stack};
use crate::qp::Control;
use crate::wc::Completion;
use crate::work::PdTag;

/// How an operation ended of which more is told than that it succeeded.
pub(super) type Ending = Result<Completed, OpError>;

/// A slot of a table.
pub(super) type Slot = slot::Slot<Buf, Ending>;

impl Link for Slot {
    #[inline(always)]
    fn next(&self) -> &AtomicU32 {
        &self.link
    }
}

// A request's id has the index of its slot, the number of its table, and how often the slot was used before.
// The last two are the slot's key.

/// Bits of a slot's index in a request's id.
const INDEX_BITS: u32 = PHASE_BITS;
/// Bits of a table's number, behind those.
const NUMBER_BITS: u32 = 20;

const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

/// The most slots of a table: no slot has the largest index.
pub(super) const MOST_SLOTS: u32 = INDEX_MASK;
/// The most tables of a completion queue.
pub(super) const MOST_TABLES: usize = 1 << NUMBER_BITS;

/// The id of no request.
pub(super) const OVER: u64 = u64::MAX;

/// In place of a queue pair's number, which has 24 bits: the receives are of any queue pair.
const ANY_QP: u32 = u32::MAX;

/// Which slot of its table a request has.
#[inline(always)]
pub(super) fn index(id: u64) -> u32 {
    id as u32 & INDEX_MASK
}

/// The key that the slot had when it was posted.
#[inline(always)]
pub(super) fn key(id: u64) -> u64 {
    id & !u64::from(INDEX_MASK)
}

/// The number of its table.
#[inline(always)]
pub(super) fn number(id: u64) -> usize {
    ((id >> INDEX_BITS) as u32 & NUMBER_MASK) as usize
}

/// The slots of a queue pair: those of sends, then those of receives.
pub(super) struct Table {
    slots: Box<[Slot]>,
    /// The slots that are free.
    sends: Stack,
    receives: Stack,
    /// Slots of sends.
    send_count: u32,
    /// The queue pair's number, or [`ANY_QP`].
    qpn: u32,
    pub(super) pd: PdTag,
    /// Nobody takes completions any more.
    ///
    /// Relaxed for futures: who waits is roused behind it, and the slot's state orders the two.
    broken: AtomicBool,
    /// It is so because the queue pair's halves are gone. Relaxed: in front of `broken`.
    orphaned: AtomicBool,
    /// What fails the queue pair, if it is one that fails as a whole.
    control: Option<Control>,
    /// The queue pair is in the state ERR, or about to be.
    ///
    /// Sequentially consistent throughout, with the fence in [`has_failed_since`](Self::has_failed_since):
    /// who posts a receive and then does not see it has posted before the kernel is told.
    failed: AtomicBool,
}

impl Table {
    /// `number` is the table's with its completion queue; `qpn` is the queue pair's, if it is of one.
    pub(super) fn new(
        number: u32,
        (qpn, pd): (Option<u32>, PdTag),
        (sends, receives): (u32, u32),
        control: Option<Control>,
    ) -> Self {
        let first = u64::from(number) << INDEX_BITS;
        let table = Self {
            control,
            failed: AtomicBool::new(false),
            slots: (0..sends + receives).map(|_| Slot::new(first)).collect(),
            sends: Stack::empty(),
            receives: Stack::empty(),
            send_count: sends,
            qpn: qpn.unwrap_or(ANY_QP),
            pd,
            broken: AtomicBool::new(false),
            orphaned: AtomicBool::new(false),
        };
        for (index, slot) in table.slots.iter().enumerate().rev() {
            table.give(index as u32, slot);
        }
        table
    }

    /// Slots in all.
    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots of sends, and of receives.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.send_count, self.len() - self.send_count)
    }

    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// The slot of a request, and its index; `None` of no request.
    #[inline(always)]
    pub(super) fn slot_of(&self, id: u64) -> Option<(u32, &Slot)> {
        let index = index(id);
        Some((index, self.slots.get(index as usize)?))
    }

    /// Takes a free slot of a send.
    #[inline(always)]
    pub(super) fn take_send(&self) -> Option<(u32, &Slot)> {
        self.sends.take(&self.slots)
    }

    /// Takes a free slot of a receive.
    #[inline(always)]
    pub(super) fn take_receive(&self) -> Option<(u32, &Slot)> {
        self.receives.take(&self.slots)
    }

    /// Takes a slot back, which is free.
    #[inline(always)]
    pub(super) fn give(&self, index: u32, slot: &Slot) {
        let stack = match self.is_send(index) {
            true => &self.sends,
            false => &self.receives,
        };
        stack.give(index, slot);
    }

    #[inline(always)]
    fn is_send(&self, index: u32) -> bool {
        index < self.send_count
    }

    /// Whether a completion is of this table's queue pair.
    #[inline(always)]
    pub(super) fn is_of(&self, qpn: u32) -> bool {
        self.qpn == qpn || self.qpn == ANY_QP
    }

    /// Takes the buffer out of a slot that was found done, and the slot back.
    ///
    /// # Safety
    ///
    /// It was, by the caller, who does this once.
    #[inline(always)]
    pub(super) unsafe fn unload(&self, index: u32, slot: &Slot) -> Buf {
        // SAFETY: by this function's contract; its number is given back behind.
        let buf = unsafe { slot.unload() };
        self.give(index, slot);
        buf
    }

    /// Gives the buffer of a slot that was released back to its pool, and then the slot: nobody finds nothing
    /// in flight while a buffer is missing.
    ///
    /// # Safety
    ///
    /// It was released, and the caller does this once.
    pub(super) unsafe fn release(&self, index: u32) {
        /// Also behind a panic of somebody who waits for a buffer.
        struct Vacate<'t>(&'t Table, u32);
        impl Drop for Vacate<'_> {
            fn drop(&mut self) {
                let slot = self.0.slot(self.1);
                // SAFETY: by the function's contract; it was unloaded below.
                unsafe { slot.vacate() };
                self.0.give(self.1, slot);
            }
        }
        let _vacate = Vacate(self, index);
        // SAFETY: by this function's contract.
        drop(unsafe { self.slot(index).unload() });
    }

    /// A future goes: its buffer, if the device has done with it.
    #[inline(never)]
    pub(super) fn cancel(&self, id: u64) -> Option<Buf> {
        let (index, slot) = self.slot_of(id)?;
        match slot.cancel(key(id)) {
            // SAFETY: it was found done.
            Look::Done | Look::Told => Some(unsafe { self.unload(index, slot) }),
            Look::Gone => {
                self.give(index, slot);
                None
            }
            Look::Pending | Look::Other => None,
        }
    }

    /// Notes the completion of a send that succeeded, of which nobody asks more; `None` if it is another one.
    /// For who has the completion queue.
    #[inline(always)]
    pub(super) fn complete_send(&self, id: u64, is_ok: bool) -> Option<After> {
        let slot = self.slots.get(index(id) as usize)?;
        if !is_ok || !self.is_send(index(id)) {
            return None;
        }
        // SAFETY: the device reports the request as done, by its id and its queue pair's number; who has the
        // completion queue is one at a time.
        Some(unsafe { slot.complete(key(id), None) })
    }

    /// Notes any completion. For who has the completion queue.
    pub(super) fn complete(&self, id: u64, completion: &Completion) -> After {
        match self.slots.get(index(id) as usize) {
            // SAFETY: as in `complete_send`.
            Some(slot) => unsafe { slot.complete(key(id), Some(ending(completion))) },
            None => After::Nothing,
        }
    }

    /// Notes that a slot's request was not posted.
    ///
    /// # Safety
    ///
    /// It was not.
    pub(super) unsafe fn unposted(&self, index: u32, error: OpError) -> After {
        let slot = self.slot(index);
        match slot.in_flight() {
            // SAFETY: by this function's contract the device never gets it, so that nobody else completes it.
            Some(key) => unsafe { slot.complete(key, Some(Err(error))) },
            None => After::Nothing,
        }
    }

    /// Notes that the device has forgotten all requests. For who has the completion queue.
    ///
    /// # Safety
    ///
    /// It has, and no more are posted.
    pub(super) unsafe fn forget_all(&self, mut after: impl FnMut(u32, After)) {
        for (index, slot) in self.slots.iter().enumerate() {
            if let Some(key) = slot.in_flight() {
                // SAFETY: by this function's contract; who has the completion queue is one at a time.
                let ended = unsafe { slot.complete(key, Some(Err(OpError::Gone))) };
                after(index as u32, ended);
            }
        }
    }

    /// Notes that nobody takes completions any more, and takes the wakers of all who wait, for completions or
    /// for room. For who has the completion queue.
    pub(super) fn break_off(&self, mut wake: impl FnMut(Waker)) {
        // Release: with the acquire in `why_broken`.
        self.broken.store(true, Ordering::Release);
        self.slots
            .iter()
            .filter_map(Slot::rouse)
            .for_each(&mut wake);
        self.sends.take_waiting().into_iter().for_each(wake);
    }

    /// As [`break_off`](Self::break_off), where the halves of the queue pair are gone, or the stock of
    /// receives.
    pub(super) fn orphan(&self, wake: impl FnMut(Waker)) {
        self.orphaned.store(self.qpn != ANY_QP, Ordering::Relaxed);
        self.break_off(wake);
    }

    /// Notes that the queue pair is in the state ERR, or about to be; true if that is news.
    pub(super) fn note_failure(&self) -> bool {
        self.control.is_some() && !self.failed.swap(true, Ordering::SeqCst)
    }

    /// Whether nothing can be received any more.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether it has failed meanwhile: for who has posted a receive.
    #[inline]
    pub(super) fn has_failed_since(&self) -> bool {
        fence(Ordering::SeqCst);
        self.failed.load(Ordering::SeqCst)
    }

    /// Takes the queue pair to the state ERR, once more.
    #[cold]
    pub(super) fn fail(&self) {
        if let Some(control) = &self.control {
            // It may have gone, or the device.
            let _ = control.fail();
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

    /// Waits until another send can be posted, or nothing will end any more.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self.sends.poll_any(cx) {
            // Who breaks it off takes the wakers afterwards, under the lock under which this one was left.
            Poll::Pending if !self.is_broken() => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }

    /// Operations whose buffers the device may have.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.iter().filter_map(Slot::in_flight).count()
    }

    /// The buffers of all that is done and that nobody has taken.
    pub(super) fn reclaim(&self) -> impl Iterator<Item = Buf> {
        self.slots.iter().filter_map(Slot::reclaim)
    }
}

/// What a completion says.
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
        let table = Table::new(last, (Some(1), PdTag::new(1, 1)), (2, 0), None);
        for generation in 0..3 {
            let (at, slot) = table.take_send().unwrap();
            let id = slot.key() | u64::from(at);
            assert_eq!((index(id), number(id)), (0, MOST_TABLES - 1));
            assert_eq!(key(id), generation << 40 | u64::from(last) << 20);
            // SAFETY: its number was taken from the free ones just now.
            unsafe { slot.fill(slot.key(), Buf::default()) };
            assert!(table.complete_send(id, false).is_none(), "it failed");
            assert!(matches!(
                table.complete_send(id, true),
                Some(After::Nothing)
            ));
            assert!(table.cancel(id).is_some());
        }
    }

    #[test]
    fn sends_and_receives_have_slots_of_their_own() {
        let table = Table::new(0, (Some(1), PdTag::new(1, 1)), (2, 1), None);
        let number = |taken: Option<(u32, &Slot)>| taken.map(|(number, _)| number);
        assert_eq!(table.counts(), (2, 1));
        assert_eq!(number(table.take_receive()), Some(2));
        assert_eq!(number(table.take_receive()), None);
        assert_eq!(number(table.take_send()), Some(0));
        table.give(2, table.slot(2));
        assert_eq!(number(table.take_receive()), Some(2));
    }
}
