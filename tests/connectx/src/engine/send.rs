//! The sending side: takes requests from a send queue one by one, makes messages of them, and completes them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engine::cqe::{Completion, Kind, NetworkHeader, Source};
use crate::engine::inline::{self, Entry, Room, Side};
use crate::engine::packet::{Answer, Message, Operation, Tail, Travels};
use crate::engine::syndrome::Syndrome;
use crate::engine::wqe::{self, Control, Expected, Malformed, Opcode, Request, Segment, UNIT};
use crate::engine::{fabric, header, receive, umr};
use crate::function::Function;
use crate::layout::qpc::{self, path};
use crate::object::cq;
use crate::object::mkey::Access;
use crate::object::qp::{Ahead, BLOCK, QueuePair, Rung, State, Transport, Waiting};
use crate::registers::SendDoorbell;
use crate::tap;
use crate::translate::{self, Place, User};
use vfio_model::memory::GuestMemory;

/// Bytes of the longest request.
const LONGEST: usize = 63 * UNIT;
/// The longest message.
const LONGEST_MESSAGE: u64 = 1 << 30;

/// What became of a request.
enum Outcome {
    /// It is done, with so many bytes.
    Done(u64),
    /// It is done, and these bytes go into its completion.
    Inline(Vec<u8>, Room),
    /// It failed.
    Failed(Syndrome),
    /// The peer is not ready or silent; for how long that may go on, if not for ever, and what it is then.
    Wait(Option<Duration>, Syndrome),
}

/// Carries out what is posted, until nothing is left or a request must wait.
pub(super) fn run(functions: &mut [Function], index: usize, qpn: u32) {
    while step(functions, index, qpn) {}
}

/// Carries out one request. Gives whether to go on.
fn step(functions: &mut [Function], index: usize, qpn: u32) -> bool {
    let Some(function) = functions.get_mut(index) else {
        return false;
    };
    let Ok(queue_pair) = function.objects.qps.get(qpn) else {
        return false;
    };
    let state = queue_pair.state();
    let flushing = matches!(state, State::Error | State::SendQueueError);
    // The driver's own queue goes on, or it could not even register memory.
    let stalled = function.faults.stalls() && queue_pair.transport() != Transport::RegUmr;
    if stalled || !flushing && state != State::ReadyToSend {
        return false;
    }
    let Some(fetched) = fetch(function, qpn) else {
        return false;
    };
    let control = fetched.control;
    let Expected {
        index: at, posted, ..
    } = fetched.expected;
    if !flushing && !may_run(function, qpn, at, posted) {
        return false;
    }
    let flushing = flushing || has_failed(function, qpn, control.stream());
    let decoded = wqe::decode(&fetched.bytes, fetched.expected);
    // One that waits was seen when it was looked at first.
    if queue_pair_waits_not(function, qpn) {
        function
            .tap
            .record(|| tapped(function, &fetched, &decoded, flushing));
    }
    if flushing {
        finish(function, qpn, control, Err(Syndrome::Flushed));
        return true;
    }
    let request = match decoded {
        Ok(request) => request,
        Err(malformed) => {
            let text = format!(
                "queue pair {qpn:#x}: {}; the request: {control}",
                malformed.reason
            );
            function.report.violation(text);
            finish(function, qpn, control, Err(malformed.syndrome));
            return true;
        }
    };
    if queue_pair_waits_not(&functions[index], qpn) {
        read_ahead(&mut functions[index], qpn, control, request.opcode);
    }
    let outcome = execute(functions, index, qpn, &request);
    conclude(functions, index, qpn, control, outcome)
}

/// Whether the request of that index, from which on so many blocks are posted, may be carried out: its
/// doorbell has come, or it need not be waited for.
///
/// On a bus, a program's stores to device memory arrive before the device can read the doorbell record that
/// was written behind them. In QEMU they may arrive later. They are there when the doorbell behind them has
/// come.
fn may_run(function: &Function, qpn: u32, index: u16, posted: u16) -> bool {
    let queue_pair = function.objects.qps.get(qpn);
    let rung = queue_pair.map_or(0, |queue_pair| queue_pair.rung_until.wrapping_sub(index));
    !function.objects.memic.is_used() || (1..=posted).contains(&rung)
}

