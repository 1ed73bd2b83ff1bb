//! What `src/driver/mlx5/sync.rs` is in the driver.

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use loom::sync::{Mutex, MutexGuard};

/// Has another thread go on.
pub(crate) fn wait_a_little(_: u32) {
    loom::thread::yield_now();
}
