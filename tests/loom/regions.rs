//! Regions that go while requests are in flight that name them, against who posts and who polls.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::backings::{Keys, Line, QpBacking, SrqBacking};
use crate::counts::Counts;
use crate::device::{Device, Places};
use crate::error::Subject;
use crate::flight::{Flights, Queues};
use crate::flights::{Fate, KEY, NO_KEY, let_go};
use crate::ledger::{About, LooseLedger, NumberedLedger, RecvLedger, SendLedger, SrqLedger};
use crate::progress::Progress;
use crate::reporter::Receiver;
use crate::test;
use crate::work::LocalKey;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("regions::stay_until_their_send_is_finished", sends),
        test("regions::stay_until_their_receive_is_finished", receives),
        test("regions::stay_until_their_element_is_finished", elements),
        test("regions::stay_while_others_overtake_their_receive", loose),
        test("regions::stay_until_their_datagram_is_finished", numbered),
        test(
            "regions::stay_while_others_overtake_their_datagram",
            overtaken,
        ),
        test("regions::stay_until_a_taken_element_is_received", taken),
        test("regions::stay_while_two_look_at_the_counts", counted),
        test("regions::stay_when_nobody_receives_any_more", abandoned),
        test("regions::go_when_their_place_is_filled_again", refilled),
    ]
}

/// A queue whose poster and poller are threads; whoever lets a region go asks it.
trait Queue: Line + Sized + 'static {
    fn new() -> Self;
    /// Posts request `index` with this key, up to the doorbell.
    fn post(&self, index: u32, key: LocalKey);
    /// Takes request `index` as finished.
    fn finish(&self, index: u32);
    /// How the protection domain knows it.
    fn queues(self: &Arc<Self>) -> Queues;
    /// In which order the device finishes the requests.
    const ORDER: [u32; REQUESTS as usize] = [0, 1];
    /// Which request names the region.
    const NAMES: u32 = 0;
}

/// Fails if more requests seem to be in flight than ever were: one that counts as finished and not as posted
/// makes it almost a whole round, for which a region would wait.
fn possible(progress: Progress) -> Progress {
    assert!(progress.in_flight() <= REQUESTS + 1, "{progress:?}");
    progress
}

/// A send queue of mlx5. The driver looks at the ring as a whole.
struct Sends(SendLedger, Keys<{ RING as usize }>, u32);

impl Sends {
    /// With room for so many.
    fn with(ring: u32) -> Self {
        Self(SendLedger::new(ring), Keys::new(), ring)
    }
}

impl Queue for Sends {
    fn new() -> Self {
        Self::with(RING)
    }

    fn post(&self, index: u32, key: LocalKey) {
        self.1.write(index % self.2, key);
        self.0.note(index).write(index.into(), index + 1);
        self.0.post(index + 1);
    }

    fn finish(&self, index: u32) {
        self.0.finish(index as u16);
    }

    fn queues(self: &Arc<Self>) -> Queues {
        Queues::Qp(QpBacking {
            sends: Some(Arc::clone(self) as Arc<dyn Line>),
            receives: None,
        })
    }
}

impl Line for Sends {
    fn progress(&self) -> Progress {
        let (posted, finished) = self.0.progress();
        possible(Progress::new(posted, finished, u32::MAX))
    }

    fn names(&self, _: Progress, key: LocalKey) -> bool {
        self.1.have(key)
    }
}

/// A shared receive queue of mlx5.
struct Elements(SrqLedger, Keys<{ RING as usize }>);

impl Queue for Elements {
    fn new() -> Self {
        Self(SrqLedger::new(RING), Keys::new())
    }

    // Each request has an element of its own.
    fn post(&self, index: u32, key: LocalKey) {
        let Self(ledger, keys) = self;
        keys.write(index, key);
        ledger.post(index % RING, index.into(), index);
        ledger.posting.tell(index + 1, index + 1);
    }

    fn finish(&self, index: u32) {
        self.0.finish(index as u16);
    }

    fn queues(self: &Arc<Self>) -> Queues {
        Queues::Srq(SrqBacking(Arc::clone(self) as Arc<dyn Line>))
    }
}

impl Line for Elements {
    fn progress(&self) -> Progress {
        let _kept = self.0.gate.keep();
        let (posted, finished) = self.0.progress();
        Progress::new(posted, finished, u32::MAX)
    }

    fn names(&self, _: Progress, key: LocalKey) -> bool {
        let Self(ledger, keys) = self;
        let _kept = ledger.gate.keep();
        (0..RING).any(|index| ledger.is_posted(index as u16) && keys.has(index, key))
    }
}

/// A receive queue of mlx5, and its doorbell record.
struct Receives {
    receiver: Receiver,
    record: AtomicU32,
    keys: Keys<{ RING as usize }>,
}