/// Whether that stream of an initiator has failed.
fn has_failed(function: &Function, qpn: u32, stream: u16) -> bool {
    let queue_pair = function.objects.qps.get(qpn);
    queue_pair.is_ok_and(|queue_pair| queue_pair.has_failed(stream))
}

fn queue_pair_waits_not(function: &Function, qpn: u32) -> bool {
    let queue_pair = function.objects.qps.get(qpn);
    queue_pair.is_ok_and(|queue_pair| queue_pair.waiting.is_none())
}

/// The tap's record of a request.
fn tapped(
    function: &Function,
    fetched: &Fetched,
    decoded: &Result<Request, Malformed>,
    flushing: bool,
) -> Value {
    let expected = fetched.expected;
    let size = (usize::from(fetched.control.units) * UNIT).clamp(UNIT, fetched.bytes.len());
    let (name, content) = tap::request(decoded);
    json!({
        "kind": "send",
        "function": function.number(),
        "qpn": expected.qpn,
        "transport": format!("{:?}", expected.transport),
        "index": expected.index,
        "posted": expected.posted,
        "blocks": function.objects.qps.get(expected.qpn).map_or(0, QueuePair::send_blocks),
        "flushed": flushing,
        "bytes": tap::hex(&fetched.bytes[..size]),
        name: content,
    })
}

/// Checks the first 8 bytes of a request as they came with a doorbell against the ring, and keeps the request
/// for what may follow them.
///
/// QEMU does not wait until a write to a register is done. So when a doorbell is taken, its request may have
/// been carried out with the one before and its place in the ring be used anew: then there is nothing to
/// compare with.
pub(super) fn check_doorbell(function: &mut Function, qpn: u32, doorbell: SendDoorbell) {
    let Ok(queue_pair) = function.objects.qps.get_mut(qpn) else {
        return;
    };
    queue_pair.rung = None;
    let Ok(counter) = function.memory.read_be32(queue_pair.doorbell_record() + 4) else {
        return;
    };
    let index = doorbell.index();
    let first = queue_pair.send_consumer;
    if index.wrapping_sub(first) >= (counter as u16).wrapping_sub(first) {
        return;
    }
    let ring = usize::try_from(queue_pair.send_blocks() * BLOCK).unwrap_or(LONGEST);
    let mut bytes = vec![0; (LONGEST + UNIT).min(ring)];
    if read_ring(&function.memory, queue_pair, index, &mut bytes).is_none() {
        return;
    }
    let blocks = bytes
        .first_chunk()
        .map_or(0, |it| Control::read(it).blocks());
    queue_pair.rung_until = index.wrapping_add(blocks);
    let begins = bytes.get(..doorbell.bytes.len()).unwrap_or_default();
    if begins != doorbell.bytes {
        let text = format!(
            "queue pair {qpn:#x}: the doorbell has {:02x?}, the request of that index begins with {begins:02x?}",
            doorbell.bytes
        );
        function.report.violation(text);
        return;
    }
    queue_pair.rung = Some(Rung { index, bytes });
}

/// Checks a piece of a BlueFlame copy: it is what the ring had there, and does not go on behind the request.
/// Gives the request's control segment if it is right.
pub(super) fn check_blue_flame(
    function: &Function,
    queue_pair: &QueuePair,
    doorbell: SendDoorbell,
    at: usize,
    copied: &[u8],
) -> Option<Control> {
    let rung = queue_pair.rung.as_ref()?;
    if rung.index != doorbell.index() {
        return None;
    }
    let control = Control::read(rung.bytes.first_chunk()?);
    let size = usize::from(control.blocks()) * BLOCK as usize;
    let end = at + copied.len();
    let ring = rung.bytes.get(at..end).unwrap_or_default();
    let reason = if end > size {
        format!("goes on to byte {end}, beyond the request")
    } else if ring != copied && !super::signals_nop(&control, at, copied) {
        format!("has {copied:02x?} at byte {at}, where the ring has {ring:02x?}")
    } else {
        return Some(control);
    };
    let text = format!(
        "queue pair {:#x}: the BlueFlame copy {reason}; the request: {control}",
        doorbell.qpn()
    );
    function.report.violation(text);
    None
}

