//! The atomics that posters and pollers share. `tests/loom` compiles the modules that use them with loom's
//! types instead, which try every order in which two threads can see each other's stores.

pub(super) use std::sync::atomic::{AtomicU32, Ordering};
