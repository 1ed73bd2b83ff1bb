//! The engine: carries out what is posted to send queues.
//!
//! It runs within the access that rings a doorbell, so a message is there before the doorbell's write is
//! done. What cannot be done at once waits for [`tick`].

pub(crate) mod cqe;
mod fabric;
pub(crate) mod frame;
mod header;
pub(crate) mod inline;
mod packet;
pub(crate) mod receive;
mod send;
pub(crate) mod switch;
pub(crate) mod syndrome;
mod umr;
pub(crate) mod wqe;

use serde_json::json;

use crate::engine::cqe::{Completion, Kind};
use crate::function::Function;
use crate::layout::qpc;
use crate::object::cq;
use crate::object::qp::State;
use crate::object::sq;
use crate::registers::SendDoorbell;
use crate::tap;

/// Takes a send doorbell.
pub(crate) fn doorbell(functions: &mut [Function], index: usize, doorbell: SendDoorbell) {
    let Some(function) = functions.get_mut(index) else {
        return;
    };
    let (uar, qpn) = (doorbell.uar, doorbell.qpn());
    if function.objects.sqs.contains(qpn) {
        sq::run(functions, index, qpn);
        return;
    }
    match function.objects.qps.get(qpn) {
        Ok(queue_pair) if queue_pair.uar() == uar => {
            let record = queue_pair.doorbell_record() + 4;
            function.tap.record(|| {
                json!({
                    "kind": "doorbell",
                    "function": function.number(),
                    "qpn": qpn,
                    "uar": uar,
                    "register": doorbell.within,
                    "bytes": tap::hex(&doorbell.bytes),
                    "record": function.memory.read_be32(record).ok(),
                })
            });
            send::check_doorbell(function, qpn, doorbell);
            if !function.faults.late.holds(qpn) {
                advance(functions, index, qpn);
            }
        }
        Ok(queue_pair) => {
            let text = format!(
                "queue pair {qpn:#x} belongs to UAR {}, its doorbell came on {uar}",
                queue_pair.uar()
            );
            function.report.violation(text);
        }
        Err(_) => {
            let text = format!("doorbell for queue pair {qpn:#x}, which does not exist");
            function.report.violation(text);
        }
    }
}

/// Takes what follows a send doorbell in a BlueFlame copy: it must be what lay in the ring.
pub(crate) fn blue_flame(function: &mut Function, doorbell: SendDoorbell, at: usize, bytes: &[u8]) {
    let qpn = doorbell.qpn();
    if function.objects.sqs.contains(qpn) {
        sq::blue_flame(function, qpn, doorbell.index(), at, bytes);
        return;
    }
    // Doorbells that were refused are not looked at.
    let Ok(queue_pair) = function.objects.qps.get(qpn) else {
        return;
    };
    function.tap.record(|| {
        json!({
            "kind": "blue_flame",
            "function": function.number(),
            "qpn": qpn,
            "uar": doorbell.uar,
            "register": doorbell.within,
            "at": at,
            "bytes": tap::hex(bytes),
        })
    });
    let cqn = queue_pair.send_cqn();
    if let Some(control) = send::check_blue_flame(function, queue_pair, doorbell, at, bytes)
        && signals_nop(&control, at, bytes)
    {
        complete_nop(function, cqn, qpn, doorbell.index());
    }
}

/// Whether this piece of a BlueFlame copy asks for a completion where the ring does not. So the driver finds
/// out whether copies are used at all: by requests that do nothing and are signaled in the copy alone.
pub(crate) fn signals_nop(ring: &wqe::Control, at: usize, copied: &[u8]) -> bool {
    let flags = wqe::FLAGS_AT.checked_sub(at).and_then(|at| copied.get(at));
    ring.is_nop() && !ring.is_signaled() && flags.is_some_and(|flags| wqe::wants_completion(*flags))
}

/// Completes a request that does nothing.
pub(crate) fn complete_nop(function: &mut Function, cqn: u32, qpn: u32, counter: u16) {
    let user_index = function
        .objects
        .qps
        .get(qpn)
        .map_or(0, |queue_pair| queue_pair.field32(qpc::USER_INDEX));
    let completion = Completion {
        kind: Kind::Requester,
        qpn,
        user_index,
        counter,
        opcode: 0,
        length: 0,
        immediate: [0; 4],
        source: None,
        syndrome: None,
        timestamp: function.clock(),
    };
    cq::complete(function, cqn, completion.encode(), false);
}

/// Completes a request of the netdev. Gives the number of its blocks.
pub(crate) fn complete_frame(
    function: &mut Function,
    cqn: u32,
    sqn: u32,
    counter: u16,
    control: [u8; 16],
) -> u16 {
    let control = wqe::Control::read(&control);
    if control.is_signaled() {
        let completion = Completion {
            kind: Kind::Requester,
            qpn: sqn,
            user_index: 0,
            counter,
            opcode: control.opcode,
            length: 0,
            immediate: [0; 4],
            source: None,
            syndrome: None,
            timestamp: function.clock(),
        };
        cq::complete(function, cqn, completion.encode(), false);
    }
    control.blocks().max(1)
}

/// Does what is to be done for a queue pair, and for those that it has set going.
pub(crate) fn advance(functions: &mut [Function], index: usize, qpn: u32) {
    look_at(functions, index, qpn);
    loop {
        let kicked: Vec<(usize, u32)> = functions
            .iter_mut()
            .enumerate()
            .flat_map(|(index, function)| {
                let kicked = std::mem::take(&mut function.kicked);
                kicked.into_iter().map(move |qpn| (index, qpn))
            })
            .collect();
        if kicked.is_empty() {
            return;
        }
        for (index, qpn) in kicked {
            look_at(functions, index, qpn);
        }
    }
}

fn look_at(functions: &mut [Function], index: usize, qpn: u32) {
    send::run(functions, index, qpn);
    // Of a function that has failed the driver gives rings and records away without a word to it.
    if let Some(function) = functions.get_mut(index)
        && !function.faults.internal_error
        && let Ok(queue_pair) = function.objects.qps.get(qpn)
        && queue_pair.state() == State::Error
    {
        receive::flush(function, qpn);
        receive::leave_shared(function, qpn);
    }
}

/// Looks at all queue pairs of a function, after nobody did for a while.
pub(crate) fn resume(functions: &mut [Function], index: usize) {
    let queue_pairs: Vec<u32> = functions
        .get(index)
        .map(|function| function.objects.qps.iter().map(|(qpn, _)| qpn).collect())
        .unwrap_or_default();
    for qpn in queue_pairs {
        advance(functions, index, qpn);
    }
}

/// Takes doorbells that were late. Looks again at requests that wait, and at queue pairs in the error state,
/// to which requests may have been posted without a doorbell.
pub(crate) fn tick(functions: &mut [Function]) {
    for index in 0..functions.len() {
        for qpn in functions[index].faults.late.due() {
            // If the queue pair is gone by now, there is nothing to look at.
            advance(functions, index, qpn);
        }
    }
    let due: Vec<(usize, u32)> = functions
        .iter()
        .enumerate()
        .flat_map(|(index, function)| {
            let queue_pairs = function.objects.qps.iter();
            queue_pairs
                .filter(|(_, queue_pair)| {
                    queue_pair.waiting.is_some() || queue_pair.state() == State::Error
                })
                .map(move |(qpn, _)| (index, qpn))
        })
        .collect();
    for (index, qpn) in due {
        advance(functions, index, qpn);
    }
}
