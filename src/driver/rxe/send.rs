//! The send queue of an rxe QP: work requests into slots, and the doorbell.
//!
//! Slot layout: `struct rxe_send_wqe` in `include/uapi/rdma/rdma_user_rxe.h`. The kernel keeps its progress
//! in a slot while it is in flight, so those fields are zeroed each time a slot is filled again.

use std::ptr::NonNull;

use uverbs_uapi::enums::WrOpcode;
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::rxe::{self as abi, DmaInfo, SendWqe, Sge, WrAtomic, WrFlush, WrMw, WrUd};

use super::map::Keep;
use super::ring::Producer;
use crate::command::Doorbell;
use crate::driver::contract::{self, Position};
use crate::error::Errno;
use crate::work::{
    Bind, DatagramTo, Destination, Element, Operation, Payload, PostError, Remote, WorkRequest,
};

/// Byte offsets in a slot: where the union of the request starts, and where the payload does.
const UNION: usize = abi::SEND_WR_OFFSET;
const PAYLOAD: usize = abi::SEND_PAYLOAD_OFFSET;

/// Bytes of the smallest slot: a request with one slice.
pub(super) const SLOT: usize = PAYLOAD + size_of::<Sge>();

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    // Before the maps, because it points into one.
    ring: Producer,
    doorbell: Doorbell,
    max_sge: u32,
    max_inline: u32,
    /// A request had a memory window of type 2 bound, which may still be bound.
    bound_windows: bool,
    _maps: Option<Keep>,
}

impl SendQueue {
    /// A send queue over a ring; `maps` keep the ring's memory mapped.
    pub(super) fn new(
        ring: Producer,
        doorbell: Doorbell,
        max_sge: u32,
        max_inline: u32,
        maps: Option<Keep>,
    ) -> Self {
        // The kernel's limits must fit into the slots that it made. If they do not, the slots decide.
        assert!(ring.slot_size() >= SLOT, "`create` makes sure of it");
        let room = ring.slot_size() - PAYLOAD;
        Self {
            max_sge: max_sge.clamp(1, (room / size_of::<Sge>()) as u32),
            max_inline: max_inline.min(room as u32),
            ring,
            doorbell,
            bound_windows: false,
            _maps: maps,
        }
    }

    /// Refuses a payload that does not fit into a slot.
    #[inline(always)]
    fn check(&self, payload: Payload<'_>) -> Result<(), PostError> {
        let (max_sge, max_inline) = (self.max_sge, self.max_inline);
        match payload {
            // There is always room for one.
            Payload::Gather(slices) if slices.len() > 1 && slices.len() > max_sge as usize => {
                Err(too_many(slices.len(), max_sge))
            }
            Payload::Sges(sges) if sges.len() > max_sge as usize => {
                Err(too_many(sges.len(), max_sge))
            }
            Payload::Inline(bytes) if bytes.len() > max_inline as usize => {
                Err(inline_too_long(bytes.len(), max_inline))
            }
            Payload::InlineSges(pieces) if pieces.len() > max_inline as usize => {
                Err(inline_too_long(pieces.len(), max_inline))
            }
            _ => Ok(()),
        }
    }
}

impl contract::SendQueue for SendQueue {
    type Ah = u32;

    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn max_sge(&self) -> u32 {
        self.max_sge
    }

    fn max_inline(&self) -> u32 {
        self.max_inline
    }

    fn in_flight(&self) -> u32 {
        self.ring.in_flight()
    }

    /// A window keeps its queue pair, whose destruction would wait for the window (`rxe_do_bind_mw` in
    /// `rxe_mw.c`).
    fn has_bound_windows(&self) -> bool {
        self.bound_windows
    }

    #[inline(always)]
    fn position(&self) -> Position {
        Position::counted(self.ring.published())
    }

