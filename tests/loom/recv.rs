//! How posters and pollers tell the device of receives.

use crate::sync::{AtomicU32, Ordering};

/// Tells it how many requests there are. Release stands for the barrier before the record.
pub(crate) fn tell(word: &AtomicU32, count: u32) {
    word.store(count, Ordering::Release);
}
