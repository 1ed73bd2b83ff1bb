//! What becomes of requests: their data are moved, and both ends get completions.
//!
//! A message is delivered while the lock is held. In which order a queue pair's requests are delivered, and
//! in which they are completed, is left to chance for SRD, which promises no order: each is passed over once
//! in four times, until the clock ticks.

use vfio_model::memory::GuestMemory;

use crate::cq;
use crate::fabric::{Chance, State as Fabric};
use crate::feature::{MAX_RDMA, MTU};
use crate::fields::put;
use crate::function::{Function, Gid};
use crate::mr::{self, Right};
use crate::qp::{self, Ended, Kind, Receive, State, Waiting};
use crate::wqe::{Local, Operation, Request, Slice};

/// How requests end.
pub(crate) mod status {
    pub(crate) const OK: u8 = 0;
    pub(crate) const FLUSHED: u8 = 1;
    pub(crate) const UNSUPPORTED: u8 = 3;
    pub(crate) const BAD_HANDLE: u8 = 4;
    pub(crate) const BAD_LKEY: u8 = 5;
    pub(crate) const BAD_LENGTH: u8 = 6;
    pub(crate) const PEER_BAD_ADDRESS: u8 = 7;
    pub(crate) const PEER_ABORT: u8 = 8;
    pub(crate) const PEER_BAD_QPN: u8 = 9;
    pub(crate) const PEER_NOT_READY: u8 = 10;
    pub(crate) const PEER_BAD_LENGTH: u8 = 11;
    pub(crate) const PEER_SILENT: u8 = 13;
    pub(crate) const PEER_KNOWS_US_NOT: u8 = 14;
    pub(crate) const UNREACHABLE: u8 = 15;
}

/// Of how many chances SRD passes over something once.
const PASS: usize = 4;
/// Among how many receive requests SRD chooses.
const CHOICE: usize = 4;
/// In how many pieces data are written at most, and bytes that are always written at once.
const PIECES: usize = 16;
const AT_ONCE: u64 = 128;
/// The number of retries that means any number. It holds for whom the driver sets none.
pub(crate) const ENDLESS: u8 = 7;
/// For whom there is no address handle.
const UNKNOWN: u16 = 0xffff;

/// Looks at all that waits.
pub(crate) fn tick(fabric: &mut Fabric) {
    for index in 0..fabric.functions.len() {
        let queue_pairs = fabric.functions[index].objects.qps.iter();
        let numbers: Vec<u32> = queue_pairs.map(|(number, _)| number).collect();
        for number in numbers {
            advance(fabric, index, number, true);
        }
    }
}

/// Looks at what waits in a queue pair. With the clock's tick, nothing is passed over twice.
pub(crate) fn advance(fabric: &mut Fabric, index: usize, number: u32, is_tick: bool) {
    let function = &mut fabric.functions[index];
    if function.faults.stalled || function.faults.failed {
        return;
    }
    let Ok(queue_pair) = function.objects.qps.get_mut(number) else {
        return;
    };
    let (kind, retries) = (queue_pair.kind, queue_pair.rnr_retry);
    let mut requests = match queue_pair.state {
        State::Rts | State::Err => std::mem::take(&mut queue_pair.requests),
        _ => Vec::new(),
    };
    let is_flushed = queue_pair.state == State::Err;
    let mut left = Vec::new();
    if kind == Kind::Srd {
        fabric.chance.shuffle(&mut requests);
    }
    for mut waiting in requests {
        let waits = waiting.attempts > 0 && !is_tick;
        if !is_flushed && (waits || passes(kind, &mut waiting, &mut fabric.chance)) {
            left.push(waiting);
            continue;
        }
        let status = match is_flushed {
            true => Some(status::FLUSHED),
            false => deliver(fabric, index, number, &waiting.thing),
        };
        match status {
            Some(status) => end(&mut fabric.functions[index], number, &waiting.thing, status),
            None if retries != ENDLESS && waiting.attempts >= retries.into() => {
                let function = &mut fabric.functions[index];
                end(function, number, &waiting.thing, status::PEER_NOT_READY);
            }
            None => {
                waiting.attempts += 1;
                left.push(waiting);
            }
        }
    }
    let function = &mut fabric.functions[index];
    let Ok(queue_pair) = function.objects.qps.get_mut(number) else {
        return;
    };
    queue_pair.requests.extend(left);
    let mut ended = std::mem::take(&mut queue_pair.ended);
    if kind == Kind::Srd {
        fabric.chance.shuffle(&mut ended);
    }
    for mut waiting in ended {
        if passes(kind, &mut waiting, &mut fabric.chance) {
            if let Ok(queue_pair) = function.objects.qps.get_mut(number) {
                queue_pair.ended.push(waiting);
            }
        } else {
            complete(function, number, waiting.thing);
        }
    }
}

