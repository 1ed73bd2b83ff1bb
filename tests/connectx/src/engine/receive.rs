//! The receiving side: what a message does at its queue pair.

use serde_json::json;

use crate::engine::cqe::{Completion, Kind};
use crate::engine::inline::{self, Entry, Room, Side};
use crate::engine::packet::{Answer, Message, Operation, Tail};
use crate::engine::syndrome::Syndrome;
use crate::engine::wqe::UNIT;
use crate::function::Function;
use crate::layout::{dctc, qpc};
use crate::object::eq::Event;
use crate::object::mkey::{Access, TERMINATOR};
use crate::object::qp::{QueuePair, State, Transport};
use crate::object::{cq, eq};
use crate::tap;
use crate::translate::{self, Place, User};

/// A receive request that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    index: u16,
    segments: Vec<u8>,
}

/// Hands a message to a queue pair.
pub(super) fn deliver(function: &mut Function, qpn: u32, message: &Message) -> Answer {
    let Ok(queue_pair) = function.objects.qps.get(qpn) else {
        return Answer::Silence;
    };
    let ready = matches!(
        queue_pair.state(),
        State::ReadyToReceive | State::ReadyToSend | State::SendQueueError
    );
    if !ready {
        return Answer::Silence;
    }
    let context = Context::of(queue_pair, qpn);
    let Some(travels) = message.travels else {
        return take_up(function, context, message);
    };
    // Packets that are not the next are taken for such that came before, or are missed.
    if travels.psn != queue_pair.psn[1] {
        return Answer::Silence;
    }
    let has_other_packets = travels.mtu != mtu(queue_pair) && travels.packets > 1;
    let most_reads = 1 << queue_pair.field(qpc::LOG_RRA_MAX);
    if has_other_packets || travels.reads > most_reads {
        return refuse(function, context, Syndrome::RemoteInvalidRequest);
    }
    let answer = take_up(function, context, message);
    if let (Answer::Done(_), Ok(queue_pair)) = (&answer, function.objects.qps.get_mut(qpn)) {
        queue_pair.psn[1] = travels.end();
    }
    answer
}

/// The most bytes of a packet of a queue pair.
pub(super) fn mtu(queue_pair: &QueuePair) -> u64 {
    128 << queue_pair.field(qpc::MTU)
}

/// Hands a message to a queue pair, that its peer may send.
fn take_up(function: &mut Function, context: Context, message: &Message) -> Answer {
    let context = match context.transport {
        Transport::Xrc => match named(function, context, message) {
            Some(context) => context,
            None => return refuse(function, context, Syndrome::RemoteInvalidRequest),
        },
        _ => context,
    };
    carry_out(function, context, message)
}

/// Hands a message to a DC target, whose key it must have.
pub(super) fn deliver_to_target(function: &mut Function, number: u32, message: &Message) -> Answer {
    let Ok(target) = function.objects.dcts.get(number) else {
        return Answer::Silence;
    };
    if !target.is_active() {
        return Answer::Silence;
    }
    let context = Context {
        qpn: number,
        pd: target.pd(),
        transport: Transport::Dc,
        shared: Some(target.srqn()),
    };
    if !message.access_key.is_some_and(|key| target.has_key(key)) {
        return Answer::Refused(Syndrome::RemoteAccess);
    }
    carry_out(function, context, message)
}

/// Does what a message asks for.
fn carry_out(function: &mut Function, context: Context, message: &Message) -> Answer {
    if function.faults.not_ready && message.operation.takes_receive() {
        return Answer::NotReady;
    }
    match &message.operation {
        Operation::Send { data, tail } => send(function, context, message, data, *tail),
        Operation::Write {
            address,
            key,
            data,
            immediate,
        } => {
            let place = Place {
                key: *key,
                address: *address,
                length: data.len() as u64,
            };
            write(function, context, message, place, data, *immediate)
        }
        Operation::Read {
            address,
            key,
            length,
        } => {
            let place = Place {
                key: *key,
                address: *address,
                length: *length,
            };
            read(function, context, place)
        }
        Operation::CompareSwap {
            address,
            key,
            swap,
            compare,
        } => atomic(function, context, *address, *key, |old| {
            if old == *compare { *swap } else { old }
        }),
        Operation::FetchAdd { address, key, add } => {
            atomic(function, context, *address, *key, |old| {
                old.wrapping_add(*add)
            })
        }
    }
}

