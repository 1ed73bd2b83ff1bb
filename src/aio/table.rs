//! The slots of a queue pair: as many as it has places for requests, made once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use super::cargo::Cargo;
use super::error::{Completed, OpError, Origin};
use super::slot::{After, Ending, GENERATION_BITS, Slot};
use crate::buf::FreeList;
use crate::qp::Control;
use crate::wc::Completion;
use crate::work::PdTag;

/// Bits of a slot's index in a request's id.
const INDEX_BITS: u32 = 20;
/// Bits of a table's number.
const NUMBER_BITS: u32 = 64 - GENERATION_BITS - INDEX_BITS;

/// The most slots of a table.
pub(super) const MOST_SLOTS: u32 = 1 << INDEX_BITS;
/// The most tables of a completion queue.
pub(super) const MOST_TABLES: usize = 1 << NUMBER_BITS;

/// In place of a queue pair's number, which has 24 bits: the receives are of any queue pair.
pub(super) const ANY_QP: u32 = u32::MAX;

/// What a request's id says: whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    /// The table's number.
    pub(super) table: u32,
    pub(super) generation: u32,
    pub(super) index: u32,
}

impl Id {
    #[inline]
    pub(super) fn wire(self) -> u64 {
        u64::from(self.table) << (GENERATION_BITS + INDEX_BITS)
            | u64::from(self.generation) << INDEX_BITS
            | u64::from(self.index)
    }

    #[inline]
    pub(super) fn of(wire: u64) -> Self {
        Self {
            table: (wire >> (GENERATION_BITS + INDEX_BITS)) as u32,
            generation: (wire >> INDEX_BITS) as u32 & ((1 << GENERATION_BITS) - 1),
            index: wire as u32 & ((1 << INDEX_BITS) - 1),
        }
    }
}

/// The slots of a queue pair: those of sends, then those of receives.
pub(super) struct Table {
    slots: Box<[Slot]>,
    pub(super) sends: FreeList,
    receives: FreeList,
    /// Slots of sends.
    send_count: u32,
    /// The table's number with its completion queue.
    number: u32,
    /// The queue pair's number, or [`ANY_QP`].
    pub(super) qpn: u32,
    pub(super) pd: PdTag,
    /// Nobody takes completions any more.
    ///
    /// Relaxed: who waits is woken behind it, and the waker orders the two.
    broken: AtomicBool,
    /// What fails the queue pair, if it is one that fails as a whole.
    control: Option<Control>,
    /// The queue pair is in the state ERR, or about to be.
    ///
    /// Sequentially consistent throughout, with the fence in [`has_failed_since`](Self::has_failed_since): who
    /// posts a receive and then does not see it has posted before the kernel is told.
    failed: AtomicBool,
}

impl Table {
    pub(super) fn new(
        number: u32,
        (qpn, pd): (u32, PdTag),
        (sends, receives): (u32, u32),
        control: Option<Control>,
    ) -> Self {
        Self {
            control,
            failed: AtomicBool::new(false),
            slots: (0..sends + receives).map(|_| Slot::new()).collect(),
            sends: FreeList::full(sends),
            receives: FreeList::full(receives),
            send_count: sends,
            number,
            qpn,
            pd,
            broken: AtomicBool::new(false),
        }
    }

    /// Slots in all.
    pub(super) fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Slots of sends, and of receives.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.send_count, self.len() - self.send_count)
    }

    #[inline]
    pub(super) fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// Takes a free slot of a receive.
    #[inline]
    pub(super) fn take_receive(&self) -> Option<u32> {
        Some(self.receives.take()? + self.send_count)
    }

    /// Takes a slot back, which is free.
    #[inline]
    pub(super) fn give(&self, index: u32) {
        match index.checked_sub(self.send_count) {
            None => self.sends.give(index),
            Some(receive) => self.receives.give(receive),
        }
    }

    /// The id of the next request of a slot.
    #[inline]
    pub(super) fn id(&self, index: u32) -> Id {
        Id {
            table: self.number,
            generation: self.slot(index).generation(),
            index,
        }
    }

    /// Notes a completion. For who has the completion queue.
    #[inline]
    pub(super) fn complete(&self, id: Id, completion: &Completion) -> After {
        let Some(slot) = self.slots.get(id.index as usize) else {
            return After::Nothing;
        };
        let is_send = id.index < self.send_count;
        let ending = || match is_send && completion.is_ok() {
            // Nobody asks for more.
            true => Ok(Completed::default()),
            false => ending(completion),
        };
        // SAFETY: the device reports the request as done, by its id and its queue pair's number; who has the
        // completion queue is one at a time.
        unsafe { slot.complete(id.generation, ending) }
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
            Some(generation) => unsafe { slot.complete(generation, || Err(error)) },
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
            if let Some(generation) = slot.in_flight() {
                // SAFETY: by this function's contract; who has the completion queue is one at a time.
                let ended = unsafe { slot.complete(generation, || Err(OpError::Gone)) };
                after(index as u32, ended);
            }
        }
    }

    /// Notes that nobody takes completions any more, and takes the wakers of all who wait. For who has the
    /// completion queue.
    pub(super) fn break_off(&self, mut wake: impl FnMut(Waker)) {
        self.broken.store(true, Ordering::Relaxed);
        self.slots
            .iter()
            .filter_map(Slot::rouse)
            .for_each(&mut wake);
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

    /// Operations whose buffers the device may have.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.iter().filter_map(Slot::in_flight).count()
    }

    /// The buffers of all that is done and that nobody has taken.
    pub(super) fn reclaim(&self) -> impl Iterator<Item = Cargo> {
        self.slots.iter().filter_map(Slot::reclaim)
    }
}

/// What a completion says.
#[inline]
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

/// What a completion leads to, of any table. A waker needs none.
pub(super) enum Step {
    Wake(Waker),
    Fail(Arc<Table>),
    Release(Arc<Table>, u32, Cargo),
}

impl Step {
    /// What comes after the completion of a slot, if anything.
    #[inline]
    pub(super) fn of(table: &Arc<Table>, index: u32, after: After) -> Option<Self> {
        match after {
            After::Nothing => None,
            After::Wake(waker) => Some(Self::Wake(waker)),
            After::Release(cargo) => Some(Self::Release(Arc::clone(table), index, cargo)),
        }
    }

    /// Does it, without any lock: wakers and pools do as they like.
    #[inline]
    pub(super) fn follow(self) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Fail(table) => table.fail(),
            Self::Release(table, index, cargo) => {
                drop(cargo);
                table.give(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_both_ways() {
        let largest = Id {
            table: (1 << NUMBER_BITS) - 1,
            generation: (1 << GENERATION_BITS) - 1,
            index: MOST_SLOTS - 1,
        };
        let id = Id {
            table: 1,
            generation: 2,
            index: 3,
        };
        assert_eq!(largest.wire(), u64::MAX);
        for id in [id, largest] {
            assert_eq!(Id::of(id.wire()), id);
        }
    }

    #[test]
    fn sends_and_receives_have_slots_of_their_own() {
        let table = Table::new(0, (1, PdTag::new(1, 1)), (2, 1), None);
        assert_eq!(table.counts(), (2, 1));
        assert_eq!(table.take_receive(), Some(2));
        assert_eq!(table.take_receive(), None);
        assert_eq!(table.sends.take(), Some(0));
        table.give(2);
        assert_eq!(table.take_receive(), Some(2));
    }
}
