//! Completion queues: where entries go, when they overflow, and when an event tells of them.

use crate::command::Status;
use crate::engine::inline::Entry;
use crate::function::Function;
use crate::layout::{cmd, cqc};
use crate::object::eq::{self, Event};
use crate::object::srq::SharedReceiveQueue;
use crate::object::umem::Record;
use crate::pages::Pages;
use vfio_model::memory::{GuestMemory, Unmapped};
use vfio_model::report::Report;

/// Bytes of the context.
const CONTEXT_SIZE: usize = 0x40;
/// Statuses of a queue in its context.
const STATUS_OVERFLOW: u64 = 0x9;

/// What the consumer wants an event for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Armed {
    No,
    /// For a solicited completion or an error.
    Solicited,
    /// For any completion.
    Any,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    context: Vec<u8>,
    pages: Pages,
    log_size: u32,
    stride: u64,
    doorbell_record: u64,
    /// Nobody says how far the consumer is, and entries are written over.
    ignores_overrun: bool,
    /// Each entry goes to the first place, over the one before.
    is_collapsed: bool,
    /// Keeps the user's memory that the record lies in.
    _record: Option<Record>,
    producer: u32,
    /// Where the newest solicited entry ends.
    solicited: u32,
    /// Up to where the consumer was told.
    notified: u32,
    armed: Armed,
    /// The sequence number by which it was armed last.
    sequence: u32,
    /// The sequence number of the last event. The device ignores another arming with it.
    told: Option<u32>,
    failed: bool,
}

impl CompletionQueue {
    fn new(context: &[u8], list: &[u8]) -> Result<Self, Status> {
        let log_page_size = cqc::LOG_PAGE_SIZE.get32(context);
        let page_offset = cqc::PAGE_OFFSET.get(context);
        Self::over(
            context,
            Pages::from_command(list, log_page_size, page_offset),
        )
    }

    /// One whose entries lie there.
    fn over(context: &[u8], pages: Pages) -> Result<Self, Status> {
        let stride = match cqc::CQE_SZ.get(context) {
            0 => 64,
            1 | 2 => 128,
            _ => return Err(Status::BadParameter),
        };
        let queue = Self {
            pages,
            log_size: cqc::LOG_CQ_SIZE.get32(context),
            stride,
            doorbell_record: cqc::DBR_ADDR.get(context),
            ignores_overrun: cqc::OI.is_set(context),
            is_collapsed: cqc::CC.is_set(context),
            _record: None,
            producer: 0,
            solicited: 0,
            notified: 0,
            armed: Armed::No,
            sequence: 0,
            told: None,
            failed: false,
            context: context.to_vec(),
        };
        if queue.log_size > 22
            || cqc::CQE_COMP_EN.is_set(context)
            || !queue.pages.holds(stride << queue.log_size)
        {
            return Err(Status::BadParameter);
        }
        Ok(queue)
    }

    /// Looks whether the entries of a new queue are marked as ones that the device has not written. Without a
    /// mark, memory of zeros is a whole ring of completions for the consumer, and a device may look at what
    /// it is given.
    fn check_marks(&self, memory: &GuestMemory, report: &Report) {
        const INVALID: u8 = 0xf;
        let is_marked = |index: u64| {
            let mut kind = [0; 1];
            let at = index * self.stride + self.stride - 1;
            // Where there is no memory the first entry says so.
            self.pages.read(memory, at, &mut kind).is_err() || kind[0] >> 4 == INVALID
        };
        // Not all of a large ring: who forgets does not stop at one.
        let looked_at = (1_u64 << self.log_size).min(1 << 8);
        if let Some(index) = (0..looked_at).find(|index| !is_marked(*index)) {
            report.violation(format!(
                "entry {index} of a new completion queue is not marked as the device's"
            ));
        }
    }

    /// The event queue that it reports to.
    pub(crate) fn eqn(&self) -> u32 {
        cqc::C_EQN.get32(&self.context)
    }

