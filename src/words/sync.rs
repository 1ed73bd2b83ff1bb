//! The atomics and locks of `flight.rs`, by which regions that go meet queues. `tests/loom` has its own,
//! which try every order of threads.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
