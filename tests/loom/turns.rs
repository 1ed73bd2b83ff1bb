//! A register that several queue pairs share: one thread at a time stores to it.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::cell::UnsafeCell;
use loom::thread;

use crate::test;
use crate::turn::Turn;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("registers::one_thread_at_a_time", one_at_a_time)]
}

/// Catches two threads that store to the register at once, and one that does not see which half the other has
/// used.
fn one_at_a_time() {
    let shared = Arc::new((Turn::new(), UnsafeCell::new(0)));
    let ring = |shared: &(Turn, UnsafeCell<u32>)| {
        let _turn = shared.0.take();
        // loom panics where two threads are here at once. SAFETY: that is what the turn is for.
        shared.1.with_mut(|half| unsafe { *half += 1 });
    };
    let other = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || ring(&shared))
    };
    ring(&shared);
    other.join().unwrap();
    // SAFETY: the other thread has ended.
    assert_eq!(shared.1.with(|half| unsafe { *half }), 2);
}
