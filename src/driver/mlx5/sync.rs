//! What posters and pollers share memory by. `tests/loom` compiles the modules that use it with loom's types in this place,
//! which try every order in which two threads can see each other's stores.

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};
