//! What shared receive queues report of their elements, compared with what the kernel really does with them.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;
use uverbs_uapi::enums::{QpType, WcOpcode, WcStatus};
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::{CqHandle, PdHandle, SrqHandle};
use uverbs_uapi::rxe::RecvWqe;
use uverbs_uapi::types::{QpCap, Wc};

use super::memory::*;
use super::ring::{consumer, raw_producer};
use crate::command::{CommandFd, QpSpec, Route};
use crate::driver::contract::methods::*;
use crate::driver::contract::{QpBacking, SrqBacking, receiving};
use crate::driver::rxe::cq::Cq;
use crate::driver::rxe::map::RingView;
use crate::driver::rxe::qp::{QpCore, replacement};
use crate::driver::rxe::recv::RecvQueue;
use crate::driver::rxe::srq::{Attached, SharedRecvQueue, SrqRing};
use crate::driver::rxe::watch::Shared;
use crate::work::{LocalKey, LocalSlice, PdTag, PostError, Progress};

/// Slots of 128 bytes, for elements and completions.
const LOG2: u32 = 7;
/// Regions, each named by elements of one queue in turn.
const KEYS: u32 = 3;

fn key(number: u32) -> LocalKey {
    LocalKey(0x5ee0_0100 + number)
}

/// A shared receive queue, and what the kernel has of it.
struct Srq {
    queue: SharedRecvQueue,
    ring: KernelConsumer,
    memory: Arc<Memory>,
    /// Elements in the ring, by the numbers of the regions that they name, and of the elements.
    waiting: VecDeque<(u32, u64)>,
    posted: u64,
    /// A message was interrupted, or failed, since nobody received from the queue.
    lost: bool,
    /// The requests in flight at an earlier look.
    looks: Vec<(Progress, Vec<u64>)>,
}

/// A queue pair that receives from a shared queue, as the kernel has it.
struct Receiver {
    attached: Attached,
    qpn: u32,
    transport: QpType,
    srq: usize,
    cq: usize,
    /// The element into which a message comes.
    held: Option<(u32, u64)>,
    failed: bool,
    is_connected: bool,
}

struct Completions {
    cq: Cq,
    kernel: KernelProducer,
    memory: Arc<Memory>,
}

impl Completions {
    fn new(slots: u32, index: u32) -> Self {
        let memory = Memory::ring_at(slots, LOG2, index % slots);
        let ring = consumer(&memory, size_of::<Wc>()).unwrap();
        Self {
            cq: Cq::new(ring, slots - 1, None),
            kernel: KernelProducer::new(&memory),
            memory,
        }
    }

    /// Moves to a ring of another size, if the waiting elements fit into it.
    fn resize(&mut self, slots: u32, index: u32) {
        let memory = Memory::ring_at(slots, LOG2, index % slots);
        let mut to = KernelProducer::new(&memory);
        let mask = self.memory.get(INDEX_MASK);
        let mut at = self.memory.get(CONSUMER_INDEX);
        while at != self.memory.get(PRODUCER_INDEX) {
            let completion: [u8; 1 << LOG2] = self.memory.read(at, 0);
            if !to.put(completion) {
                return;
            }
            at = (at + 1) & mask;
        }
        let old = &self.memory;
        let resize = || {
            old.set(CONSUMER_INDEX, old.get(PRODUCER_INDEX));
            Ok::<_, ()>(())
        };
        let ring = consumer(&memory, size_of::<Wc>()).unwrap();
        let moved = self.cq.replace(resize, |()| Ok((ring, slots - 1, None)));
        moved.unwrap();
        (self.kernel, self.memory) = (to, memory);
    }
}

struct Model {
    srqs: Vec<Srq>,
    cqs: Vec<Completions>,
    receivers: Vec<Receiver>,
}

/// The rings of a shared queue in this memory.
fn rings(memory: &Arc<Memory>) -> (RecvQueue, RingView) {
    let ring = raw_producer(memory, size_of::<RecvWqe>()).unwrap();
    let view = RingView::new(&ring, None);
    (RecvQueue::new(ring, 1, None), view)
}

