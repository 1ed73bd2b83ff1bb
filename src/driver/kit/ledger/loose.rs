//! Receives that finish out of the order in which they were posted.

use std::sync::Arc;

use super::super::sync::{AtomicBool, AtomicU32, Ordering};
use super::receives::RecvLedger;

/// The notes of a receive queue whose requests finish out of the order in which they were posted.
///
/// It has twice as many elements as requests may be posted at a time. A request that stays unfinished then
/// does not stop the others until they have gone once round.
#[derive(Debug)]
pub(crate) struct LooseLedger {
    /// The poster's notes. Their count is what the poster may rely on: the places of that many requests are
    /// free.
    notes: Arc<RecvLedger>,
    /// Which elements' requests are finished, after the first that is not.
    finished: Box<[AtomicBool]>,
    /// Requests that are finished, and requests before the first that is not, counted from the start.
    count: AtomicU32,
    before: AtomicU32,
}

// Only the poller writes. Threads that ask about requests read `before` and `finished`.
impl LooseLedger {
    /// A ledger for a ring of `elements`, a power of two above 1.
    pub(crate) fn new(elements: u32) -> Self {
        Self {
            notes: Arc::new(RecvLedger::new(elements)),
            finished: (0..elements).map(|_| AtomicBool::new(false)).collect(),
            count: AtomicU32::new(0),
            before: AtomicU32::new(0),
        }
    }

    /// The notes, for the poster.
    pub(crate) fn notes(&self) -> &Arc<RecvLedger> {
        &self.notes
    }

    /// Requests before the first that is not finished.
    pub(crate) fn before(&self) -> u32 {
        // Acquire: pairs with the release in `finish`.
        self.before.load(Ordering::Acquire)
    }

    /// Whether the request at this index, which comes after the first unfinished one, is finished. While this
    /// is true, its place is not given out: that happens only after the store that clears the flag.
    pub(crate) fn is_finished(&self, index: u32) -> bool {
        // Relaxed: a thread that looks for a region's key has a fence after this load (`flight.rs`), which
        // pairs with the release in `finish`.
        self.element(index).load(Ordering::Relaxed)
    }

    fn element(&self, index: u32) -> &AtomicBool {
        &self.finished[index as usize & (self.finished.len() - 1)]
    }

    /// Finishes the request of an element and returns its id; `None` if it is finished already.
    pub(crate) fn finish(&self, counter: u16) -> Option<u64> {
        // Release: for the load in `is_finished`.
        if self.element(counter.into()).swap(true, Ordering::Release) {
            return None;
        }
        let id = self.notes.id(counter.into()).load(Ordering::Relaxed);
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        let mut before = self.before.load(Ordering::Relaxed);
        while self.element(before).load(Ordering::Relaxed) {
            // Relaxed: the place is given out after the release below.
            self.element(before).store(false, Ordering::Relaxed);
            before = before.wrapping_add(1);
        }
        self.count.store(count, Ordering::Relaxed);
        // Release: pairs with the acquire in `before`.
        self.before.store(before, Ordering::Release);
        // How many finished requests beyond `before` the poster may count, so that the first unfinished one
        // keeps its place.
        let ahead = count
            .wrapping_sub(before)
            .min(self.finished.len() as u32 / 2);
        self.notes.finished(before.wrapping_add(ahead));
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loose_receives_finish_in_any_order() {
        let ledger = LooseLedger::new(8);
        for index in 0..8 {
            ledger.notes.note(index, 100 + u64::from(index));
        }
        assert_eq!(ledger.finish(2), Some(102));
        assert_eq!(ledger.finish(2), None, "once");
        assert_eq!(
            [0, 1, 2, 3].map(|index| ledger.is_finished(index)),
            [false, false, true, false]
        );
        assert_eq!((ledger.before(), ledger.notes.done()), (0, 1));
        assert_eq!(ledger.finish(0), Some(100));
        assert_eq!((ledger.before(), ledger.notes.done()), (1, 2));
        // All but the one that stays unfinished: no place is given out that it may have.
        for index in 3..8 {
            assert_eq!(ledger.finish(index), Some(100 + u64::from(index)));
        }
        assert_eq!((ledger.before(), ledger.notes.done()), (1, 5));
        assert_eq!(ledger.finish(8), Some(100), "round the ring");
        assert_eq!(ledger.finish(1), Some(101));
        assert_eq!((ledger.before(), ledger.notes.done()), (9, 9));
    }
}
