//! The device's part.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

/// A device that finishes requests in the order in which they are posted, as soon as it is told of them.
#[derive(Default)]
pub(crate) struct Device(AtomicU32);

impl Device {
    /// Tells it that there are so many requests now, counted from the start.
    pub(crate) fn ring(&self, posted: u32) {
        self.0.store(posted, Ordering::Release);
    }

    /// Waits until it has finished more than `seen`; gives how many it has finished.
    pub(crate) fn wait(&self, seen: u32) -> u32 {
        loop {
            let finished = self.0.load(Ordering::Acquire);
            if finished > seen {
                return finished;
            }
            thread::yield_now();
        }
    }
}

/// Places that a poster writes and a poller reads, as those of a ring are; loom fails if both are at one at
/// once.
pub(crate) struct Places<const N: usize>([UnsafeCell<u64>; N]);

// SAFETY: loom stops a test where two threads are at a place at once, and does not let them.
unsafe impl<const N: usize> Sync for Places<N> {}

impl<const N: usize> Places<N> {
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| UnsafeCell::new(0)))
    }

    /// Writes at an index, which is taken modulo the ring.
    pub(crate) fn write(&self, index: u32, value: u64) {
        // SAFETY: loom ends the test where another thread is at the place.
        self.0[index as usize % N].with_mut(|place| unsafe { *place = value });
    }

    /// Reads at an index, which is taken modulo the ring.
    pub(crate) fn read(&self, index: u32) -> u64 {
        // SAFETY: as in `write`.
        self.0[index as usize % N].with(|place| unsafe { *place })
    }
}