/// Reads a request from the ring. None if there is no ring or it is not in memory, which is told elsewhere.
fn read_ring(
    memory: &GuestMemory,
    queue_pair: &QueuePair,
    index: u16,
    bytes: &mut [u8],
) -> Option<()> {
    let ring = queue_pair.send_blocks() * BLOCK;
    if ring == 0 {
        return None;
    }
    let at = u64::from(index) * BLOCK % ring;
    let left = usize::try_from(ring - at).unwrap_or(usize::MAX);
    let (head, tail) = bytes.split_at_mut(bytes.len().min(left));
    let start = queue_pair.send_start();
    let pages = queue_pair.pages();
    pages.read(memory, start + at, head).ok()?;
    pages.read(memory, start, tail).ok()
}

/// Completes a request, or lets it wait.
fn conclude(
    functions: &mut [Function],
    index: usize,
    qpn: u32,
    control: Control,
    outcome: Outcome,
) -> bool {
    let Some(function) = functions.get_mut(index) else {
        return false;
    };
    match outcome {
        Outcome::Done(length) => finish(function, qpn, control, Ok(length)),
        Outcome::Inline(data, room) => {
            finish_with(
                function,
                qpn,
                control,
                Ok(data.len() as u64),
                Some((&data, room)),
            );
        }
        Outcome::Failed(syndrome) => finish(function, qpn, control, Err(syndrome)),
        Outcome::Wait(limit, syndrome) => {
            let Ok(queue_pair) = function.objects.qps.get_mut(qpn) else {
                return false;
            };
            let now = Instant::now();
            let since = queue_pair.waiting.map_or(now, |waiting| waiting.since);
            let over = limit.is_some_and(|limit| now.duration_since(since) >= limit);
            if !over {
                queue_pair.waiting = Some(Waiting { since });
                return false;
            }
            finish(function, qpn, control, Err(syndrome));
        }
    }
    true
}

/// A request as it lies in the queue.
struct Fetched {
    bytes: Vec<u8>,
    control: Control,
    expected: Expected,
}

/// Reads the data of the request behind this one before this one is done, as hardware may that is not held
/// back by a fence. Whether it does, the seed of a test decides; without one it never does.
fn read_ahead(function: &mut Function, qpn: u32, before: Control, opcode: Opcode) {
    let changes = matches!(opcode, Opcode::Read | Opcode::ChangeKey) || opcode.is_atomic();
    if !changes || function.faults.ahead.below(2) != Some(1) {
        return;
    }
    let Some(request) = request_behind(function, qpn, before) else {
        return;
    };
    let fetches = matches!(request.opcode, Opcode::Read | Opcode::ChangeKey);
    if fetches || request.opcode.is_atomic() || request.control.waits_for(opcode) {
        return;
    }
    let Ok(queue_pair) = function.objects.qps.get(qpn) else {
        return;
    };
    let by = User {
        qpn,
        pd: queue_pair.pd(),
    };
    let ahead = Ahead {
        index: request.control.index,
        data: gather(function, by, &request.segments),
    };
    if let Ok(queue_pair) = function.objects.qps.get_mut(qpn) {
        queue_pair.ahead = Some(ahead);
    }
}

/// The request behind this one, if one is posted that is well-formed.
fn request_behind(function: &Function, qpn: u32, before: Control) -> Option<Request> {
    let queue_pair = function.objects.qps.get(qpn).ok()?;
    let record = queue_pair.doorbell_record() + 4;
    let counter = function.memory.read_be32(record).ok()? as u16;
    let index = before.index.wrapping_add(before.blocks());
    let posted = counter.wrapping_sub(index);
    let is_posted = posted != 0 && u64::from(posted) <= queue_pair.send_blocks();
    if !is_posted || !may_run(function, qpn, index, posted) {
        return None;
    }
    let fetched = read_request(function, queue_pair, qpn, (index, posted))?;
    wqe::decode(&fetched.bytes, fetched.expected).ok()
}

/// How many READs and atomic operations are in flight with one, which is the first: those behind it that are
/// posted and not held back, as far as the queue pair has so many at a time.
fn reads_in_flight(function: &Function, qpn: u32, queue_pair: &QueuePair, first: Control) -> u32 {
    let most = 1 << queue_pair.field(qpc::LOG_SRA_MAX);
    let (mut count, mut last) = (1, first);
    while count < most
        && let Some(request) = request_behind(function, qpn, last)
        && !request.control.waits_for(Opcode::Read)
    {
        count += u32::from(request.opcode == Opcode::Read || request.opcode.is_atomic());
        last = request.control;
    }
    count
}

