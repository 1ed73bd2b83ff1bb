//! The gate of a shared receive queue: one thread passes it, others close it.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use crate::device::Places;
use crate::gate::Gate;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("gate::nobody_inside_while_it_is_closed", nobody_inside),
        test("gate::who_has_waited_is_seen", closed_again),
        test("gate::one_closes_it_at_a_time", one_closes),
    ]
}

fn add(gate: &Places<1>) {
    gate.write(0, gate.read(0) + 1);
}

/// A thread that closes the gate once, and adds meanwhile.
fn closer(shared: &Arc<(Gate, Places<1>)>) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let closed = shared.0.close();
        add(&shared.1);
        drop(closed);
    })
}

/// Catches a thread inside at the same time as one that has closed the gate, and one that does not see what
/// the other has done.
fn nobody_inside() {
    let shared = Arc::new((Gate::new(), Places::<1>::new()));
    let closer = closer(&shared);
    for _ in 0..2 {
        let _inside = shared.0.pass();
        add(&shared.1);
    }
    closer.join().unwrap();
    assert_eq!(shared.1.read(0), 3);
}

/// Catches a thread that has waited at the gate and goes inside while it is closed a second time.
fn closed_again() {
    let shared = Arc::new((Gate::new(), Places::<1>::new()));
    let closer = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            for _ in 0..2 {
                let _closed = shared.0.close();
                add(&shared.1);
            }
        })
    };
    let inside = shared.0.pass();
    add(&shared.1);
    drop(inside);
    closer.join().unwrap();
    assert_eq!(shared.1.read(0), 3);
}

/// Catches two threads that have the gate closed at once.
fn one_closes() {
    let shared = Arc::new((Gate::new(), Places::<1>::new()));
    let close = |(gate, place): &(Gate, Places<1>)| {
        let _closed = gate.close();
        add(place);
    };
    let closer = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || close(&shared))
    };
    close(&shared);
    closer.join().unwrap();
    assert_eq!(shared.1.read(0), 2);
}
