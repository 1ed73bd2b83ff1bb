//! Regions that go beside queues that end, are reset or start, and beside other regions
//! (`src/objects/flight.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use libtest_mimic::Trial;
use loom::thread;

use crate::backings::{Line, QpBacking, Ring};
use crate::device::Places;
use crate::error::Subject;
use crate::flight::{Flights, Parked, Queues};
use crate::test;
use crate::work::LocalKey;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("flights::a_reset_lets_regions_go", reset),
        test("flights::an_end_lets_regions_go", ended),
        test("flights::a_region_waits_for_both_queues", both),
        test("flights::two_regions_go_at_once", two),
        test("flights::what_comes_does_not_go_with_another", came),
        test("flights::the_last_who_goes_leaves_none", last),
        test("flights::a_full_ring_that_goes_on_is_not_idle", full),
    ]
}

/// The key of the region that goes, that of another one, and that of none.
pub(crate) const KEY: LocalKey = LocalKey(7);
const OTHER: LocalKey = LocalKey(8);
pub(crate) const NO_KEY: LocalKey = LocalKey(9);

/// What has become of a region, and its memory.
#[derive(Clone)]
pub(crate) struct Fate {
    memory: Arc<Places<1>>,
    deregistered: Arc<AtomicU32>,
    leaked: Arc<AtomicU32>,
}

impl Fate {
    /// A region's, and the region.
    pub(crate) fn new() -> (Self, Region) {
        let fate = Self {
            memory: Arc::new(Places::new()),
            deregistered: Arc::default(),
            leaked: Arc::default(),
        };
        (fate.clone(), Region(fate))
    }

    /// What the device does before it finishes a request that names the region.
    pub(crate) fn reach(&self) {
        self.memory.read(0);
    }

    /// How often it was deregistered, and leaked.
    pub(crate) fn told(&self) -> (u32, u32) {
        // Nobody is told by these: they are looked at when all threads have ended.
        let told = |count: &AtomicU32| count.load(Ordering::Relaxed);
        (told(&self.deregistered), told(&self.leaked))
    }

    pub(crate) fn assert_is_gone(&self) {
        assert_eq!(self.told(), (1, 0), "deregistered once, not leaked");
    }
}

/// A region that nobody has any more.
pub(crate) struct Region(Fate);

impl Parked for Region {
    fn release(self: Box<Self>) -> Option<Box<dyn Parked>> {
        drop(self);
        None
    }