    /// The UAR on which it is armed.
    fn uar(&self) -> u32 {
        cqc::UAR_PAGE.get32(&self.context)
    }

    /// Bytes of an entry.
    pub(crate) fn stride(&self) -> u64 {
        self.stride
    }

    /// Writes an entry, whose owner bit is set here.
    fn push(
        &mut self,
        memory: &GuestMemory,
        entry: impl Into<Entry>,
        solicited: bool,
    ) -> Result<bool, Unmapped> {
        let Entry {
            last: mut entry,
            first,
        } = entry.into();
        let size = 1 << self.log_size;
        if !self.ignores_overrun {
            let consumer = memory.read_be32(self.doorbell_record)?;
            if self.producer.wrapping_sub(consumer) & 0xff_ffff >= size {
                self.failed = true;
                return Ok(false);
            }
        }
        let owner = u8::from(self.producer & size != 0);
        let place = match self.is_collapsed {
            true => 0,
            false => self.producer & (size - 1),
        };
        // In an entry of 128 bytes the second half is the one that counts.
        let at = u64::from(place) * self.stride + (self.stride - 64);
        let last = (entry[63] & !1) | owner;
        entry[63] = last ^ 1;
        if let Some(first) = first
            && self.stride > 64
        {
            self.pages.write(memory, at - 64, &first)?;
        }
        self.pages.write(memory, at, &entry)?;
        // The owner bit comes last: the consumer polls it.
        self.pages.write(memory, at + 63, &[last])?;
        self.producer = self.producer.wrapping_add(1);
        if solicited {
            self.solicited = self.producer;
        }
        Ok(true)
    }

    /// Goes on in another buffer. The last entry in the old one says so, and its place in the new one stays
    /// empty: there the consumer puts what it has not yet seen.
    fn resize(&mut self, memory: &GuestMemory, context: &[u8], list: &[u8]) -> Result<(), Status> {
        const RESIZED: u8 = 0x5;
        let new = Self::new(context, list)?;
        let consumer = memory
            .read_be32(self.doorbell_record)
            .map_err(|_| Status::BadResourceState)?;
        let unseen = self.producer.wrapping_sub(consumer) & 0xff_ffff;
        if unseen >= 1 << new.log_size {
            return Err(Status::BadResourceState);
        }
        let mut entry = [0; 64];
        entry[63] = RESIZED << 4;
        if self.push(memory, entry, false) != Ok(true) {
            return Err(Status::BadResourceState);
        }
        for field in [cqc::LOG_CQ_SIZE, cqc::LOG_PAGE_SIZE, cqc::PAGE_OFFSET] {
            field.set(&mut self.context, field.get(context));
        }
        self.pages = new.pages;
        self.log_size = new.log_size;
        self.stride = new.stride;
        Ok(())
    }

    /// Arms it by the word of a doorbell, unless that is from before the last event.
    fn arm(&mut self, word: u32) -> bool {
        let sequence = word >> 28 & 3;
        if self.told == Some(sequence) {
            return false;
        }
        self.sequence = sequence;
        self.armed = match word & (1 << 24) != 0 {
            true => Armed::Solicited,
            false => Armed::Any,
        };
        true
    }

    /// Whether an event is due; if so, it counts as told.
    fn event_due(&mut self) -> bool {
        let newest = match self.armed {
            Armed::No => return false,
            Armed::Solicited => self.solicited,
            Armed::Any => self.producer,
        };
        let new = newest.wrapping_sub(self.notified).cast_signed() > 0;
        if new {
            self.armed = Armed::No;
            self.told = Some(self.sequence);
            self.notified = self.producer;
        }
        new
    }
}