impl Srq {
    fn new(index: u32) -> Self {
        let memory = Memory::ring_at(4, LOG2, index);
        let (queue, view) = rings(&memory);
        Self {
            queue: SharedRecvQueue::new(queue, view, PdHandle(1)),
            ring: KernelConsumer::new(&memory),
            memory,
            waiting: VecDeque::new(),
            posted: 0,
            lost: false,
            looks: Vec::new(),
        }
    }

    /// Posts `count` elements in one batch, as far as there is room.
    fn post(&mut self, count: u32) {
        let mut batch = receiving(&mut self.queue);
        for _ in 0..count {
            let region = (self.posted % u64::from(KEYS)) as u32;
            let slice = LocalSlice::new(0x1000, 8, key(region), PdTag::new(3, 1));
            if batch.write(self.posted, &[slice]).is_err() {
                break;
            }
            self.waiting.push_back((region, self.posted));
            self.posted += 1;
        }
        batch.ring();
    }

    /// Takes the oldest element out.
    fn take(&mut self) -> Option<(u32, u64)> {
        let element = self.waiting.pop_front()?;
        self.ring.advance();
        Some(element)
    }

    /// Moves to a ring of another size, if the waiting elements fit into it.
    fn resize(&mut self, slots: u32, index: u32) {
        if self.waiting.len() >= slots as usize {
            return;
        }
        let memory = Memory::ring_at(slots, LOG2, index % slots);
        let mut to = KernelProducer::new(&memory);
        let from = self.ring.head().unwrap_or(0);
        for at in 0..self.waiting.len() as u32 {
            let slot = (from + at) & self.memory.get(INDEX_MASK);
            let element: [u8; 1 << LOG2] = self.memory.read(slot, 0);
            assert!(to.put(element));
        }
        self.ring = KernelConsumer::new(&memory);
        let moved = self
            .queue
            .replace(|| Ok::<_, ()>(()), |(), _| Ok(rings(&memory)));
        moved.unwrap();
        self.memory = memory;
    }
}

/// A queue pair to which messages may come.
fn receiver(qpn: u32, ring: &Arc<SrqRing>, cq: &Arc<Shared>, transport: QpType) -> Attached {
    let attached = Attached::new(qpn, ring, cq, transport);
    attached.begin();
    attached
}

impl Model {
    /// The lowest number that is free: the kernel gives no number to two queue pairs.
    fn free_number(&self) -> u32 {
        let is_free = |qpn: &u32| self.receivers.iter().all(|it| it.qpn != *qpn);
        (17..).find(is_free).unwrap()
    }

    /// A new queue pair, unless there are many.
    fn come(&mut self, srq: usize, cq: usize, transport: QpType) {
        if self.receivers.len() == 4 {
            return;
        }
        let qpn = self.free_number();
        let (ring, shared) = (self.srqs[srq].queue.ring(), self.cqs[cq].cq.shared());
        self.receivers.push(Receiver {
            attached: receiver(qpn, ring, shared, transport),
            qpn,
            transport,
            srq,
            cq,
            held: None,
            failed: false,
            is_connected: true,
        });
    }

    /// Removes a queue pair, with the element that it holds.
    fn go(&mut self, at: usize) {
        let Receiver {
            attached,
            srq,
            held,
            ..
        } = self.receivers.swap_remove(at);
        self.srqs[srq].lost |= held.is_some();
        drop(attached);
        self.all_gone(srq);
    }

    /// A queue pair is reset. A reliable one is replaced by another, which is not connected yet when it goes.
    fn reset(&mut self, at: usize) {
        let qpn = self.free_number();
        let receiver = &mut self.receivers[at];
        let srq = receiver.srq;
        let held = receiver.held.take();
        if receiver.transport == QpType::RC {
            let new = receiver.attached.renew(qpn);
            receiver.attached.stop();
            receiver.attached = new;
            receiver.qpn = qpn;
        } else {
            receiver.attached.stop();
        }
        receiver.failed = false;
        receiver.is_connected = false;
        self.srqs[srq].lost |= held.is_some();
        self.all_gone(srq);
    }

