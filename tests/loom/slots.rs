//! Slots of operations: who awaits against who completes, reclaims and rouses.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering as StdOrdering};
use std::task::{Context, Wake, Waker};

use libtest_mimic::Trial;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::slot::{After, Glance, Look, Slot, Success};
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("slots::the_result_comes_or_the_task_is_woken", awaited),
        test("slots::what_is_told_is_there", told),
        test("slots::who_goes_leaves_the_buffer", dropped),
        test("slots::nothing_in_flight_is_nothing_missing", drained),
        test("slots::one_gets_the_buffer", reclaimed),
        test("slots::who_is_roused_is_not_lost", roused),
        test("slots::who_is_roused_knows_why", roused_for),
    ]
}

/// A buffer that counts how often it has been given back.
struct Buffer(StdArc<AtomicUsize>);

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.fetch_add(1, StdOrdering::Relaxed);
    }
}

type Shared = Arc<Slot<Buffer, u32>>;

/// A slot with an operation of the key 0 under way, and the count of its buffer.
fn submitted() -> (Shared, StdArc<AtomicUsize>) {
    let (slot, given) = (Slot::new(0), StdArc::default());
    // SAFETY: nobody else has it.
    unsafe { slot.fill(0, Buffer(StdArc::clone(&given))) };
    (Arc::new(slot), given)
}

/// Notes in loom's memory that it was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: StdArc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

fn waker() -> (StdArc<Woken>, Waker) {
    let woken = StdArc::new(Woken(AtomicBool::new(false)));
    (StdArc::clone(&woken), Waker::from(woken))
}

/// What a future does that is polled.
fn poll(slot: &Shared, waker: &Waker) -> Look {
    match slot.glance(0) {
        Glance::Done => return Look::Done,
        Glance::UnderWay if slot.wait(0, waker.clone()) => return Look::Pending,
        Glance::UnderWay | Glance::Other => {}
    }
    slot.poll(0, &mut Context::from_waker(waker))
}

/// What the pump does with a completion.
fn complete(slot: &Shared, ending: Option<u32>) {
    if ending.is_none() {
        // SAFETY: there is no device, and one thread that completes.
        match unsafe { slot.succeed(0) } {
            Success::Nobody => return,
            Success::Wake(waker) => return waker.wake(),
            Success::Closer => {}
        }
    }
    // SAFETY: there is no device, and one thread that completes.
    match unsafe { slot.complete(0, ending) } {
        After::Nothing => {}
        After::Wake(waker) => waker.wake(),
        After::Release => {
            // SAFETY: it was released, and nobody else has its number.
            drop(unsafe { slot.unload() });
            // SAFETY: as before.
            unsafe { slot.vacate() };
        }
    }
}

/// Has a slot's operation completed on another thread.
fn completing(slot: &Shared, ending: Option<u32>) -> thread::JoinHandle<()> {
    let slot = Arc::clone(slot);
    thread::spawn(move || complete(&slot, ending))
}

fn unload(slot: &Shared) {
    // SAFETY: it was found done, and nobody else has its number.
    drop(unsafe { slot.unload() });
}

/// Catches a completion that neither a look nor the last waker tells of, a waker that two have, and a result
/// without its buffer.
fn awaited() {
    let (slot, given) = submitted();
    let other = completing(&slot, None);
    let mut last = None;
    for _ in 0..2 {
        let (woken, waker) = waker();
        last = match poll(&slot, &waker) {
            Look::Done => None,
            Look::Pending => Some(woken),
            look => panic!("{look:?}"),
        };
        if last.is_none() {
            break;
        }
    }
    other.join().unwrap();
    if let Some(woken) = last {
        assert!(woken.0.load(Ordering::Acquire), "nobody is woken");
        let look = poll(&slot, Waker::noop());
        assert_eq!(look, Look::Done, "the completion is over");
    }
    unload(&slot);
    assert_eq!(given.load(StdOrdering::Relaxed), 1);
}