/// Executes CREATE_CQ.
///
/// # Errors
/// If the context is one that the model cannot serve, or names an event queue or UAR that is not there.
pub(crate) fn create(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let context = context_of(input)?;
    let list = input.get(cmd::PAS..).ok_or(Status::BadInputLength)?;
    let uid = cmd::UID.get(input);
    let mut queue = match cmd::CQ_UMEM_VALID.is_set(input) {
        true => {
            let memory = function.user_memory(uid, cmd::CQ_UMEM_ID.get(input))?;
            let pages = memory.part(cmd::CQ_UMEM_OFFSET.get(input))?;
            CompletionQueue::over(context, pages)?
        }
        // Who has memory with a number marks its entries when it likes: what it looks at is its own.
        false => {
            let queue = CompletionQueue::new(context, list)?;
            queue.check_marks(&function.memory, &function.report);
            queue
        }
    };
    if cqc::DBR_UMEM_VALID.is_set(context) {
        let memory = function.user_memory(uid, cqc::DBR_UMEM_ID.get(context))?;
        let record = memory.record(cqc::DBR_ADDR.get(context))?;
        queue.doorbell_record = record.address;
        queue._record = Some(record);
    }
    function.objects.eqs.get(queue.eqn())?;
    function.objects.uars.get(queue.uar())?;
    cmd::OBJECT.set(output, function.objects.cqs.insert(queue)?.into());
    Ok(())
}

/// Executes DESTROY_CQ.
///
/// # Errors
/// If there is no such queue, or queue pairs, shared receive queues or DC targets complete on it.
pub(crate) fn destroy(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let cqn = cmd::OBJECT.get32(input);
    let objects = &function.objects;
    let of_srqs = || {
        let mut of_xrc = objects.srqs.values().filter_map(SharedReceiveQueue::xrc);
        of_xrc.any(|srq| srq.cqn == cqn)
    };
    let of_targets = || objects.dcts.values().any(|target| target.cqn() == cqn);
    if objects.qps.values().any(|qp| qp.completes_on(cqn)) || of_srqs() || of_targets() {
        return Err(Status::ResourceBusy);
    }
    function.objects.cqs.remove(cqn).map(drop)
}

/// Answers QUERY_CQ.
///
/// # Errors
/// If there is no such queue.
pub(crate) fn query(
    function: &mut Function,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    let queue = function.objects.cqs.get(cmd::OBJECT.get32(input))?;
    let consumer = function
        .memory
        .read_be32(queue.doorbell_record)
        .map_err(|_| Status::BadResourceState)?;
    let mut context = queue.context.clone();
    cqc::CONSUMER_COUNTER.set(&mut context, (consumer & 0xff_ffff).into());
    cqc::PRODUCER_COUNTER.set(&mut context, (queue.producer & 0xff_ffff).into());
    if queue.failed {
        cqc::STATUS.set(&mut context, STATUS_OVERFLOW);
    }
    for (to, from) in output.iter_mut().skip(cmd::CONTEXT).zip(context) {
        *to = from;
    }
    Ok(())
}

/// Executes MODIFY_CQ: gives the queue another buffer, or changes when events come, which the model leaves as
/// it is.
///
/// # Errors
/// If the queue's event queue is to be changed, the new buffer is too small, or there is no such queue.
pub(crate) fn modify(function: &mut Function, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    const RESIZE: u64 = 1;
    let queue = function.objects.cqs.get_mut(cmd::OBJECT.get32(input))?;
    if cmd::OP_MOD.get(input) == RESIZE {
        let list = input.get(cmd::PAS..).ok_or(Status::BadInputLength)?;
        return queue.resize(&function.memory, context_of(input)?, list);
    }
    let moderation_only = cmd::MODIFY_CQ_FIELD_SELECT.get(input) & !0b11 == 0;
    if moderation_only {
        Ok(())
    } else {
        Err(Status::BadParameter)
    }
}

fn context_of(input: &[u8]) -> Result<&[u8], Status> {
    input
        .get(cmd::CONTEXT..cmd::CONTEXT + CONTEXT_SIZE)
        .ok_or(Status::BadInputLength)
}