    /// What was lost is made up for once nobody receives.
    fn all_gone(&mut self, srq: usize) {
        let mut receivers = self.receivers.iter();
        if receivers.all(|it| it.srq != srq || !it.is_connected) {
            self.srqs[srq].lost = false;
        }
    }

    /// A message begins.
    fn begin(&mut self, at: usize) {
        let receiver = &mut self.receivers[at];
        receiver.is_connected = true;
        receiver.attached.begin();
        if receiver.held.is_none() && !receiver.failed {
            receiver.held = self.srqs[receiver.srq].take();
        }
    }

    /// A message ends, or fails: the kernel writes its completion.
    fn end(&mut self, at: usize, status: WcStatus) {
        let receiver = &mut self.receivers[at];
        let Some((_, element)) = receiver.held else {
            return;
        };
        // Nothing says which kind of request has failed.
        let opcode = match status {
            WcStatus::SUCCESS => WcOpcode::RECV.0,
            _ => 0,
        };
        let goes_on = match status {
            WcStatus::SUCCESS => true,
            WcStatus::REM_INV_REQ_ERR => receiver.transport != QpType::RC,
            _ => false,
        };
        let wc = Wc {
            wr_id: element,
            qp_num: receiver.qpn,
            status: status.0,
            opcode,
            ..Wc::default()
        };
        if self.cqs[receiver.cq].kernel.put(wc) {
            receiver.held = None;
            receiver.failed = !goes_on;
            self.srqs[receiver.srq].lost |= !goes_on;
        }
    }

    /// A completion of a send; or of a receive, of a queue pair that receives from no shared queue. Sends of
    /// reliable connections can fail like receives.
    fn other(&mut self, cq: usize, qpn: u32) {
        let known = self.receivers.iter().find(|it| it.qpn == qpn);
        let (opcode, status) = match known.map(|it| it.transport) {
            Some(QpType::RC) => (WcOpcode::SEND, WcStatus::REM_INV_REQ_ERR),
            Some(_) => (WcOpcode::SEND, WcStatus::SUCCESS),
            None => (WcOpcode::RECV, WcStatus::SUCCESS),
        };
        let wc = Wc {
            qp_num: qpn,
            status: status.0,
            opcode: opcode.0,
            ..Wc::default()
        };
        self.cqs[cq].kernel.put(wc);
    }

    /// Elements to whose memory the kernel may yet write, with the regions that they name.
    fn unfinished(&self, srq: usize) -> impl Iterator<Item = (u32, u64)> {
        let held = self.receivers.iter().filter(move |it| it.srq == srq);
        let held = held.filter_map(|it| it.held);
        self.srqs[srq].waiting.iter().copied().chain(held)
    }

    /// Compares what a queue reports with the model.
    fn check(&mut self, at: usize) {
        let unfinished: Vec<_> = self.unfinished(at).collect();
        let srq = &mut self.srqs[at];
        let ring = srq.queue.ring();
        let now = ring.progress();
        for region in 0..KEYS {
            let named = unfinished.iter().any(|(it, _)| *it == region);
            let told = now.in_flight() > 0 && ring.names(now, key(region));
            assert!(told || !named, "region {region} is missed");
        }
        for (then, elements) in &srq.looks {
            if now.has_passed(*then) {
                let left = unfinished.iter().find(|(_, it)| elements.contains(it));
                assert_eq!(left, None, "passed too early");
            }
        }
        let elements = unfinished.into_iter().map(|(_, element)| element);
        srq.looks.push((now, elements.collect()));
    }

