//! Limits how often something happens: keys from a user who has just sent a wrong one, and lines of the log.

use std::time::{Duration, Instant};

/// Something that may be repeated only after a pause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Throttle {
    not_before: Option<Instant>,
}

impl Throttle {
    /// Whether the pause is over.
    pub(super) fn is_open(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|until| until <= now)
    }

    /// Starts a pause of `wait`.
    pub(super) fn close(&mut self, now: Instant, wait: Duration) {
        self.not_before = Some(now + wait);
    }

    /// Whether the pause is over; if so, the next one starts.
    pub(super) fn pass(&mut self, now: Instant, wait: Duration) -> bool {
        let open = self.is_open(now);
        if open {
            self.close(now, wait);
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_open_again_after_its_time() {
        let (now, wait) = (Instant::now(), Duration::from_millis(10));
        let mut throttle = Throttle::default();
        assert!(throttle.is_open(now));
        throttle.close(now, wait);
        assert!(!throttle.is_open(now + wait / 2));
        assert!(throttle.is_open(now + wait));
    }

    #[test]
    fn lets_one_pass_at_a_time() {
        let (now, wait) = (Instant::now(), Duration::from_secs(1));
        let mut throttle = Throttle::default();
        assert!(throttle.pass(now, wait));
        assert!(!throttle.pass(now, wait));
        assert!(!throttle.pass(now + wait / 2, wait));
        assert!(throttle.pass(now + wait, wait));
    }
}
