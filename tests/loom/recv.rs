//! How posters and pollers tell the device of receives.

use crate::sync::{AtomicU32, Ordering};

/// Tells it how many requests there are. Release stands for the barrier before the record.
pub(crate) fn tell(counter: &AtomicU32, count: u32) {
    counter.store(count, Ordering::Release);
}
