//! A register that several queue pairs share: one thread at a time stores to it.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use crate::device::Places;
use crate::test;
use crate::turn::Turn;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("registers::one_thread_at_a_time", one_at_a_time),
        test("registers::no_doorbell_within_a_copy", no_doorbell_within),
    ]
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

/// Catches a doorbell of one thread that comes while another thread copies requests to the same half, and a
/// request that goes on with the half of before.
fn no_doorbell_within() {
    /// The words of two halves, and behind them which half is next.
    const NEXT: u32 = 4;
    let shared = Arc::new((Turn::new(), Places::<5>::new()));
    let ring = |(turn, register): &(Turn, Places<5>), thread: u64, words: u32| {
        let _turn = turn.take();
        let half = register.read(NEXT) as u32;
        for word in 0..words {
            register.write(half + word, thread);
        }
        register.write(NEXT, u64::from(half ^ 2));
    };
    let other = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || ring(&shared, 1, 1))
    };
    ring(&shared, 2, 2);
    ring(&shared, 3, 2);
    other.join().unwrap();
    let [a, b, c, d, next] = [0, 1, 2, 3, NEXT].map(|place| shared.1.read(place));
    assert_eq!(next, 2, "three turns");
    // The copies are whole, but for the doorbell where it came last.
    assert!(a == b || a == 1);
    assert!(c == d || c == 1);
}