/// Whether something is passed over, for the first and last time.
fn passes<T>(kind: Kind, waiting: &mut Waiting<T>, chance: &mut Chance) -> bool {
    let passes = kind == Kind::Srd && !waiting.was_passed && chance.once_in(PASS);
    waiting.was_passed |= passes;
    passes
}

/// A request has ended; its completion is still to be written.
fn end(function: &mut Function, number: u32, request: &Request, status: u8) {
    let length = request.length();
    let stats = &mut function.stats;
    match (request.operation, status == status::OK) {
        (Operation::Send, _) => stats.sent.add(length),
        (Operation::Read, true) => stats.read.add(length),
        (Operation::Read, false) => stats.read_errors += 1,
        (Operation::Write, true) => stats.written.add(length),
        (Operation::Write, false) => stats.write_errors += 1,
    }
    if let Ok(queue_pair) = function.objects.qps.get_mut(number) {
        queue_pair.ended.push(Waiting::new(Ended {
            id: request.id,
            operation: request.operation,
            status,
        }));
    }
}

/// Writes the completion of a request.
fn complete(function: &mut Function, number: u32, ended: Ended) {
    /// The kind of the queue, in the flags.
    const SEND: u8 = 1 << 1;
    let Ok(queue_pair) = function.objects.qps.get_mut(number) else {
        return;
    };
    queue_pair.send_ring.ids.remove(&ended.id);
    let mut entry = [0; 32];
    put(&mut entry, 0, &(ended.id as u16).to_le_bytes());
    entry[2] = ended.status;
    entry[3] = SEND | (ended.operation as u8) << 4;
    put(&mut entry, 4, &queue_pair.number.to_le_bytes());
    if queue_pair.wide_ids {
        put(&mut entry, 6, &ended.id.to_le_bytes()[2..]);
    }
    let completes = queue_pair.send;
    cq::push(function, completes.cqn, completes.ring, entry);
}

/// Who sends what to whom, as the receiver is told.
struct Message<'a> {
    request: &'a Request,
    source: Gid,
    source_qpn: u16,
}

/// Delivers a request: gives its status, or none if the receiver is not ready.
fn deliver(fabric: &mut Fabric, index: usize, number: u32, request: &Request) -> Option<u8> {
    let sender = &fabric.functions[index];
    let queue_pair = sender.objects.qps.get(number).ok()?;
    let (kind, pd) = (queue_pair.kind, queue_pair.pd);
    let message = Message {
        request,
        source: sender.gid(),
        source_qpn: queue_pair.number,
    };
    let most = match request.operation {
        Operation::Send => MTU,
        Operation::Read | Operation::Write => MAX_RDMA as usize,
    };
    if kind == Kind::Ud && request.operation != Operation::Send {
        let operation = request.operation;
        sender.violation(format_args!(
            "a queue pair for UD has a request for {operation:?}"
        ));
        return Some(status::UNSUPPORTED);
    }
    let handle = sender.objects.ahs.get(request.ah.into()).ok();
    let Some(handle) = handle.filter(|handle| handle.pd == pd) else {
        return Some(status::BAD_HANDLE);
    };
    if request.length() > most {
        return Some(status::BAD_LENGTH);
    }
    let right = match request.operation {
        Operation::Read => Right::LocalWrite,
        Operation::Send | Operation::Write => Right::LocalRead,
    };
    let Some(own) = local(sender, pd, &request.local, right) else {
        return Some(status::BAD_LKEY);
    };
    let gid = handle.gid;
    let peer = fabric
        .functions
        .iter()
        .position(|function| function.gid() == gid);
    let status = match peer {
        None => Some(status::UNREACHABLE),
        Some(peer)
            if fabric.functions[peer].faults.silent || fabric.functions[peer].faults.failed =>
        {
            Some(status::PEER_SILENT)
        }
        Some(peer) => at_peer(fabric, (index, peer), kind, &message, own),
    };
    match kind {
        Kind::Srd => status,
        // Nobody tells the sender of a datagram.
        Kind::Ud => Some(status::OK),
    }
}