/// The queue pair that a message is for, or the DC target.
#[derive(Clone, Copy, Debug)]
struct Context {
    qpn: u32,
    pd: u32,
    transport: Transport,
    /// The shared receive queue that it receives from, if it does.
    shared: Option<u32>,
}

impl Context {
    fn of(queue_pair: &QueuePair, qpn: u32) -> Self {
        Self {
            qpn,
            pd: queue_pair.pd(),
            transport: queue_pair.transport(),
            shared: queue_pair.shared_queue(),
        }
    }

    fn user(self) -> User {
        User {
            qpn: self.qpn,
            pd: self.pd,
        }
    }
}

/// The queue pair with the shared receive queue that a message of XRC names, in whose protection domain the
/// message is. None if that is not in the queue pair's domain.
fn named(function: &Function, context: Context, message: &Message) -> Option<Context> {
    let srqn = message.shared_queue?;
    let srq = function.objects.srqs.get(srqn).ok()?;
    let domain = function.objects.qps.get(context.qpn).ok()?.domain();
    (srq.xrc().map(|xrc| xrc.domain) == domain).then(|| Context {
        pd: srq.pd(),
        shared: Some(srqn),
        ..context
    })
}

/// The completion queue of receives, and the number by which the provider finds who has received: with XRC,
/// the shared receive queue.
fn reports(function: &Function, context: Context) -> Option<(u32, u32)> {
    if context.transport == Transport::Xrc {
        let xrc = function.objects.srqs.get(context.shared?).ok()?.xrc()?;
        return Some((xrc.cqn, xrc.user_index));
    }
    if context.transport == Transport::Dc {
        let target = function.objects.dcts.get(context.qpn).ok()?;
        return Some((target.cqn(), target.user_index()));
    }
    let queue_pair = function.objects.qps.get(context.qpn).ok()?;
    Some((
        queue_pair.receive_cqn(),
        queue_pair.field32(qpc::USER_INDEX),
    ))
}

fn send(
    function: &mut Function,
    context: Context,
    message: &Message,
    data: &[u8],
    tail: Tail,
) -> Answer {
    let taken = match take(function, context) {
        Ok(Some(taken)) => taken,
        Ok(None) => return Answer::NotReady,
        Err(answer) => return answer,
    };
    if finds_page_missing(function, context) {
        post_error(function, context, taken.index, Syndrome::PageFault);
        return Answer::NotReady;
    }
    let mut whole = Vec::new();
    if let Some(header) = &message.header {
        whole.extend_from_slice(&header.bytes);
    }
    whole.extend_from_slice(data);
    let room = inline::room(function, context.qpn, Side::Responder, &whole);
    let placed = match room {
        // Where they would go, and whether they may, is looked at all the same.
        Some(_) => places(&taken.segments, &whole).and_then(|places| {
            let mut places = places.iter();
            places.try_for_each(|(place, _)| {
                translate::check(function, context.user(), *place, Access::LocalWrite)?;
                Ok(())
            })
        }),
        None => scatter(function, context.user(), &taken.segments, &whole),
    };
    let (kind, immediate) = match tail {
        Tail::Plain => (Kind::Send, [0, 0, 0xff, 0xff]),
        Tail::Immediate(immediate) => (Kind::SendImmediate, immediate),
        Tail::Invalidate(key) => (Kind::SendInvalidate, key),
    };
    let placed = placed.and_then(|()| invalidate(function, context, tail));
    if let Err(syndrome) = placed {
        return fail_receive(function, context, &taken, syndrome);
    }
    complete(
        function,
        context,
        message,
        Done {
            kind,
            index: taken.index,
            length: whole.len(),
            immediate,
            inline: room.map(|room| (whole.as_slice(), room)),
        },
    );
    Answer::Done(Vec::new())
}

