//! Queue pairs: their rings, and what the device has taken from them.

use std::collections::{BTreeSet, VecDeque};

use serde_json::json;
use vfio_model::tap::hex;

use crate::function::{Function, QUEUE_PAIRS};
use crate::wqe::{self, DESCRIPTOR, Descriptor, Operation, Request, Slice};

/// Bytes of BAR 2 for each queue pair, and where its send ring begins there.
pub(crate) const LLQ_ROOM: u64 = 128 << 10;
pub(crate) const LLQ_START: u64 = 0x140;

/// Where in their page the doorbells of a queue pair are.
pub(crate) const SEND_DOORBELL: u64 = 0x40;
pub(crate) const RECEIVE_DOORBELL: u64 = 0x88;

/// Bytes of a store to the send ring that the CPU does not divide.
const WORD: usize = 8;

/// What a queue pair is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Ud,
    Srd,
}

/// The states, as the driver numbers them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

impl State {
    /// The state of a number.
    pub(crate) fn of(number: u32) -> Option<Self> {
        let all = [
            Self::Reset,
            Self::Init,
            Self::Rtr,
            Self::Rts,
            Self::Sqd,
            Self::Sqe,
            Self::Err,
        ];
        all.get(number as usize).copied()
    }

    /// Whether messages are taken in it.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

/// A completion queue and which of its rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completes {
    pub(crate) cqn: u32,
    pub(crate) ring: u16,
}

/// How a request has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) status: u8,
}

/// Something that waits for the device to look at it; what was passed over once is not passed over again.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) thing: T,
    pub(crate) was_passed: bool,
    /// How often no receive request was found.
    pub(crate) attempts: u32,
}

impl<T> Waiting<T> {
    pub(crate) fn new(thing: T) -> Self {
        Self {
            thing,
            was_passed: false,
            attempts: 0,
        }
    }
}

/// A receive request.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) id: u16,
    pub(crate) slices: Vec<Slice>,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) number: u16,
    pub(crate) kind: Kind,
    pub(crate) pd: u16,
    pub(crate) uar: u16,
    /// Writes with immediate data consume no receive request.
    pub(crate) unsolicited: bool,
    pub(crate) wide_ids: bool,
    pub(crate) state: State,
    pub(crate) qkey: u32,
    pub(crate) psn: u32,
    /// 7 for any number.
    pub(crate) rnr_retry: u8,
    pub(crate) send: Completes,
    pub(crate) receive: Completes,
    pub(crate) send_ring: SendRing,
    pub(crate) receive_ring: ReceiveRing,
    pub(crate) requests: Vec<Waiting<Request>>,
    pub(crate) ended: Vec<Waiting<Ended>>,
    pub(crate) receives: VecDeque<Receive>,
}

/// A send ring, which is the device's own memory.
#[derive(Debug)]
pub(crate) struct SendRing {
    bytes: Vec<u8>,
    /// The words that were stored since the last doorbell.
    stored: BTreeSet<usize>,
    /// Bytes of a request.
    stride: usize,
    /// Requests that were taken, modulo 2^16.
    taken: u16,
    /// Ids of requests that are not completed.
    pub(crate) ids: BTreeSet<u64>,
}

/// A receive ring, in the guest's memory.
#[derive(Debug)]
pub(crate) struct ReceiveRing {
    pub(crate) base: u64,
    /// In descriptors.
    pub(crate) depth: u32,
    taken: u16,
    /// Descriptors of requests that are not completed.
    pub(crate) used: usize,
    pub(crate) ids: BTreeSet<u16>,
    /// The descriptors so far of a request whose last one was not there yet.
    open: Option<Receive>,
}

impl SendRing {
    /// A ring of so many requests of so many bytes each.
    pub(crate) fn new(depth: u32, stride: usize) -> Self {
        Self {
            bytes: vec![0; depth as usize * stride],
            stored: BTreeSet::new(),
            stride,
            taken: 0,
            ids: BTreeSet::new(),
        }
    }