    fn leak(self: Box<Self>) {
        self.0.leaked.fetch_add(1, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Somebody else's now.
        self.0.memory.write(0, 1);
        self.0.deregistered.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a region does that is dropped (`src/objects/mr/region.rs`).
pub(crate) fn let_go(flights: &Flights, key: LocalKey, region: Region) {
    flights.reap();
    let stands = flights.stands(key);
    if !stands.is_empty() {
        flights.wait(stands, Box::new(region));
    }
}

/// The queues of a queue pair that only sends.
fn sends(queue: &Arc<Ring>) -> Queues {
    Queues::Qp(QpBacking {
        sends: Some(Arc::clone(queue) as Arc<dyn Line>),
        receives: None,
    })
}

fn name() -> Subject {
    Subject::numbered("QP", 1)
}

/// Has a thread let the region of [`KEY`] go. Starting the thread orders it behind the request, as the end of
/// a borrow does.
fn drops(flights: &Arc<Flights>, region: Region) -> thread::JoinHandle<()> {
    let flights = Arc::clone(flights);
    thread::spawn(move || let_go(&flights, KEY, region))
}

/// Would catch a region that goes before the device has forgotten its request; one that waits for a request
/// of after the reset; and one that nobody looks after, since the reset found nothing to drop.
fn reset() {
    let flights = Arc::new(Flights::default());
    let [old, new] = [(); 2].map(|()| Arc::new(Ring::new()));
    let (fate, region) = Fate::new();
    let flight = flights.begin(name(), sends(&old));
    old.post(0, KEY);
    let owner = drops(&flights, region);
    fate.reach();
    // The device forgets. The poster goes on, with a request that does not come to its end.
    flight.renew(name(), sends(&new));
    flights.reap();
    new.post(0, NO_KEY);
    owner.join().unwrap();
    fate.assert_is_gone();
}

/// Would catch a region that goes under its request because a full ring goes on while it is looked at: a
/// place that is free again and filled at once looks like a ring in which nothing is.
fn full() {
    let flights = Arc::new(Flights::default());
    let queue = Arc::new(Ring::new());
    let (fate, region) = Fate::new();
    let _flight = flights.begin(name(), sends(&queue));
    for (index, key) in [NO_KEY, KEY, NO_KEY].into_iter().enumerate() {
        queue.post(index as u32, key);
    }
    let owner = drops(&flights, region);
    queue.finish(1);
    queue.post(3, NO_KEY);
    fate.reach();
    queue.finish(2);
    owner.join().unwrap();
    queue.finish(4);
    flights.reap();
    fate.assert_is_gone();
}

/// Would catch the same of a queue pair that goes.
fn ended() {
    let flights = Arc::new(Flights::default());
    let queue = Arc::new(Ring::new());
    let (fate, region) = Fate::new();
    let flight = flights.begin(name(), sends(&queue));
    queue.post(0, KEY);
    let owner = drops(&flights, region);
    fate.reach();
    flights.end(&flight);
    owner.join().unwrap();
    fate.assert_is_gone();
}

/// Would catch a region that goes when one of the two queues that name it is through.
fn both() {
    let flights = Arc::new(Flights::default());
    let queues = [(); 2].map(|()| Arc::new(Ring::new()));
    let (fate, region) = Fate::new();
    let [sends, receives] = queues.each_ref().map(|queue| {
        queue.post(0, KEY);
        Some(Arc::clone(queue) as Arc<dyn Line>)
    });
    let _flight = flights.begin(name(), Queues::Qp(QpBacking { sends, receives }));
    let kernels = queues.map(|queue| {
        let (flights, fate) = (Arc::clone(&flights), fate.clone());
        thread::spawn(move || {
            fate.reach();
            queue.finish(1);
            flights.reap();
        })
    });
    let_go(&flights, KEY, region);
    for kernel in kernels {
        kernel.join().unwrap();
    }
    assert_eq!(flights.reap(), 0);
    fate.assert_is_gone();
}

/// Would catch a region that nobody knows of any more, since another came or went at the same time.
fn two() {
    let flights = Arc::new(Flights::default());
    let queue = Arc::new(Ring::new());
    let (fate, region) = Fate::new();
    let (other_fate, other) = Fate::new();
    let _flight = flights.begin(name(), sends(&queue));
    queue.post(0, KEY);
    queue.post(1, OTHER);
    let owner = drops(&flights, region);
    let kernel = {
        let (fates, flights) = ([fate.clone(), other_fate.clone()], Arc::clone(&flights));
        thread::spawn(move || {
            fates.iter().for_each(Fate::reach);
            queue.finish(2);
            flights.reap();
        })
    };
    let_go(&flights, OTHER, other);
    owner.join().unwrap();
    kernel.join().unwrap();
    // Who joins them all sees what they have noted.
    assert_eq!(flights.reap(), 0);
    fate.assert_is_gone();
    other_fate.assert_is_gone();
}

/// Would catch a queue pair that is taken for another one whose place it has got.
fn came() {
    let flights = Arc::new(Flights::default());
    let (fate, region) = Fate::new();
    let gone = flights.begin(name(), sends(&Arc::new(Ring::new())));
    let end = {
        let flights = Arc::clone(&flights);
        thread::spawn(move || {
            flights.end(&gone);
            flights.end(&gone);
        })
    };
    let queue = Arc::new(Ring::new());
    let _flight = flights.begin(name(), sends(&queue));
    queue.post(0, KEY);
    let kernel = {
        let (queue, fate) = (Arc::clone(&queue), fate.clone());
        thread::spawn(move || {
            fate.reach();
            queue.finish(1);
        })
    };
    let_go(&flights, KEY, region);
    end.join().unwrap();
    kernel.join().unwrap();
    assert_eq!(flights.reap(), 0);
    fate.assert_is_gone();
}

/// Would catch a region that is left behind where the protection domain goes with its queue pair or with its
/// region, whichever goes last: it would be leaked.
fn last() {
    // Loom's own: who goes last is ordered behind the others by it alone.
    let flights = loom::sync::Arc::new(Flights::default());
    let queue = Arc::new(Ring::new());
    let (fate, region) = Fate::new();
    let flight = flights.begin(name(), sends(&queue));
    queue.post(0, KEY);
    let owner = {
        let flights = loom::sync::Arc::clone(&flights);
        thread::spawn(move || let_go(&flights, KEY, region))
    };
    fate.reach();
    flights.end(&flight);
    drop(flight);
    drop(flights);
    owner.join().unwrap();
    fate.assert_is_gone();
}
