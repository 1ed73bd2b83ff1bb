//! Receives that finish in the order in which they were posted.

use super::super::sync::{AtomicU32, AtomicU64, Ordering};

/// The notes of a receive queue, one for each of its elements.
#[derive(Debug)]
pub(crate) struct RecvLedger {
    /// As many as a power of two. `mask` is one less.
    ids: Box<[AtomicU64]>,
    mask: u32,
    /// Requests that are finished, counted from the start, modulo 2^32.
    done: AtomicU32,
}

impl RecvLedger {
    /// A ledger for a ring of `elements`, a power of two or 0.
    pub(crate) fn new(elements: u32) -> Self {
        assert!(elements == 0 || elements.is_power_of_two());
        Self {
            ids: (0..elements.max(1)).map(|_| AtomicU64::new(0)).collect(),
            mask: elements.max(1) - 1,
            done: AtomicU32::new(0),
        }
    }

    /// The id of the request at this index, which is taken modulo the ring.
    #[inline(always)]
    pub(super) fn id(&self, index: u32) -> &AtomicU64 {
        // SAFETY: `new` checked that the length is a power of two, so the masked index is below it.
        unsafe { self.ids.get_unchecked((index & self.mask) as usize) }
    }

    /// Notes the id of the request of this count; returns the index of its element. Relaxed: the module's
    /// documentation says who reads it when.
    #[inline(always)]
    pub(crate) fn note(&self, count: u32, id: u64) -> u32 {
        let index = count & self.mask;
        self.id(index).store(id, Ordering::Relaxed);
        index
    }

    /// Requests that are finished.
    #[inline(always)]
    pub(crate) fn done(&self) -> u32 {
        // Acquire: pairs with the release in `finish`.
        self.done.load(Ordering::Acquire)
    }

    /// Notes how many requests are finished.
    #[inline(always)]
    pub(super) fn finished(&self, count: u32) {
        // Release: as for sends.
        self.done.store(count, Ordering::Release);
    }

    /// The index of the request that finishes next, for the poller.
    #[inline(always)]
    pub(crate) fn next(&self) -> u32 {
        // Relaxed: only the one poller of the completion queue stores it.
        self.done.load(Ordering::Relaxed)
    }

    /// Finishes the next request and returns its id. Requests of a receive queue finish in the order in which
    /// they were posted.
    #[inline(always)]
    pub(crate) fn finish(&self) -> u64 {
        let id = self.next_id();
        self.finish_next();
        id
    }

    /// The id of the next request, for the poller.
    #[inline(always)]
    pub(crate) fn next_id(&self) -> u64 {
        self.id(self.next()).load(Ordering::Relaxed)
    }

    /// Finishes the next request, whose id has been read.
    #[inline(always)]
    pub(crate) fn finish_next(&self) {
        self.finished(self.next().wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_finish_in_order() {
        let ledger = RecvLedger::new(4);
        for index in 0..4 {
            ledger.note(index, 100 + u64::from(index));
        }
        assert_eq!([ledger.finish(), ledger.finish()], [100, 101]);
        assert_eq!(ledger.done(), 2);
        assert_eq!(RecvLedger::new(0).finish(), 0);
    }
}