impl Receives {
    fn of(receiver: Receiver) -> Self {
        Self {
            receiver,
            record: AtomicU32::new(0),
            keys: Keys::new(),
        }
    }

    fn post(&self, index: u32, key: LocalKey) {
        self.keys.write(index, key);
        // Relaxed: the device stands for itself.
        self.record.store(index + 1, Ordering::Relaxed);
    }

    fn progress(&self) -> Progress {
        let told = || self.record.load(Ordering::Acquire);
        let progress = self.receiver.progress(told);
        possible(progress.expect("a queue of its own"))
    }

    fn queues(line: Arc<dyn Line>) -> Queues {
        Queues::Qp(QpBacking {
            sends: None,
            receives: Some(line),
        })
    }
}

/// One whose requests finish in their order.
struct InOrder(Receives, Arc<RecvLedger>);

impl Queue for InOrder {
    fn new() -> Self {
        let ledger = Arc::new(RecvLedger::new(RING));
        Self(Receives::of(Receiver::Own(Arc::clone(&ledger))), ledger)
    }

    fn post(&self, index: u32, key: LocalKey) {
        self.0.post(index, key);
    }

    fn finish(&self, _: u32) {
        self.1.finish();
    }

    fn queues(self: &Arc<Self>) -> Queues {
        Receives::queues(Arc::clone(self) as Arc<dyn Line>)
    }
}

impl Line for InOrder {
    fn progress(&self) -> Progress {
        self.0.progress()
    }

    fn names(&self, in_flight: Progress, key: LocalKey) -> bool {
        in_flight.places().any(|at| self.0.keys.has(at, key))
    }
}

/// One whose requests finish in any order.
struct Loose(Receives, Arc<LooseLedger>);

impl Queue for Loose {
    const ORDER: [u32; 2] = [1, 0];

    fn new() -> Self {
        let ledger = Arc::new(LooseLedger::new(RING));
        Self(Receives::of(Receiver::Loose(Arc::clone(&ledger))), ledger)
    }

    fn post(&self, index: u32, key: LocalKey) {
        self.0.post(index, key);
    }

    fn finish(&self, index: u32) {
        self.1.finish(index as u16);
    }

    fn queues(self: &Arc<Self>) -> Queues {
        Receives::queues(Arc::clone(self) as Arc<dyn Line>)
    }
}

impl Line for Loose {
    fn progress(&self) -> Progress {
        self.0.progress()
    }

    fn names(&self, in_flight: Progress, key: LocalKey) -> bool {
        let mut places = in_flight.places();
        places.any(|at| !self.1.is_finished(at) && self.0.keys.has(at, key))
    }
}

/// A queue of EFA, in whose notes the keys are. `FIRST` names the region, and the device finishes it first.
struct Numbered<const FIRST: u32>(NumberedLedger);

impl<const FIRST: u32> Queue for Numbered<FIRST> {
    const ORDER: [u32; 2] = [FIRST, 1 - FIRST];
    const NAMES: u32 = FIRST;

    fn new() -> Self {
        Self(NumberedLedger::new(RING, 0))
    }

    fn post(&self, index: u32, LocalKey(key): LocalKey) {
        let about = About::new(true).with(key);
        self.0.note(index, index.into(), about, 0);
        self.0.post(index + 1);
    }

    fn finish(&self, index: u32) {
        self.0.finish(index as u16);
    }

    fn queues(self: &Arc<Self>) -> Queues {
        Queues::Qp(QpBacking {
            sends: Some(Arc::clone(self) as Arc<dyn Line>),
            receives: None,
        })
    }
}

impl<const FIRST: u32> Line for Numbered<FIRST> {
    fn progress(&self) -> Progress {
        possible(self.0.progress())
    }

    fn names(&self, in_flight: Progress, LocalKey(key): LocalKey) -> bool {
        self.0.names(in_flight, key)
    }
}

const RING: u32 = 2;

/// Requests, as many as there is room for; one of them names the region.
const REQUESTS: u32 = 2;

/// Has one thread post, another poll, and a third let the region go behind `before` requests.
fn run<Q: Queue>(before: u32) {
    let flights = Arc::new(Flights::default());
    let (queue, device) = (Arc::new(Q::new()), Arc::new(Device::default()));
    let flight = flights.begin(Subject::numbered("QP", 1), queue.queues());
    let (fate, region) = Fate::new();
    let poller = {
        let (flights, queue, device) = (
            Arc::clone(&flights),
            Arc::clone(&queue),
            Arc::clone(&device),
        );
        let fate = fate.clone();
        thread::spawn(move || {
            for index in Q::ORDER {
                device.wait(index);
                if index == Q::NAMES {
                    // The device reaches the memory before it writes the completion.
                    fate.reach();
                }
                queue.finish(index);
            }
            flights.reap();
        })
    };
    let post = |index| {
        queue.post(index, if index == Q::NAMES { KEY } else { NO_KEY });
        device.ring(index + 1);
    };
    (0..before).for_each(post);
    // Starting the thread orders it behind the request, as the end of a borrow does.
    let owner = {
        let flights = Arc::clone(&flights);
        thread::spawn(move || let_go(&flights, KEY, region))
    };
    (before..REQUESTS).for_each(post);
    owner.join().unwrap();
    poller.join().unwrap();
    // Another request is none of the region's.
    post(REQUESTS);
    assert_eq!(flights.reap(), 0);
    fate.assert_is_gone();
    flights.end(&flight);
}

