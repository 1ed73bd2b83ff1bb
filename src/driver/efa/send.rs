//! The send queue: requests in a ring in the device's memory, and a doorbell.
//!
//! The ring is never read back, and the device may take requests from it only at the doorbell. So a batch is
//! first written to a ring of the same size in this side's memory, and copied when it is rung: whole blocks,
//! in order. Whenever any request has completed, a place of the ring is free again, so a request in flight is
//! named by a number and not by its place ([`NumberedLedger`]). All requests complete, but completions that
//! were not asked for are not passed on.

use std::ptr::NonNull;
use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;
use zerocopy::{FromZeros, IntoBytes};

use super::Limits;
#[cfg(feature = "c-abi")]
use super::QueueMemory;
use super::format::{BLOCK, Descriptor, Head, RemoteAddress, Slice, WIDE, Wqe, request};
use super::order::{self, Step};
use super::ring::Register;
use crate::driver::contract::{self, Position};
use crate::driver::kit::copy::copy_blocks;
use crate::driver::kit::ledger::{About, NumberedLedger};
use crate::driver::kit::map::Map;
use crate::error::Errno;
use crate::work::{Destination, Element, Operation, Payload, PostError, Remote, WorkRequest};

/// The layout of a send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendLayout {
    pub(super) transport: QpType,
    /// Requests that the ring holds, a power of two.
    pub(super) depth: u32,
    /// Blocks of a request, 1 or 2.
    pub(super) blocks: u32,
    /// The most slices of a message.
    pub(super) max_sge: u32,
    /// The most inline bytes of a message.
    pub(super) max_inline: u32,
    pub(super) rdma: RdmaLimits,
    /// The most requests between two doorbells.
    pub(super) max_batch: u32,
    /// Every request asks for a completion.
    pub(super) signal_all: bool,
}

/// The limits of READs and WRITEs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RdmaLimits {
    /// The most inline bytes of a WRITE.
    pub(super) max_inline: u32,
    /// The most bytes.
    pub(super) max_bytes: u32,
}

/// The device's ring.
#[derive(Debug)]
pub(super) struct DeviceRing {
    /// The first byte, aligned to a block.
    pub(super) first: NonNull<u8>,
    /// The map in which it lies.
    pub(super) _map: Arc<Map>,
    pub(super) doorbell: Register,
}

// SAFETY: the ring is in a map that this value keeps; only its one owner writes to it.
unsafe impl Send for DeviceRing {}
// SAFETY: shared references do nothing with it.
unsafe impl Sync for DeviceRing {}

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    layout: SendLayout,
    /// The requests as they were last written, by their places in the ring.
    written: Box<[Wqe]>,
    /// Requests that the device knows of.
    rung: u32,
    /// There is room for requests before this count, as the ledger said when it was last asked.
    room_until: u32,
    ledger: Arc<NumberedLedger>,
    ring: DeviceRing,
}

impl SendQueue {
    pub(super) fn new(layout: SendLayout, ledger: Arc<NumberedLedger>, ring: DeviceRing) -> Self {
        Self {
            layout,
            written: vec![Wqe::new_zeroed(); layout.depth as usize].into(),
            rung: 0,
            room_until: layout.depth,
            ledger,
            ring,
        }
    }

    /// Starts again with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<NumberedLedger>) {
        (self.rung, self.room_until) = (0, self.layout.depth);
        self.ledger = ledger;
    }

    pub(super) fn layout(&self) -> SendLayout {
        self.layout
    }

    /// The device's ring, which can only be written.
    #[cfg(feature = "c-abi")]
    pub(crate) fn memory(&self) -> QueueMemory {
        QueueMemory {
            first: self.ring.first.as_ptr(),
            entry_bytes: self.layout.blocks * BLOCK as u32,
            entries: self.layout.depth,
            doorbell: self.ring.doorbell.address(),
            max_batch: self.layout.max_batch,
        }
    }

    /// Asks the ledger how far the device is; false if the queue is full at this count of posted requests.
    #[cold]
    #[inline(never)]
    fn finds_room(&mut self, count: u32) -> bool {
        self.room_until = self.ledger.room(self.room_until);
        self.room_until != count
    }

    /// Copies the requests between two counts to the device, and rings.
    #[inline(always)]
    fn hand_over(&self, start: u32, end: u32) {
        // Nothing that was stored to the ring or the doorbell earlier mixes with this.
        order::after_writing();
        // Looked at once: the copies may change any memory, for all that the compiler knows.
        let (written, first) = (&*self.written, self.ring.first);
        let blocks = self.layout.blocks as usize;
        let mut count = start;
        while count != end {
            let place = (count & (self.layout.depth - 1)) as usize;
            let from = NonNull::from(&written[place]).cast();
            order::step(Step::Copied(place as u32));
            // SAFETY: the ring has `depth` requests of so many blocks, in the map that this value keeps, and
            // each of them is aligned to a block, as the written ones are, which are no smaller.
            unsafe {
                let to = first.add(place * blocks * BLOCK);
                // Not by one instruction, where the CPU has one: nothing takes a block before the doorbell.
                copy_blocks(from, to, blocks, false);
            }
            count = count.wrapping_add(1);
        }
        order::after_copying();
        self.ring.doorbell.store(u32::from(end as u16));
    }
}