    /// Completes all messages under way, and polls their completions. Then the queue reports all but the lost
    /// ones as finished.
    fn settle(&mut self) {
        for at in 0..self.receivers.len() {
            self.poll_all();
            self.end(at, WcStatus::SUCCESS);
        }
        self.poll_all();
        for srq in &self.srqs {
            let told = srq.queue.ring().progress().in_flight();
            let waiting = srq.waiting.len() as u32;
            assert!(if srq.lost {
                told >= waiting
            } else {
                told == waiting
            });
        }
    }

    fn poll_all(&mut self) {
        for completions in &mut self.cqs {
            let mut polled = completions.cq.poll().unwrap();
            while polled.next().is_some() {}
        }
    }
}

/// An allocator that is asked for the place of the new ring may destroy a queue pair that receives from the
/// queue. Would catch a lock that is held during that call and taken again, and an element of the last queue
/// pair that stays in flight for ever.
#[test]
fn queue_pairs_may_go_while_the_queue_changes_its_size() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for fails in [false, true] {
            let (mut srq, cq) = (Srq::new(0), Completions::new(8, 0));
            srq.post(1);
            let attached = receiver(17, srq.queue.ring(), cq.cq.shared(), QpType::RC);
            // A message begins, and its queue pair is destroyed.
            srq.take();
            assert_eq!(srq.queue.ring().progress().in_flight(), 1);
            let memory = Memory::ring_at(4, LOG2, 0);
            let resized = match fails {
                true => srq.queue.replace(
                    || {
                        drop(attached);
                        Err(())
                    },
                    |(), _| Err(()),
                ),
                false => srq.queue.replace(
                    || Ok(()),
                    |(), _| {
                        drop(attached);
                        Ok(rings(&memory))
                    },
                ),
            };
            assert_eq!(resized.is_err(), fails);
            assert_eq!(srq.queue.ring().progress().in_flight(), 0);
        }
        done.send(()).unwrap();
    });
    let waited = is_done.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(waited, Ok(()), "it waits for itself, or has failed");
}

/// Would catch a message that is counted twice, and a region that is then deregistered while another message
/// comes into it: a queue pair is reset or destroyed when the kernel has moved to the other completion ring,
/// but the poller has not.
#[test]
fn a_queue_pair_may_end_while_the_completion_ring_is_exchanged() {
    for is_destroyed in [false, true] {
        let (mut srq, mut cq) = (Srq::new(0), Completions::new(8, 0));
        srq.post(2);
        let first = receiver(17, srq.queue.ring(), cq.cq.shared(), QpType::UD);
        let mut first = Some(first);
        let memory = Memory::ring_at(16, LOG2, 0);
        let (mut kernel, ring) = (KernelProducer::new(&memory), consumer(&memory, 48).unwrap());
        let resize = || {
            srq.take();
            let wc = Wc {
                qp_num: 17,
                opcode: WcOpcode::RECV.0,
                ..Wc::default()
            };
            assert!(kernel.put(wc));
            match is_destroyed {
                true => first = None,
                false => first.iter().for_each(Attached::stop),
            }
            Ok::<_, ()>(())
        };
        cq.cq.replace(resize, |()| Ok((ring, 15, None))).unwrap();
        let in_flight = || srq.queue.ring().progress().in_flight();
        assert_eq!(in_flight(), 1);
        assert_eq!(cq.cq.poll().unwrap().count(), 1);
        assert_eq!(in_flight(), 1);
        // The next message is under way.
        drop(first);
        let second = receiver(18, srq.queue.ring(), cq.cq.shared(), QpType::UD);
        srq.take();
        assert_eq!(srq.queue.ring().progress().in_flight(), 1);
        drop(second);
        assert_eq!(srq.queue.ring().progress().in_flight(), 0);
    }
}

