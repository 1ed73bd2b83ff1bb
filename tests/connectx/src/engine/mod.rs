//! The engine: carries out what is posted to send queues.
//!
//! It runs within the access that rings a doorbell, so a message is there before the doorbell's write is done. What
//! cannot be done at once waits for [`tick`].

mod cqe;
mod fabric;
mod header;
mod packet;
mod receive;
mod send;
mod syndrome;
mod umr;
mod wqe;

use crate::engine::cqe::{Completion, Kind};
use crate::function::Function;
use crate::object::cq;
use crate::object::qp::State;
use crate::object::sq;

/// Takes a send doorbell.
pub(crate) fn doorbell(functions: &mut [Function], index: usize, uar: u32, qpn: u32) {
    let Some(function) = functions.get_mut(index) else {
        return;
    };
    if function.objects.sqs.contains(qpn) {
        sq::run(function, qpn);
        return;
    }
    match function.objects.qps.get(qpn) {
        Ok(queue_pair) if queue_pair.uar() == uar => advance(functions, index, qpn),
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

/// Completes a request of the netdev, whose frame goes nowhere. Gives the number of its blocks.
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
    if let Some(function) = functions.get_mut(index)
        && let Ok(queue_pair) = function.objects.qps.get(qpn)
        && queue_pair.state() == State::Error
    {
        receive::flush(function, qpn);
        receive::leave_shared(function, qpn);
    }
}

/// Looks again at requests that wait, and at queue pairs in the error state, to which requests may have been posted
/// without a doorbell.
pub(crate) fn tick(functions: &mut [Function]) {
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
