//! Points in time as numbers. Each message takes two, which must cost little compared with the message.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time(u64);

impl Time {
    #[inline]
    pub(super) fn now() -> Self {
        // The clock counts from the start of the machine, so both are positive, and a `u64` holds 584 years.
        let now = clock_gettime(ClockId::Monotonic);
        Self(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
    }

    /// Nanoseconds since an earlier point.
    #[inline]
    pub(super) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Whether it is further back than this duration.
    pub(super) fn is_older_than(self, duration: Duration) -> bool {
        Duration::from_nanos(Self::now().since(self)) > duration
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let more = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(more))
    }
}