/// A request's own data: bytes, or where in the guest's memory they are.
enum Own {
    Bytes(Vec<u8>),
    Places(Vec<(u64, usize)>),
}

/// Finds a request's own data; none if a key does not fit.
fn local(function: &Function, pd: u16, local: &Local, right: Right) -> Option<Own> {
    match local {
        Local::Inline(bytes) => Some(Own::Bytes(bytes.clone())),
        Local::Slices(slices) => Some(Own::Places(places(function, pd, slices, right)?)),
    }
}

/// Where slices are in the guest's memory; none if a key does not fit.
fn places(
    function: &Function,
    pd: u16,
    slices: &[Slice],
    right: Right,
) -> Option<Vec<(u64, usize)>> {
    let mut all = Vec::new();
    for slice in slices.iter().filter(|slice| slice.length > 0) {
        let region = mr::find(function, slice.key, mr::lkey, pd, right)?;
        all.extend(region.pieces(slice.address, slice.length.into())?);
    }
    Some(all)
}

/// Reads all data, or none if memory is not there.
fn gather(memory: &GuestMemory, places: &[(u64, usize)]) -> Option<Vec<u8>> {
    let mut all = Vec::with_capacity(places.iter().map(|(_, length)| length).sum());
    for &(address, length) in places {
        let start = all.len();
        all.resize(start + length, 0);
        memory.read(address, &mut all[start..]).ok()?;
    }
    Some(all)
}

/// Writes data piece by piece in any order; false if memory is not there.
fn scatter(
    memory: &GuestMemory,
    places: &[(u64, usize)],
    data: &[u8],
    chance: &mut Chance,
) -> bool {
    let step = ((data.len() / PIECES) as u64)
        .next_multiple_of(AT_ONCE)
        .max(AT_ONCE);
    let mut pieces = Vec::new();
    let mut taken = 0;
    for &(address, length) in places {
        let (mut at, end) = (address, address + length.min(data.len() - taken) as u64);
        while at < end {
            let next = (at / AT_ONCE * AT_ONCE + step).min(end);
            let length = (next - at) as usize;
            pieces.push((at, taken..taken + length));
            (at, taken) = (next, taken + length);
        }
    }
    chance.shuffle(&mut pieces);
    pieces
        .into_iter()
        .all(|(address, range)| memory.write(address, &data[range]).is_ok())
}