/// Would catch a region that is deregistered because of a look at the old ring, when the kernel has moved to
/// the new one but that cannot be mapped.
#[test]
fn a_ring_that_is_lost_tells_nothing() {
    let (mut srq, mut cq) = (Srq::new(0), Completions::new(8, 0));
    srq.post(3);
    let attached = receiver(17, srq.queue.ring(), cq.cq.shared(), QpType::RC);
    srq.take();
    let lost = srq.queue.replace(|| Ok(()), |(), _| Err(()));
    assert_eq!(lost, Err(()));
    assert!(srq.queue.ring().is_lost());
    let refused = srq.queue.write::<LocalSlice<'_>>(0, 4, &[]);
    assert_eq!(refused, Err(PostError::QueueLost));
    // The kernel takes the second element out of the new ring; its message completes before that of the
    // first.
    let wc = Wc {
        qp_num: 17,
        opcode: WcOpcode::RECV.0,
        ..Wc::default()
    };
    assert!(cq.kernel.put(wc));
    assert!(cq.cq.poll().unwrap().next().is_some());
    let ring = srq.queue.ring();
    let now = ring.progress();
    assert_eq!(now.in_flight(), 3);
    assert!(ring.names(now, key(0)), "the first is under way");
    drop(attached);
}

/// What happens next, to which queue or queue pair, and a number for it.
type Step = (u8, prop::sample::Index, u32);

fn run(start: u32, steps: &[Step]) {
    let mut model = Model {
        srqs: (0..2).map(|_| Srq::new(start & 3)).collect(),
        cqs: (0..2).map(|_| Completions::new(8, start)).collect(),
        receivers: Vec::new(),
    };
    for (what, whom, number) in steps {
        let two = whom.index(2);
        let there = (!model.receivers.is_empty()).then(|| whom.index(model.receivers.len()));
        match (what, there) {
            (0..3, _) => model.srqs[two].post(number % 4),
            (3..5, _) => {
                let transport = [QpType::RC, QpType::UC, QpType::UD][*number as usize / 2 % 3];
                model.come(two, *number as usize % 2, transport);
            }
            (5, Some(at)) => model.go(at),
            (6..9, Some(at)) => model.begin(at),
            (9..12, Some(at)) => model.end(at, WcStatus::SUCCESS),
            (12, Some(at)) => model.end(at, WcStatus::LOC_LEN_ERR),
            (13, _) => model.other(two, 17 + number % 4),
            (14, _) => model.srqs[two].resize(2 << (number % 3), *number),
            (15, _) => {
                let mut polled = model.cqs[two].cq.poll().unwrap();
                for _ in 0..number % 4 {
                    polled.next();
                }
            }
            (16, _) => model.cqs[two].resize(4 << (number % 3), *number),
            (17, Some(at)) => model.end(at, WcStatus::REM_INV_REQ_ERR),
            (18, Some(at)) => model.reset(at),
            _ => {}
        }
        (0..2).for_each(|srq| model.check(srq));
    }
    model.settle();
    while !model.receivers.is_empty() {
        model.go(0);
    }
    model.settle();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 2000 }))]

    /// Would catch a region that is deregistered while the kernel has an element which names it, and elements
    /// that are in flight for ever. They may be miscounted where queue pairs come and go, also with the
    /// numbers of others, where they share queues of either kind, where messages fail or are interrupted, and
    /// where a queue changes its size.
    #[test]
    fn elements_are_in_flight_until_they_are_received(
        start in 0u32..8,
        steps in prop::collection::vec((0u8..19, any::<prop::sample::Index>(), any::<u32>()), 1..80),
    ) {
        run(start, &steps);
    }
}

/// A completion of a message.
fn received(qp_num: u32) -> Wc {
    Wc {
        qp_num,
        opcode: WcOpcode::RECV.0,
        ..Wc::default()
    }
}

/// A completion of a request that has failed.
fn failed(qp_num: u32, status: WcStatus) -> Wc {
    Wc {
        qp_num,
        status: status.0,
        ..Wc::default()
    }
}

/// Takes completions; returns how many there were.
fn poll(completions: &mut Completions, most: usize) -> usize {
    let mut polled = completions.cq.poll().unwrap();
    std::iter::from_fn(|| polled.next()).take(most).count()
}