/// Reads the next request; none if nothing is posted.
fn fetch(function: &mut Function, qpn: u32) -> Option<Fetched> {
    let queue_pair = function.objects.qps.get(qpn).ok()?;
    let blocks = queue_pair.send_blocks();
    let counter = function
        .memory
        .read_be32(queue_pair.doorbell_record() + 4)
        .ok()?;
    let index = queue_pair.send_consumer;
    let posted = (counter as u16).wrapping_sub(index);
    if posted == 0 || blocks == 0 {
        return None;
    }
    if u64::from(posted) > blocks {
        // Told once: in the error state there is nothing that could be flushed.
        if queue_pair.state() == State::Error {
            return None;
        }
        let text = format!(
            "queue pair {qpn:#x}: the doorbell record says {counter}, but {blocks} blocks from {index} are all there are"
        );
        function.report.violation(text);
        receive::set_error(function, qpn);
        return None;
    }
    read_request(function, queue_pair, qpn, (index, posted))
}

/// Reads the request of that index, from which on so many blocks are posted.
fn read_request(
    function: &Function,
    queue_pair: &QueuePair,
    qpn: u32,
    (index, posted): (u16, u16),
) -> Option<Fetched> {
    let ring = usize::try_from(queue_pair.send_blocks() * BLOCK).unwrap_or(LONGEST);
    let mut bytes = vec![0; LONGEST.min(ring)];
    read_ring(&function.memory, queue_pair, index, &mut bytes)?;
    let control = Control::read(bytes.first_chunk()?);
    let expected = Expected {
        transport: queue_pair.transport(),
        port: function.port.kind,
        qpn,
        index,
        posted,
    };
    Some(Fetched {
        bytes,
        control,
        expected,
    })
}

/// Carries a request out, apart from its completion.
fn execute(functions: &mut [Function], index: usize, qpn: u32, request: &Request) -> Outcome {
    if request.opcode == Opcode::Nop {
        return Outcome::Done(0);
    }
    if let Some(change) = &request.change {
        return match umr::apply(functions, index, qpn, request.control.key(), change) {
            Ok(()) => Outcome::Done(0),
            Err(syndrome) => Outcome::Failed(syndrome),
        };
    }
    let Some(function) = functions.get(index) else {
        return Outcome::Failed(Syndrome::LocalQpOperation);
    };
    let Ok(queue_pair) = function.objects.qps.get(qpn) else {
        return Outcome::Failed(Syndrome::LocalQpOperation);
    };
    let length: u64 = request.segments.iter().map(Segment::length).sum();
    let longest = if queue_pair.transport().is_datagram() {
        receive::mtu(queue_pair)
    } else {
        LONGEST_MESSAGE
    };
    if length > longest {
        return Outcome::Failed(Syndrome::LocalLength);
    }
    let message = match message(function, qpn, queue_pair, request) {
        Ok(message) => message,
        Err(syndrome) => return Outcome::Failed(syndrome),
    };
    let by = User {
        qpn,
        pd: queue_pair.pd(),
    };
    let transport = queue_pair.transport();
    let patience = Patience::of(queue_pair);
    let target = fabric::target(function, queue_pair, request);
    let answer = fabric::carry(functions, index, qpn, target, &message);
    if !transport.is_reliable() {
        // Nobody answers, and what is lost is lost.
        return Outcome::Done(length);
    }
    match answer {
        Answer::Done(data) => {
            let Some(function) = functions.get_mut(index) else {
                return Outcome::Failed(Syndrome::LocalQpOperation);
            };
            if let Some(travels) = message.travels
                && let Ok(queue_pair) = function.objects.qps.get_mut(qpn)
            {
                queue_pair.psn[0] = travels.end();
            }
            // Without a completion there is nothing that could take them.
            if request.control.is_signaled()
                && let Some(room) = inline::room(function, qpn, Side::Requester, &data)
            {
                return Outcome::Inline(data, room);
            }
            match put(function, by, request, &data) {
                Ok(()) => Outcome::Done(length),
                Err(syndrome) => Outcome::Failed(syndrome),
            }
        }
        Answer::NotReady => Outcome::Wait(patience.not_ready, Syndrome::RnrRetryExceeded),
        Answer::Refused(syndrome) => Outcome::Failed(syndrome),
        Answer::Silence => Outcome::Wait(patience.silence, Syndrome::RetryExceeded),
    }
}