impl contract::SendQueue for SendQueue {
    /// The device's number of the address handle.
    type Ah = u16;

    fn capacity(&self) -> u32 {
        self.layout.depth
    }

    fn max_sge(&self) -> u32 {
        self.layout.max_sge
    }

    fn max_inline(&self) -> u32 {
        self.layout.max_inline
    }

    fn in_flight(&self) -> u32 {
        self.ledger.in_flight()
    }

    #[inline(always)]
    fn position(&self) -> Position {
        Position::counted(self.rung)
    }

    #[inline(always)]
    fn write(
        &mut self,
        at: Position,
        request: WorkRequest<'_, u16>,
    ) -> Result<Position, PostError> {
        let parts = Parts::new(&self.layout, &request)?;
        if at.count == self.room_until && !self.finds_room(at.count) {
            let capacity = self.layout.depth;
            return Err(PostError::QueueFull { capacity });
        }
        let layout = &self.layout;
        let is_signaled = layout.signal_all || request.flags.contains(SendFlags::SIGNALED);
        let place = (at.count & (layout.depth - 1)) as usize;
        let wqe = &mut self.written[place];
        let (length, about) = parts.write(wqe, About::new(is_signaled), layout.blocks);
        let number = self
            .ledger
            .note(at.count, request.wr_id, about, parts.bytes);
        let is_odd_lap = at.count & layout.depth != 0;
        wqe.head = Head {
            number: number.into(),
            operation: parts.operation | request::META,
            control: request::WHOLE | if is_odd_lap { request::PHASE } else { 0 },
            dest_qpn: (parts.qpn as u16).into(),
            length: (length as u16).into(),
            imm: parts.imm.into(),
            ah: parts.ah.into(),
            qkey: parts.qkey.into(),
            ..Head::default()
        };
        Ok(Position::counted(at.count.wrapping_add(1)))
    }

    #[inline(always)]
    fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno> {
        let requests = end.count.wrapping_sub(start.count);
        self.ledger.post(end.count);
        self.rung = end.count;
        let mut from = start.count;
        while from != end.count {
            let left = end.count.wrapping_sub(from);
            let to = from.wrapping_add(left.min(self.layout.max_batch));
            self.hand_over(from, to);
            from = to;
        }
        Ok(requests as usize)
    }
}

/// A request that is within the limits, taken apart.
struct Parts<'a> {
    ah: u16,
    qpn: u32,
    qkey: u32,
    /// Bits of [`request`].
    operation: u8,
    imm: u32,
    remote: Option<Remote>,
    payload: Payload<'a>,
    bytes: u32,
}