    #[inline(always)]
    fn write(
        &mut self,
        at: Position,
        request: WorkRequest<'_, u32>,
    ) -> Result<Position, PostError> {
        let WorkRequest {
            wr_id,
            flags,
            operation,
            to,
            payload,
        } = request;
        self.check(payload)?;
        let Some(slot) = self.ring.slot(at.count) else {
            return Err(full(self.ring.capacity()));
        };
        if let Operation::BindMw(bind) = operation {
            self.bound_windows |= bind.of_queue_pair;
        }
        let wqe = slot.cast::<SendWqe>();
        let flags = match payload {
            Payload::Gather(_) | Payload::Sges(_) => flags,
            Payload::Inline(_) | Payload::InlineSges(_) => flags | SendFlags::INLINE,
        };
        // SAFETY: the slot is this side's alone until it is published. It is aligned to 8 and holds a
        // `SendWqe`, followed by `max_sge` slices or `max_inline` bytes; `new` made sure of that.
        unsafe {
            write_payload(wqe, payload);
            write_request(wqe, operation, to);
            (&raw mut (*wqe.as_ptr()).wr.wr_id).write(wr_id);
            (&raw mut (*wqe.as_ptr()).wr.send_flags).write(flags.bits());
        }
        Ok(Position::counted(at.count.wrapping_add(1)))
    }

    /// Stores one index and makes one system call.
    #[inline(always)]
    fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno> {
        let requests = end.count.wrapping_sub(start.count);
        if requests == 0 {
            return Ok(0);
        }
        self.ring.publish(end.count);
        self.doorbell.ring().map(|()| requests as usize)
    }
}