/// How long a queue pair tries again; none for ever.
struct Patience {
    not_ready: Option<Duration>,
    silence: Option<Duration>,
}

impl Patience {
    fn of(queue_pair: &QueuePair) -> Self {
        const FOR_EVER: u64 = 7;
        /// The pause that the peer asks for is its own; the model takes a middling one for all.
        const PAUSE: Duration = Duration::from_millis(10);
        let retries = queue_pair.field32(qpc::RETRY_COUNT) + 1;
        let rnr = queue_pair.field(qpc::RNR_RETRY);
        let timeout = queue_pair.field(path::ACK_TIMEOUT);
        Self {
            not_ready: (rnr != FOR_EVER).then(|| PAUSE * (rnr as u32 + 1)),
            silence: (timeout != 0).then(|| Duration::from_nanos(4096 << timeout) * retries),
        }
    }
}

/// Makes the message of a request, with the data that it sends.
fn message(
    function: &Function,
    qpn: u32,
    queue_pair: &QueuePair,
    request: &Request,
) -> Result<Message, Syndrome> {
    let by = User {
        qpn,
        pd: queue_pair.pd(),
    };
    let outgoing = !matches!(request.opcode, Opcode::Read) && !request.opcode.is_atomic();
    let index = request.control.index;
    let data = if let Some(ahead) = queue_pair.ahead.as_ref().filter(|it| it.index == index) {
        ahead.data.clone()?
    } else if outgoing {
        gather(function, by, &request.segments)?
    } else {
        check_room(function, by, &request.segments)?;
        Vec::new()
    };
    let (address, key) = request.remote.unwrap_or_default();
    let (first, second) = request.operands.unwrap_or_default();
    let immediate = request.control.immediate;
    let operation = match request.opcode {
        Opcode::Nop | Opcode::ChangeKey | Opcode::Send => Operation::Send {
            data,
            tail: Tail::Plain,
        },
        Opcode::SendImmediate => Operation::Send {
            data,
            tail: Tail::Immediate(immediate),
        },
        Opcode::SendInvalidate => Operation::Send {
            data,
            tail: Tail::Invalidate(immediate),
        },
        Opcode::Write | Opcode::WriteImmediate => Operation::Write {
            address,
            key,
            data,
            immediate: (request.opcode == Opcode::WriteImmediate).then_some(immediate),
        },
        Opcode::Read => Operation::Read {
            address,
            key,
            length: request.segments.iter().map(Segment::length).sum(),
        },
        Opcode::CompareSwap => Operation::CompareSwap {
            address,
            key,
            swap: first,
            compare: second,
        },
        Opcode::FetchAdd => Operation::FetchAdd {
            address,
            key,
            add: first,
        },
    };
    let length: u64 = request.segments.iter().map(Segment::length).sum();
    let is_connected = matches!(queue_pair.transport(), Transport::Rc | Transport::Xrc);
    let mtu = receive::mtu(queue_pair);
    let travels = is_connected.then(|| Travels {
        psn: queue_pair.psn[0],
        packets: length.div_ceil(mtu).max(1) as u32,
        mtu,
        reads: match outgoing {
            true => 0,
            false => reads_in_flight(function, qpn, queue_pair, request.control),
        },
    });
    let is_dc = queue_pair.transport() == Transport::Dc;
    let datagram = request.vector.filter(|_| !is_dc);
    let header = datagram.map(|vector| header::of(function, &vector, length as usize));
    let service_level = request.vector.map_or_else(
        || queue_pair.field32(path::SL) as u8,
        |vector| vector.service_level,
    );
    Ok(Message {
        operation,
        solicited: request.control.is_solicited(),
        shared_queue: request.shared_queue,
        source: Source {
            qpn: fabric::visible_qpn(queue_pair, qpn),
            lid: function.port.lid,
            service_level,
            header: header.map_or(NetworkHeader::None, |header| header.kind),
        },
        header,
        q_key: datagram.map(|vector| q_key(queue_pair, vector.q_key)),
        access_key: request
            .vector
            .filter(|_| is_dc)
            .map(|vector| vector.access_key),
        travels,
    })
}