/// What happens at the peer.
fn at_peer(
    fabric: &mut Fabric,
    (index, peer): (usize, usize),
    kind: Kind,
    message: &Message<'_>,
    own: Own,
) -> Option<u8> {
    let request = message.request;
    let function = &mut fabric.functions[peer];
    let found = qp::by_number(function, request.destination);
    let found = found.and_then(|number| Some((number, function.objects.qps.get(number).ok()?)));
    let fits =
        found.filter(|(_, queue_pair)| queue_pair.kind == kind && queue_pair.state.receives());
    let Some((number, queue_pair)) = fits else {
        function.stats.drops += 1;
        return Some(status::PEER_BAD_QPN);
    };
    if queue_pair.qkey != request.qkey {
        function.stats.wrong_qkeys += 1;
        return Some(status::PEER_BAD_QPN);
    }
    let (pd, unsolicited) = (queue_pair.pd, queue_pair.unsolicited);
    let Some(remote) = request.remote else {
        return receive(fabric, (index, peer), number, message, own);
    };
    let (right, of_peer) = match request.operation {
        Operation::Read => (Right::RemoteRead, function.handle_of(message.source, pd)),
        _ => (Right::RemoteWrite, function.handle_of(message.source, pd)),
    };
    if of_peer.is_none() {
        return Some(status::PEER_KNOWS_US_NOT);
    }
    let region = mr::find(function, remote.key, mr::rkey, pd, right);
    let pieces = region.and_then(|region| region.pieces(remote.address, remote.length.into()));
    let Some(pieces) = pieces.or((remote.length == 0).then(Vec::new)) else {
        return Some(status::PEER_BAD_ADDRESS);
    };
    let chance = &mut fabric.chance;
    if request.operation == Operation::Read {
        let function = &mut fabric.functions[peer];
        let data = gather(&function.memory, &pieces);
        function.stats.read_by_peers += u64::from(remote.length);
        return Some(match (data, own) {
            (Some(data), Own::Places(places)) => {
                let is_done = scatter(&fabric.functions[index].memory, &places, &data, chance);
                if is_done {
                    status::OK
                } else {
                    status::BAD_LKEY
                }
            }
            _ => status::PEER_ABORT,
        });
    }
    // The receive that the completion of the data consumes must be there before the data are written.
    let consumed = match request.immediate {
        Some(_) if !unsolicited => Some(take_receive(
            &mut fabric.functions[peer],
            number,
            kind,
            chance,
        )?),
        _ => None,
    };
    let Some(data) = bytes_of(&fabric.functions[index], own) else {
        return Some(status::BAD_LKEY);
    };
    let function = &mut fabric.functions[peer];
    if !scatter(&function.memory, &pieces, &data, chance) {
        return Some(status::PEER_ABORT);
    }
    function.stats.written_by_peers += data.len() as u64;
    if request.immediate.is_some() {
        let receive = consumed.as_ref().map(|receive| receive.id);
        arrived(function, number, message, receive, status::OK, data.len());
    }
    Some(status::OK)
}

fn bytes_of(function: &Function, own: Own) -> Option<Vec<u8>> {
    match own {
        Own::Bytes(bytes) => Some(bytes),
        Own::Places(places) => gather(&function.memory, &places),
    }
}

/// Bytes before the data of a datagram, as long as a global route header. Nobody has said what is in them, so
/// it is anything.
const UD_HEADER: usize = 40;

/// A SEND arrives.
fn receive(
    fabric: &mut Fabric,
    (index, peer): (usize, usize),
    number: u32,
    message: &Message<'_>,
    own: Own,
) -> Option<u8> {
    let Some(mut data) = bytes_of(&fabric.functions[index], own) else {
        return Some(status::BAD_LKEY);
    };
    let function = &mut fabric.functions[peer];
    let queue_pair = function.objects.qps.get(number).ok()?;
    let (pd, kind) = (queue_pair.pd, queue_pair.kind);
    if kind == Kind::Ud {
        let header = [(); UD_HEADER].map(|()| fabric.chance.below(256) as u8);
        data.splice(..0, header);
    }
    let Some(request) = take_receive(function, number, kind, &mut fabric.chance) else {
        function.stats.drops += 1;
        return None;
    };
    let room: usize = request
        .slices
        .iter()
        .map(|slice| slice.length as usize)
        .sum();
    let places = places(function, pd, &request.slices, Right::LocalWrite);
    let (receiver, sender) = match places {
        None => (status::BAD_LKEY, status::PEER_ABORT),
        Some(_) if data.len() > room => (status::BAD_LENGTH, status::PEER_BAD_LENGTH),
        Some(places) => match scatter(&function.memory, &places, &data, &mut fabric.chance) {
            true => (status::OK, status::OK),
            false => (status::BAD_LKEY, status::PEER_ABORT),
        },
    };
    function.stats.received.add(data.len());
    arrived(
        function,
        number,
        message,
        Some(request.id),
        receiver,
        data.len(),
    );
    Some(sender)
}

