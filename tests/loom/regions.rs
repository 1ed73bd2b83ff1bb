//! Regions that go while requests are in flight that name them, against who posts and who polls.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::counts::Counts;
use crate::device::{Device, Places};
use crate::ledger::{LooseLedger, SendLedger, SrqLedger};
use crate::progress::Progress;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("regions::stay_until_their_send_is_finished", sends),
        test("regions::stay_until_their_element_is_finished", elements),
        test("regions::stay_while_others_overtake_their_receive", loose),
        test("regions::stay_until_a_taken_element_is_received", taken),
        test("regions::stay_when_nobody_receives_any_more", abandoned),
    ]
}

/// What the device was told of, and what is finished, as a region that goes asks for it.
trait Queue: Send + Sync + 'static {
    fn new() -> Self;
    /// Posts request `index`, and tells how many the device is to know of then.
    fn post(&self, index: u32);
    /// Takes request `index` as finished.
    fn finish(&self, index: u32);
    fn progress(&self) -> Progress;
    /// Whether one of the requests in flight is the first.
    fn names_first(&self) -> bool {
        true
    }
    /// In which order the device finishes the requests.
    const ORDER: [u32; REQUESTS as usize] = [0, 1];
}

impl Queue for SendLedger {
    fn new() -> Self {
        Self::new(RING)
    }

    fn post(&self, index: u32) {
        self.note(index).write(index.into(), index + 1);
        // SAFETY: the ledger keeps a note before the first; the driver's poster relies on it too.
        unsafe { self.first().sub(1).as_ref() }.tell(u64::from(index) + 1);
    }

    fn finish(&self, index: u32) {
        self.finish(index as u16);
    }

    fn progress(&self) -> Progress {
        let (posted, finished) = self.progress();
        Progress::new(posted, finished, u32::MAX)
    }
}

impl Queue for SrqLedger {
    fn new() -> Self {
        Self::new(RING)
    }

    // Each request has an element of its own.
    fn post(&self, index: u32) {
        self.post(index, index.into(), index);
        self.posting.tell(index + 1, index + 1);
    }

    fn finish(&self, index: u32) {
        self.finish(index as u16);
    }

    fn progress(&self) -> Progress {
        let _kept = self.gate.keep();
        let (posted, finished) = self.progress();
        Progress::new(posted, finished, u32::MAX)
    }
}

/// A receive queue whose requests finish in any order, and its doorbell record.
struct Loose(LooseLedger, AtomicU32);

impl Queue for Loose {
    const ORDER: [u32; 2] = [1, 0];

    fn new() -> Self {
        Self(LooseLedger::new(RING), AtomicU32::new(0))
    }

    fn post(&self, index: u32) {
        self.1.store(index + 1, Ordering::Relaxed);
    }

    fn finish(&self, index: u32) {
        self.0.finish(index as u16);
    }

    fn progress(&self) -> Progress {
        let finished = self.0.before();
        Progress::new(self.1.load(Ordering::Relaxed), finished, u16::MAX.into())
    }

    fn names_first(&self) -> bool {
        !self.0.is_finished(0)
    }
}

const RING: u32 = 2;

/// Requests, as many as there is room for; the first one names the region.
const REQUESTS: u32 = 2;

/// Has one thread post, another poll, and a third let the region go behind `before` requests.
fn run<Q: Queue>(before: u32) {
    let shared = Arc::new((Q::new(), Device::default(), Places::<1>::new()));
    let poller = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (queue, device, memory) = &*shared;
            for index in Q::ORDER {
                device.wait(index);
                if index == 0 {
                    // The device reaches the memory before it writes the completion.
                    memory.read(0);
                }
                queue.finish(index);
            }
        })
    };
    let (queue, device, _) = &*shared;
    let post = |index| {
        queue.post(index);
        device.ring(index + 1);
    };
    (0..before).for_each(post);
    // Starting the thread orders it behind the request, as the end of a borrow does.
    let owner = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (queue, _, memory) = &*shared;
            let then = queue.progress();
            let waits = then.in_flight() > 0 && queue.names_first();
            // It does not wait: in one of the orders the request is finished by now.
            if !waits || queue.progress().has_passed(then) {
                // Somebody else's now.
                memory.write(0, 1);
            }
        })
    };
    (before..REQUESTS).for_each(post);
    owner.join().unwrap();
    poller.join().unwrap();
}

