//! A completion queue whose rings the device fills with anything.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;

use super::cq::{Completion, Cq, CqCore};
use super::format::Entry;
use super::reporters::{Name, Registration};
use super::ring::{Register, RingMemory, View};
use crate::driver::contract::methods::*;
use crate::driver::kit::ledger::{About, NumberedLedger};
use crate::driver::kit::map::Map;

/// A queue of a queue pair, and which of its requests were not reported yet.
struct Queue {
    ledger: Arc<NumberedLedger>,
    registration: Registration,
    ids: BTreeSet<u64>,
}

/// Requests of a queue at a time.
const CAPACITY: u32 = 4;

impl Queue {
    fn new(cq: &CqCore, ring: u32, name: Name) -> Option<Self> {
        let ledger = Arc::new(NumberedLedger::new(CAPACITY, 0));
        let registration = Registration::new(&cq.directory, ring, name, Arc::clone(&ledger));
        Some(Self {
            registration: registration?,
            ledger,
            ids: BTreeSet::new(),
        })
    }

    /// Posts as many requests as there is room for, each with a new id.
    fn fill(&mut self, next_id: &mut u64) {
        let mut count = self.ledger.posted();
        while self.ledger.in_flight() < CAPACITY {
            self.ledger.note(count, *next_id, About::new(true), 7);
            self.ids.insert(*next_id);
            *next_id += 1;
            count = count.wrapping_add(1);
            self.ledger.post(count);
        }
        assert_eq!(self.ledger.in_flight() as usize, self.ids.len());
    }

    /// Follows a reset of the queue pair.
    fn reset(&mut self) {
        self.ledger = Arc::new(NumberedLedger::new(CAPACITY, 0));
        self.registration.replace(Arc::clone(&self.ledger));
        self.ids.clear();
    }
}

/// Polls while the rings are filled with the bytes, lap by lap. The first bytes say how many rings there are,
/// how large they are, and the queue pair's number. Each request is reported at most once,
/// however often the device reports it.
pub fn efa_poll(bytes: &[u8]) {
    let Some((&[shape, low, high], mut rest)) = bytes.split_first_chunk() else {
        return;
    };
    let rings = 1 + usize::from(shape & 1);
    let entries = 1 << (shape >> 2 & 3);
    let length = rings * entries as usize * Entry::BYTES;
    let memory = RingMemory::Mapped(Map::of_memory(length));
    let base = memory.base();
    let Some(views) = View::of(&memory, rings, entries) else {
        return;
    };
    let doorbell = Register::new(Arc::new(Map::of_memory(4)), 0);
    let mut cq = Cq::new(
        CqCore::new(views, memory, doorbell, true),
        0xff,
        shape & 0x10 != 0,
    );
    let core = cq.backing();
    let queue = |is_receive| {
        let name = Name {
            qpn: u16::from_le_bytes([low, high]).into(),
            is_receive,
            takes_unsolicited: shape & 0x20 != 0,
        };
        Queue::new(&core, u32::from(is_receive) % rings as u32, name)
    };
    let mut queues: Vec<Queue> = [false, true].into_iter().filter_map(queue).collect();
    let mut next_id = 1;
    while !rest.is_empty() {
        let (lap, next) = rest.split_at(rest.len().min(length));
        rest = next;
        // SAFETY: the map has that many bytes, and nobody reads them meanwhile.
        unsafe { base.copy_from_nonoverlapping(std::ptr::NonNull::from(lap).cast(), lap.len()) };
        queues.iter_mut().for_each(|queue| queue.fill(&mut next_id));
        // At most one lap has the right phase, and an error is reported once.
        for _ in 0..2 * rings as u32 * entries + 1 {
            poll(&mut cq, &mut queues, rings as u32 * entries);
        }
        if lap[0] & 0x80 != 0 {
            queues.iter_mut().for_each(Queue::reset);
        }
    }
}

fn poll(cq: &mut Cq, queues: &mut [Queue], most: u32) {
    let polled = match cq.poll() {
        Ok(polled) => polled,
        Err(error) => return drop(black_box(error.to_string())),
    };
    let mut taken = 0;
    for completion in polled {
        taken += 1;
        look(&completion);
        if !completion.is_unsolicited() {
            let id = completion.wr_id();
            let known = queues.iter_mut().any(|queue| queue.ids.remove(&id));
            assert!(known, "{id} is not in flight");
        }
    }
    assert!(taken <= most, "more than the rings hold");
    for queue in queues {
        assert_eq!(queue.ledger.in_flight() as usize, queue.ids.len());
    }
}

fn look(completion: &Completion) {
    black_box((
        completion.status(),
        completion.opcode(),
        completion.byte_len(),
        completion.qp_num(),
        completion.src_qp(),
        completion.ex(),
        completion.flags(),
    ));
    black_box((
        completion.vendor_err(),
        completion.slid(),
        completion.sender_gid(),
    ));
}