/// Writes a request except for its id, flags and payload.
///
/// # Safety
///
/// `wqe` must be a slot that is ours to write.
#[inline(always)]
unsafe fn write_request(
    wqe: NonNull<SendWqe>,
    operation: Operation,
    to: Option<Destination<'_, u32>>,
) {
    let wqe = wqe.as_ptr();
    let ex = match operation {
        // Immediate data travels in network byte order, a key in the host's.
        Operation::SendImm { imm } | Operation::WriteImm { imm, .. } => imm.to_be(),
        Operation::SendInv { rkey } | Operation::LocalInv { rkey } => rkey.0,
        _ => 0,
    };
    // SAFETY: all fields lie in the slot, by this function's contract; the union has room for each of its
    // forms.
    unsafe {
        let union = wqe.cast::<u8>().add(UNION);
        // With the reserved bytes after them these are two whole words, up to the union.
        (&raw mut (*wqe).wr.reserved).write(0);
        (&raw mut (*wqe).wr.opcode).write(opcode(operation).0);
        (&raw mut (*wqe).wr.ex).write(ex);
        let iova = match operation {
            Operation::Send
            | Operation::SendImm { .. }
            | Operation::SendInv { .. }
            | Operation::LocalInv { .. } => 0,
            Operation::Write { remote }
            | Operation::AtomicWrite { remote }
            | Operation::WriteImm { remote, .. }
            | Operation::Read { remote } => {
                let Remote { address, rkey } = remote;
                // The key and the reserved bytes after it, by one store.
                let key: u64 = zerocopy::transmute!([rkey.0, 0]);
                union.cast::<[u64; 2]>().write([address, key]);
                address
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => write_atomic(union, remote, compare, swap),
            Operation::FetchAdd { remote, add } => write_atomic(union, remote, add, 0),
            Operation::Flush {
                remote,
                length,
                placement,
                level,
            } => {
                let Remote { address, rkey } = remote;
                union.cast::<WrFlush>().write(WrFlush {
                    remote_addr: address,
                    length,
                    rkey: rkey.0,
                    type_: placement.bits(),
                    level: level.0 as u8,
                    _pad0: [0; 6],
                });
                // The kernel takes the length from here and not from the union.
                (&raw mut (*wqe).dma.length).write(length);
                (&raw mut (*wqe).dma.resid).write(length);
                address
            }
            Operation::BindMw(bind) => {
                union.cast::<WrMw>().write(window(bind));
                0
            }
        };
        (&raw mut (*wqe).iova).write(iova);
        if let Some(Destination::Datagram(DatagramTo { ah, qpn, qkey, .. })) = to {
            let ud = union.cast::<WrUd>();
            (&raw mut (*ud).remote_qpn).write(qpn);
            (&raw mut (*ud).remote_qkey).write(qkey);
            (&raw mut (*ud).ah_num).write(*ah);
        }
        // The kernel's own fields: it expects zeros in a slot that it has not used yet.
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

/// The kernel's number of the operation.
#[inline(always)]
const fn opcode(operation: Operation) -> WrOpcode {
    match operation {
        Operation::Send => WrOpcode::SEND,
        Operation::SendImm { .. } => WrOpcode::SEND_WITH_IMM,
        Operation::Write { .. } => WrOpcode::RDMA_WRITE,
        Operation::WriteImm { .. } => WrOpcode::RDMA_WRITE_WITH_IMM,
        Operation::Read { .. } => WrOpcode::RDMA_READ,
        Operation::CompareSwap { .. } => WrOpcode::ATOMIC_CMP_AND_SWP,
        Operation::FetchAdd { .. } => WrOpcode::ATOMIC_FETCH_AND_ADD,
        Operation::SendInv { .. } => WrOpcode::SEND_WITH_INV,
        Operation::AtomicWrite { .. } => WrOpcode::ATOMIC_WRITE,
        Operation::Flush { .. } => WrOpcode::FLUSH,
        Operation::LocalInv { .. } => WrOpcode::LOCAL_INV,
        Operation::BindMw(_) => WrOpcode::BIND_MW,
    }
}

/// The union's form of a bind.
#[inline(always)]
fn window(bind: Bind) -> WrMw {
    WrMw {
        addr: bind.address,
        length: bind.length,
        mr_lkey: bind.mr_lkey.0,
        mw_rkey: bind.mw_rkey.0,
        rkey: bind.rkey.0,
        access: bind.access.bits(),
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

/// Writes the payload and the count of it.
///
/// # Safety
///
/// `wqe` must be a slot that is ours to write, with room for the payload after it.
#[inline(always)]
unsafe fn write_payload(wqe: NonNull<SendWqe>, payload: Payload<'_>) {
    // SAFETY: the payload follows the element directly, by this function's contract.
    unsafe {
        let behind = wqe.as_ptr().cast::<u8>().add(PAYLOAD);
        let dma = &raw mut (*wqe.as_ptr()).dma;
        match payload {
            Payload::Gather(slices) => {
                let length = write_sges(behind, slices);
                // The posting functions have refused anything longer.
                dma.write(dma_info(length as u32, slices.len()));
            }
            Payload::Sges(sges) => {
                let length = write_sges(behind, sges);
                // A longer sum is cut to 32 bits, as in libibverbs.
                dma.write(dma_info(length as u32, sges.len()));
            }
            Payload::Inline(bytes) => {
                behind.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                dma.write(dma_info(bytes.len() as u32, 0));
            }
            Payload::InlineSges(pieces) => {
                pieces.copy_to(NonNull::new_unchecked(behind));
                dma.write(dma_info(pieces.len() as u32, 0));
            }
        }
    }
}

/// A payload as the kernel reads it: its bytes, and its slices unless it is inline.
#[inline(always)]
fn dma_info(length: u32, slices: usize) -> DmaInfo {
    DmaInfo {
        length,
        resid: length,
        num_sge: slices as u32,
        ..DmaInfo::default()
    }
}

/// Writes a scatter or gather list and returns the sum of its lengths.
///
/// # Safety
///
/// There must be room for `slices.len()` elements at `list`, aligned to 8.
#[inline(always)]
pub(super) unsafe fn write_sges<E: Element>(list: *mut u8, slices: &[E]) -> u64 {
    let list = list.cast::<[u64; 2]>();
    let mut length = 0u64;
    for (index, slice) in slices.iter().enumerate() {
        // One [`Sge`]. Length and key are copied as one number, as a slice has them.
        let key_length: [u32; 2] = [slice.length(), slice.lkey()];
        let sge = [slice.address(), zerocopy::transmute!(key_length)];
        const { assert!(size_of::<Sge>() == size_of::<[u64; 2]>()) };
        // SAFETY: there is room for all elements, by this function's contract.
        unsafe { list.add(index).write(sge) };
        length += u64::from(slice.length());
    }
    length
}

// Errors are created out of line, so that the path without one stays short.

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

#[cfg(test)]
mod tests {
    use uverbs_uapi::enums::FlushLevel;
    use uverbs_uapi::flags::{Access, FlushPlacement};
    use uverbs_uapi::rxe::WrRdma;
    use zerocopy::{FromBytes, Immutable, IntoBytes};

    use super::*;
    use crate::work::{LocalKey, RemoteKey};

    const REMOTE: Remote = Remote {
        address: 0x1122_3344_5566_7788,
        rkey: RemoteKey(0x99aa_bbcc),
    };

    /// A slot followed by a payload of 8 bytes.
    #[repr(C)]
    struct Slot {
        wqe: SendWqe,
        payload: [u8; 64],
    }

    /// The slot as the request leaves it, written over what an earlier request left.
    fn written(operation: Operation, payload: Payload<'_>) -> Slot {
        let mut slot = Slot {
            wqe: SendWqe::read_from_bytes(&[0xee; size_of::<SendWqe>()]).unwrap(),
            payload: [0xee; 64],
        };
        let wqe = NonNull::from(&mut slot).cast::<SendWqe>();
        // SAFETY: the slot is ours, and has room for these payloads.
        unsafe {
            write_payload(wqe, payload);
            write_request(wqe, operation, None);
        }
        slot
    }

    /// The bytes of a form that a request has in the union.
    fn assert_union(slot: &Slot, form: impl IntoBytes + Immutable) {
        let at = slot.wqe.wr.wr.as_bytes();
        assert_eq!(&at[..size_of_val(&form)], form.as_bytes());
    }

    fn assert_head(slot: &Slot, opcode: WrOpcode, ex: u32, iova: u64, dma: (u32, u32)) {
        let SendWqe { wr, dma: got, .. } = slot.wqe;
        let (length, num_sge) = dma;
        assert_eq!(
            (wr.opcode, wr.ex, slot.wqe.iova),
            (opcode.0, ex, iova),
            "opcode, key and address"
        );
        let expected = DmaInfo {
            length,
            resid: length,
            num_sge,
            ..DmaInfo::default()
        };
        assert_eq!(got, expected);
        let SendWqe { status, state, .. } = slot.wqe;
        assert_eq!((status, state), (0, 0), "the kernel's own fields");
    }

    #[test]
    fn keys_to_invalidate_are_in_host_order() {
        let rkey = RemoteKey(0x0102_0304);
        let slot = written(Operation::SendInv { rkey }, Payload::Inline(b"four"));
        assert_head(&slot, WrOpcode::SEND_WITH_INV, 0x0102_0304, 0, (4, 0));
        let slot = written(Operation::LocalInv { rkey }, Payload::Gather(&[]));
        assert_head(&slot, WrOpcode::LOCAL_INV, 0x0102_0304, 0, (0, 0));
    }

    #[test]
    fn an_atomic_write_has_its_word_where_inline_bytes_are() {
        let word = *b"8 bytes.";
        let remote = REMOTE;
        let slot = written(Operation::AtomicWrite { remote }, Payload::Inline(&word));
        assert_head(&slot, WrOpcode::ATOMIC_WRITE, 0, REMOTE.address, (8, 0));
        assert_union(
            &slot,
            WrRdma {
                remote_addr: REMOTE.address,
                rkey: 0x99aa_bbcc,
                reserved: 0,
            },
        );
        assert_eq!(slot.payload[..9], *b"8 bytes.\xee");
    }

    #[test]
    fn a_flush_has_its_length_twice_and_no_payload() {
        let flush = Operation::Flush {
            remote: REMOTE,
            length: 0x1234,
            placement: FlushPlacement::PERSISTENT,
            level: FlushLevel::MR,
        };
        let slot = written(flush, Payload::Gather(&[]));
        assert_head(&slot, WrOpcode::FLUSH, 0, REMOTE.address, (0x1234, 0));
        assert_union(
            &slot,
            WrFlush {
                remote_addr: REMOTE.address,
                length: 0x1234,
                rkey: 0x99aa_bbcc,
                type_: 2,
                level: 1,
                _pad0: [0; 6],
            },
        );
    }

    #[test]
    fn a_bind_has_both_keys_of_the_window() {
        let bind = Bind {
            mw_rkey: RemoteKey(0x701),
            rkey: RemoteKey(0x702),
            mr_lkey: LocalKey(0x503),
            address: 0x1000,
            length: 0x1_0000_0000,
            access: Access::REMOTE_READ,
            of_queue_pair: false,
        };
        let slot = written(Operation::BindMw(bind), Payload::Gather(&[]));
        assert_head(&slot, WrOpcode::BIND_MW, 0, 0, (0, 0));
        assert_union(
            &slot,
            WrMw {
                addr: 0x1000,
                length: 0x1_0000_0000,
                mr_lkey: 0x503,
                mw_rkey: 0x701,
                rkey: 0x702,
                access: 4,
            },
        );
    }
}