impl<'a> Parts<'a> {
    #[inline(always)]
    fn new(layout: &SendLayout, request: &WorkRequest<'a, u16>) -> Result<Self, PostError> {
        let WorkRequest {
            flags,
            operation,
            to,
            payload,
            ..
        } = *request;
        let transport = layout.transport;
        let Some(Destination::Datagram(to)) = to else {
            return Err(PostError::Destination);
        };
        // No request waits for another one, and none makes an event of its own.
        if !SendFlags::SIGNALED.contains(flags) {
            return Err(PostError::NotInTransport { transport });
        }
        let (operation, imm, remote) = match operation {
            Operation::Send => (request::SEND, 0, None),
            Operation::SendImm { imm } => (request::SEND | request::IMMEDIATE, imm, None),
            Operation::Write { remote } => (request::WRITE, 0, Some(remote)),
            Operation::WriteImm { remote, imm } => {
                (request::WRITE | request::IMMEDIATE, imm, Some(remote))
            }
            Operation::Read { remote } => (request::READ, 0, Some(remote)),
            _ => return Err(PostError::NotInTransport { transport }),
        };
        let rdma = layout.rdma;
        let (max_sge, max_inline) = match remote {
            None => (layout.max_sge, layout.max_inline),
            Some(_) if operation == request::READ => (Limits::RDMA_SGES, 0),
            Some(_) => (Limits::RDMA_SGES, rdma.max_inline),
        };
        let bytes = payload.len();
        check(payload, max_sge, max_inline)?;
        let is_inline = matches!(payload, Payload::Inline(_) | Payload::InlineSges(_));
        // A READ or WRITE of nothing has no bytes in it, but no slices.
        let operation = match is_inline && (remote.is_none() || bytes > 0) {
            true => operation | request::INLINE,
            false => operation,
        };
        if remote.is_some() && bytes > rdma.max_bytes.into() {
            return Err(PostError::MessageTooLong {
                given: bytes,
                max: rdma.max_bytes.into(),
            });
        }
        Ok(Self {
            ah: *to.ah,
            qpn: to.qpn,
            qkey: to.qkey,
            operation,
            imm,
            remote,
            payload,
            // A message that is longer fails at the device.
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        })
    }

    /// Writes what follows the header in a request of `blocks` blocks, and notes its keys. Returns the number
    /// of slices or inline bytes, and the note.
    #[inline(always)]
    fn write(&self, wqe: &mut Wqe, about: About, blocks: u32) -> (usize, About) {
        // Two fills of constant length, so that each becomes a few stores.
        let (first, second) = wqe.body.split_at_mut(BLOCK - size_of::<Head>());
        first.fill(0);
        if blocks == WIDE {
            second.fill(0);
        }
        let body = &mut wqe.body[..];
        let body = match self.remote {
            None => body,
            Some(remote) => {
                let (there, body) = body.split_at_mut(size_of::<RemoteAddress>());
                let remote = RemoteAddress {
                    length: self.bytes.into(),
                    rkey: remote.rkey.0.into(),
                    address: remote.address.into(),
                };
                there.copy_from_slice(remote.as_bytes());
                body
            }
        };
        match self.payload {
            Payload::Gather(slices) => put_slices(body, slices, about),
            Payload::Sges(slices) => put_slices(body, slices, about),
            Payload::Inline(bytes) => {
                body[..bytes.len()].copy_from_slice(bytes);
                (bytes.len(), about)
            }
            Payload::InlineSges(pieces) => {
                let room = &mut body[..pieces.len()];
                // SAFETY: there is room for all of them.
                unsafe { pieces.copy_to(NonNull::from(room).cast()) };
                (pieces.len(), about)
            }
        }
    }
}

/// Refuses a payload with too many slices or inline bytes.
#[inline(always)]
fn check(payload: Payload<'_>, max_sge: u32, max_inline: u32) -> Result<(), PostError> {
    let slices = |given| match given > max_sge as usize {
        true => Err(PostError::TooManySges {
            given,
            max: max_sge,
        }),
        false => Ok(()),
    };
    let inline = |given| match given > max_inline as usize {
        true => Err(PostError::InlineTooLong {
            given,
            max: max_inline,
        }),
        false => Ok(()),
    };
    match payload {
        Payload::Gather(list) => slices(list.len()),
        Payload::Sges(list) => slices(list.len()),
        Payload::Inline(bytes) => inline(bytes.len()),
        Payload::InlineSges(pieces) => inline(pieces.len()),
    }
}

/// Writes slices, which the caller has checked to fit, and notes their keys. Returns how many there are, and
/// the note.
#[inline(always)]
fn put_slices<E: Element>(body: &mut [u8], slices: &[E], mut about: About) -> (usize, About) {
    let places = body.chunks_exact_mut(size_of::<Slice>());
    for (place, slice) in places.zip(slices) {
        let written = Slice {
            length: slice.length().into(),
            lkey: (slice.lkey() & Descriptor::LKEY).into(),
            address: slice.address().into(),
        };
        place.copy_from_slice(written.as_bytes());
        about = about.with(slice.lkey());
    }
    (slices.len(), about)
}