/// The kernel receives messages into all requests that wait.
fn receive_all(srq: &mut Srq, into: &mut Completions, wc: Wc) {
    while srq.take().is_some() {
        assert!(into.kernel.put(wc));
    }
}

/// Would catch a slot that is filled again while the completion of its last request waits: a completion queue
/// that holds as much as the shared queue would overrun. And one that is held back because of completions of
/// sends, of other queues, or of nobody knows what.
#[test]
fn a_slot_is_free_when_its_completion_has_been_taken() {
    let (mut srq, mut completions) = (Srq::new(0), Completions::new(16, 0));
    let (other, ring) = (Srq::new(0), srq.queue.ring());
    let shared = completions.cq.shared();
    let _attached = receiver(17, ring, shared, QpType::RC);
    let _of_other = receiver(18, other.queue.ring(), shared, QpType::RC);
    for _ in 0..3 {
        srq.post(4);
        assert_eq!(srq.waiting.len(), 3);
        // They come first and free nothing.
        let others = [
            Wc {
                opcode: WcOpcode::SEND.0,
                ..received(17)
            },
            received(18),
            received(19),
            failed(17, WcStatus::REM_INV_REQ_ERR),
        ];
        assert!(
            others
                .map(|wc| completions.kernel.put(wc))
                .iter()
                .all(|it| *it)
        );
        receive_all(&mut srq, &mut completions, received(17));
        let full = srq.queue.write::<LocalSlice<'_>>(0, 4, &[]);
        assert_eq!(full, Err(PostError::QueueFull { capacity: 3 }));
        for free in [0, 0, 0, 0, 1] {
            assert_eq!(poll(&mut completions, 1), 1);
            srq.post(4);
            assert_eq!(srq.waiting.len(), free);
        }
        receive_all(&mut srq, &mut completions, received(17));
        assert_eq!(poll(&mut completions, 16), 3);
    }
}

/// Would catch a completion queue that is not looked at, and one that is looked at when nobody polls it.
#[test]
fn all_completion_queues_of_the_receivers_count() {
    let mut srq = Srq::new(0);
    let mut cqs = [Completions::new(8, 0), Completions::new(8, 0)];
    let of = |srq: &Srq, cq: &Completions, qpn, transport| {
        receiver(qpn, srq.queue.ring(), cq.cq.shared(), transport)
    };
    let first = of(&srq, &cqs[0], 17, QpType::UC);
    let _more = [
        of(&srq, &cqs[0], 18, QpType::UC),
        of(&srq, &cqs[1], 19, QpType::UD),
    ];
    // The queue pairs that are left still report there.
    drop(first);
    srq.post(3);
    for (at, wc) in [
        (0, received(18)),
        (1, received(19)),
        (1, failed(19, WcStatus::REM_INV_REQ_ERR)),
    ] {
        assert!(srq.take().is_some());
        assert!(cqs[at].kernel.put(wc));
    }
    srq.post(3);
    assert_eq!(srq.waiting.len(), 0);
    assert_eq!(poll(&mut cqs[0], 1), 1);
    srq.post(3);
    assert_eq!(srq.waiting.len(), 1);
    let [_first, second] = cqs;
    drop(second);
    srq.post(3);
    assert_eq!(srq.waiting.len(), 3);
}

/// Would catch slots of a new ring that are given out for completions that wait since the old one.
#[test]
fn completions_that_wait_count_in_another_ring_too() {
    let (mut srq, mut completions) = (Srq::new(0), Completions::new(16, 0));
    let _attached = receiver(17, srq.queue.ring(), completions.cq.shared(), QpType::UD);
    srq.post(3);
    receive_all(&mut srq, &mut completions, received(17));
    srq.resize(8, 5);
    srq.post(7);
    assert_eq!(srq.waiting.len(), 4);
    assert_eq!(poll(&mut completions, 2), 2);
    srq.post(7);
    assert_eq!(srq.waiting.len(), 6);
    // A reset in its place forgets those that wait.
    completions.cq.shared().forget(17);
    srq.post(7);
    assert_eq!(srq.waiting.len(), 7);
}