/// Takes a receive request. SRD takes one of the oldest, and the oldest of all only if there is no other:
/// nobody promises an order.
fn take_receive(
    function: &mut Function,
    number: u32,
    kind: Kind,
    chance: &mut Chance,
) -> Option<Receive> {
    if function.faults.not_ready {
        return None;
    }
    let queue_pair = function.objects.qps.get_mut(number).ok()?;
    let choice = match (kind, queue_pair.receives.len()) {
        (_, 0) => return None,
        (Kind::Ud, _) => 0,
        (Kind::Srd, 1) => 0,
        (Kind::Srd, count) => 1 + chance.below((count - 1).min(CHOICE)),
    };
    let request = queue_pair.receives.remove(choice)?;
    queue_pair.receive_ring.ids.remove(&request.id);
    queue_pair.receive_ring.used -= request.slices.len();
    Some(request)
}

/// Writes the completion of a message that has arrived.
fn arrived(
    function: &mut Function,
    number: u32,
    message: &Message<'_>,
    receive: Option<u16>,
    status: u8,
    length: usize,
) {
    /// The kind of the queue, and that there are immediate data, and that no request was consumed.
    const RECEIVE: u8 = 2 << 1;
    const IMMEDIATE: u8 = 1 << 3;
    const UNSOLICITED: u8 = 1 << 7;
    let Ok(queue_pair) = function.objects.qps.get(number) else {
        return;
    };
    let completes = queue_pair.receive;
    let handle = function.handle_of(message.source, queue_pair.pd);
    let mut entry = [0; 32];
    put(&mut entry, 0, &receive.unwrap_or_default().to_le_bytes());
    entry[2] = status;
    entry[3] = RECEIVE | (message.request.operation as u8) << 4;
    if receive.is_none() {
        entry[3] |= UNSOLICITED;
    }
    put(&mut entry, 4, &queue_pair.number.to_le_bytes());
    put(&mut entry, 6, &(length as u16).to_le_bytes());
    put(&mut entry, 8, &handle.unwrap_or(UNKNOWN).to_le_bytes());
    put(&mut entry, 10, &message.source_qpn.to_le_bytes());
    if let Some(immediate) = message.request.immediate {
        entry[3] |= IMMEDIATE;
        put(&mut entry, 12, &immediate);
    }
    let with_source = function
        .objects
        .cqs
        .get(completes.cqn)
        .is_ok_and(|cq| cq.with_source);
    if message.request.operation == Operation::Write {
        put(&mut entry, 16, &((length >> 16) as u16).to_le_bytes());
        // What is behind means nothing.
        entry[18..].fill(0xee);
    } else if handle.is_none() && with_source {
        put(&mut entry, 16, &message.source);
    }
    cq::push(function, completes.cqn, completes.ring, entry);
}

/// Completes all sends of a queue pair that goes: those that have ended with their own status.
pub(crate) fn flush_sends(function: &mut Function, number: u32) {
    let Ok(queue_pair) = function.objects.qps.get_mut(number) else {
        return;
    };
    for waiting in std::mem::take(&mut queue_pair.requests) {
        end(function, number, &waiting.thing, status::FLUSHED);
    }
    let Ok(queue_pair) = function.objects.qps.get_mut(number) else {
        return;
    };
    for waiting in std::mem::take(&mut queue_pair.ended) {
        complete(function, number, waiting.thing);
    }
}

/// Completes all receive requests of a queue pair that has failed.
pub(crate) fn flush_receives(function: &mut Function, number: u32) {
    /// The kind of the queue.
    const RECEIVE: u8 = 2 << 1;
    let Ok(queue_pair) = function.objects.qps.get_mut(number) else {
        return;
    };
    if queue_pair.state != State::Err {
        return;
    }
    let (completes, qpn) = (queue_pair.receive, queue_pair.number);
    queue_pair.receive_ring.ids.clear();
    queue_pair.receive_ring.used = 0;
    for request in std::mem::take(&mut queue_pair.receives) {
        let mut entry = [0; 32];
        put(&mut entry, 0, &request.id.to_le_bytes());
        entry[2] = status::FLUSHED;
        entry[3] = RECEIVE;
        put(&mut entry, 4, &qpn.to_le_bytes());
        put(&mut entry, 8, &UNKNOWN.to_le_bytes());
        cq::push(function, completes.cqn, completes.ring, entry);
    }
}
