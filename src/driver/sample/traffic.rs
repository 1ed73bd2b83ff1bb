//! Traffic over the device: requests of each operation, completed in an order that a seed decides.

use std::collections::BTreeMap;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::types::Sge;

use super::device::Device;
use super::queues::{Cq, RecvQueue, SendQueue, create_qp};
use crate::driver::contract::{Position, RecvQueue as _, SendQueue as _};
use crate::work::{
    DatagramTo, Destination, Operation, Payload, PdTag, PostError, Remote, RemoteKey, WorkRequest,
};

const REQUESTS: u64 = 10_000;
const DEPTH: u32 = 16;
const BYTES: usize = 8;

/// Two queue pairs with a completion queue each, and registered buffers for both.
struct World {
    cqs: [Cq; 2],
    send: SendQueue,
    recv: RecvQueue,
    _others: (RecvQueue, SendQueue),
    own: u32,
    peer: u32,
    key: u32,
    buffers: Vec<[u8; BYTES]>,
}

impl World {
    fn new(seed: u64) -> Self {
        let device = Device::new(seed);
        let cqs = [Cq::new(&device), Cq::new(&device)];
        let (own, send, own_recv) = create_qp(&device, [&cqs[0], &cqs[0]], [DEPTH; 2]);
        let (peer, other, recv) = create_qp(&device, [&cqs[1], &cqs[1]], [DEPTH; 2]);
        let mut buffers = vec![[0; BYTES]; 4 * DEPTH as usize];
        let address = buffers.as_mut_ptr().expose_provenance() as u64;
        let key = device.register(address, (buffers.len() * BYTES) as u64);
        Self {
            cqs,
            send,
            recv,
            _others: (own_recv, other),
            own,
            peer,
            key,
            buffers,
        }
    }

    /// A buffer as a slice.
    fn slice(&mut self, at: usize) -> Sge {
        Sge {
            addr: self.buffers[at].as_mut_ptr().expose_provenance() as u64,
            length: BYTES as u32,
            lkey: self.key,
        }
    }

    /// Writes a request to the peer at this position.
    fn write(
        &mut self,
        at: Position,
        (wr_id, flags): (u64, SendFlags),
        operation: Operation,
        payload: Payload<'_>,
    ) -> Result<Position, PostError> {
        let to = DatagramTo {
            ah: &(),
            qpn: self.peer,
            qkey: 0,
            pd: PdTag::new(0, 0),
        };
        let request = WorkRequest {
            wr_id,
            flags,
            operation,
            to: Some(Destination::Datagram(to)),
            payload,
        };
        self.send.write(at, request)
    }

    /// Posts one request to the peer.
    fn send(&mut self, options: (u64, SendFlags), operation: Operation, payload: Payload<'_>) {
        let start = self.send.position();
        let end = self.write(start, options, operation, payload).unwrap();
        assert_eq!(self.send.ring(start, end), Ok(1));
    }

    /// Posts one receive.
    fn receive(&mut self, wr_id: u64, into: Sge) {
        self.recv.write(0, wr_id, &[into]).unwrap();
        self.recv.ring(1);
    }

    /// Posts a request on the buffers of a free slot, whose bytes are the id; then it has the slot.
    fn post(&mut self, wr_id: u64, slot: usize, flags: SendFlags) {
        let (from, to) = (self.slice(slot), self.slice(slot + DEPTH as usize));
        self.buffers[slot] = wr_id.to_ne_bytes();
        let remote = Remote {
            address: to.addr,
            rkey: RemoteKey(to.lkey),
        };
        let operation = match wr_id % 4 {
            0 => {
                self.receive(wr_id, to);
                Operation::Send
            }
            1 => Operation::Write { remote },
            2 => {
                self.buffers[slot + DEPTH as usize] = (!wr_id).to_ne_bytes();
                Operation::Read { remote }
            }
            _ => {
                self.receive(wr_id, to);
                let imm = wr_id as u32;
                Operation::SendImm { imm }
            }
        };
        self.send((wr_id, flags), operation, Payload::Sges(&[from]));
    }
}

/// The slots in use, by the id of the request that has it, with the completions that are still to come.
struct Slots {
    free: Vec<usize>,
    used: BTreeMap<u64, (usize, u32)>,
}

impl Slots {
    fn take(&mut self, wr_id: u64) -> Option<usize> {
        let slot = self.free.pop()?;
        // One of the sender, and one of the receiver of a message.
        let completions = if is_message(wr_id) { 2 } else { 1 };
        self.used.insert(wr_id, (slot, completions));
        Some(slot)
    }

