//! What posters and pollers share memory by. `tests/loom` compiles the modules that use it with loom's types
//! in this place, which try every order in which two threads can see each other's stores.

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard};

/// Lets somebody else go on who is expected to need a few instructions: the other thread of the core first,
/// and if that does not help, any other thread, for the one that is waited for may have been interrupted.
pub(super) fn wait_a_little(round: u32) {
    match round {
        0..100 => std::hint::spin_loop(),
        _ => std::thread::yield_now(),
    }
}
