//! The types that the list of free blocks is built on. `tests/loom` has its own, which try every order of
//! threads.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
