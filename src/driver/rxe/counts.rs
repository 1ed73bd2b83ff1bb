//! Counts of a shared receive queue's requests: those that were posted, and those that were received. Between
//! them are the requests that the kernel has taken out of the ring; the ring's index says how many. All
//! counts wrap at 2^32.
//!
//! The poster, the pollers and the thread that drops a region may be different threads and take no lock.
//! `tests/loom` tries them in every order.

use super::sync::{AtomicU32, Ordering};

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Requests that were handed to the kernel, or are about to be.
    posted: AtomicU32,
    /// Requests whose completions a poller has seen.
    completed: AtomicU32,
    /// At least this many requests are finished: all that the kernel had taken out at a time when it was
    /// receiving no message.
    finished: AtomicU32,
}

impl Counts {
    /// Counts requests that the caller hands to the kernel next. Only the poster calls it.
    #[inline(always)]
    pub(super) fn post(&self, requests: u32) {
        // Relaxed: only the poster stores it.
        let posted = self.posted.load(Ordering::Relaxed).wrapping_add(requests);
        // Release: pairs with the acquire in `taken`, after which the ring is looked at, so that `taken` sees
        // at least what the poster had seen of the ring.
        self.posted.store(posted, Ordering::Release);
    }

    /// Requests that were handed to the kernel, for the poster.
    pub(super) fn posted(&self) -> u32 {
        // Relaxed: only the caller stores it.
        self.posted.load(Ordering::Relaxed)
    }

    /// Counts messages whose completions were seen.
    #[inline(always)]
    pub(super) fn complete(&self, messages: u32) {
        // Release: pairs with the acquire in `progress`; the kernel has released the memory.
        self.completed.fetch_add(messages, Ordering::Release);
    }

    /// Counts all requests that were taken out as received: no queue pair receives into them any more.
    pub(super) fn complete_all(&self, taken: u32) {
        // Release: as in `complete`.
        self.completed.store(taken, Ordering::Release);
    }

    /// How many requests the kernel has taken out. `waiting` returns how many of the posted ones the ring
    /// still holds; it loads the ring's index with acquire.
    pub(super) fn taken(&self, waiting: impl Fn(u32) -> u32) -> u32 {
        let mut posted = self.posted.load(Ordering::Acquire);
        loop {
            let waiting = waiting(posted);
            // Relaxed: the load of the ring's index before it is an acquire. If the kernel has taken a
            // request that `posted` lacks, this load sees the newer count. Without it the ring's index would
            // be ahead of `posted`, which looks like almost a whole round of waiting requests.
            let again = self.posted.load(Ordering::Relaxed);
            if again == posted {
                return posted.wrapping_sub(waiting);
            }
            posted = self.posted.load(Ordering::Acquire);
        }
    }

    /// Requests that were posted, and those that are surely finished. One thread calls it at a time.
    pub(super) fn progress(&self, taken: impl FnOnce() -> Option<u32>) -> (u32, u32) {
        // In this order: `taken` looks later. If it finds no more requests than had completed, then all that
        // were taken out had completed.
        let completed = self.completed.load(Ordering::Acquire);
        if taken() == Some(completed) {
            // Relaxed: no other memory depends on it.
            self.finished.store(completed, Ordering::Relaxed);
        }
        // Relaxed: the caller is ordered after the poster.
        let posted = self.posted.load(Ordering::Relaxed);
        (posted, self.finished.load(Ordering::Relaxed))
    }
}
