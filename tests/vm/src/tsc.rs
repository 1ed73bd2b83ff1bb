//! How fast this machine's time stamp counter goes, which an emulated processor has as its own.
//!
//! A guest that measures it against timers that QEMU emulates can be wrong by a factor of ten where the host
//! is busy: it is stopped between reading the one and the other. All its clocks go wrong then, and its
//! timeouts.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The counter and the time, read one right after the other.
struct Reading {
    ticks: u64,
    at: Instant,
}

/// How long is measured. A microsecond's error at either end is one in some ten thousand.
const BETWEEN: Duration = Duration::from_millis(50);

/// How often the two are read for one reading, of which the quickest counts: in the others something came
/// between.
const TRIES: usize = 16;

/// Counts per millisecond. `None` on machines without the counter.
pub(crate) fn khz() -> Option<u64> {
    static KHZ: OnceLock<Option<u64>> = OnceLock::new();
    *KHZ.get_or_init(measure)
}

fn measure() -> Option<u64> {
    let before = reading()?;
    thread::sleep(BETWEEN);
    let after = reading()?;
    let ticks = u128::from(after.ticks.checked_sub(before.ticks)?);
    let took = after.at.duration_since(before.at).as_nanos();
    u64::try_from((ticks * 1_000_000).checked_div(took)?).ok()
}

fn reading() -> Option<Reading> {
    let once = || {
        let first = ticks()?;
        let at = Instant::now();
        Some((ticks()?.saturating_sub(first), Reading { ticks: first, at }))
    };
    let all: Option<Vec<_>> = (0..TRIES).map(|_| once()).collect();
    let quickest = all?.into_iter().min_by_key(|(took, _)| *took);
    quickest.map(|(_, reading)| reading)
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: each x86-64 processor has the instruction, and Linux lets programs use it.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a factor that is wrong, and a reading that something came between.
    #[test]
    fn two_measurements_agree() {
        let Some(first) = measure() else {
            return;
        };
        assert!((100_000..10_000_000).contains(&first), "{first} kHz");
        let second = measure().unwrap_or_default();
        assert!(
            first.abs_diff(second) < first / 1000,
            "{first}, {second} kHz"
        );
    }
}
