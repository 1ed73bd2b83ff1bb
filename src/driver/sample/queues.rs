//! The driver's side of the queues. A request is written into memory, gets its number when it is rung, and is
//! known by that number until the device has completed it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::{SendFlags, WcFlags};
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::types::Sge;

use super::device::{Cqe, Data, Device, Rqe, Wqe};
use crate::driver::contract::{self, NewQp, Position};
use crate::driver::kit::ledger::{About, NumberedLedger};
use crate::error::Errno;
use crate::work::{
    Destination, Element, Operation, Payload, PollError, PostError, Progress, WorkRequest,
};

/// The most slices of a message.
pub(super) const MAX_SGE: u32 = 2;
/// The most slices of a WRITE or READ.
pub(super) const MAX_SGE_RDMA: u32 = 1;
/// The most inline bytes of a message. WRITEs have none.
pub(super) const MAX_INLINE: u32 = 32;

/// The notes of a queue's requests in flight, which its completion queue reads too.
type Ledger = Arc<NumberedLedger>;

/// A request that was written and not rung yet.
#[derive(Debug)]
struct Written {
    wr_id: u64,
    is_signaled: bool,
    dest_qpn: u32,
    operation: Operation,
    data: Data,
}

#[derive(Debug)]
pub(crate) struct SendQueue {
    device: Device,
    qpn: u32,
    capacity: u32,
    ledger: Ledger,
    /// Requests that were rung, counted from the start, modulo 2^32; and the requests that were written after
    /// them.
    rung: u32,
    written: Vec<Written>,
}

impl SendQueue {
    /// The most slices of an operation.
    fn most_slices(operation: Operation) -> u32 {
        match operation {
            Operation::Send | Operation::SendImm { .. } => MAX_SGE,
            _ => MAX_SGE_RDMA,
        }
    }

    /// The most inline bytes of an operation.
    fn most_inline(operation: Operation) -> u32 {
        match operation {
            Operation::Send | Operation::SendImm { .. } => MAX_INLINE,
            _ => 0,
        }
    }
}

impl contract::SendQueue for SendQueue {
    type Ah = ();

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn max_sge(&self) -> u32 {
        MAX_SGE
    }

    fn max_inline(&self) -> u32 {
        MAX_INLINE
    }

    fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    fn position(&self) -> Position {
        Position::counted(self.rung)
    }

    fn write(&mut self, at: Position, request: WorkRequest<'_, ()>) -> Result<Position, PostError> {
        let WorkRequest {
            wr_id,
            flags,
            operation,
            to,
            payload,
        } = request;
        self.written
            .truncate(at.count.wrapping_sub(self.rung) as usize);
        has_room(&self.ledger, at.count, self.capacity)?;
        // The caller has checked that there is one.
        let dest_qpn = match to {
            Some(Destination::Datagram(to)) => to.qpn,
            _ => 0,
        };
        self.written.push(Written {
            wr_id,
            is_signaled: flags.contains(SendFlags::SIGNALED),
            dest_qpn,
            operation,
            data: data(operation, payload)?,
        });
        Ok(Position::counted(at.count.wrapping_add(1)))
    }

    fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno> {
        let count = end.count.wrapping_sub(start.count) as usize;
        self.written.truncate(count);
        self.rung = end.count;
        self.ledger.post(end.count);
        let written = self.written.drain(..).enumerate();
        let numbered = written.map(|(nth, written)| {
            let about = About::new(written.is_signaled);
            let count = start.count.wrapping_add(nth as u32);
            Wqe {
                number: self.ledger.note(count, written.wr_id, about, 0),
                operation: written.operation,
                dest_qpn: written.dest_qpn,
                data: written.data,
            }
        });
        self.device.ring_sends(self.qpn, numbered);
        Ok(count)
    }
}

/// Refuses the request of this count if the queue is full.
fn has_room(ledger: &NumberedLedger, count: u32, capacity: u32) -> Result<(), PostError> {
    match count != ledger.room(count) {
        true => Ok(()),
        false => Err(PostError::QueueFull { capacity }),
    }
}

