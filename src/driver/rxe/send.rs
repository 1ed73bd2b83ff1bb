//! The send queue of an rxe QP: work requests into slots, and the doorbell.
//!
//! Slot layout: `struct rxe_send_wqe` in `include/uapi/rdma/rdma_user_rxe.h`. The kernel keeps its progress in
//! a slot while it is in flight, so those fields are zeroed each time a slot is filled anew.

use std::ptr::NonNull;

use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::rxe::{self as abi, DmaInfo, SendWqe, Sge, WrAtomic, WrRdma, WrUd};

use super::doorbell::Doorbell;
use super::map::RingMap;
use super::ring::Producer;
use crate::error::Errno;
use crate::key::LocalSlice;
use crate::wr::{Destination, Operation, Payload, PostError, Remote};

/// Byte offsets in a slot: where the union of the request starts, and where the payload does.
const UNION: usize = abi::SEND_WR_OFFSET;
const PAYLOAD: usize = abi::SEND_PAYLOAD_OFFSET;

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    // Before the map, because it points into it.
    ring: Producer,
    doorbell: Doorbell,
    max_sge: u32,
    max_inline: u32,
    _map: Option<RingMap>,
}

/// A slot that has been filled: its id and flags may still change until the doorbell.
#[derive(Debug)]
pub(crate) struct SendSlot {
    wqe: NonNull<SendWqe>,
    flags: SendFlags,
}

impl SendQueue {
    /// A send queue over a ring; `map` keeps the ring's memory mapped.
    pub(super) fn new(
        ring: Producer,
        doorbell: Doorbell,
        max_sge: u32,
        max_inline: u32,
        map: Option<RingMap>,
    ) -> Self {
        // What the kernel grants must fit into the slots that it made; where it does not, the slots count.
        let room = ring.slot_size() - PAYLOAD;
        Self {
            max_sge: max_sge.min((room / size_of::<Sge>()) as u32),
            max_inline: max_inline.min(room as u32),
            ring,
            doorbell,
            _map: map,
        }
    }

    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// The most slices of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The most inline bytes of a request.
    pub(crate) fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Requests that have been posted and that the device has not finished.
    pub(crate) fn in_flight(&self) -> u32 {
        self.ring.in_flight()
    }

    /// Requests in the batch that has not been rung yet.
    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        self.ring.pending()
    }

    /// Fills the next slot with a request. The caller has checked that the transport has the operation.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination>,
        payload: Payload<'_>,
    ) -> Result<SendSlot, PostError> {
        let Some((slot, behind)) = self.ring.free_slot() else {
            return Err(full(self.ring.capacity()));
        };
        match payload {
            Payload::Gather(slices) if slices.len() > self.max_sge as usize => {
                return Err(too_many(slices.len(), self.max_sge));
            }
            Payload::Inline(bytes) if bytes.len() > self.max_inline as usize => {
                return Err(inline_too_long(bytes.len(), self.max_inline));
            }
            _ => {}
        }
        let wqe = slot.cast::<SendWqe>();
        // SAFETY: the slot is free, so it is ours alone until it is published; it is aligned to 8 and holds
        // a `SendWqe` and behind it `max_sge` slices or `max_inline` bytes, which `new` made sure of and
        // the checks above keep to.
        let flags = unsafe {
            let flags = write_payload(wqe, payload);
            write_request(wqe, operation, to);
            flags
        };
        let filled = SendSlot { wqe, flags };
        filled.store(0);
        self.ring.advance(behind);
        Ok(filled)
    }

    /// Hands the batch to the device: one index store, one system call.
    #[inline(always)]
    pub(crate) fn ring(&mut self) -> Result<(), Errno> {
        self.ring.publish();
        self.doorbell.ring()
    }

    /// Forgets the batch.
    #[inline(always)]
    pub(crate) fn abandon(&mut self) {
        self.ring.abandon();
    }
}

impl SendSlot {
    /// Sets the id that the completion carries.
    #[inline(always)]
    pub(crate) fn set_id(&mut self, wr_id: u64) {
        // SAFETY: the slot is filled and not published, for the batch that lent it out is still borrowed.
        unsafe { (&raw mut (*self.wqe.as_ptr()).wr.wr_id).write(wr_id) };
    }

    /// Sets flags on top of those that are set.
    #[inline(always)]
    pub(crate) fn add_flags(&mut self, flags: SendFlags) {
        self.flags |= flags;
        // SAFETY: as in `set_id`.
        unsafe { (&raw mut (*self.wqe.as_ptr()).wr.send_flags).write(self.flags.bits()) };
    }

    #[inline(always)]
    fn store(&self, wr_id: u64) {
        // SAFETY: as in `set_id`.
        unsafe {
            (&raw mut (*self.wqe.as_ptr()).wr.wr_id).write(wr_id);
            (&raw mut (*self.wqe.as_ptr()).wr.send_flags).write(self.flags.bits());
        }
    }
}

