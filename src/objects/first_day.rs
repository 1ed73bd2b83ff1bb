//! The layers above a new driver, here the sample driver: requests of each operation, which its device
//! completes in an order that a seed decides. This file posts them through the library's objects,
//! `c/first_day.rs` as C programs do.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use uverbs_uapi::enums::{QpState, WcOpcode, WcStatus};
use uverbs_uapi::flags::Access;

use super::ah::{AddressVector, Ah};
use super::context::Context;
use super::cq::Cq;
use super::mr::Mr;
use super::pd::Pd;
use super::qp::transport::Srd;
use super::qp::{Caps, Inline, Qp, QpAttr};
use crate::driver::samples;

use crate::work::{PostError, RemoteKey, RemoteSlice};

const REQUESTS: u64 = 10_000;
/// How many requests the queues have room for.
pub(crate) const DEPTH: usize = 16;
/// Bytes of a buffer. The sender has the first [`DEPTH`] of them and the receiver the others, side by side.
pub(crate) const BYTES: usize = 8;
pub(crate) const QKEY: u32 = 0x1234;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Send,
    Write,
    Read,
    /// A message with the id as immediate data.
    SendImm,
}

impl Work {
    fn of(wr_id: u64) -> Self {
        [Self::Send, Self::Write, Self::Read, Self::SendImm][wr_id as usize % 4]
    }

    fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendImm)
    }
}

/// A completion, as both interfaces report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) wr_id: u64,
    pub(crate) status: WcStatus,
    pub(crate) opcode: WcOpcode,
    /// For a receive: the number of its queue pair, the bytes, the sender's number and the immediate data.
    pub(crate) received: Option<(u32, u32, u32, Option<u32>)>,
}

/// Two queue pairs with a completion queue each, and registered buffers for both, by one interface.
pub(crate) trait World {
    fn set(&mut self, buffer: usize, bytes: [u8; BYTES]);
    fn get(&self, buffer: usize) -> [u8; BYTES];
    /// Posts a receive into a buffer at the receiver.
    fn receive(&mut self, wr_id: u64, into: usize);
    /// Posts a request at the sender, on a buffer of its own and one of the receiver's.
    fn post(&mut self, wr_id: u64, work: Work, own: usize, there: usize);
    /// The next completion of the sender.
    fn sent(&mut self) -> Option<Done>;
    /// The next completion of the receiver.
    fn received(&mut self) -> Option<Done>;
    /// The numbers of the sender and the receiver.
    fn numbers(&self) -> [u32; 2];
}

/// The slots in use, by the id of the request that has it, with the completions that are still to come.
struct Slots {
    free: Vec<usize>,
    used: BTreeMap<u64, (usize, u32)>,
}

impl Slots {
    fn take(&mut self, wr_id: u64) -> Option<usize> {
        let slot = self.free.pop()?;
        // One at the sender, and for a message one at the receiver.
        let completions = if Work::of(wr_id).is_message() { 2 } else { 1 };
        self.used.insert(wr_id, (slot, completions));
        Some(slot)
    }

    /// The slot of a request that has completed on one side. The slot is free if that was the last
    /// completion.
    fn completed(&mut self, wr_id: u64) -> usize {
        let (slot, left) = self.used.get_mut(&wr_id).unwrap();
        let slot = *slot;
        *left -= 1;
        if *left == 0 {
            self.used.remove(&wr_id);
            self.free.push(slot);
        }
        slot
    }
}

/// Posts a request on the buffers of a slot.
fn post(world: &mut impl World, wr_id: u64, slot: usize) {
    let there = slot + DEPTH;
    world.set(slot, wr_id.to_ne_bytes());
    let work = Work::of(wr_id);
    match work {
        Work::Read => world.set(there, (!wr_id).to_ne_bytes()),
        Work::Write => {}
        Work::Send | Work::SendImm => world.receive(wr_id, there),
    }
    world.post(wr_id, work, slot, there);
}

