//! The driver's side of the queues. A request is written into memory, gets its number when it is rung, and is
//! known by that number until the device has completed it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::types::Sge;

use super::device::{Cqe, Data, Device, Rqe, Wqe};
use crate::driver::contract::{self, Position};
use crate::driver::kit::unordered::Unordered;
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

/// What is known of a request in flight.
#[derive(Debug)]
struct Note {
    wr_id: u64,
    /// The program wants to hear of it even if all is well.
    is_signaled: bool,
}

/// The notes of a queue, which its completion queue reads too.
#[derive(Clone, Debug)]
pub(super) struct Notes(Arc<Mutex<Unordered<Note>>>);

impl Notes {
    fn new(capacity: u32) -> Self {
        Self(Arc::new(Mutex::new(Unordered::new(capacity))))
    }

    fn lock(&self) -> MutexGuard<'_, Unordered<Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was written and not rung.
#[derive(Debug)]
struct Written {
    note: Note,
    dest_qpn: u32,
    operation: Operation,
    data: Data,
}

#[derive(Debug)]
pub(super) struct SendQueue {
    device: Device,
    qpn: u32,
    capacity: u32,
    notes: Notes,
    /// Requests that were rung, counted from the start, modulo 2^32, and those that were written behind.
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

    /// How far it is, from the oldest request on.
    pub(super) fn progress(&self) -> Progress {
        self.notes.lock().progress()
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
        self.notes.lock().in_flight()
    }

    fn position(&self) -> Position {
        Position {
            count: self.rung,
            ..Position::default()
        }
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
        has_room(&self.notes, self.written.len(), self.capacity)?;
        let Some(Destination::Datagram(to)) = to else {
            return Err(PostError::Destination);
        };
        self.written.push(Written {
            note: Note {
                wr_id,
                is_signaled: flags.contains(SendFlags::SIGNALED),
            },
            dest_qpn: to.qpn,
            operation,
            data: data(operation, payload)?,
        });
        let count = at.count.wrapping_add(1);
        Ok(Position { count, ..at })
    }

    fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno> {
        let count = end.count.wrapping_sub(start.count) as usize;
        self.written.truncate(count);
        self.rung = end.count;
        let mut notes = self.notes.lock();
        let numbered = self.written.drain(..).filter_map(|written| {
            Some(Wqe {
                number: notes.begin(written.note)?,
                operation: written.operation,
                dest_qpn: written.dest_qpn,
                data: written.data,
            })
        });
        self.device.ring_sends(self.qpn, numbered);
        Ok(count)
    }
}

/// Refuses another request if the queue is full with those that were written.
fn has_room(notes: &Notes, written: usize, capacity: u32) -> Result<(), PostError> {
    match notes.lock().room() > written {
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
pub(super) struct RecvQueue {
    device: Device,
    qpn: u32,
    capacity: u32,
    notes: Notes,
    written: Vec<(Note, Vec<Sge>)>,
}

impl contract::RecvQueue for RecvQueue {
    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn max_sge(&self) -> u32 {
        MAX_SGE
    }

    fn in_flight(&self) -> u32 {
        self.notes.lock().in_flight()
    }

    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        fits(slices.len(), MAX_SGE)?;
        self.written.truncate(nth as usize);
        has_room(&self.notes, self.written.len(), self.capacity)?;
        let note = Note {
            wr_id,
            is_signaled: true,
        };
        self.written.push((note, slices.iter().map(sge).collect()));
        Ok(())
    }

    fn ring(&mut self, count: u32) {
        self.written.truncate(count as usize);
        let mut notes = self.notes.lock();
        let numbered = self.written.drain(..).filter_map(|(note, slices)| {
            let number = notes.begin(note)?;
            Some(Rqe { number, slices })
        });
        self.device.ring_receives(self.qpn, numbered);
    }
}

/// The notes of the queues that report to a completion queue, by the queue pair's number.
type Directory = Arc<Mutex<BTreeMap<u32, [Notes; 2]>>>;

#[derive(Debug)]
pub(super) struct Cq {
    device: Device,
    number: u32,
    directory: Directory,
}

/// A completion, with the program's id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    cqe: Cqe,
}

impl Completion {
    pub(super) fn status(&self) -> WcStatus {
        self.cqe.status
    }

    pub(super) fn opcode(&self) -> WcOpcode {
        self.cqe.opcode
    }

    pub(super) fn byte_len(&self) -> u32 {
        self.cqe.byte_len
    }

    pub(super) fn qp_num(&self) -> u32 {
        self.cqe.qpn
    }

    pub(super) fn src_qp(&self) -> u32 {
        self.cqe.src_qp
    }

    pub(super) fn imm(&self) -> Option<u32> {
        self.cqe.imm
    }
}

impl Cq {
    pub(super) fn new(device: &Device) -> Self {
        Self {
            number: device.create_cq(),
            device: device.clone(),
            directory: Directory::default(),
        }
    }

    fn directory(&self) -> MutexGuard<'_, BTreeMap<u32, [Notes; 2]>> {
        self.directory
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.device.is_empty(self.number)
    }

    /// The next completion that somebody wants. The device completes all requests; what was not asked for is
    /// dropped here.
    pub(super) fn next(&mut self) -> Result<Option<Completion>, PollError> {
        while let Some(cqe) = self.device.next(self.number) {
            let notes =
                self.directory()
                    .get(&cqe.qpn)
                    .map(|[sends, receives]| match cqe.is_receive {
                        true => receives.clone(),
                        false => sends.clone(),
                    });
            // Of a queue pair that is gone.
            let Some(note) = notes.and_then(|notes| notes.lock().finish(cqe.number)) else {
                continue;
            };
            if note.is_signaled || cqe.status != WcStatus::SUCCESS {
                let wr_id = note.wr_id;
                return Ok(Some(Completion { wr_id, cqe }));
            }
        }
        Ok(None)
    }
}

/// A queue pair with rooms for so many requests; its number comes first.
pub(super) fn create_qp(
    device: &Device,
    [send_cq, recv_cq]: [&Cq; 2],
    [sends, receives]: [u32; 2],
) -> (u32, SendQueue, RecvQueue) {
    let qpn = device.create_qp(send_cq.number, recv_cq.number);
    let notes = [Notes::new(sends), Notes::new(receives)];
    for cq in [send_cq, recv_cq] {
        cq.directory().insert(qpn, notes.clone());
    }
    let [send_notes, recv_notes] = notes;
    let send = SendQueue {
        device: device.clone(),
        qpn,
        capacity: sends,
        notes: send_notes,
        rung: 0,
        written: Vec::new(),
    };
    let recv = RecvQueue {
        device: device.clone(),
        qpn,
        capacity: receives,
        notes: recv_notes,
        written: Vec::new(),
    };
    (qpn, send, recv)
}