/// Whether a test has asked for a page that is missing when the next message comes to a shared receive queue.
/// The kernel has nothing to fetch here, so it is not told; the driver is.
fn finds_page_missing(function: &mut Function, context: Context) -> bool {
    let repeats = matches!(context.transport, Transport::Rc | Transport::Xrc);
    let missing = context.shared.is_some() && repeats && function.faults.pages > 0;
    function.faults.pages -= u32::from(missing);
    missing
}

/// Takes the key away that the message names.
fn invalidate(function: &mut Function, context: Context, tail: Tail) -> Result<(), Syndrome> {
    let Tail::Invalidate(key) = tail else {
        return Ok(());
    };
    let key = u32::from_be_bytes(key);
    let found = function.objects.mkeys.get_mut(key >> 8).ok();
    let done = found
        .filter(|found| {
            found.pd() == context.pd
                && found.is_for(context.qpn)
                && u32::from(found.variant()) == key & 0xff
        })
        .is_some_and(|found| found.invalidate());
    if done {
        Ok(())
    } else {
        Err(Syndrome::LocalProtection)
    }
}

fn write(
    function: &mut Function,
    context: Context,
    message: &Message,
    place: Place,
    data: &[u8],
    immediate: Option<[u8; 4]>,
) -> Answer {
    // A receive request must be there before anything is written, or the write would happen twice.
    let ready = match immediate {
        Some(_) => has_receive(function, context),
        None => true,
    };
    if !ready {
        return Answer::NotReady;
    }
    let allowed = may(function, context, Right::Write);
    if !allowed {
        return refuse(function, context, Syndrome::RemoteAccess);
    }
    if !data.is_empty()
        && translate::write(function, context.user(), place, Access::RemoteWrite, data).is_err()
    {
        return refuse(function, context, Syndrome::RemoteAccess);
    }
    if let Some(immediate) = immediate {
        let taken = match take(function, context) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Answer::NotReady,
            Err(answer) => return answer,
        };
        let done = Done {
            kind: Kind::WriteImmediate,
            index: taken.index,
            length: data.len(),
            immediate,
            inline: None,
        };
        complete(function, context, message, done);
    }
    Answer::Done(Vec::new())
}

fn read(function: &mut Function, context: Context, place: Place) -> Answer {
    let mut data = Vec::new();
    let allowed = may(function, context, Right::Read);
    if allowed
        && (place.length == 0
            || translate::read(
                function,
                context.user(),
                place,
                Access::RemoteRead,
                &mut data,
            )
            .is_ok())
    {
        return Answer::Done(data);
    }
    refuse(function, context, Syndrome::RemoteAccess)
}

fn atomic(
    function: &mut Function,
    context: Context,
    address: u64,
    key: u32,
    new: impl Fn(u64) -> u64,
) -> Answer {
    if !address.is_multiple_of(8) {
        return refuse(function, context, Syndrome::RemoteInvalidRequest);
    }
    let place = Place {
        key,
        address,
        length: 8,
    };
    // Before anything is changed.
    if !may(function, context, Right::Atomic) {
        return refuse(function, context, Syndrome::RemoteAccess);
    }
    match translate::update(function, context.user(), place, new) {
        Ok(old) => Answer::Done(old.to_le_bytes().to_vec()),
        Err(_) => refuse(function, context, Syndrome::RemoteAccess),
    }
}

/// What a peer may do or not.
#[derive(Clone, Copy, Debug)]
enum Right {
    Read,
    Write,
    Atomic,
}

