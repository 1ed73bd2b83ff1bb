//! Places that are free: who takes them against who gives them back.

use std::sync::Arc as StdArc;
use std::task::{Context, Wake, Waker};

use libtest_mimic::Trial;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use loom::thread;

use crate::free::{Free, Linked};
use crate::sync::Place;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("frees::one_has_a_place", taken),
        test("frees::who_waits_is_woken", awaited),
    ]
}

/// A place, with something in it that is its holder's.
struct Held {
    next: AtomicPtr<Self>,
    holders: Place<u32>,
}

impl Held {
    fn new() -> Self {
        Self {
            next: AtomicPtr::new(std::ptr::null_mut()),
            holders: Place::empty(),
        }
    }

    /// loom fails if another thread does so at once, or if what it did is not seen.
    fn hold(&self) {
        // SAFETY: that is what the model is about.
        unsafe { self.holders.put(1) };
    }
}

impl Linked for Held {
    fn next(&self) -> &AtomicPtr<Self> {
        &self.next
    }
}

struct Stock {
    free: Free<Held>,
    places: [Held; 2],
}

impl Stock {
    fn new() -> Arc<Self> {
        let (free, places) = (Free::new(), [Held::new(), Held::new()]);
        Arc::new(Self { free, places })
    }

    /// For the one thread that takes.
    fn take(&self) -> Option<usize> {
        // SAFETY: one thread does, and the places stay where they are.
        let place = unsafe { self.free.take() }?;
        self.places.iter().position(|of| std::ptr::eq(of, place))
    }
}

/// Has a thread give a place back that it holds.
fn giving(stock: &Arc<Stock>, number: usize) -> thread::JoinHandle<()> {
    let stock = Arc::clone(stock);
    thread::spawn(move || {
        let place = &stock.places[number];
        place.hold();
        stock.free.give(place);
    })
}

/// Catches a place that two have, one that is lost, and one whose last holder is not done with it.
fn taken() {
    let stock = Stock::new();
    let others = [giving(&stock, 0), giving(&stock, 1)];
    let mut taken = Vec::new();
    while taken.len() < 2 {
        match stock.take() {
            Some(number) => {
                stock.places[number].hold();
                taken.push(number);
            }
            None => thread::yield_now(),
        }
    }
    for other in others {
        other.join().unwrap();
    }
    taken.sort();
    assert_eq!(taken, [0, 1]);
    assert_eq!(stock.take(), None);
}

/// Notes in loom's memory that it was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: StdArc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Catches who waits for a place that has come back.
fn awaited() {
    let stock = Stock::new();
    let other = giving(&stock, 0);
    let woken = StdArc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(StdArc::clone(&woken));
    // SAFETY: as in `take`.
    let waits = unsafe { stock.free.poll_any(&mut Context::from_waker(&waker)) }.is_pending();
    // To look for one is not to have heard.
    let found = stock.take();
    other.join().unwrap();
    assert!(
        !waits || woken.0.load(Ordering::Acquire),
        "it waits for ever"
    );
    assert!(waits || found.is_some(), "it was told of a place");
    assert!(found.or_else(|| stock.take()).is_some());
    assert_eq!(stock.take(), None);
}