/// Adds an entry, and tells of it where that is wanted. Gives false if the queue overflowed, then or before.
pub(crate) fn complete(
    function: &mut Function,
    cqn: u32,
    entry: impl Into<Entry>,
    solicited: bool,
) -> bool {
    let Ok(queue) = function.objects.cqs.get_mut(cqn) else {
        return false;
    };
    if queue.failed {
        return false;
    }
    match queue.push(&function.memory, entry, solicited) {
        Ok(true) => {
            announce(function, cqn);
            true
        }
        Ok(false) => {
            overflowed(function, cqn);
            false
        }
        Err(unmapped) => {
            queue.failed = true;
            function.report.violation(format!(
                "completion queue {cqn:#x} is not in memory: {unmapped:x?}"
            ));
            false
        }
    }
}

fn announce(function: &mut Function, cqn: u32) {
    if let Ok(queue) = function.objects.cqs.get_mut(cqn)
        && queue.event_due()
    {
        let eqn = queue.eqn();
        let mut data = [0; 28];
        data[24..].copy_from_slice(&cqn.to_be_bytes());
        eq::post(function, eqn, Event::Completion, data);
    }
}

fn overflowed(function: &mut Function, cqn: u32) {
    const SYNDROME_OVERFLOW: u8 = 1;
    let mut data = [0; 28];
    data[..4].copy_from_slice(&cqn.to_be_bytes());
    data[11] = SYNDROME_OVERFLOW;
    eq::notify(function, Event::CqError, data);
}

/// Takes a doorbell that arms a queue: the word that is also in the doorbell record, and the queue's number.
pub(crate) fn doorbell(function: &mut Function, uar: u32, word: u32, cqn: u32) {
    let Ok(queue) = function.objects.cqs.get_mut(cqn) else {
        let text = format!("completion queue {cqn:#x} is armed, which does not exist");
        function.report.violation(text);
        return;
    };
    if queue.uar() != uar {
        let text = format!(
            "completion queue {cqn:#x} belongs to UAR {}, its doorbell came on {uar}",
            queue.uar()
        );
        function.report.violation(text);
        return;
    }
    let record = function.memory.read_be32(queue.doorbell_record + 4);
    // The consumer does not wait for the doorbell to arrive: its record may be ahead, but never behind.
    let is_behind = |record: u32| record.wrapping_sub(word) & 0xff_ffff >= 1 << 23;
    if record.is_ok_and(is_behind) || record.is_err() {
        let text = format!(
            "completion queue {cqn:#x} is armed with {word:#x}, its doorbell record has {record:x?}"
        );
        function.report.violation(text);
    }
    if !queue.arm(word) {
        return;
    }
    let behind = queue.producer.wrapping_sub(word) & 0xff_ffff;
    let consumed = queue.producer.wrapping_sub(behind);
    if consumed.wrapping_sub(queue.notified).cast_signed() > 0 {
        queue.notified = consumed;
    }
    announce(function, cqn);
}

/// Makes a queue a collapsed one that ignores overrun, as programs that drive the device themselves create
/// them. The kernel's driver never asks for that (`cc`).
///
/// # Errors
/// If there is no such queue, or it has had entries.
pub(crate) fn collapse(function: &mut Function, cqn: u32) -> Result<(), String> {
    let queue = function.objects.cqs.get_mut(cqn);
    let queue = queue.map_err(|_| format!("there is no completion queue {cqn:#x}"))?;
    if queue.producer != 0 {
        return Err(format!("completion queue {cqn:#x} has had entries"));
    }
    for field in [cqc::CC, cqc::OI] {
        field.set(&mut queue.context, 1);
    }
    queue.is_collapsed = true;
    queue.ignores_overrun = true;
    Ok(())
}

/// Lets a queue fail as if it had overflowed.
pub(crate) fn fail(function: &mut Function, cqn: u32) {
    if let Ok(queue) = function.objects.cqs.get_mut(cqn) {
        queue.failed = true;
        overflowed(function, cqn);
    }
}

#[cfg(test)]
mod codec;
#[cfg(test)]
mod tests;
