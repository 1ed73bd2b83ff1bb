//! What `src/driver/queue/src/barrier.rs` is in the library: a device is a thread here.

use loom::sync::atomic::{Ordering, fence};

pub(crate) fn owner_before_entry() {
    fence(Ordering::Acquire);
}