/// The key of a datagram: with its highest bit set, the queue pair's own is meant.
fn q_key(queue_pair: &QueuePair, asked: u32) -> u32 {
    const OWN: u32 = 1 << 31;
    if asked & OWN != 0 {
        queue_pair.field32(qpc::Q_KEY)
    } else {
        asked
    }
}

/// Collects the data to send.
fn gather(function: &Function, by: User, segments: &[Segment]) -> Result<Vec<u8>, Syndrome> {
    let mut data = Vec::new();
    for segment in segments {
        match segment {
            Segment::Inline(bytes) => data.extend_from_slice(bytes),
            Segment::Memory { .. } => {
                if let Some(place) = place(segment) {
                    translate::read(function, by, place, Access::LocalRead, &mut data)?;
                }
            }
        }
    }
    Ok(data)
}

/// Checks that what comes back may be written, before the peer does anything.
fn check_room(function: &Function, by: User, segments: &[Segment]) -> Result<(), Syndrome> {
    for place in segments.iter().filter_map(place) {
        translate::check(function, by, place, Access::LocalWrite)?;
    }
    Ok(())
}

/// Writes what came back.
fn put(function: &Function, by: User, request: &Request, data: &[u8]) -> Result<(), Syndrome> {
    let mut rest = data;
    for place in request.segments.iter().filter_map(place) {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(rest.len().min(place.length as usize));
        translate::write(function, by, place, Access::LocalWrite, now)?;
        rest = later;
    }
    Ok(())
}

fn place(segment: &Segment) -> Option<Place> {
    match *segment {
        Segment::Inline(_) => None,
        Segment::Memory {
            length,
            key,
            address,
        } => Some(Place {
            key,
            address,
            length: length.into(),
        }),
    }
}

/// Moves on behind a request, and completes it if that is wanted or it failed.
fn finish(function: &mut Function, qpn: u32, control: Control, result: Result<u64, Syndrome>) {
    finish_with(function, qpn, control, result, None);
}

/// As [`finish`], with data that go into the completion.
fn finish_with(
    function: &mut Function,
    qpn: u32,
    control: Control,
    result: Result<u64, Syndrome>,
    inline: Option<(&[u8], Room)>,
) {
    let timestamp = function.clock();
    let Ok(queue_pair) = function.objects.qps.get_mut(qpn) else {
        return;
    };
    let counter = queue_pair.send_consumer;
    // A request of impossible size would never end; what follows it is flushed from the next block on.
    queue_pair.send_consumer = counter.wrapping_add(control.blocks().max(1));
    queue_pair.waiting = None;
    queue_pair.ahead.take_if(|ahead| ahead.index == counter);
    if result.is_ok() && !control.is_signaled() {
        return;
    }
    let failed = result.is_err_and(|syndrome| syndrome != Syndrome::Flushed);
    if failed {
        match queue_pair.transport() {
            Transport::Dc if !queue_pair.fail_stream(control.stream()) => {}
            Transport::Rc | Transport::Xrc | Transport::Dc | Transport::RegUmr => {
                queue_pair.set_state(State::Error);
            }
            _ => queue_pair.set_state(State::SendQueueError),
        }
    }
    let completion = Completion {
        kind: if result.is_ok() {
            Kind::Requester
        } else {
            Kind::RequesterError
        },
        qpn,
        user_index: queue_pair.field32(qpc::USER_INDEX),
        counter,
        opcode: control.opcode,
        length: u32::try_from(result.unwrap_or(0)).unwrap_or(u32::MAX),
        immediate: [0; 4],
        source: None,
        syndrome: result.err(),
        timestamp,
    };
    let cqn = queue_pair.send_cqn();
    let solicited = result.is_err();
    if failed {
        function.kicked.push(qpn);
    }
    let entry = Entry::new(completion.encode(), inline);
    let fits = cq::complete(function, cqn, entry, solicited);
    if !fits && result.is_ok() {
        receive::set_error(function, qpn);
    }
}

#[cfg(test)]
mod tests;
