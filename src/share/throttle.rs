//! Slows down who tries wrong keys.

use std::time::{Duration, Instant};

/// How long a user waits after the first wrong key; twice as long after the next, and so on.
const FIRST: Duration = Duration::from_millis(10);

/// The longest wait.
const LONGEST: Duration = Duration::from_secs(1);

/// What one user's wrong keys have earned it.
///
/// No key of the user is looked at while it waits, whichever connection it comes by: so many connections try
/// no more keys than one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Throttle {
    not_before: Option<Instant>,
    in_a_row: u32,
}

impl Throttle {
    /// When a key may be looked at next, if not at once.
    pub(super) fn not_before(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|until| *until > now)
    }

    /// A wrong key came.
    pub(super) fn punish(&mut self, now: Instant) {
        let wait = FIRST
            .saturating_mul(1 << self.in_a_row.min(16))
            .min(LONGEST);
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.not_before = Some(now + wait);
    }

    /// The right key came.
    pub(super) fn forgive(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_key_costs_more_up_to_a_limit() {
        let now = Instant::now();
        let mut throttle = Throttle::default();
        assert_eq!(throttle.not_before(now), None);
        let mut last = Duration::ZERO;
        for _ in 0..100 {
            throttle.punish(now);
            let wait = throttle.not_before(now).unwrap() - now;
            assert!(wait >= last && wait <= LONGEST);
            last = wait;
        }
        assert_eq!(last, LONGEST);
        assert_eq!(throttle.not_before(now + LONGEST), None);
        throttle.forgive();
        throttle.punish(now);
        assert_eq!(throttle.not_before(now), Some(now + FIRST));
    }
}