/// Whether the queue pair, or the DC target, lets its peer do that.
fn may(function: &Function, context: Context, right: Right) -> bool {
    let objects = &function.objects;
    if context.transport == Transport::Dc {
        let right = match right {
            Right::Read => dctc::RRE,
            Right::Write => dctc::RWE,
            Right::Atomic => dctc::RAE,
        };
        let target = objects.dcts.get(context.qpn);
        return target.is_ok_and(|target| target.field(right) != 0);
    }
    let right = match right {
        Right::Read => qpc::RRE,
        Right::Write => qpc::RWE,
        Right::Atomic => qpc::RAE,
    };
    let queue_pair = objects.qps.get(context.qpn);
    queue_pair.is_ok_and(|queue_pair| queue_pair.field(right) != 0)
}

/// Refuses a request for which no receive request stands: the queue pair fails, and an event says why. A DC
/// target goes on: it serves others, and the initiator alone fails.
fn refuse(function: &mut Function, context: Context, syndrome: Syndrome) -> Answer {
    if context.transport == Transport::Dc {
        return Answer::Refused(syndrome);
    }
    if context.transport == Transport::Uc {
        // Nothing is answered, and the message is dropped.
        return Answer::Silence;
    }
    let event = match syndrome {
        Syndrome::RemoteAccess => Event::WqAccess,
        _ => Event::WqInvalidRequest,
    };
    set_error(function, context.qpn);
    eq::notify_about(function, event, context.qpn);
    Answer::Refused(syndrome)
}

/// Completes a receive request with an error, and tells the peer.
fn fail_receive(
    function: &mut Function,
    context: Context,
    taken: &Taken,
    syndrome: Syndrome,
) -> Answer {
    post_error(function, context, taken.index, syndrome);
    set_error(function, context.qpn);
    match syndrome {
        _ if !context.transport.is_reliable() => Answer::Silence,
        Syndrome::LocalLength => Answer::Refused(Syndrome::RemoteInvalidRequest),
        _ => Answer::Refused(Syndrome::RemoteOperation),
    }
}

/// Puts a queue pair into the error state; the engine flushes it then.
pub(super) fn set_error(function: &mut Function, qpn: u32) {
    if let Ok(queue_pair) = function.objects.qps.get_mut(qpn) {
        queue_pair.set_state(State::Error);
        function.kicked.push(qpn);
    }
}

/// Tells that a queue pair that has just failed takes no more from its shared receive queue.
pub(super) fn leave_shared(function: &mut Function, qpn: u32) {
    if let Ok(queue_pair) = function.objects.qps.get_mut(qpn)
        && queue_pair.shared_queue().is_some()
        && !std::mem::replace(&mut queue_pair.left_shared, true)
    {
        eq::notify_about(function, Event::LastWqeReached, qpn);
    }
}

/// Whether a receive request waits.
fn has_receive(function: &Function, context: Context) -> bool {
    match context.shared {
        Some(srqn) => {
            let srq = function.objects.srqs.get(srqn);
            srq.is_ok_and(|srq| srq.left(&function.memory).unwrap_or(0) != 0)
        }
        None => {
            let queue_pair = function.objects.qps.get(context.qpn);
            queue_pair.is_ok_and(|queue_pair| own_receives(function, queue_pair) != 0)
        }
    }
}

/// How many requests wait in the own receive queue.
fn own_receives(function: &Function, queue_pair: &QueuePair) -> u16 {
    let posted = function.memory.read_be32(queue_pair.doorbell_record());
    match (queue_pair.own_receive_queue(), posted) {
        (Some(_), Ok(posted)) => (posted as u16).wrapping_sub(queue_pair.receive_consumer),
        _ => 0,
    }
}

/// Takes the next receive request.
fn take(function: &mut Function, context: Context) -> Result<Option<Taken>, Answer> {
    match context.shared {
        Some(srqn) => take_shared(function, srqn),
        None => take_own(function, context.qpn),
    }
}

