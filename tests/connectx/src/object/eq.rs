//! Event queues: the device's entries for the driver, and the interrupt that says that there are some.

use crate::command::Status;
use crate::function::Function;
use crate::layout::{cmd, eqc};
use crate::pages::Pages;

/// Bytes of an entry.
const EQE: u64 = 64;

/// Kinds of events, the numbers of the driver's `enum mlx5_event`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// A completion queue that was armed has a new entry.
    Completion = 0x0,
    /// A completion queue has failed.
    CqError = 0x4,
    /// The port went up or down.
    PortChange = 0x9,
    /// A command is done.
    Command = 0xa,
    /// A request was invalid, where no completion can tell.
    WqInvalidRequest = 0x10,
    /// A request was without right, where no completion can tell.
    WqAccess = 0x11,
    /// A queue pair in the error state takes no more from its shared receive queue.
    LastWqeReached = 0x13,
    /// A shared receive queue has fewer entries than its limit.
    SrqLimit = 0x14,
    /// A DC target takes no more.
    DctDrained = 0x1c,
}

/// An event queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pages: Pages,
    log_size: u32,
    interrupt: u32,
    uar: u32,
    events: u64,
    producer: u32,
    consumer: u32,
    armed: bool,
}

impl EventQueue {
    fn wants(&self, event: Event) -> bool {
        self.events & (1 << event as u32) != 0
    }
}

/// Executes CREATE_EQ.
///
/// # Errors
/// If the queue does not fit its pages.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = input.get(cmd::CONTEXT..).ok_or(Status::BadInputLength)?;
    let list = input.get(cmd::PAS..).ok_or(Status::BadInputLength)?;
    let queue = EventQueue {
        pages: Pages::from_command(
            list,
            eqc::LOG_PAGE_SIZE.get32(context),
            eqc::PAGE_OFFSET.get(context),
        ),
        log_size: eqc::LOG_EQ_SIZE.get32(context),
        interrupt: eqc::INTR.get32(context),
        uar: eqc::UAR_PAGE.get32(context),
        events: cmd::EVENT_BITMASK.get(input),
        producer: 0,
        consumer: 0,
        armed: false,
    };
    function.objects.uars.get(queue.uar)?;
    if !queue.pages.holds(EQE << queue.log_size) {
        return Err(Status::BadParameter);
    }
    cmd::OBJECT_8.set(output, function.objects.eqs.insert(queue)?.into());
    Ok(())
}

/// Executes DESTROY_EQ.
///
/// # Errors
/// If there is no such queue, or completion queues report to it.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let eqn = cmd::OBJECT_8.get32(input);
    if function.objects.cqs.values().any(|cq| cq.eqn() == eqn) {
        return Err(Status::ResourceBusy);
    }
    function.objects.eqs.remove(eqn).map(drop)
}

/// Answers QUERY_EQ.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn query(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let queue = function.objects.eqs.get(cmd::OBJECT_8.get32(input))?;
    let context = output.get_mut(cmd::CONTEXT..).ok_or(Status::BadParameter)?;
    eqc::LOG_EQ_SIZE.set(context, queue.log_size.into());
    eqc::UAR_PAGE.set(context, queue.uar.into());
    eqc::INTR.set(context, queue.interrupt.into());
    eqc::CONSUMER_COUNTER.set(context, (queue.consumer & 0xff_ffff).into());
    eqc::PRODUCER_COUNTER.set(context, (queue.producer & 0xff_ffff).into());
    Ok(())
}

/// Writes an event to one queue.
pub(crate) fn post(function: &mut Function, eqn: u32, event: Event, data: [u8; 28]) {
    post_subtype(function, eqn, event, 0, data);
}

fn post_subtype(function: &mut Function, eqn: u32, event: Event, subtype: u8, data: [u8; 28]) {
    let memory = &function.memory;
    let Ok(queue) = function.objects.eqs.get_mut(eqn) else {
        return;
    };
    let size = 1_u32 << queue.log_size;
    if queue.producer.wrapping_sub(queue.consumer) >= size {
        function
            .report
            .violation(format!("event queue {eqn} overflows"));
        return;
    }
    let mut entry = [0; EQE as usize];
    entry[1] = event as u8;
    entry[3] = subtype;
    entry[32..60].copy_from_slice(&data);
    // The owner bit changes with each turn through the queue.
    let owner = u8::from(queue.producer & size != 0);
    let at = u64::from(queue.producer & (size - 1)) * EQE;
    entry[63] = owner ^ 1;
    // All but the owner bit first: the driver polls it.
    let written = queue
        .pages
        .write(memory, at, &entry)
        .and_then(|()| queue.pages.write(memory, at + 63, &[owner]));
    if written.is_err() {
        function
            .report
            .violation(format!("event queue {eqn} is not in memory"));
        return;
    }
    queue.producer = queue.producer.wrapping_add(1);
    if std::mem::take(&mut queue.armed) {
        function.vectors.raise(queue.interrupt);
    }
}

/// Writes an event to the queue that asked for its kind, if there is one.
pub(crate) fn notify(function: &mut Function, event: Event, data: [u8; 28]) {
    notify_subtype(function, event, 0, data);
}

/// As [`notify`], for a kind of event that has subtypes.
pub(crate) fn notify_subtype(function: &mut Function, event: Event, subtype: u8, data: [u8; 28]) {
    let wanting = function
        .objects
        .eqs
        .iter()
        .find(|(_, queue)| queue.wants(event));
    if let Some((eqn, _)) = wanting {
        post_subtype(function, eqn, event, subtype, data);
    }
}

/// An event about a queue pair or a shared receive queue.
pub(crate) fn notify_about(function: &mut Function, event: Event, number: u32) {
    let mut data = [0; 28];
    data[24..].copy_from_slice(&number.to_be_bytes());
    notify(function, event, data);
}

/// Takes a doorbell: the driver has consumed up to there, and wants an interrupt for what comes next, or not.
pub(crate) fn doorbell(function: &mut Function, uar: u32, value: u32, arm: bool) {
    let eqn = value >> 24;
    let Ok(queue) = function.objects.eqs.get_mut(eqn) else {
        function.report.violation(format!(
            "doorbell for event queue {eqn}, which does not exist"
        ));
        return;
    };
    if queue.uar != uar {
        function.report.violation(format!(
            "event queue {eqn} belongs to UAR {}, its doorbell came on {uar}",
            queue.uar
        ));
        return;
    }
    // Only 24 bits of the counter are told.
    let behind = queue.producer.wrapping_sub(value) & 0xff_ffff;
    queue.consumer = queue.producer.wrapping_sub(behind);
    queue.armed |= arm;
    if queue.armed && behind != 0 {
        queue.armed = false;
        function.vectors.raise(queue.interrupt);
    }
}

/// Whether some queue wants events of that kind.
pub(crate) fn is_wanted(function: &Function, event: Event) -> bool {
    function
        .objects
        .eqs
        .values()
        .any(|queue| queue.wants(event))
}
