//! The commands. Places are in bytes from the start of a command's own part, and of an answer's.

use crate::admin::{Answer, Status};
use crate::cq::CompletionQueue;
use crate::event::{ENTRY, EventQueue, GROUPS};
use crate::feature::{self, MAX_CQ_DEPTH, MAX_LLQ, MAX_RECEIVE_DEPTH, MAX_SEND_DEPTH};
use crate::fields::{Fields, put};
use crate::function::{AddressHandle, Function, QUEUE_PAIRS};
use crate::mr;
use crate::qp::{
    self, Completes, Kind, LLQ_ROOM, LLQ_START, QueuePair, ReceiveRing, SendRing, State,
};
use crate::server::{FIRST_OF_CQS, PAGE};
use crate::{cq, engine};

/// A command that is to be executed.
pub(crate) struct Call<'a> {
    /// Its own part.
    pub(crate) input: Fields<'a>,
    /// The flags before that.
    pub(crate) flags: u8,
    pub(crate) answer: Answer,
}

/// Executes a command.
type Handler = fn(&mut Function, &mut Call<'_>) -> Result<(), Status>;

/// A command.
pub(crate) struct Command {
    pub(crate) opcode: u8,
    pub(crate) name: &'static str,
    pub(crate) handler: Handler,
    /// The flags that it may have.
    pub(crate) flags: u8,
}

const fn command(opcode: u8, name: &'static str, handler: Handler) -> Command {
    Command {
        opcode,
        name,
        handler,
        flags: 0,
    }
}

const fn with_list(command: Command, flags: u8) -> Command {
    Command { flags, ..command }
}

/// All commands.
pub(crate) const COMMANDS: [Command; 19] = [
    command(1, "CREATE_QP", create_qp),
    command(2, "MODIFY_QP", modify_qp),
    command(3, "QUERY_QP", query_qp),
    command(4, "DESTROY_QP", destroy_qp),
    command(5, "CREATE_AH", create_ah),
    command(6, "DESTROY_AH", destroy_ah),
    with_list(command(7, "REG_MR", reg_mr), mr::LIST | mr::CHUNKS),
    command(8, "DEREG_MR", dereg_mr),
    command(9, "CREATE_CQ", create_cq),
    command(10, "DESTROY_CQ", destroy_cq),
    command(11, "GET_FEATURE", get_feature),
    with_list(command(12, "SET_FEATURE", set_feature), mr::LIST),
    command(13, "GET_STATS", get_stats),
    command(14, "ALLOC_PD", alloc_pd),
    command(15, "DEALLOC_PD", dealloc_pd),
    command(16, "ALLOC_UAR", alloc_uar),
    command(17, "DEALLOC_UAR", dealloc_uar),
    command(18, "CREATE_EQ", create_eq),
    command(19, "DESTROY_EQ", destroy_eq),
];

/// The command of a name.
pub(crate) fn opcode(name: &str) -> Option<u8> {
    let command = COMMANDS.iter().find(|command| command.name == name)?;
    Some(command.opcode)
}

/// Handles of queue pairs are not their numbers.
const HANDLES: u32 = 0x0bad_0000;

fn handle(command: &mut Fields<'_>, at: usize) -> u32 {
    command.u32(at).wrapping_sub(HANDLES)
}

/// Refuses what no driver asks for, and reports it.
fn wrong<T>(function: &Function, text: impl std::fmt::Display) -> Result<T, Status> {
    function.violation(text);
    Err(Status::IllegalParameter)
}

fn create_qp(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let (pd, kind) = (call.input.u16(0), call.input.u8(2));
    // Rings at virtual addresses (bits 0 and 1) are for drivers that have no rings of their own.
    let (unsolicited, wide_ids) = (call.input.bit(3, 2), call.input.bit(3, 3));
    let base = call.input.u64(12);
    let (send_cqn, receive_cqn) = (call.input.u32(20), call.input.u32(24));
    let (send_bytes, send_depth) = (call.input.u32(36), call.input.u32(40));
    let (receive_bytes, receive_depth) = (call.input.u32(44), call.input.u32(48));
    let (uar, _service_level) = (call.input.u16(52), call.input.u8(54));
    let kind = match kind {
        1 => Kind::Ud,
        2 => Kind::Srd,
        other => {
            return wrong(
                function,
                format_args!("there is no queue pair of type {other}"),
            );
        }
    };
    let (objects, limits) = (&function.objects, function.limits);
    objects.pds.get(pd.into())?;
    objects.uars.get(uar.into())?;
    let send_cq = objects.cqs.get(send_cqn)?;
    objects.cqs.get(receive_cqn)?;
    if wide_ids && !send_cq.wide_ids {
        return wrong(
            function,
            "ids of 64 bits for a completion queue that has them not",
        );
    }
    let stride = send_bytes.checked_div(send_depth).unwrap_or(64);
    if !(send_depth == 0 || send_depth.is_power_of_two())
        || ![64, 128].contains(&stride)
        || send_bytes != send_depth * stride
        || send_bytes > MAX_LLQ
        || send_depth > MAX_SEND_DEPTH
        || (send_depth != 0 && send_depth < limits.min_send_depth.into())
    {
        return wrong(
            function,
            format_args!("a send ring of {send_depth} requests in {send_bytes} bytes"),
        );
    }
    let descriptors = receive_bytes / 16;
    if !(receive_bytes == 0 || descriptors.is_power_of_two())
        || receive_depth > descriptors
        || descriptors > MAX_RECEIVE_DEPTH
    {
        return wrong(
            function,
            format_args!("a receive ring of {receive_depth} requests in {receive_bytes} bytes"),
        );
    }
    let made = function.objects.qps_made;
    // The two queues of a pair use different rings of their completion queues.
    let ring = |turn: u16| (made + turn) % limits.sub_cqs;
    let (send, receive) = (
        Completes {
            cqn: send_cqn,
            ring: ring(0),
        },
        Completes {
            cqn: receive_cqn,
            ring: ring(1),
        },
    );
    let queue_pair = QueuePair {
        number: 0,
        kind,
        pd,
        uar,
        unsolicited,
        wide_ids,
        state: State::Reset,
        qkey: 0,
        psn: 0,
        rnr_retry: engine::ENDLESS,
        send,
        receive,
        send_ring: SendRing::new(send_depth, stride as usize),
        receive_ring: ReceiveRing::new(base, descriptors),
        requests: Vec::new(),
        ended: Vec::new(),
        receives: Default::default(),
    };
    let (index, generation) = match limits.reuses_numbers {
        true => (function.objects.qps.insert_lowest(queue_pair)?, 1),
        false => (function.objects.qps.insert(queue_pair)?, made),
    };
    function.objects.qps_made = made.wrapping_add(1);
    let number = generation.wrapping_mul(QUEUE_PAIRS as u16) | index as u16;
    function.objects.qps.get_mut(index)?.number = number;
    let page = index * PAGE as u32;
    put(&mut call.answer, 0, &(HANDLES + index).to_le_bytes());
    put(&mut call.answer, 4, &number.to_le_bytes());
    put(&mut call.answer, 8, &send.ring.to_le_bytes());
    put(&mut call.answer, 10, &receive.ring.to_le_bytes());
    put(
        &mut call.answer,
        12,
        &(page + qp::SEND_DOORBELL as u32).to_le_bytes(),
    );
    put(
        &mut call.answer,
        16,
        &(page + qp::RECEIVE_DOORBELL as u32).to_le_bytes(),
    );
    let ring = u64::from(index) * LLQ_ROOM + LLQ_START;
    put(&mut call.answer, 20, &(ring as u32).to_le_bytes());
    Ok(())
}

fn modify_qp(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let mask = call.input.bits32(0, 0x3f);
    let index = handle(&mut call.input, 4);
    let (state, current) = (call.input.u32(8), call.input.u32(12));
    let (qkey, psn) = (call.input.u32(16), call.input.u32(20));
    let (drained, rnr_retry) = (call.input.u8(24), call.input.u8(25));
    let queue_pair = function.objects.qps.get_mut(index)?;
    let has = |bit: u32| mask & 1 << bit != 0;
    let (Some(state), Some(current), 0..=1) = (State::of(state), State::of(current), drained)
    else {
        return wrong(
            function,
            format_args!("states {state} and {current}, drained {drained}"),
        );
    };
    if has(1) && current != queue_pair.state {
        return Err(Status::IllegalParameter);
    }
    if has(5) && queue_pair.kind == Kind::Ud {
        return wrong(function, "retries for a queue pair for UD");
    }
    if has(2) {
        queue_pair.qkey = qkey;
    }
    if has(3) {
        queue_pair.psn = psn;
    }
    if has(5) {
        queue_pair.rnr_retry = rnr_retry;
    }
    if has(0) {
        queue_pair.state = state;
        if state == State::Reset {
            queue_pair.clear();
        }
        engine::flush_receives(function, index);
    }
    Ok(())
}

fn query_qp(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let queue_pair = function.objects.qps.get(handle(&mut call.input, 0))?;
    put(
        &mut call.answer,
        0,
        &(queue_pair.state as u32).to_le_bytes(),
    );
    put(&mut call.answer, 4, &queue_pair.qkey.to_le_bytes());
    put(&mut call.answer, 8, &queue_pair.psn.to_le_bytes());
    call.answer[13] = queue_pair.rnr_retry;
    Ok(())
}

/// What is in flight is completed before the answer.
fn destroy_qp(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let index = handle(&mut call.input, 0);
    function.objects.qps.get_mut(index)?.state = State::Err;
    engine::flush_sends(function, index);
    engine::flush_receives(function, index);
    function.objects.qps.remove(index).map(drop)
}

/// There is one for each address in a protection domain: who creates it again gets the same number, and who
/// destroys it takes it from all.
fn create_ah(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let (gid, pd) = (call.input.bytes(0), call.input.u16(16));
    function.objects.pds.get(pd.into())?;
    let number = match function.own_handle(gid, pd) {
        Some(number) => number.into(),
        None => function.objects.ahs.insert(AddressHandle { gid, pd })?,
    };
    put(&mut call.answer, 0, &(number as u16).to_le_bytes());
    Ok(())
}

fn destroy_ah(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let (number, pd) = (call.input.u16(0), call.input.u16(2));
    if function.objects.ahs.get(number.into())?.pd != pd {
        return wrong(
            function,
            format_args!("address handle {number} is not of domain {pd}"),
        );
    }
    function.objects.ahs.remove(number.into()).map(drop)
}

fn reg_mr(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let number = mr::register(function, &mut call.input, call.flags)?;
    put(&mut call.answer, 0, &mr::lkey(number).to_le_bytes());
    put(&mut call.answer, 4, &mr::rkey(number).to_le_bytes());
    // Interconnects: for receives and READs, and none is told for WRITEs.
    put(&mut call.answer, 8, &[0b011, 1, 2, 0]);
    Ok(())
}

fn dereg_mr(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let key = call.input.u32(0);
    if mr::lkey(key >> 4) != key {
        return wrong(function, format_args!("{key:#x} is no key for local use"));
    }
    function.objects.regions.remove(key >> 4).map(drop)
}

fn create_cq(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let has_events = call.input.bit(0, 5);
    let (words, with_source) = (call.input.bits8(1, 0x1f), call.input.bit(1, 5));
    let wide_ids = call.input.bit(1, 6);
    let (depth, eqn, base) = (call.input.u16(2), call.input.u16(4), call.input.address(8));
    let (rings, uar) = (call.input.u16(20), call.input.u16(22));
    function.objects.uars.get(uar.into())?;
    if !depth.is_power_of_two()
        || u32::from(depth) > MAX_CQ_DEPTH
        || ![4, 8].contains(&words)
        || rings != function.limits.sub_cqs
        || (with_source && words != 8)
    {
        return wrong(
            function,
            format_args!("a completion queue of {rings} rings of {depth} entries of {words} words"),
        );
    }
    let eqn = match (has_events, eqn) {
        (true, eqn) => {
            function.objects.eqs.get(eqn.into())?;
            Some(eqn.into())
        }
        (false, 0) => None,
        (false, eqn) => return wrong(function, format_args!("event queue {eqn} without events")),
    };
    let mut queue = CompletionQueue::new(base, depth, 4 * usize::from(words), rings, eqn);
    queue.with_source = with_source;
    queue.wide_ids = wide_ids;
    let number = function.objects.cqs.insert(queue)?;
    put(&mut call.answer, 0, &(number as u16).to_le_bytes());
    put(&mut call.answer, 2, &depth.to_le_bytes());
    let doorbell = FIRST_OF_CQS + u64::from(number) * PAGE + cq::DOORBELL;
    put(&mut call.answer, 4, &(doorbell as u32).to_le_bytes());
    // The doorbell is there.
    put(&mut call.answer, 8, &1_u32.to_le_bytes());
    Ok(())
}

fn destroy_cq(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let number = u32::from(call.input.u16(0));
    let mut users = function.objects.qps.values();
    if users.any(|queue_pair| [queue_pair.send.cqn, queue_pair.receive.cqn].contains(&number)) {
        return Err(Status::Busy);
    }
    function.objects.cqs.remove(number).map(drop)
}

/// Where the number of a feature is, and what belongs to it.
const FEATURE: usize = 13;
const VALUE: usize = 16;

fn get_feature(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    feature::get(function, call.input.u8(FEATURE), &mut call.answer)
}

fn set_feature(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    /// Bytes of what a host tells of itself.
    const HOST: u32 = 0xc4;
    match call.input.u8(FEATURE) {
        feature::ASYNC_EVENTS => {
            let groups = call.input.u32(VALUE + 4);
            if groups & !GROUPS != 0 {
                return wrong(
                    function,
                    format_args!("there are no groups of events {groups:#x}"),
                );
            }
            function.objects.events.enabled = groups;
        }
        feature::HOST => {
            let (length, address) = (call.input.u32(0), call.input.address(4));
            let read = function.memory.read(address, &mut vec![0; length as usize]);
            if call.flags & mr::LIST == 0 || length > 2 * HOST || read.is_err() {
                return wrong(
                    function,
                    format_args!("{length} bytes about the host at {address:#x}"),
                );
            }
        }
        other => return wrong(function, format_args!("feature {other} cannot be set")),
    }
    Ok(())
}

fn get_stats(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let (kind, scope) = (call.input.u8(12), call.input.u8(13));
    // Of all queues: the number of one means nothing.
    call.input.u16(14);
    if scope != 0 {
        return Err(Status::IllegalParameter);
    }
    let stats = &function.stats;
    let (sent, received) = (stats.sent, stats.received);
    let numbers = match kind {
        0 => vec![
            sent.bytes,
            sent.requests,
            received.bytes,
            received.requests,
            stats.drops,
            stats.wrong_qkeys,
        ],
        1 => vec![sent.bytes, sent.requests, received.bytes, received.requests],
        2 => {
            let read = stats.read;
            vec![
                read.requests,
                read.bytes,
                stats.read_errors,
                stats.read_by_peers,
            ]
        }
        3 => {
            let written = stats.written;
            vec![
                written.requests,
                written.bytes,
                stats.write_errors,
                stats.written_by_peers,
            ]
        }
        // Nothing is ever sent again.
        4 => vec![0; 5],
        other => {
            return wrong(
                function,
                format_args!("there are no statistics of type {other}"),
            );
        }
    };
    for (index, number) in numbers.iter().enumerate() {
        put(&mut call.answer, 8 * index, &number.to_le_bytes());
    }
    Ok(())
}

fn alloc_pd(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let number = function.objects.pds.insert(())?;
    put(&mut call.answer, 0, &(number as u16).to_le_bytes());
    Ok(())
}

fn dealloc_pd(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let number = call.input.u16(0);
    let objects = &mut function.objects;
    if objects.ahs.values().any(|handle| handle.pd == number)
        || objects.regions.values().any(|region| region.pd == number)
        || objects
            .qps
            .values()
            .any(|queue_pair| queue_pair.pd == number)
    {
        return Err(Status::Busy);
    }
    objects.pds.remove(number.into())
}

fn alloc_uar(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let number = function.objects.uars.insert(())?;
    put(&mut call.answer, 0, &(number as u16).to_le_bytes());
    Ok(())
}

fn dealloc_uar(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let number = call.input.u16(0);
    let objects = &mut function.objects;
    if objects
        .qps
        .values()
        .any(|queue_pair| queue_pair.uar == number)
    {
        return Err(Status::Busy);
    }
    objects.uars.remove(number.into())
}

fn create_eq(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let (depth, vector) = (call.input.u16(0), call.input.u8(2));
    let (words, base, events) = (
        call.input.bits8(3, 0x1f),
        call.input.address(4),
        call.input.u32(12),
    );
    if !depth.is_power_of_two()
        || u32::from(depth) > feature::EQ_DEPTH
        || u64::from(words) * 4 != ENTRY
        || events != 1
    {
        return wrong(
            function,
            format_args!("an event queue of {depth} entries of {words} words for {events:#x}"),
        );
    }
    let number = function.objects.eqs.insert(EventQueue {
        base,
        depth,
        vector: vector.into(),
        events: 0,
        told: 0,
        is_armed: false,
    })?;
    put(&mut call.answer, 0, &(number as u16).to_le_bytes());
    Ok(())
}

fn destroy_eq(function: &mut Function, call: &mut Call<'_>) -> Result<(), Status> {
    let number = u32::from(call.input.u16(0));
    let mut users = function.objects.cqs.values();
    if users.any(|queue| queue.eqn == Some(number)) {
        return Err(Status::Busy);
    }
    function.objects.eqs.remove(number).map(drop)
}