fn take_shared(function: &mut Function, srqn: u32) -> Result<Option<Taken>, Answer> {
    let Ok(srq) = function.objects.srqs.get_mut(srqn) else {
        return Err(Answer::Silence);
    };
    if let Some(waiting) = srq.excess(&function.memory) {
        let text = format!(
            "shared receive queue {srqn:#x}: the doorbell record says that {waiting} entries wait, it has fewer"
        );
        function.report.violation(text);
        return Err(Answer::Silence);
    }
    let entry = srq.take(&function.memory);
    let low = srq.limit_reached(&function.memory);
    if low {
        eq::notify_about(function, Event::SrqLimit, srqn);
    }
    match entry {
        Ok(entry) => Ok(entry.map(|entry| {
            let taken = Taken {
                index: entry.index,
                segments: entry.segments,
            };
            tapped(function, "shared_receive", srqn, &entry.link, &taken);
            taken
        })),
        Err(unmapped) => {
            let text = format!("shared receive queue {srqn:#x} is not in memory: {unmapped:x?}");
            function.report.violation(text);
            Err(Answer::Silence)
        }
    }
}

fn take_own(function: &mut Function, qpn: u32) -> Result<Option<Taken>, Answer> {
    let Ok(queue_pair) = function.objects.qps.get(qpn) else {
        return Err(Answer::Silence);
    };
    let waiting = own_receives(function, queue_pair);
    let Some((log_size, log_stride)) = queue_pair.own_receive_queue() else {
        return Ok(None);
    };
    if waiting == 0 {
        return Ok(None);
    }
    if u32::from(waiting) > 1 << log_size {
        let text = format!(
            "queue pair {qpn:#x}: the doorbell record says that {waiting} receive requests wait, the queue has {}",
            1 << log_size
        );
        function.report.violation(text);
        return Err(Answer::Silence);
    }
    let (index, left_out) = next_own(queue_pair, waiting);
    let slot = u64::from(index) & ((1 << log_size) - 1);
    let mut segments = vec![0; 1 << log_stride];
    let read = queue_pair
        .pages()
        .read(&function.memory, slot << log_stride, &mut segments);
    if read.is_err() {
        let text = format!("queue pair {qpn:#x}: the receive queue is not in memory");
        function.report.violation(text);
        return Err(Answer::Silence);
    }
    if let Ok(queue_pair) = function.objects.qps.get_mut(qpn) {
        queue_pair.receive_consumer = queue_pair.receive_consumer.wrapping_add(1);
        queue_pair.left_out = left_out;
    }
    let taken = Taken { index, segments };
    tapped(function, "receive", qpn, &[], &taken);
    Ok(Some(taken))
}

/// Which request of the own receive queue is used next, of so many that wait, and which is left out for now.
/// A queue pair that receives out of order uses the second of two requests first and then the first, as if
/// the network had swapped their messages.
fn next_own(queue_pair: &QueuePair, waiting: u16) -> (u16, Option<u16>) {
    let next = queue_pair.receive_consumer;
    match queue_pair.left_out {
        Some(left_out) => (left_out, None),
        None if queue_pair.is_loose() && waiting > 1 => (next.wrapping_add(1), Some(next)),
        None => (next, None),
    }
}

/// Tells the tap of a request that was taken, from the queue of that number, with what chains it to the next.
fn tapped(function: &Function, kind: &str, queue: u32, link: &[u8], taken: &Taken) {
    function.tap.record(|| {
        let (segments, _) = taken.segments.as_chunks::<UNIT>();
        let segments: Vec<_> = segments
            .iter()
            .map(|segment| {
                let [l3, l2, l1, l0, k3, k2, k1, k0, address @ ..] = *segment;
                json!({
                    "length": u32::from_be_bytes([l3, l2, l1, l0]),
                    "key": u32::from_be_bytes([k3, k2, k1, k0]),
                    "address": u64::from_be_bytes(address),
                })
            })
            .collect();
        json!({
            "kind": kind,
            "function": function.number(),
            "queue": queue,
            "index": taken.index,
            "link": tap::hex(link),
            "bytes": tap::hex(&taken.segments),
            "segments": segments,
        })
    });
}