/// Writes everything of a request but its id, flags and payload.
///
/// # Safety
///
/// `wqe` must be a slot that is ours to write.
#[inline(always)]
unsafe fn write_request(wqe: NonNull<SendWqe>, operation: Operation, to: Option<Destination>) {
    let wqe = wqe.as_ptr();
    let imm = match operation {
        // Immediate data travels in network byte order.
        Operation::SendImm { imm } | Operation::WriteImm { imm, .. } => imm.to_be(),
        _ => 0,
    };
    // SAFETY: all fields lie in the slot, by this function's contract; the union has room for each of its
    // forms.
    unsafe {
        let union = wqe.cast::<u8>().add(UNION);
        (&raw mut (*wqe).wr.opcode).write(operation.opcode().0);
        (&raw mut (*wqe).wr.ex).write(imm);
        let iova = match operation {
            Operation::Send | Operation::SendImm { .. } => 0,
            Operation::Write { remote }
            | Operation::WriteImm { remote, .. }
            | Operation::Read { remote } => {
                let Remote { address, rkey } = remote;
                union.cast::<WrRdma>().write(WrRdma {
                    remote_addr: address,
                    rkey: rkey.0,
                    reserved: 0,
                });
                address
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => write_atomic(union, remote, compare, swap),
            Operation::FetchAdd { remote, add } => write_atomic(union, remote, add, 0),
        };
        (&raw mut (*wqe).iova).write(iova);
        if let Some(Destination { ah, qpn, qkey, .. }) = to {
            let ud = union.cast::<WrUd>();
            (&raw mut (*ud).remote_qpn).write(qpn);
            (&raw mut (*ud).remote_qkey).write(qkey);
            (&raw mut (*ud).ah_num).write(ah);
        }
        // The kernel's own fields: it expects zeros in a slot that it has not seen.
        (&raw mut (*wqe).status).write(0);
        (&raw mut (*wqe).state).write(0);
        (&raw mut (*wqe).mask).write(0);
        (&raw mut (*wqe).first_psn).write(0);
        (&raw mut (*wqe).last_psn).write(0);
        (&raw mut (*wqe).ack_length).write(0);
        (&raw mut (*wqe).ssn).write(0);
        (&raw mut (*wqe).has_rd_atomic).write(0);
    }
}

/// Writes the union of an atomic operation and returns the remote address.
///
/// # Safety
///
/// `union` must be the union of a slot that is ours to write.
#[inline(always)]
unsafe fn write_atomic(union: *mut u8, remote: Remote, compare_add: u64, swap: u64) -> u64 {
    let Remote { address, rkey } = remote;
    let atomic = WrAtomic {
        remote_addr: address,
        compare_add,
        swap,
        rkey: rkey.0,
        reserved: 0,
    };
    // SAFETY: by this function's contract; the union is the size of its largest form.
    unsafe { union.cast::<WrAtomic>().write(atomic) };
    address
}

/// Writes the payload and the count of it, and returns the flags that go with it.
///
/// # Safety
///
/// `wqe` must be a slot that is ours to write, with room for the payload behind it.
#[inline(always)]
unsafe fn write_payload(wqe: NonNull<SendWqe>, payload: Payload<'_>) -> SendFlags {
    // SAFETY: the payload follows the element directly, by this function's contract.
    unsafe {
        let behind = wqe.as_ptr().cast::<u8>().add(PAYLOAD);
        let dma = &raw mut (*wqe.as_ptr()).dma;
        match payload {
            Payload::Gather(slices) => {
                let length = write_sges(behind, slices);
                dma.write(DmaInfo {
                    length,
                    resid: length,
                    num_sge: slices.len() as u32,
                    ..DmaInfo::default()
                });
                SendFlags::empty()
            }
            Payload::Inline(bytes) => {
                behind.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                let length = bytes.len() as u32;
                dma.write(DmaInfo {
                    length,
                    resid: length,
                    ..DmaInfo::default()
                });
                SendFlags::INLINE
            }
        }
    }
}

/// Writes a scatter or gather list and returns the sum of its lengths.
///
/// The sum wraps where it exceeds 32 bits; posting functions refuse such lists before.
///
/// # Safety
///
/// There must be room for `slices.len()` elements at `list`, aligned to 8.
#[inline(always)]
pub(super) unsafe fn write_sges(list: *mut u8, slices: &[LocalSlice]) -> u32 {
    let list = list.cast::<Sge>();
    let mut length = 0u32;
    for (index, slice) in slices.iter().enumerate() {
        let sge = Sge {
            addr: slice.address,
            length: slice.length,
            lkey: slice.lkey.0,
        };
        // SAFETY: there is room for all elements, by this function's contract.
        unsafe { list.add(index).write(sge) };
        length = length.wrapping_add(slice.length);
    }
    length
}

// Errors are made out of line, so that the way without one stays short.

#[cold]
pub(super) fn full(capacity: u32) -> PostError {
    PostError::QueueFull { capacity }
}

#[cold]
pub(super) fn too_many(given: usize, max: u32) -> PostError {
    PostError::TooManySges { given, max }
}

#[cold]
fn inline_too_long(given: usize, max: u32) -> PostError {
    PostError::InlineTooLong { given, max }
}