/// What a request carries, within the limits of its operation.
fn data(operation: Operation, payload: Payload<'_>) -> Result<Data, PostError> {
    let slices = match payload {
        Payload::Gather(slices) => slices.iter().map(sge).collect::<Vec<_>>(),
        Payload::Sges(slices) => slices.to_vec(),
        Payload::Inline(bytes) => return inline(operation, bytes.to_vec()),
        Payload::InlineSges(pieces) => {
            let mut bytes = vec![0; pieces.len()];
            if let Some(to) = std::ptr::NonNull::new(bytes.as_mut_ptr()) {
                // SAFETY: there is room for all of them.
                unsafe { pieces.copy_to(to) };
            }
            return inline(operation, bytes);
        }
    };
    fits(slices.len(), SendQueue::most_slices(operation))?;
    Ok(Data::Slices(slices))
}

fn inline(operation: Operation, bytes: Vec<u8>) -> Result<Data, PostError> {
    let (given, max) = (bytes.len(), SendQueue::most_inline(operation));
    match given <= max as usize {
        true => Ok(Data::Inline(bytes)),
        false => Err(PostError::InlineTooLong { given, max }),
    }
}

fn fits(given: usize, max: u32) -> Result<(), PostError> {
    match given <= max as usize {
        true => Ok(()),
        false => Err(PostError::TooManySges { given, max }),
    }
}

fn sge(slice: &impl Element) -> Sge {
    Sge {
        addr: slice.address(),
        length: slice.length(),
        lkey: slice.lkey(),
    }
}

#[derive(Debug)]
pub(crate) struct RecvQueue {
    device: Device,
    qpn: u32,
    capacity: u32,
    ledger: Ledger,
    /// Requests that were rung, counted from the start, modulo 2^32; and the requests that were written after
    /// them.
    rung: u32,
    written: Vec<(u64, Vec<Sge>)>,
}

impl contract::RecvQueue for RecvQueue {
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn max_sge(&self) -> u32 {
        MAX_SGE
    }

    fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        fits(slices.len(), MAX_SGE)?;
        self.written.truncate(nth as usize);
        has_room(&self.ledger, self.rung.wrapping_add(nth), self.capacity)?;
        let slices = slices.iter().map(sge).collect();
        self.written.push((wr_id, slices));
        Ok(())
    }

    fn ring(&mut self, count: u32) {
        self.written.truncate(count as usize);
        let start = self.rung;
        self.rung = start.wrapping_add(count);
        self.ledger.post(self.rung);
        let written = self.written.drain(..).enumerate();
        let numbered = written.map(|(nth, (wr_id, slices))| {
            let count = start.wrapping_add(nth as u32);
            let number = self.ledger.note(count, wr_id, About::new(true), 0);
            Rqe { number, slices }
        });
        self.device.ring_receives(self.qpn, numbered);
    }
}

/// The ledgers of the queues that report to a completion queue, by the queue pair's number.
type Directory = Arc<Mutex<BTreeMap<u32, [Ledger; 2]>>>;

/// The part of a completion queue that its queue pairs know.
#[derive(Clone, Debug)]
pub(crate) struct CqBacking {
    pub(super) number: u32,
    directory: Directory,
}

impl CqBacking {
    pub(super) fn directory(&self) -> MutexGuard<'_, BTreeMap<u32, [Ledger; 2]>> {
        self.directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Cq {
    device: Device,
    backing: CqBacking,
    capacity: u32,
    /// The completion that a C program reads.
    #[cfg(feature = "c-abi")]
    shown: Option<Completion>,
}

/// A completion, with the program's id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    wr_id: u64,
    cqe: Cqe,
}

impl contract::Completion for Completion {
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    fn status(&self) -> WcStatus {
        self.cqe.status
    }

    fn opcode(&self) -> WcOpcode {
        self.cqe.opcode
    }

    fn byte_len(&self) -> u32 {
        self.cqe.byte_len
    }

    fn qp_num(&self) -> u32 {
        self.cqe.qpn
    }

    fn src_qp(&self) -> u32 {
        self.cqe.src_qp
    }

    fn ex(&self) -> u32 {
        self.cqe.imm.unwrap_or_default().to_be()
    }

    fn flags(&self) -> WcFlags {
        match self.cqe.imm {
            Some(_) => WcFlags::WITH_IMM,
            None => WcFlags::empty(),
        }
    }
}

impl Cq {
    pub(super) fn new(device: &Device, capacity: u32) -> Self {
        Self {
            backing: CqBacking {
                number: device.create_cq(),
                directory: Directory::default(),
            },
            device: device.clone(),
            capacity,
            #[cfg(feature = "c-abi")]
            shown: None,
        }
    }
}

impl contract::Cq for Cq {
    type Backing = CqBacking;
    type Completion = Completion;
    type Polled<'q> = Polled<'q>;