/// Puts data into the buffers of a receive request.
pub(crate) fn scatter(
    function: &Function,
    by: User,
    segments: &[u8],
    data: &[u8],
) -> Result<(), Syndrome> {
    // What fits is written even if not all does.
    let (places, rest) = split(segments, data);
    for (place, now) in places {
        translate::write(function, by, place, Access::LocalWrite, now)?;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(Syndrome::LocalLength)
    }
}

/// Which part of the data belongs where, if there is a place for all.
fn places<'d>(segments: &[u8], data: &'d [u8]) -> Result<Vec<(Place, &'d [u8])>, Syndrome> {
    match split(segments, data) {
        (places, []) => Ok(places),
        _ => Err(Syndrome::LocalLength),
    }
}

/// What a slice of length 0 has room for.
const ZERO_LENGTH: usize = 1 << 31;

/// Which part of the data belongs where, and what finds no place.
fn split<'d>(segments: &[u8], data: &'d [u8]) -> (Vec<(Place, &'d [u8])>, &'d [u8]) {
    let mut places = Vec::new();
    let mut rest = data;
    let (segments, _) = segments.as_chunks::<UNIT>();
    for segment in segments {
        if rest.is_empty() {
            break;
        }
        let [l3, l2, l1, l0, k3, k2, k1, k0, address @ ..] = *segment;
        let key = u32::from_be_bytes([k3, k2, k1, k0]);
        let length = match u32::from_be_bytes([l3, l2, l1, l0]) {
            0 if key == TERMINATOR => break,
            0 => ZERO_LENGTH,
            length => length as usize,
        };
        let (now, later) = rest.split_at(length.min(rest.len()));
        let place = Place {
            key,
            address: u64::from_be_bytes(address),
            length: now.len() as u64,
        };
        places.push((place, now));
        rest = later;
    }
    (places, rest)
}

/// What a completed receive request says.
#[derive(Clone, Copy, Debug)]
struct Done<'d> {
    kind: Kind,
    index: u16,
    length: usize,
    immediate: [u8; 4],
    /// The data, if they are in the entry.
    inline: Option<(&'d [u8], Room)>,
}

fn complete(function: &mut Function, context: Context, message: &Message, done: Done<'_>) {
    let Some((cqn, user_index)) = reports(function, context) else {
        return;
    };
    let qpn = context.qpn;
    let completion = Completion {
        kind: done.kind,
        qpn,
        user_index,
        counter: done.index,
        opcode: 0,
        length: u32::try_from(done.length).unwrap_or(u32::MAX),
        immediate: done.immediate,
        source: Some(message.source),
        syndrome: None,
        timestamp: function.clock(),
    };
    let entry = Entry::new(completion.encode(), done.inline);
    if !cq::complete(function, cqn, entry, message.solicited) {
        set_error(function, qpn);
    }
}

/// Completes a receive request with an error.
fn post_error(function: &mut Function, context: Context, index: u16, syndrome: Syndrome) {
    let Some((cqn, user_index)) = reports(function, context) else {
        return;
    };
    let completion = Completion {
        kind: Kind::ResponderError,
        qpn: context.qpn,
        user_index,
        counter: index,
        opcode: 0,
        length: 0,
        immediate: [0; 4],
        source: None,
        syndrome: Some(syndrome),
        timestamp: 0,
    };
    cq::complete(function, cqn, completion.encode(), true);
}

/// Completes all requests of the own receive queue as flushed. A shared queue keeps its requests.
pub(super) fn flush(function: &mut Function, qpn: u32) {
    let queue_pair = function.objects.qps.get(qpn);
    let Ok(context) = queue_pair.map(|queue_pair| Context::of(queue_pair, qpn)) else {
        return;
    };
    if context.shared.is_some() {
        return;
    }
    while let Ok(Some(taken)) = take_own(function, qpn) {
        post_error(function, context, taken.index, Syndrome::Flushed);
    }
}

#[cfg(test)]
mod tests;
