//! Receive queues of the netdev: where frames from the wire go.
//!
//! The model does not sort frames by flow tables: each goes to the first queue that has room, whatever the
//! driver's rules about spreading them are.

use crate::command::Status;
use crate::engine::cqe;
use crate::engine::frame::Frame;
use crate::engine::receive;
use crate::function::Function;
use crate::layout::cmd;
use crate::layout::ethernet::rqc;
use crate::object::cq;
use crate::pages::Pages;
use crate::translate::User;

/// Where the context begins in the commands.
const CONTEXT: usize = 0x20;
/// The state in which frames are taken.
const READY: u64 = 1;
/// Requests that lie one after the other, each with its data segments alone.
const CYCLIC: u64 = 1;

/// A receive queue.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    context: Vec<u8>,
    pages: Pages,
    consumer: u16,
}

/// Executes CREATE_RQ.
///
/// # Errors
/// If the model does not have queues of this kind, or the queue does not fit its pages, or names objects that
/// are not there.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = input.get(CONTEXT..).ok_or(Status::BadInputLength)?;
    let list = context.get(rqc::PAS..).ok_or(Status::BadInputLength)?;
    let queue = ReceiveQueue {
        pages: Pages::from_command(
            list,
            rqc::LOG_WQ_PG_SZ.get32(context),
            rqc::PAGE_OFFSET.get(context),
        ),
        context: context[..rqc::PAS].to_vec(),
        consumer: 0,
    };
    let size = rqc::LOG_WQ_SZ.get(context) + rqc::LOG_WQ_STRIDE.get(context);
    if rqc::WQ_TYPE.get(context) != CYCLIC || !queue.pages.holds(1 << size) {
        return Err(Status::BadParameter);
    }
    function.objects.cqs.get(rqc::CQN.get32(context))?;
    cmd::OBJECT.set(output, function.objects.rqs.insert(queue)?.into());
    Ok(())
}

/// Executes MODIFY_RQ, which changes the state.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn modify(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let context = input.get(CONTEXT..).ok_or(Status::BadInputLength)?;
    let queue = function.objects.rqs.get_mut(cmd::OBJECT.get32(input))?;
    let state = rqc::STATE.get(context);
    rqc::STATE.set(&mut queue.context, state);
    if state == 0 {
        queue.consumer = 0;
    }
    Ok(())
}

/// Executes DESTROY_RQ.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let rqn = cmd::OBJECT.get32(input);
    function.objects.rqs.remove(rqn).map(drop)
}

/// Hands a frame to the driver. One for which there is no room is lost, as on a wire.
pub(crate) fn deliver(function: &mut Function, frame: &Frame) {
    let with_room = function.objects.rqs.iter().find_map(|(rqn, queue)| {
        let context = &queue.context;
        let posted = function.memory.read_be32(rqc::DBR_ADDR.get(context)).ok()? as u16;
        let ready = rqc::STATE.get(context) == READY && posted != queue.consumer;
        ready.then_some(rqn)
    });
    let Some(Ok(queue)) = with_room.map(|rqn| function.objects.rqs.get_mut(rqn)) else {
        return;
    };
    let counter = queue.consumer;
    queue.consumer = counter.wrapping_add(1);
    let (cqn, pd) = (
        rqc::CQN.get32(&queue.context),
        rqc::PD.get32(&queue.context),
    );
    let log_stride = rqc::LOG_WQ_STRIDE.get(&queue.context);
    let slot = u64::from(counter) & ((1 << rqc::LOG_WQ_SZ.get(&queue.context)) - 1);
    let mut segments = vec![0; 1 << log_stride];
    let read = queue
        .pages
        .read(&function.memory, slot << log_stride, &mut segments);
    let by = User { qpn: 0, pd };
    let placed = read
        .map_err(|unmapped| format!("{unmapped:x?}"))
        .and_then(|()| {
            receive::scatter(function, by, &segments, frame.bytes())
                .map_err(|syndrome| format!("{syndrome:?}"))
        });
    if let Err(reason) = placed {
        let text = format!("a receive request of the netdev takes no frame: {reason}");
        function.report.violation(text);
        return;
    }
    let entry = cqe::of_frame(frame, counter, function.clock());
    cq::complete(function, cqn, entry, false);
}
