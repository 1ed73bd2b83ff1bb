//! Requests of a shared receive queue that the poller posts again, since a page was missing
//! (`src/driver/mlx5/again.rs`), against who posts and who lets a region go.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use crate::again::post_again;
use crate::backings::{Line, SrqBacking};
use crate::error::Subject;
use crate::flight::{Flights, Queues};
use crate::flights::{Fate, KEY, NO_KEY, let_go};
use crate::ledger::SrqLedger;
use crate::progress::Progress;
use crate::recv::tell;
use crate::srq::{ELEMENTS, SrqRing};
use crate::sync::Ordering;
use crate::test;
use crate::work::LocalKey;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("again::no_request_is_lost_beside_the_poster", beside_poster),
        test("again::a_batch_makes_room", beside_batch),
        test("again::the_device_finds_it_whole", beside_device),
        test("again::a_region_goes_on_waiting", beside_region),
    ]
}

/// A shared receive queue.
struct Srq {
    ring: Arc<SrqRing>,
    ledger: SrqLedger,
}

/// The id of a request, by its key.
fn id(LocalKey(key): LocalKey) -> u64 {
    100 + u64::from(key)
}

impl Srq {
    fn new() -> Arc<Self> {
        let ring = Arc::new(SrqRing::new());
        let ledger = SrqLedger::new(ELEMENTS);
        Arc::new(Self { ring, ledger })
    }

    /// Writes a request behind `written` others of a batch, as the driver's poster does
    /// (`src/driver/mlx5/recv.rs`).
    fn write(&self, written: u32, key: LocalKey) {
        let Self { ring, ledger } = self;
        let _inside = ledger.gate.pass();
        let head = ledger.posting.head();
        let count = ledger.posting.told().wrapping_add(written);
        let next = ledger.behind(head).expect("there is room");
        ring.put(head, next, key);
        ledger.post(head, id(key), count);
        ledger.posting.go_on(next);
    }

    /// Tells the device of a batch of so many.
    fn ring(&self, written: u32) {
        let SrqLedger { gate, posting, .. } = &self.ledger;
        let _inside = gate.pass();
        let count = posting.told().wrapping_add(written);
        posting.tell(count, posting.head());
        tell(self.ring.record().word(0), count);
    }

    fn post(&self, key: LocalKey) {
        self.write(0, key);
        self.ring(1);
    }
}

// As `src/driver/mlx5/srq.rs` does it.
impl Line for Srq {
    fn progress(&self) -> Progress {
        let _kept = self.ledger.gate.keep();
        let (posted, finished) = self.ledger.progress();
        Progress::new(posted, finished, u32::MAX)
    }

    fn names(&self, _: Progress, key: LocalKey) -> bool {
        let _kept = self.ledger.gate.keep();
        (0..ELEMENTS)
            .any(|index| self.ledger.is_posted(index as u16) && self.ring.key(index) == key)
    }
}

/// The device, and the thread that polls what it reports.
struct Walk {
    srq: Arc<Srq>,
    head: u32,
    taken: u32,
}

impl Walk {
    fn new(srq: &Arc<Srq>) -> Self {
        Self {
            srq: Arc::clone(srq),
            head: 0,
            taken: 0,
        }
    }

    /// Takes the next element, once there is one.
    fn take(&mut self) -> u32 {
        let record = self.srq.ring.record().word(0);
        while record.load(Ordering::Acquire) == self.taken {
            thread::yield_now();
        }
        let index = self.head;
        self.head = self.srq.ring.link(index);
        self.taken += 1;
        index
    }

    /// A message finds a page missing.
    fn miss(&mut self) {
        let index = self.take();
        let ring = Arc::downgrade(&self.srq.ring);
        assert!(post_again(&ring, &self.srq.ledger, index as u16));
    }

    /// A message comes; the key of its request. `reach` is what the device does with the memory.
    fn receive(&mut self, reach: impl FnOnce(LocalKey)) -> LocalKey {
        let index = self.take();
        let key = self.srq.ring.key(index);
        reach(key);
        assert_eq!(self.srq.ledger.finish(index as u16), Some(id(key)));
        key
    }
}

/// Would catch a request that is lost, doubled or mixed with another, where the poller posts one again while
/// the poster posts.
fn beside_poster() {
    let srq = Srq::new();
    srq.post(KEY);
    let mut walk = Walk::new(&srq);
    let poller = thread::spawn(move || {
        walk.miss();
        let mut keys = [(); 2].map(|()| walk.receive(|_| ()).0);
        keys.sort_unstable();
        assert_eq!(keys, [KEY.0, NO_KEY.0]);
    });
    srq.post(NO_KEY);
    poller.join().unwrap();
    assert_eq!(srq.ledger.progress(), (3, 3));
    assert_eq!(srq.ledger.done(), 3);
}

/// Would catch a device that is told of the request before it lies in its element.
fn beside_device() {
    let srq = Srq::new();
    srq.post(KEY);
    let mut walk = Walk::new(&srq);
    let missed = walk.take();
    let device = thread::spawn(move || {
        let index = walk.take();
        assert_eq!(walk.srq.ring.key(index), KEY);
    });
    let ring = Arc::downgrade(&srq.ring);
    assert!(post_again(&ring, &srq.ledger, missed as u16));
    device.join().unwrap();
}

/// Would catch the same where the poster is writing a batch: its first request makes room for the other.
fn beside_batch() {
    let srq = Srq::new();
    srq.post(KEY);
    let mut walk = Walk::new(&srq);
    let poller = thread::spawn(move || {
        walk.miss();
        assert_eq!(walk.receive(|_| ()), KEY, "nobody rings");
    });
    srq.write(0, NO_KEY);
    poller.join().unwrap();
    srq.ring(1);
    assert_eq!(srq.ledger.progress(), (3, 2));
}

/// Would catch a region that goes while its request is posted again: it is not found between two elements, or
/// counts as a newer one.
fn beside_region() {
    let flights = Arc::new(Flights::default());
    let srq = Srq::new();
    let (fate, region) = Fate::new();
    let line = Arc::clone(&srq) as Arc<dyn Line>;
    let flight = flights.begin(Subject::numbered("SRQ", 1), Queues::Srq(SrqBacking(line)));
    srq.post(KEY);
    srq.post(NO_KEY);
    let mut walk = Walk::new(&srq);
    let owner = {
        let flights = Arc::clone(&flights);
        thread::spawn(move || let_go(&flights, KEY, region))
    };
    let reach = |key| {
        if key == KEY {
            fate.reach();
        }
    };
    walk.miss();
    assert_eq!(walk.receive(reach), NO_KEY);
    flights.reap();
    assert_eq!(walk.receive(reach), KEY);
    owner.join().unwrap();
    assert_eq!(flights.reap(), 0);
    fate.assert_is_gone();
    flights.end(&flight);
}
