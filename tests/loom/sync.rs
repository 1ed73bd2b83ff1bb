//! What `src/driver/mlx5/sync.rs` is in the driver.

pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(crate) use loom::sync::{Mutex, MutexGuard};