/// Posts and takes all requests. Returns the ids of the sends in the order of their completions.
pub(crate) fn order(world: &mut impl World) -> Vec<u64> {
    let mut slots = Slots {
        free: (0..DEPTH).collect(),
        used: BTreeMap::new(),
    };
    let [own, peer] = world.numbers();
    let (mut next, mut order, mut received, mut arrived) = (0, vec![], vec![], vec![]);
    while order.len() < REQUESTS as usize {
        while next < REQUESTS
            && let Some(slot) = slots.take(next)
        {
            post(world, next, slot);
            next += 1;
        }
        while let Some(done) = world.sent() {
            assert_eq!(done.status, WcStatus::SUCCESS, "{done:?}");
            let slot = slots.completed(done.wr_id);
            let (here, there) = (world.get(slot), world.get(slot + DEPTH));
            match done.opcode {
                WcOpcode::RDMA_WRITE => assert_eq!(there, done.wr_id.to_ne_bytes()),
                WcOpcode::RDMA_READ => assert_eq!(here, (!done.wr_id).to_ne_bytes()),
                opcode => assert_eq!(opcode, WcOpcode::SEND),
            }
            order.push(done.wr_id);
        }
        while let Some(done) = world.received() {
            assert_eq!(done.opcode, WcOpcode::RECV);
            // Messages overtake each other: any may take the oldest receive.
            let slot = slots.completed(done.wr_id);
            let sent = u64::from_ne_bytes(world.get(slot + DEPTH));
            let imm = (Work::of(sent) == Work::SendImm).then_some(sent as u32);
            assert_eq!(done.received, Some((peer, BYTES as u32, own, imm)));
            received.push(done.wr_id);
            arrived.push(sent);
        }
    }
    let messages = || (0..REQUESTS).filter(|wr_id| Work::of(*wr_id).is_message());
    for mut ids in [received, arrived] {
        ids.sort_unstable();
        assert!(
            ids.into_iter().eq(messages()),
            "a message is lost, or came twice"
        );
    }
    assert_eq!(slots.free.len(), DEPTH);
    assert!(world.sent().is_none() && world.received().is_none());
    order
}

/// Checks that each request completes once, in an order that depends on the seed alone.
pub(crate) fn each_completes_once<W: World>(world: impl Fn(u64) -> W) {
    let first = order(&mut world(1));
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..REQUESTS));
    assert_ne!(first, sorted);
    assert_eq!(first, order(&mut world(1)));
    assert_ne!(first, order(&mut world(2)));
}

/// A context of a device in which a seed decides the order. Nobody reads its commands to a kernel.
pub(crate) fn context(seed: u64) -> Context {
    let file = OwnedFd::from(File::options().write(true).open("/dev/null").unwrap());
    Context::over_device(file, samples::device(seed))
}

/// The world of the library's objects.
struct Objects {
    cqs: [Cq; 2],
    sender: Qp<Srd>,
    receiver: Qp<Srd>,
    peer: Ah,
    buffers: Mr<Vec<u8>>,
    _pd: Pd,
}

impl Objects {
    fn new(seed: u64) -> Self {
        let context = context(seed);
        let pd = context.alloc_pd().unwrap();
        let cqs = [1, 2].map(|_| context.create_cq(2 * DEPTH as u32).unwrap());
        let caps = Caps {
            max_send_wr: DEPTH as u32,
            max_recv_wr: DEPTH as u32,
            ..Caps::default()
        };
        let [sender, receiver] = [0, 1].map(|side| {
            let mut qp = pd.create_qp::<Srd>(&cqs[side], caps).unwrap();
            for attr in steps() {
                qp.modify(&attr).unwrap();
            }
            qp
        });
        let memory = vec![0; 2 * DEPTH * BYTES];
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        Self {
            cqs,
            sender,
            receiver,
            peer: pd.create_ah(&AddressVector::local(1, 1)).unwrap(),
            buffers: pd.register(memory, access).unwrap(),
            _pd: pd,
        }
    }

    fn next(&mut self, side: usize) -> Option<Done> {
        let done = self.cqs[side].poll().unwrap().iter().next()?;
        let received = (done.opcode() == WcOpcode::RECV).then(|| {
            let from = done.src_qp();
            (done.qp_num(), done.byte_len(), from, done.imm())
        });
        Some(Done {
            wr_id: done.wr_id(),
            status: done.status(),
            opcode: done.opcode(),
            received,
        })
    }
}

/// The changes that take a queue pair to the state RTS.
pub(crate) fn steps() -> [QpAttr; 3] {
    [
        QpAttr {
            state: Some(QpState::INIT),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(QKEY),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::RTR),
            ..QpAttr::default()
        },
        QpAttr {
            state: Some(QpState::RTS),
            sq_psn: Some(0),
            ..QpAttr::default()
        },
    ]
}