/// Catches a result that is read before it is there.
fn told() {
    let (slot, given) = submitted();
    let other = completing(&slot, Some(7));
    let first = poll(&slot, Waker::noop());
    let look = match first {
        Look::Pending => {
            other.join().unwrap();
            poll(&slot, Waker::noop())
        }
        look => look,
    };
    assert_eq!(look, Look::Told);
    // SAFETY: it was found told, and nobody else has its number.
    assert_eq!(unsafe { slot.ending() }, 7);
    unload(&slot);
    assert_eq!(given.load(StdOrdering::Relaxed), 1);
}

/// Catches a buffer that goes back while the device has it, twice, or never, and a waker that is left behind,
/// when the future goes.
fn dropped() {
    let (slot, given) = submitted();
    let other = completing(&slot, None);
    let (woken, waker) = waker();
    let look = poll(&slot, &waker);
    drop(waker);
    if look == Look::Pending {
        match slot.cancel(0).0 {
            Look::Done => unload(&slot),
            Look::Pending => {}
            look => panic!("{look:?}"),
        }
    } else {
        unload(&slot);
    }
    other.join().unwrap();
    assert_eq!(given.load(StdOrdering::Relaxed), 1);
    assert_eq!(StdArc::strong_count(&woken), 1, "the waker is gone");
}

/// Catches somebody who finds nothing in flight any more, and a buffer that is not back.
fn drained() {
    let (slot, given) = submitted();
    assert_eq!(slot.cancel(0).0, Look::Pending);
    let other = completing(&slot, None);
    if slot.in_flight().is_none() {
        assert_eq!(given.load(StdOrdering::Relaxed), 1, "it is on its way");
    }
    other.join().unwrap();
    assert_eq!(slot.in_flight(), None);
    assert_eq!(given.load(StdOrdering::Relaxed), 1);
}

/// Catches a buffer that the future and who reclaims both have.
fn reclaimed() {
    let (slot, given) = submitted();
    complete(&slot, None);
    let other = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.reclaim().is_some())
    };
    let look = loop {
        match poll(&slot, Waker::noop()) {
            Look::Pending => thread::yield_now(),
            look => break look,
        }
    };
    let reclaimed = other.join().unwrap();
    assert_eq!(look, if reclaimed { Look::Gone } else { Look::Done });
    if look == Look::Done {
        unload(&slot);
    }
    assert_eq!(given.load(StdOrdering::Relaxed), 1);
}

/// Catches a waker that is lost, or that two have, where who waits is roused meanwhile.
fn roused() {
    let (slot, _) = submitted();
    let other = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.rouse().into_iter().for_each(Waker::wake))
    };
    let wakers = [waker(), waker()];
    for (_, waker) in &wakers {
        let look = poll(&slot, waker);
        assert_eq!(look, Look::Pending);
    }
    other.join().unwrap();
    complete(&slot, None);
    let [_, (woken, _)] = wakers;
    assert!(woken.0.load(Ordering::Acquire), "the last who looked");
    let look = poll(&slot, Waker::noop());
    assert_eq!(look, Look::Done);
    unload(&slot);
}

/// Catches who begins to wait when what ends the waiting has been said, and was not heard.
fn roused_for() {
    let (slot, given) = submitted();
    let over = Arc::new(AtomicBool::new(false));
    let other = {
        let (slot, over) = (Arc::clone(&slot), Arc::clone(&over));
        thread::spawn(move || {
            over.store(true, Ordering::Relaxed);
            if let Some(waker) = slot.rouse() {
                waker.wake();
            }
        })
    };
    let (woken, waker) = waker();
    let look = poll(&slot, &waker);
    assert_eq!(look, Look::Pending);
    let knows = over.load(Ordering::Relaxed);
    other.join().unwrap();
    assert!(
        knows || woken.0.load(Ordering::Acquire),
        "it waits for ever"
    );
    assert_eq!(slot.cancel(0).0, Look::Pending);
    complete(&slot, None);
    assert_eq!(given.load(StdOrdering::Relaxed), 1);
}
