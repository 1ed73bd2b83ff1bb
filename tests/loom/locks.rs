//! The lock of the pump.

use libtest_mimic::Trial;
use loom::sync::Arc;
use loom::thread;

use crate::lock::Lock;
use crate::sync::Place;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("locks::they_take_turns", turns)]
}

/// Catches two in it at once, one that does not see what the one before did, and one that sleeps for ever.
fn turns() {
    let lock = Arc::new(Lock::new(Place::empty()));
    // SAFETY: this thread has the lock.
    unsafe { lock.lock().put(0_u32) };
    let add = |lock: &Lock<Place<u32>>| {
        let guard = lock.lock();
        // SAFETY: this thread has the lock.
        unsafe { guard.put(guard.copy() + 1) };
    };
    let others: Vec<_> = (0..2)
        .map(|_| {
            let lock = Arc::clone(&lock);
            thread::spawn(move || add(&lock))
        })
        .collect();
    if lock.try_acquire() {
        // SAFETY: just now.
        let guard = unsafe { lock.acquired() };
        // SAFETY: this thread has the lock.
        unsafe { guard.put(guard.copy() + 1) };
    } else {
        add(&lock);
    }
    for other in others {
        other.join().unwrap();
    }
    // SAFETY: as above.
    assert_eq!(unsafe { lock.lock().copy() }, 3);
}
