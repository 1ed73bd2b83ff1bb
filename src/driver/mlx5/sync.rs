//! The atomics and locks that posters and pollers share. `tests/loom` compiles the modules that use them with
//! loom's types instead, which try every order in which two threads can see each other's stores.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};

/// Yields to a thread that is expected to need only a few instructions: first to the other thread of the
/// core, then to any thread, since the awaited one may have been interrupted.
pub(super) fn wait_a_little(round: u32) {
    match round {
        0..100 => std::hint::spin_loop(),
        _ => std::thread::yield_now(),
    }
}