impl World for Objects {
    fn set(&mut self, buffer: usize, bytes: [u8; BYTES]) {
        self.buffers.write_at(buffer * BYTES, &bytes).unwrap();
    }

    fn get(&self, buffer: usize) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        self.buffers.read_at(buffer * BYTES, &mut bytes).unwrap();
        bytes
    }

    fn receive(&mut self, wr_id: u64, into: usize) {
        let mut batch = self.receiver.recv_batch();
        let into = self.buffers.slot(into, BYTES).unwrap();
        batch.post(wr_id, into).unwrap();
        assert_eq!(batch.ring(), 1);
    }

    fn post(&mut self, wr_id: u64, work: Work, own: usize, there: usize) {
        let own = self.buffers.slot(own, BYTES).unwrap();
        let start = there * BYTES;
        let there = self.buffers.remote();
        let there = there.slice(start..start + BYTES).unwrap();
        let to = self.peer.to(self.receiver.qpn(), QKEY);
        let mut batch = self.sender.batch();
        let request = batch.signaled(wr_id).to(to);
        match work {
            Work::Send => request.send(own),
            Work::Write => request.write(own, there),
            Work::Read => request.read(own, there),
            Work::SendImm => request.send_imm(own, wr_id as u32),
        }
        .unwrap();
        assert_eq!(batch.ring(), Ok(1));
    }

    fn sent(&mut self) -> Option<Done> {
        self.next(0)
    }

    fn received(&mut self) -> Option<Done> {
        self.next(1)
    }

    fn numbers(&self) -> [u32; 2] {
        [self.sender.qpn(), self.receiver.qpn()]
    }
}

#[test]
fn each_request_completes_once_in_an_order_of_the_seed() {
    each_completes_once(Objects::new);
}

/// Would catch a completion of an unsignaled request, and a request that keeps its number when its completion
/// is dropped.
#[test]
fn what_is_not_signaled_completes_unseen() {
    let mut world = Objects::new(3);
    let to = |world: &Objects| (world.receiver.qpn(), QKEY);
    for round in 0..100 {
        let (qpn, qkey) = to(&world);
        let remote = world.buffers.remote().slice(0..BYTES).unwrap();
        let mut batch = world.sender.batch();
        for slot in 0..DEPTH {
            let own = world.buffers.slot(slot, BYTES).unwrap();
            let request = batch.unsignaled(1).to(world.peer.to(qpn, qkey));
            request.write(own, remote).unwrap();
        }
        let request = batch.unsignaled(1).to(world.peer.to(qpn, qkey));
        let full = Err(PostError::QueueFull {
            capacity: DEPTH as u32,
        });
        assert_eq!(request.send(Inline(b"")), full, "{round}");
        assert_eq!(batch.ring(), Ok(DEPTH));
        assert_eq!(world.sender.halves().0.in_flight(), DEPTH as u32);
        assert_eq!(world.sent(), None);
        assert_eq!(world.sender.halves().0.in_flight(), 0);
    }
    let nowhere = world.buffers.remote().slice(0..BYTES).unwrap();
    let nowhere = RemoteSlice {
        rkey: RemoteKey(0),
        ..nowhere
    };
    let (qpn, qkey) = to(&world);
    let own = world.buffers.slot(0, BYTES).unwrap();
    let mut batch = world.sender.batch();
    let request = batch.unsignaled(9).to(world.peer.to(qpn, qkey));
    request.write(own, nowhere).unwrap();
    batch.ring().unwrap();
    let failed = world.sent().unwrap();
    assert_eq!((failed.wr_id, failed.status), (9, WcStatus::REM_ACCESS_ERR));
}

/// Would catch requests from before a reset that complete after it, and places in the ring that are never
/// freed.
#[test]
fn a_reset_queue_pair_is_as_new() {
    let mut world = Objects::new(4);
    for slot in 0..DEPTH {
        world.receive(7, slot + DEPTH);
        world.post(7, Work::Send, slot, slot + DEPTH);
    }
    for qp in [&mut world.sender, &mut world.receiver] {
        qp.reset().unwrap();
        for attr in steps() {
            qp.modify(&attr).unwrap();
        }
    }
    assert_eq!((world.sent(), world.received()), (None, None));
    order(&mut world);
}
