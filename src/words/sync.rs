//! The atomics and locks of `flight.rs`, with which queues and regions that are dropped synchronise.
//! `tests/loom` has its own, which try every order of threads.

pub(crate) use std::sync::atomic::{AtomicUsize, Ordering, fence};
pub(crate) use std::sync::{Mutex, MutexGuard};
