//! How far a queue has progressed.

/// How many requests were posted to a queue, and how many of them have finished. Both counts wrap at a power
/// of two that is greater than the most requests in flight.
/// A finished request does not use its memory any more. The counts may lag: a request may count as unfinished
/// for too long, but never as finished too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    posted: u32,
    finished: u32,
    /// The power of two, less one.
    mask: u32,
}

/// How often the counts are loaded, until no request is posted between two loads.
const LOOKS: usize = 4;

impl Progress {
    /// For a queue whose counts cannot be read: everything is in flight forever.
    pub(crate) const UNKNOWN: Self = Self {
        posted: 1,
        finished: 0,
        mask: 1,
    };

    /// Counts that wrap at `mask` + 1.
    pub(crate) fn new(posted: u32, finished: u32, mask: u32) -> Self {
        Self {
            posted,
            finished,
            mask,
        }
    }

    /// The counts of a queue that other threads use meanwhile. The two functions load them, with acquire. The
    /// call is ordered after the posts that the caller asks about.
    /// If the finished count is newer than the posted count, the difference wraps, and too few requests could
    /// seem to be in flight, or none. So the posted count is loaded first, and again after the finished
    /// count, until both loads agree. If requests are posted all the time, the result is too large.
    pub(crate) fn look(mask: u32, posted: impl Fn() -> u32, finished: impl Fn() -> u32) -> Self {
        let mut first = posted();
        for _ in 1..LOOKS {
            let now = Self::new(first, finished(), mask);
            match posted() {
                again if again == first => return now,
                again => first = again,
            }
        }
        Self::new(first, finished(), mask)
    }

    /// Requests that are not finished.
    pub(crate) fn in_flight(self) -> u32 {
        self.posted.wrapping_sub(self.finished) & self.mask
    }

    /// Requests that are finished, of all that were posted.
    #[allow(dead_code, reason = "not every driver's queues ask")]
    pub(crate) fn finished(self) -> u32 {
        self.finished
    }

    /// Requests that were posted.
    #[allow(dead_code, reason = "not every driver's queues ask")]
    pub(crate) fn posted(self) -> u32 {
        self.posted
    }

    /// The same, with another count of posted requests.
    #[allow(dead_code, reason = "not every driver's queues ask")]
    pub(crate) fn with_posted(self, posted: u32) -> Self {
        Self { posted, ..self }
    }

    /// The places of the requests in flight, from the oldest on.
    pub(crate) fn places(self) -> impl Iterator<Item = u32> {
        (0..self.in_flight()).map(move |at| self.finished.wrapping_add(at) & self.mask)
    }

    /// Whether all requests that were in flight at `then` are finished now. If the counts have wrapped
    /// between two looks, the queue may seem to have progressed less than it has, but never more.
    pub(crate) fn has_passed(self, then: Self) -> bool {
        let come = self.finished.wrapping_sub(then.finished) & self.mask;
        self.in_flight() == 0 || come >= then.in_flight()
    }

    /// The requests of `then` that are not finished yet, if not all [have passed](Self::has_passed). The next
    /// look compares with these, so that counts that wrap do not hide the queue's progress.
    pub(crate) fn left_of(self, then: Self) -> Self {
        Self {
            finished: self.finished,
            ..then
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_idle_queue_has_passed_everything() {
        let then = Progress::new(7, 3, 7);
        assert_eq!(then.in_flight(), 4);
        assert!(!then.has_passed(then));
        assert!(Progress::new(3, 3, 7).has_passed(then));
    }

    proptest! {
        /// Would catch a region that is freed under a request: `finished` is what really happened, and the
        /// counts are what a look reads.
        #[test]
        fn nothing_passes_early(
            start in any::<u32>(),
            in_flight in 0u32..8,
            finished in 0u32..40,
            posted in 0u32..40,
        ) {
            let mask = 7;
            // At most 7 are in flight at a time.
            let posted = posted.clamp(finished.saturating_sub(in_flight), finished + 7 - in_flight);
            let then = Progress::new(start.wrapping_add(in_flight) & mask, start & mask, mask);
            let now = Progress::new(
                start.wrapping_add(in_flight).wrapping_add(posted) & mask,
                start.wrapping_add(finished) & mask,
                mask,
            );
            if now.has_passed(then) {
                prop_assert!(finished >= in_flight);
            }
            if finished == in_flight + posted {
                prop_assert!(now.has_passed(then));
            }
        }

        /// Would catch a region that waits forever for a ring that is always full: each look sees how far the
        /// queue has progressed since the last one, whatever was posted meanwhile.
        #[test]
        fn what_goes_round_passes_in_the_end(
            start in any::<u32>(),
            in_flight in 1u32..8,
            steps in prop::collection::vec(1u32..8, 7),
        ) {
            let mask = 7;
            let full = |finished: u32| {
                let posted = start.wrapping_add(finished + 7);
                Progress::new(posted & mask, start.wrapping_add(finished) & mask, mask)
            };
            let mut then = Progress { posted: start.wrapping_add(in_flight) & mask, ..full(0) };
            let mut finished = 0;
            let passed = steps.iter().any(|step| {
                finished += step;
                let now = full(finished);
                let passed = now.has_passed(then);
                then = now.left_of(then);
                passed
            });
            prop_assert!(passed);
            prop_assert!(finished >= in_flight);
        }
    }
}