/// Would catch a new queue pair on a queue without a ring: the kernel crashes when a message comes.
#[test]
fn a_queue_that_is_lost_gets_no_queue_pair_by_a_reset() {
    let (mut srq, completions) = (Srq::new(0), Completions::new(4, 0));
    let attached = receiver(17, srq.queue.ring(), completions.cq.shared(), QpType::RC);
    let spec = QpSpec {
        pd: PdHandle(1),
        send_cq: CqHandle(2),
        recv_cq: CqHandle(2),
        srq: Some(SrqHandle(3)),
        qp_type: QpType::RC,
        cap: QpCap::default(),
        sq_sig_all: false,
        flags: QpCreateFlags::empty(),
        user_handle: 0,
        event_fd: None,
    };
    let sends = Memory::ring(4, LOG2);
    let ring = raw_producer(&sends, 8).unwrap();
    let qp = QpCore::sample(spec, RingView::new(&ring, None), attached);
    assert!(qp.needs_replacement());
    srq.queue.lose();
    let (kernel, file) = rustix::pipe::pipe().unwrap();
    let fd = Arc::new(CommandFd::new(file, 0, Route::Write));
    let refused = replacement(&fd, &qp, None).unwrap_err();
    assert!(refused.to_string().contains("is lost"), "{refused}");
    // The kernel was not asked.
    drop(fd);
    let read = rustix::io::read(&kernel, &mut [0; 8]);
    assert_eq!(read, Ok(0));
}

/// Would catch messages that are not counted because an earlier poll had counted up to the same index, one
/// round before, when there was nothing to count.
#[test]
fn what_was_counted_a_round_ago_is_counted_anew() {
    let mut srq = Srq::new(0);
    let mut completions = Completions::new(4, 0);
    let wc = |qp_num, opcode: WcOpcode| Wc {
        qp_num,
        opcode: opcode.0,
        ..Wc::default()
    };
    let finish = |completions: &mut Completions, wc| {
        assert!(completions.kernel.put(wc));
        assert!(completions.cq.poll().unwrap().next().is_some());
    };
    assert!(completions.kernel.put(wc(30, WcOpcode::SEND)));
    completions.cq.shared().forget(30);
    assert!(completions.cq.poll().unwrap().next().is_some());
    for _ in 0..3 {
        finish(&mut completions, wc(30, WcOpcode::SEND));
    }
    let _attached = receiver(17, srq.queue.ring(), completions.cq.shared(), QpType::RC);
    srq.post(1);
    assert!(srq.take().is_some());
    assert_eq!(srq.queue.ring().progress().in_flight(), 1);
    finish(&mut completions, wc(17, WcOpcode::RECV));
    assert_eq!(srq.queue.ring().progress().in_flight(), 0);
}

/// Would catch a failed receive of UD that is not counted, and a failed send of RC that is.
#[test]
fn failures_of_unreliable_queue_pairs_are_messages() {
    let failed = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR];
    for (transport, status, left) in [
        (QpType::UD, failed[0], 0),
        (QpType::UC, failed[0], 0),
        (QpType::UC, failed[1], 0),
        (QpType::RC, failed[0], 1),
        (QpType::UD, WcStatus::WR_FLUSH_ERR, 1),
    ] {
        let (mut srq, mut completions) = (Srq::new(0), Completions::new(4, 0));
        let ring = srq.queue.ring();
        let _attached = receiver(17, ring, completions.cq.shared(), transport);
        srq.post(1);
        assert!(srq.take().is_some());
        assert!(completions.kernel.put(Wc {
            qp_num: 17,
            status: status.0,
            ..Wc::default()
        }));
        assert!(completions.cq.poll().unwrap().next().is_some());
        let in_flight = srq.queue.ring().progress().in_flight();
        assert_eq!(in_flight, left, "{transport:?} {status:?}");
    }
}
