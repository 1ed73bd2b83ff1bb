//! What the requests of a shared receive queue are counted by: those that were posted, those that were
//! received, and between them those that the kernel has taken out of the ring, which the ring tells. All
//! counts go round modulo 2^32.
//!
//! Poster, pollers and whoever lets a region go may be different threads and take no lock. `tests/loom` tries
//! them in every order.

use super::sync::{AtomicU32, Ordering};

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Requests that were handed to the kernel, or are about to be.
    posted: AtomicU32,
    /// Requests whose completions were seen.
    completed: AtomicU32,
    /// So many requests are surely finished: all that the kernel had taken out at a time when it had no
    /// message under way.
    finished: AtomicU32,
}

impl Counts {
    /// Counts requests that are handed to the kernel next. Only the poster calls it.
    #[inline(always)]
    pub(super) fn post(&self, requests: u32) {
        // Relaxed: only the poster stores it.
        let posted = self.posted.load(Ordering::Relaxed).wrapping_add(requests);
        // Release: pairs with the acquire in `taken`, behind which the ring is looked at. What the poster had
        // seen of the ring is seen there.
        self.posted.store(posted, Ordering::Release);
    }

    /// Requests that were handed to the kernel, for the poster.
    pub(super) fn posted(&self) -> u32 {
        // Relaxed: the caller's own.
        self.posted.load(Ordering::Relaxed)
    }

    /// Counts messages that were received.
    #[inline(always)]
    pub(super) fn complete(&self, messages: u32) {
        // Release: pairs with the acquire in `progress`; the kernel has let go of the memory.
        self.completed.fetch_add(messages, Ordering::Release);
    }

    /// Counts all requests that were taken out as received: nobody receives into them any more.
    pub(super) fn complete_all(&self, taken: u32) {
        // Release: as in `complete`.
        self.completed.store(taken, Ordering::Release);
    }

    /// The count of requests that the kernel has taken out. `waiting` tells how many of the posted ones the
    /// ring still holds; it loads the ring's index with acquire.
    pub(super) fn taken(&self, waiting: impl Fn(u32) -> u32) -> u32 {
        let mut posted = self.posted.load(Ordering::Acquire);
        loop {
            let waiting = waiting(posted);
            // Relaxed: the load of the ring's index is an acquire and lies before. If the kernel has come to
            // a request that `posted` lacks, it is counted by now; the ring's index would then be ahead of
            // `posted`, which looks like almost a whole round behind.
            let again = self.posted.load(Ordering::Relaxed);
            if again == posted {
                return posted.wrapping_sub(waiting);
            }
            posted = self.posted.load(Ordering::Acquire);
        }
    }

    /// Requests that were posted, and those that are surely finished. One thread calls it at a time.
    pub(super) fn progress(&self, taken: impl FnOnce() -> Option<u32>) -> (u32, u32) {
        // In this order: if as many were completed as were taken out later, all that had been taken out by
        // then were complete.
        let completed = self.completed.load(Ordering::Acquire);
        if taken() == Some(completed) {
            // Relaxed: the number alone counts.
            self.finished.store(completed, Ordering::Relaxed);
        }
        // Relaxed: who asks about requests is ordered behind whoever posted them.
        let posted = self.posted.load(Ordering::Relaxed);
        (posted, self.finished.load(Ordering::Relaxed))
    }
}
