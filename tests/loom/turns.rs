//! A register that several queue pairs share: one thread at a time stores to it.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use crate::device::Places;
use crate::test;
use crate::turn::Turn;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("registers::one_thread_at_a_time", one_at_a_time)]
}

/// Catches two threads that store to the register at once, and one that does not see which half the other has
/// used.
fn one_at_a_time() {
    let shared = Arc::new((Turn::new(), Places::<1>::new()));
    let ring = |(turn, register): &(Turn, Places<1>)| {
        let _turn = turn.take();
        register.write(0, register.read(0) + 1);
    };
    let other = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || ring(&shared))
    };
    ring(&shared);
    other.join().unwrap();
    assert_eq!(shared.1.read(0), 2);
}
