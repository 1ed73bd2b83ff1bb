//! The atomics and locks that posters and pollers share. `tests/loom` compiles the modules that use them with
//! loom's types instead, which try every order in which two threads can see each other's stores.

pub(crate) use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence,
};
pub(crate) use std::sync::{Mutex, MutexGuard};

use std::sync::atomic::compiler_fence;

use rustix::thread::{MembarrierCommand, membarrier};

/// Orders a store before a later load, for a thread that calls [`order_everywhere`] in between.
#[inline(always)]
pub(crate) fn order_here() {
    compiler_fence(Ordering::SeqCst);
}

/// Orders the stores and loads of each thread of this process, this one included, as if each executed a
/// barrier now. False if the kernel cannot do it.
pub(crate) fn order_everywhere() -> bool {
    let order = || membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
    // A process registers once for this. It costs the kernel milliseconds, so it is left until needed.
    order() || register() && order()
}

/// Yields to a thread that is expected to need only a few instructions: first to the other thread of the
/// core, then to any thread, since the awaited one may have been interrupted.
pub(crate) fn wait_a_little(round: u32) {
    match round {
        0..100 => std::hint::spin_loop(),
        _ => std::thread::yield_now(),
    }
}
