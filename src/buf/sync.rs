//! What the list of free blocks is made of. `tests/loom` has its own, which tries every order of threads.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