    fn depth(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// As after a reset of the queue pair. Its bytes stay.
    fn clear(&mut self) {
        *self = Self {
            bytes: std::mem::take(&mut self.bytes),
            ..Self::new(0, self.stride)
        };
    }
}

impl ReceiveRing {
    /// A ring of so many descriptors there.
    pub(crate) fn new(base: u64, depth: u32) -> Self {
        Self {
            base,
            depth,
            taken: 0,
            used: 0,
            ids: BTreeSet::new(),
            open: None,
        }
    }
}

impl QueuePair {
    /// Forgets what is in its queues.
    pub(crate) fn clear(&mut self) {
        self.send_ring.clear();
        self.receive_ring = ReceiveRing::new(self.receive_ring.base, self.receive_ring.depth);
        self.requests.clear();
        self.ended.clear();
        self.receives.clear();
    }
}

/// The queue pair of a number of 16 bits, whose low bits tell where it is.
pub(crate) fn by_number(function: &Function, number: u16) -> Option<u32> {
    let index = u32::from(number) % QUEUE_PAIRS;
    let queue_pair = function.objects.qps.get(index).ok()?;
    (queue_pair.number == number).then_some(index)
}

/// Takes a store to a send ring.
pub(crate) fn store(function: &mut Function, offset: u64, data: &[u8]) {
    let (index, place) = ((offset / LLQ_ROOM) as u32, offset % LLQ_ROOM);
    let ring = function.objects.qps.get_mut(index).ok();
    let ring = ring.map(|queue_pair| &mut queue_pair.send_ring);
    let at = place.checked_sub(LLQ_START).map(|at| at as usize);
    let room = ring
        .zip(at)
        .filter(|(ring, at)| at + data.len() <= ring.bytes.len());
    let is_whole = at.is_some_and(|at| at % WORD == 0) && data.len().is_multiple_of(WORD);
    let (Some((ring, at)), true) = (room, is_whole) else {
        let length = data.len();
        function.violation(format_args!(
            "{length} bytes are stored at {offset:#x} of the memory of send rings"
        ));
        return;
    };
    ring.bytes[at..at + data.len()].copy_from_slice(data);
    ring.stored.extend((at..at + data.len()).step_by(WORD));
}

/// Takes the doorbell of a send ring: requests up to this count of all that were ever posted. Gives whether
/// there are some to look at.
pub(crate) fn send_doorbell(function: &mut Function, index: u32, value: u32) -> bool {
    let number = function.number;
    function.tap.record(|| {
        json!({"kind": "doorbell", "queue": "send", "function": number, "number": index, "value": value})
    });
    match take_requests(function, index, value) {
        Ok(count) => count > 0,
        Err(wrong) => {
            function.violation(format_args!("doorbell of send queue {index}: {wrong}"));
            false
        }
    }
}

fn take_requests(function: &mut Function, index: u32, value: u32) -> Result<usize, String> {
    let limits = function.limits;
    let queue_pair = function.objects.qps.get_mut(index);
    let queue_pair = queue_pair.map_err(|_| "there is no such queue".to_owned())?;
    let ring = &mut queue_pair.send_ring;
    let posted = u16::try_from(value).map_err(|_| format!("it has {value:#x}"))?;
    let count = usize::from(posted.wrapping_sub(ring.taken));
    let depth = ring.depth();
    if count + ring.ids.len() > depth {
        let waiting = ring.ids.len();
        return Err(format!(
            "{count} requests beside {waiting} in a ring of {depth}"
        ));
    }
    if !matches!(
        queue_pair.state,
        State::Rts | State::Sqd | State::Sqe | State::Err
    ) {
        let state = queue_pair.state;
        return Err(format!("it is rung in state {state:?}"));
    }
    let stored = std::mem::take(&mut ring.stored);
    let blocks = (stored.len() * WORD).div_ceil(64);
    let mut wrong = Vec::new();
    if limits.batch != 0 && blocks > limits.batch.into() {
        let most = limits.batch;
        wrong.push(format!("{blocks} blocks were stored before it, of {most}"));
    }
    if limits.min_send_depth != 0 && count >= depth {
        wrong.push(format!("{count} requests at once in a ring of {depth}"));
    }
    let (number, wide_ids) = (function.number, queue_pair.wide_ids);
    for _ in 0..count {
        let (slot, round) = (
            usize::from(ring.taken) % depth,
            usize::from(ring.taken) / depth,
        );
        ring.taken = ring.taken.wrapping_add(1);
        let place = slot * ring.stride..(slot + 1) * ring.stride;
        let bytes = &ring.bytes[place.clone()];
        if place.step_by(WORD).any(|word| !stored.contains(&word)) {
            wrong.push(format!("the request in slot {slot} was not stored whole"));
        }
        let request = wqe::decode(bytes, (round % 2) as u8, wide_ids);
        function.tap.record(|| {
            let (key, said) = match &request {
                Ok(request) => ("request", request.record()),
                Err(wrong) => ("malformed", json!(wrong)),
            };
            json!({"kind": "send", "function": number, "qpn": queue_pair.number, "slot": slot,
                "bytes": hex(bytes), key: said})
        });
        let id = wqe::id(bytes, wide_ids);
        if !ring.ids.insert(id) {
            wrong.push(format!("the id {id:#x} is that of a request in flight"));
        }
        match request {
            Ok(request) => queue_pair.requests.push(Waiting::new(request)),
            Err(reason) => {
                wrong.push(format!("the request in slot {slot}: {reason}"));
                queue_pair.ended.push(Waiting::new(Ended {
                    id,
                    operation: Operation::Send,
                    status: crate::engine::status::UNSUPPORTED,
                }));
            }
        }
    }
    for wrong in wrong {
        function.violation(format_args!("send queue {index}: {wrong}"));
    }
    Ok(count)
}

/// Takes the doorbell of a receive ring: descriptors up to this count of all that were ever posted.
pub(crate) fn receive_doorbell(function: &mut Function, index: u32, value: u32) {
    let number = function.number;
    function.tap.record(|| {
        json!({"kind": "doorbell", "queue": "receive", "function": number, "number": index, "value": value})
    });
    if let Err(wrong) = take_receives(function, index, value) {
        function.violation(format_args!("receive queue {index}: {wrong}"));
    }
    crate::engine::flush_receives(function, index);
}

fn take_receives(function: &mut Function, index: u32, value: u32) -> Result<(), String> {
    let queue_pair = function.objects.qps.get_mut(index);
    let queue_pair = queue_pair.map_err(|_| "there is no such queue".to_owned())?;
    let ring = &mut queue_pair.receive_ring;
    let posted = u16::try_from(value).map_err(|_| format!("its doorbell has {value:#x}"))?;
    let count = usize::from(posted.wrapping_sub(ring.taken));
    if count + ring.used > ring.depth as usize {
        let (used, depth) = (ring.used, ring.depth);
        return Err(format!(
            "{count} descriptors beside {used} in a ring of {depth}"
        ));
    }
    if queue_pair.state == State::Reset {
        return Err("it is rung in state RESET".to_owned());
    }
    for _ in 0..count {
        let slot = u32::from(ring.taken) % ring.depth;
        ring.taken = ring.taken.wrapping_add(1);
        let mut bytes = [0; DESCRIPTOR];
        let place = ring.base + u64::from(slot) * DESCRIPTOR as u64;
        let read = function.memory.read(place, &mut bytes);
        read.map_err(|unmapped| format!("it is not in memory: {unmapped:x?}"))?;
        let (number, qpn) = (function.number, queue_pair.number);
        function.tap.record(|| {
            json!({"kind": "receive", "function": number, "qpn": qpn, "slot": slot, "bytes": hex(&bytes)})
        });
        let descriptor = Descriptor::decode(&bytes)
            .map_err(|wrong| format!("the descriptor in slot {slot}: {wrong}"))?;
        if descriptor.is_first != ring.open.is_none() {
            return Err(format!(
                "the descriptor in slot {slot} is in the wrong place of a request"
            ));
        }
        let mut request = ring.open.take().unwrap_or(Receive {
            id: descriptor.id,
            slices: Vec::new(),
        });
        request.slices.push(descriptor.slice);
        ring.used += 1;
        if !descriptor.is_last {
            ring.open = Some(request);
            continue;
        }
        if request.slices.len() > crate::feature::MAX_SLICES {
            return Err(format!("a request has {} slices", request.slices.len()));
        }
        if !ring.ids.insert(request.id) {
            return Err(format!(
                "the id {:#x} is that of a request in flight",
                request.id
            ));
        }
        queue_pair.receives.push_back(request);
    }
    if ring.open.is_some() {
        return Err("it is rung before the last descriptor of a request".to_owned());
    }
    Ok(())
}