/// Would catch a region that is freed while the device may still read it: a count that is told too late, or a
/// finished request that is seen before what the device did for it. And one that waits for requests of later.
fn sends() {
    run::<Sends>(1);
}

/// Would catch the same of receives, of which the doorbell record has half of the count.
fn receives() {
    run::<InOrder>(1);
}

/// Would catch the same of elements of a shared receive queue. The second is posted before the region goes:
/// beside it there are more orders than can be tried in a minute.
fn elements() {
    run::<Elements>(2);
}

/// Would catch the same of receives that finish in any order: the second does first, and the first counts as
/// finished with it, or is seen to be before what the device did for it.
fn loose() {
    run::<Loose>(2);
}

/// Would catch what `sends` catches, of reliable datagrams, whose keys are noted. The second is posted before
/// the region goes, as of `elements`.
fn numbered() {
    run::<Numbered<0>>(2);
}

/// Would catch the same where the second names the region and finishes first: its mark alone tells so.
fn overtaken() {
    run::<Numbered<1>>(2);
}

/// Would catch a region that goes since another request is in its request's place, and that does not see what
/// the device did before.
fn refilled() {
    let flights = Arc::new(Flights::default());
    let queue = Arc::new(Sends::with(1));
    let flight = flights.begin(Subject::numbered("QP", 1), queue.queues());
    let (fate, region) = Fate::new();
    queue.post(0, KEY);
    let poller = {
        let (queue, fate) = (Arc::clone(&queue), fate.clone());
        thread::spawn(move || {
            fate.reach();
            Queue::finish(&*queue, 0);
        })
    };
    let owner = {
        let flights = Arc::clone(&flights);
        thread::spawn(move || let_go(&flights, KEY, region))
    };
    while queue.0.done() == 0 {
        thread::yield_now();
    }
    queue.post(1, NO_KEY);
    owner.join().unwrap();
    poller.join().unwrap();
    // The region may have been looked for before its place was filled, and the queue asked how far it is
    // behind that.
    Queue::finish(&*queue, 1);
    assert_eq!(flights.reap(), 0);
    fate.assert_is_gone();
    flights.end(&flight);
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
}

// As `src/driver/rxe/srq.rs` does it. The first element has the keys.
impl Line for Srq {
    fn progress(&self) -> Progress {
        let (posted, finished) = self.counts.progress(|| Some(self.taken()));
        Progress::new(posted, finished, u32::MAX)
    }

    fn names(&self, in_flight: Progress, _: LocalKey) -> bool {
        self.consumed.load(Ordering::Acquire) == 0 || self.taken() != in_flight.finished()
    }
}

/// Would catch a region that is freed while a message still comes into an element which the kernel has taken
/// out: one that is missed between two looks, or counted too early. Another element is posted meanwhile, and
/// taken out as well.
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
            let waits = then.in_flight() > 0 && srq.names(then, KEY);
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

/// Would catch two threads that look at the counts at once, of which one goes by what the other has noted and
/// does not see what the device did before.
fn counted() {
    let flights = Arc::new(Flights::default());
    let srq = Arc::new(Srq::default());
    let (fate, region) = Fate::new();
    let line = Arc::clone(&srq) as Arc<dyn Line>;
    let flight = flights.begin(Subject::numbered("SRQ", 1), Queues::Srq(SrqBacking(line)));
    srq.post(0);
    srq.take(0);
    let kernel = {
        let (srq, fate) = (Arc::clone(&srq), fate.clone());
        thread::spawn(move || {
            fate.reach();
            srq.counts.complete(1);
        })
    };
    let other = {
        let flights = Arc::clone(&flights);
        // It is not named in the end, but its look is one.
        thread::spawn(move || drop(flights.stands(NO_KEY)))
    };
    let_go(&flights, KEY, region);
    other.join().unwrap();
    kernel.join().unwrap();
    assert_eq!(flights.reap(), 0);
    fate.assert_is_gone();
    flights.end(&flight);
}

/// Would catch requests that count as finished although they lie in the ring: they are handed over while the
/// last queue pair goes, behind which all that was taken out counts as received.
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