    fn backing(&self) -> CqBacking {
        self.backing.clone()
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        Ok(self.device.is_empty(self.backing.number))
    }

    fn poll(&mut self) -> Result<Polled<'_>, PollError> {
        Ok(Polled(self))
    }

    #[cfg(feature = "c-abi")]
    fn show_next(&mut self) -> Result<Option<Completion>, PollError> {
        self.shown = self.poll()?.next();
        Ok(self.shown)
    }

    #[cfg(feature = "c-abi")]
    fn shown(&self) -> Option<Completion> {
        self.shown
    }

    #[cfg(feature = "c-abi")]
    fn hide(&mut self) {
        self.shown = None;
    }
}

/// Completions that are being taken.
#[derive(Debug)]
pub(crate) struct Polled<'q>(&'q Cq);

/// The device completes all requests; completions that were not asked for are dropped here.
impl Iterator for Polled<'_> {
    type Item = Completion;

    fn next(&mut self) -> Option<Completion> {
        let Self(cq) = self;
        loop {
            let cqe = cq.device.next(cq.backing.number)?;
            let directory = cq.backing.directory();
            let Some([sends, receives]) = directory.get(&cqe.qpn) else {
                continue;
            };
            let ledger = if cqe.is_receive { receives } else { sends };
            let Some(noted) = ledger.finish(cqe.number) else {
                continue;
            };
            let wr_id = noted.id;
            if noted.is_signaled || cqe.status != WcStatus::SUCCESS {
                return Some(Completion { wr_id, cqe });
            }
        }
    }
}

/// What stays of a queue pair until the last user is gone.
#[derive(Clone, Debug)]
pub(crate) struct QpBacking(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    device: Device,
    qpn: u32,
    cqs: [CqBacking; 2],
    /// The capacities of the send queue and of the receive queue, and their ledgers.
    rooms: [u32; 2],
    ledgers: Mutex<[Ledger; 2]>,
}

fn ledgers(rooms: [u32; 2]) -> [Ledger; 2] {
    rooms.map(|room| Arc::new(NumberedLedger::new(room, 0)))
}

impl Kept {
    fn ledgers(&self) -> MutexGuard<'_, [Ledger; 2]> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on completions finish requests of new ledgers.
    fn start(&self) -> [Ledger; 2] {
        let ledgers = ledgers(self.rooms);
        for cq in &self.cqs {
            cq.directory().insert(self.qpn, ledgers.clone());
        }
        *self.ledgers() = ledgers.clone();
        ledgers
    }
}

impl QpBacking {
    /// Makes the queue pair as new.
    pub(super) fn reset(&self, send: &mut SendQueue, recv: Option<&mut RecvQueue>) {
        self.0.device.reset(self.0.qpn);
        let [sends, receives] = self.0.start();
        (send.rung, send.ledger) = (0, sends);
        if let Some(recv) = recv {
            (recv.rung, recv.ledger) = (0, receives);
        }
    }
}

impl contract::QpBacking for QpBacking {
    fn sends(&self) -> Progress {
        self.0.ledgers()[0].progress()
    }

    fn receives(&self) -> Option<Progress> {
        Some(self.0.ledgers()[1].progress())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.device.destroy_qp(self.qpn);
        for cq in &self.cqs {
            cq.directory().remove(&self.qpn);
        }
    }
}

/// A queue pair with room for `rooms[0]` sends and `rooms[1]` receives.
pub(super) fn create_qp(
    device: &Device,
    cqs: [&CqBacking; 2],
    rooms: [u32; 2],
) -> NewQp<SendQueue, RecvQueue, QpBacking> {
    let cqs = cqs.map(CqBacking::clone);
    let qpn = device.create_qp(cqs[0].number, cqs[1].number);
    let kept = Kept {
        device: device.clone(),
        qpn,
        cqs,
        rooms,
        ledgers: Mutex::new(ledgers(rooms)),
    };
    let [sends, receives] = kept.start();
    NewQp {
        handle: QpHandle(qpn),
        qpn,
        send: SendQueue {
            device: device.clone(),
            qpn,
            capacity: rooms[0],
            ledger: sends,
            rung: 0,
            written: Vec::new(),
        },
        recv: Some(RecvQueue {
            device: device.clone(),
            qpn,
            capacity: rooms[1],
            ledger: receives,
            rung: 0,
            written: Vec::new(),
        }),
        backing: QpBacking(Arc::new(kept)),
    }
}
