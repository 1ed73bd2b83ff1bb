//! Send queues of the netdev.

use crate::command::Status;
use crate::engine::wqe::{Control, UNIT};
use crate::engine::{complete_frame, complete_nop, frame, signals_nop, switch};
use crate::function::Function;
use crate::layout::cmd;
use crate::layout::ethernet::sqc;
use crate::pages::Pages;
use vfio_model::memory::{GuestMemory, Unmapped};

/// Where the context begins in the commands.
const CONTEXT: usize = 0x20;
/// Bytes of a basic block.
const BLOCK: u64 = 64;
/// The state in which requests are carried out.
const READY: u64 = 1;

/// A send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    context: Vec<u8>,
    pages: Pages,
    consumer: u16,
}

impl SendQueue {
    /// Reads the next control segment; none if nothing is posted.
    fn next(&self, memory: &GuestMemory) -> Result<Option<[u8; 16]>, Unmapped> {
        let posted = memory.read_be32(sqc::DBR_ADDR.get(&self.context) + 4)? as u16;
        if posted == self.consumer || sqc::STATE.get(&self.context) != READY {
            return Ok(None);
        }
        self.request(memory, self.consumer).map(Some)
    }

    /// Reads all of the next request, whose control segment that is.
    fn whole(&self, memory: &GuestMemory, control: &Control) -> Result<Vec<u8>, Unmapped> {
        let blocks = 1_u64 << sqc::LOG_WQ_SZ.get(&self.context);
        let mut bytes = vec![0; usize::from(control.units) * UNIT];
        for (number, block) in bytes.chunks_mut(BLOCK as usize).enumerate() {
            let at = (u64::from(self.consumer) + number as u64) % blocks * BLOCK;
            self.pages.read(memory, at, block)?;
        }
        Ok(bytes)
    }

    /// Reads the control segment of that index.
    fn request(&self, memory: &GuestMemory, index: u16) -> Result<[u8; 16], Unmapped> {
        let blocks = 1_u64 << sqc::LOG_WQ_SZ.get(&self.context);
        let mut bytes = [0; 16];
        let at = u64::from(index) % blocks * BLOCK;
        self.pages.read(memory, at, &mut bytes)?;
        Ok(bytes)
    }
}

/// Executes CREATE_SQ.
///
/// # Errors
/// If the queue does not fit its pages, or names objects that are not there.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = input.get(CONTEXT..).ok_or(Status::BadInputLength)?;
    let list = context.get(sqc::PAS..).ok_or(Status::BadInputLength)?;
    let queue = SendQueue {
        pages: Pages::from_command(
            list,
            sqc::LOG_WQ_PG_SZ.get32(context),
            sqc::PAGE_OFFSET.get(context),
        ),
        context: context[..sqc::PAS].to_vec(),
        consumer: 0,
    };
    if !queue.pages.holds(BLOCK << sqc::LOG_WQ_SZ.get(context)) {
        return Err(Status::BadParameter);
    }
    function.objects.cqs.get(sqc::CQN.get32(context))?;
    function.objects.uars.get(sqc::UAR_PAGE.get32(context))?;
    cmd::OBJECT.set(output, function.objects.sqs.insert(queue)?.into());
    Ok(())
}

/// Executes MODIFY_SQ, which changes the state.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn modify(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let context = input.get(CONTEXT..).ok_or(Status::BadInputLength)?;
    let queue = function.objects.sqs.get_mut(cmd::OBJECT.get32(input))?;
    let state = sqc::STATE.get(context);
    sqc::STATE.set(&mut queue.context, state);
    if state == 0 {
        queue.consumer = 0;
    }
    Ok(())
}

/// Executes DESTROY_SQ.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    function
        .objects
        .sqs
        .remove(cmd::OBJECT.get32(input))
        .map(drop)
}

/// Takes a piece of a BlueFlame copy, by which the driver finds out whether such copies are used.
pub(crate) fn blue_flame(function: &mut Function, sqn: u32, index: u16, at: usize, copied: &[u8]) {
    let Ok(queue) = function.objects.sqs.get(sqn) else {
        return;
    };
    let cqn = sqc::CQN.get32(&queue.context);
    let ring = queue.request(&function.memory, index);
    if ring.is_ok_and(|ring| signals_nop(&Control::read(&ring), at, copied)) {
        complete_nop(function, cqn, sqn, index);
    }
}

/// Sends what is posted.
pub(crate) fn run(functions: &mut [Function], index: usize, sqn: u32) {
    while let Some(function) = functions.get(index)
        && let Ok(queue) = function.objects.sqs.get(sqn)
    {
        let (counter, cqn) = (queue.consumer, sqc::CQN.get32(&queue.context));
        let next = queue.next(&function.memory).and_then(|control| {
            control
                .map(|control| {
                    let whole = queue.whole(&function.memory, &Control::read(&control))?;
                    Ok((control, whole))
                })
                .transpose()
        });
        let (control, request) = match next {
            Ok(Some(next)) => next,
            Ok(None) => return,
            Err(unmapped) => {
                let text = format!("send queue {sqn:#x} is not in memory: {unmapped:x?}");
                function.report.violation(text);
                return;
            }
        };
        match frame::of_request(function, sqc::PD.get32(&queue.context), &request) {
            Ok(frames) => {
                for frame in &frames {
                    switch::carry(functions, index, frame);
                }
            }
            Err(reason) => {
                let text = format!("send queue {sqn:#x}: {reason}");
                function.report.violation(text);
            }
        }
        let Some(function) = functions.get_mut(index) else {
            return;
        };
        let blocks = complete_frame(function, cqn, sqn, counter, control);
        if let Ok(queue) = function.objects.sqs.get_mut(sqn) {
            queue.consumer = counter.wrapping_add(blocks);
        }
    }
}