/// Would catch a region that is freed while the device may still read it: a count that is told too late, or a
/// finished request that is seen before what the device did for it.
fn sends() {
    run::<SendLedger>(1);
}

/// Would catch the same of elements of a shared receive queue. The second is posted before the region goes:
/// beside it there are more orders than can be tried in a minute.
fn elements() {
    run::<SrqLedger>(2);
}

/// Would catch the same of receives that finish in any order: the second does first, and the first counts as finished
/// with it, or is seen to be before what the device did for it.
fn loose() {
    run::<Loose>(2);
}

/// A shared receive queue of rxe: a ring out of which the kernel takes an element before it receives into it.
#[derive(Default)]
struct Srq {
    counts: Counts,
    produced: AtomicU32,
    consumed: AtomicU32,
}

impl Srq {
    /// Slots of the ring, less one, which is how many it holds.
    const MASK: u32 = 1;

    /// Posts element `index`, once there is room.
    fn post(&self, index: u32) {
        while self.consumed.load(Ordering::Acquire) + Self::MASK <= index {
            thread::yield_now();
        }
        self.counts.post(1);
        self.produced.store(index + 1, Ordering::Release);
    }

    /// Takes out element `index` as the kernel does, once it is there.
    fn take(&self, index: u32) {
        while self.produced.load(Ordering::Acquire) <= index {
            thread::yield_now();
        }
        self.consumed.store(index + 1, Ordering::Release);
    }

    fn taken(&self) -> u32 {
        let waiting = |posted: u32| {
            let consumed = self.consumed.load(Ordering::Acquire);
            posted.wrapping_sub(consumed) & Self::MASK
        };
        self.counts.taken(waiting)
    }

    fn progress(&self) -> Progress {
        let (posted, finished) = self.counts.progress(|| Some(self.taken()));
        Progress::new(posted, finished, u32::MAX)
    }

    /// Whether one of the requests in flight is the first, as `SrqRing::names` tells of a key.
    fn names_first(&self, in_flight: Progress) -> bool {
        self.consumed.load(Ordering::Acquire) == 0 || self.taken() != in_flight.finished()
    }
}

/// Would catch a region that is freed while a message still comes into an element which the kernel has taken out: one
/// that is missed between two looks, or counted too early. Another element is posted meanwhile, and taken out as well.
fn taken() {
    let shared = Arc::new((Srq::default(), Places::<1>::new()));
    let (srq, _) = &*shared;
    srq.post(0);
    let kernel = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (srq, memory) = &*shared;
            srq.take(0);
            // For another queue pair.
            srq.take(1);
            memory.read(0);
            // A poller has seen the completions.
            srq.counts.complete(1);
            srq.counts.complete(1);
        })
    };
    let owner = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (srq, memory) = &*shared;
            let then = srq.progress();
            let waits = then.in_flight() > 0 && srq.names_first(then);
            // As in `run`.
            if !waits || srq.progress().has_passed(then) {
                memory.write(0, 1);
            }
        })
    };
    srq.post(1);
    owner.join().unwrap();
    kernel.join().unwrap();
}

/// Would catch requests that count as finished although they lie in the ring: they are handed over while the last queue
/// pair goes, behind which all that was taken out counts as received.
fn abandoned() {
    let srq = Arc::new(Srq::default());
    srq.post(0);
    // Its message was cut off.
    srq.take(0);
    let end = {
        let srq = Arc::clone(&srq);
        thread::spawn(move || {
            srq.counts.complete_all(srq.taken());
            srq.progress();
        })
    };
    srq.post(1);
    end.join().unwrap();
    assert_eq!(srq.progress().in_flight(), 1);
}