    /// The slot of a request that has completed on one side, which is free if that was the last.
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

fn is_message(wr_id: u64) -> bool {
    matches!(wr_id % 4, 0 | 3)
}

/// The ids of the sends in the order of their completions.
fn order(seed: u64) -> Vec<u64> {
    let mut world = World::new(seed);
    let mut slots = Slots {
        free: (0..DEPTH as usize).collect(),
        used: BTreeMap::new(),
    };
    let (mut next, mut order, mut received, mut arrived) = (0, vec![], vec![], vec![]);
    while order.len() < REQUESTS as usize {
        while next < REQUESTS
            && let Some(slot) = slots.take(next)
        {
            world.post(next, slot, SendFlags::SIGNALED);
            next += 1;
        }
        while let Some(done) = world.cqs[0].next().unwrap() {
            assert_eq!(done.status(), WcStatus::SUCCESS, "{done:?}");
            let slot = slots.completed(done.wr_id);
            let (here, there) = (world.buffers[slot], world.buffers[slot + DEPTH as usize]);
            match done.opcode() {
                WcOpcode::RDMA_WRITE => assert_eq!(there, done.wr_id.to_ne_bytes()),
                WcOpcode::RDMA_READ => assert_eq!(here, (!done.wr_id).to_ne_bytes()),
                opcode => assert_eq!(opcode, WcOpcode::SEND),
            }
            order.push(done.wr_id);
        }
        while let Some(done) = world.cqs[1].next().unwrap() {
            assert_eq!(done.opcode(), WcOpcode::RECV);
            assert_eq!((done.qp_num(), done.byte_len()), (world.peer, BYTES as u32));
            // Messages overtake each other: any may take the oldest receive.
            let slot = slots.completed(done.wr_id);
            let sent = u64::from_ne_bytes(world.buffers[slot + DEPTH as usize]);
            let imm = (sent % 4 == 3).then_some(sent as u32);
            assert_eq!((done.src_qp(), done.imm()), (world.own, imm));
            received.push(done.wr_id);
            arrived.push(sent);
        }
    }
    let messages = || (0..REQUESTS).filter(|wr_id| is_message(*wr_id));
    for mut ids in [received, arrived] {
        ids.sort_unstable();
        assert!(
            ids.into_iter().eq(messages()),
            "a message is lost, or came twice"
        );
    }
    assert_eq!(slots.free.len(), DEPTH as usize);
    assert_eq!((world.send.in_flight(), world.recv.in_flight()), (0, 0));
    assert_eq!(world.send.progress().in_flight(), 0);
    assert!(world.cqs[0].is_empty() && world.cqs[1].is_empty());
    order
}

#[test]
fn each_request_completes_once_in_an_order_of_the_seed() {
    let first = order(1);
    let mut sorted = first.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..REQUESTS));
    assert_ne!(first, sorted);
    assert_eq!(first, order(1));
    assert_ne!(first, order(2));
}

/// Would catch a completion that nobody wants, and a request that keeps its number when it is dropped.
#[test]
fn what_is_not_signaled_completes_unseen() {
    let mut world = World::new(3);
    for round in 0..100 {
        for slot in 0..DEPTH as usize {
            world.post(1, slot, SendFlags::empty());
        }
        let (at, options) = (world.send.position(), (1, SendFlags::empty()));
        let full = world.write(at, options, Operation::Send, Payload::Inline(b""));
        assert_eq!(
            full,
            Err(PostError::QueueFull { capacity: DEPTH }),
            "{round}"
        );
        assert!(world.cqs[0].next().unwrap().is_none());
        assert_eq!(world.send.in_flight(), 0);
    }
    let slice = Sge {
        lkey: 0,
        ..world.slice(0)
    };
    let payload = Payload::Sges(&[slice]);
    world.send((9, SendFlags::empty()), Operation::Send, payload);
    let failed = world.cqs[0].next().unwrap().unwrap();
    assert_eq!((failed.wr_id, failed.status()), (9, WcStatus::LOC_PROT_ERR));
}

#[test]
fn limits_are_those_of_the_operation_and_a_dropped_batch_leaves_nothing() {
    let mut world = World::new(4);
    let remote = Remote {
        address: 0,
        rkey: RemoteKey(0),
    };
    let slices = [world.slice(0), world.slice(1)];
    let (send, write) = (Operation::Send, Operation::Write { remote });
    let options = (1, SendFlags::empty());
    let start = world.send.position();
    let at = world.write(start, options, send, Payload::Sges(&slices));
    let at = world.write(at.unwrap(), options, send, Payload::Inline(&[0; 32]));
    let at = at.unwrap();
    let refused = world.write(at, options, write, Payload::Sges(&slices));
    assert_eq!(refused, Err(PostError::TooManySges { given: 2, max: 1 }));
    let refused = world.write(at, options, write, Payload::Inline(b"a"));
    assert_eq!(refused, Err(PostError::InlineTooLong { given: 1, max: 0 }));
    assert_eq!((at.count, world.send.position()), (2, start));
    assert_eq!(world.send.ring(start, start), Ok(0));
    world.recv.write(0, 1, &slices).unwrap();
    world.recv.ring(0);
    assert_eq!(world.recv.in_flight(), 0);
    assert!(world.cqs[0].is_empty());
}
