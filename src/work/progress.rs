//! How far a queue has come.

/// How many requests a queue was given and how many of them it has finished, both counted round modulo a
/// power of two that is above the most requests in flight.
///
/// A finished request needs its memory no more. What is told may be late: a request counts as unfinished too
/// long rather than too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    posted: u32,
    finished: u32,
    /// The modulus less one.
    mask: u32,
}

impl Progress {
    /// Of a queue that nobody can ask: everything is in flight for ever.
    pub(crate) const UNKNOWN: Self = Self {
        posted: 1,
        finished: 0,
        mask: 1,
    };

    /// Counts that go round modulo `mask` + 1.
    pub(crate) fn new(posted: u32, finished: u32, mask: u32) -> Self {
        Self {
            posted,
            finished,
            mask,
        }
    }

    /// Requests that are not finished.
    pub(crate) fn in_flight(self) -> u32 {
        self.posted.wrapping_sub(self.finished) & self.mask
    }

    /// Requests that are finished, of all that there were.
    #[allow(dead_code, reason = "not every driver's queues ask")]
    pub(crate) fn finished(self) -> u32 {
        self.finished
    }

    /// Requests that were posted.
    #[allow(dead_code, reason = "not every driver's queues ask")]
    pub(crate) fn posted(self) -> u32 {
        self.posted
    }

    /// The same with another count of those that were posted.
    #[allow(dead_code, reason = "not every driver's queues ask")]
    pub(crate) fn with_posted(self, posted: u32) -> Self {
        Self { posted, ..self }
    }

    /// The places of the requests in flight, from the oldest on.
    pub(crate) fn places(self) -> impl Iterator<Item = u32> {
        (0..self.in_flight()).map(move |at| self.finished.wrapping_add(at) & self.mask)
    }

    /// Whether everything that was in flight at `then` is finished now. A queue that went on round between
    /// two looks may seem not to have come so far yet; it never seems to be further than it is.
    pub(crate) fn has_passed(self, then: Self) -> bool {
        let come = self.finished.wrapping_sub(then.finished) & self.mask;
        self.in_flight() == 0 || come >= then.in_flight()
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
        /// Would catch a region that is freed under a request: `passed` is what really happened, and the
        /// counts are what a look sees of it.
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
    }
}
