//! The send queue: requests (WQEs) in a ring of basic blocks (WQEBBs), and the doorbell.
//!
//! A WQE starts with a control segment and goes on with what its operation needs, in units of 16 bytes (DS).
//! It takes as many WQEBBs of 64 bytes as it fills and may go on at the ring's start. The ring has room for
//! as many WQEs of the largest size as the queue's capacity, so only requests are counted, not WQEBBs.
//!
//! The queue has two [`Position`]s: `rung`, up to which the device knows the ring, and `tail`, where the next
//! WQE goes. [`begin`](contract::SendQueue::begin) takes the tail back to `rung`, which gives up what was
//! written and never rung. [`write`](contract::SendQueue::write) moves the tail on,
//! [`ring`](contract::SendQueue::ring) makes it the new `rung`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uverbs_uapi::flags::SendFlags;

use super::ah::Ah;
use super::barrier;
use super::completion::{BIND, INVALIDATE};
use super::format::{
    AtomicOperands, BLOCK, Be32, Be64, Control, Data, EXTENDED, FM_CE_SE, INLINE, INLINE_HEAD,
    LONGEST_SLICE, RECORD_SEND, RemoteAddress, UNIT, XrcQueue, control, opcode,
};
use super::ledger::{SendLedger, SendNote};
use super::qp::Rings;
use super::recv;
use super::uar::{Lease, Register};
use super::umr;
use crate::driver::contract;
use crate::error::Errno;
use crate::work::{DatagramTo, Destination, Element, Operation, Payload, PostError, Remote};

/// The layout of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SendLayout {
    /// Basic blocks of the ring, a power of two or 0.
    pub(super) blocks: u32,
    /// Basic blocks of the largest request.
    pub(super) request_blocks: u32,
    pub(super) capacity: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
}

/// The send queue.
#[derive(Debug)]
pub(crate) struct SendQueue {
    /// The ring's first byte.
    ring: NonNull<u8>,
    /// Basic blocks of the ring, less one; 0 if there are none.
    mask: u32,
    /// A WQE that begins in a block after this one may wrap round the ring.
    last_whole: u32,
    layout: SendLayout,
    rung: Position,
    tail: Position,
    /// There is room for requests before this count: the ledger was asked for it.
    room_until: u32,
    /// The WQE that was written last, in the ring, and its note, in the ledger.
    last: NonNull<u8>,
    last_note: NonNull<SendNote>,
    /// The flags that every WQE has.
    always: u8,
    qpn: u32,
    ledger: Arc<SendLedger>,
    register: Arc<Register>,
    /// Posters of other queues may use the register meanwhile.
    shares_register: bool,
    _lease: Arc<Lease>,
    rings: Arc<Rings>,
    /// Where a WQE is put together that wraps round the ring.
    scratch: Box<[Block]>,
}

/// A place in the ring. Both numbers go on counting round the ring and wrap at 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    /// Basic blocks before it.
    block: u32,
    /// Requests before it.
    count: u32,
    /// The request before it changes a memory key, so the one that begins here has to wait for it.
    fence: bool,
}

// SAFETY: the ring is memory that `rings` keeps, the note the ledger's; only this value writes to them.
unsafe impl Send for SendQueue {}
// SAFETY: shared references read plain fields only.
unsafe impl Sync for SendQueue {}

/// A basic block.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Block([u8; BLOCK]);

impl SendQueue {
    /// A send queue over the ring that begins at `ring` in `rings`.
    pub(super) fn new(
        rings: Arc<Rings>,
        ring: NonNull<u8>,
        layout: SendLayout,
        ledger: Arc<SendLedger>,
        lease: Arc<Lease>,
        (qpn, signal_all): (u32, bool),
    ) -> Self {
        Self {
            ring,
            mask: layout.blocks.saturating_sub(1),
            last_whole: layout.blocks.saturating_sub(layout.request_blocks),
            layout,
            rung: Position::default(),
            tail: Position::default(),
            room_until: 0,
            last: ring,
            last_note: NonNull::from(ledger.note(0)),
            always: if signal_all { control::CQ_UPDATE } else { 0 },
            qpn,
            ledger,
            register: Arc::clone(lease.register()),
            shares_register: lease.is_shared(),
            _lease: lease,
            rings,
            scratch: vec![Block([0; BLOCK]); layout.request_blocks as usize].into(),
        }
    }

    /// Starts again with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<SendLedger>) {
        self.rung = Position::default();
        self.tail = Position::default();
        self.room_until = 0;
        self.last_note = NonNull::from(ledger.note(0));
        self.ledger = ledger;
    }

    pub(super) fn layout(&self) -> SendLayout {
        self.layout
    }

    /// The most slices and inline bytes of a request. The operands of an atomic take the room of one slice.
    #[inline(always)]
    fn most(&self, operation: Operation) -> (u32, u32) {
        let SendLayout {
            max_sge,
            max_inline,
            ..
        } = self.layout;
        match operation {
            // There is always room for one.
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => (
                max_sge.saturating_sub(1).max(1),
                max_inline.saturating_sub(UNIT as u32),
            ),
            _ => (max_sge, max_inline),
        }
    }

    /// Refuses a payload that does not fit into the largest request.
    #[inline(always)]
    fn check(&self, operation: Operation, payload: Payload<'_>) -> Result<(), PostError> {
        let (max_sge, max_inline) = self.most(operation);
        let inline = |given| match given > max_inline as usize {
            true => Err(PostError::InlineTooLong {
                given,
                max: max_inline,
            }),
            false => Ok(()),
        };
        match payload {
            // There is always room for one.
            Payload::Gather(slices) => match slices.len() > 1 && slices.len() > max_sge as usize {
                true => Err(PostError::TooManySges {
                    given: slices.len(),
                    max: max_sge,
                }),
                false => Ok(()),
            },
            // A C program's lengths were not checked before.
            Payload::Sges(sges) => recv::check(sges, max_sge),
            Payload::Inline(bytes) => inline(bytes.len()),
            Payload::InlineSges(pieces) => inline(pieces.len()),
        }
    }

    /// Looks how far the device has come; fails if the ring is full.
    #[cold]
    fn look_for_room(&mut self) -> Result<(), PostError> {
        let capacity = self.layout.capacity;
        self.room_until = self.ledger.done().wrapping_add(capacity);
        match self.room_until == self.tail.count {
            true => Err(PostError::QueueFull { capacity }),
            false => Ok(()),
        }
    }

    /// The address of a block.
    ///
    /// # Safety
    ///
    /// The ring has blocks.
    #[inline(always)]
    unsafe fn block(&self, block: u32) -> NonNull<u8> {
        // SAFETY: the masked index is below the count of blocks, so the block lies in the ring.
        unsafe { self.ring.add((block & self.mask) as usize * BLOCK) }
    }

    /// Writes the WQE for the position `tail`; returns how many blocks it takes.
    ///
    /// # Safety
    ///
    /// The ring has room for it, and its payload fits into the largest request.
    #[inline(always)]
    unsafe fn write_wqe(
        &self,
        at: NonNull<u8>,
        flags: SendFlags,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> u32 {
        let Position { block, fence, .. } = self.tail;
        let mut bits = self.always | control_flags(flags);
        // One field of three bits: a program's fence is larger than the one after a key change.
        if fence && !flags.contains(SendFlags::FENCE) {
            bits |= control::SMALL_FENCE;
        }
        // SAFETY: by this function's contract.
        unsafe {
            let head = write_segments(at, self.qpn, operation, to, payload);
            let index = u32::from(block as u16) << 8;
            put(
                at,
                Control {
                    opmod_idx_opcode: Be32::new(index | u32::from(head.opcode)),
                    qpn_ds: Be32::new(self.qpn << 8 | head.units),
                    fm_ce_se: Be32::new(bits.into()),
                    imm: head.imm,
                },
            );
            head.units.div_ceil((BLOCK / UNIT) as u32)
        }
    }

    /// Copies a WQE from the scratch space to the ring's end and start.
    #[cold]
    #[inline(never)]
    fn wrap_round(&mut self, first: u32, blocks: u32) {
        for (block, from) in (0..blocks).zip(&self.scratch) {
            // SAFETY: there was room for the WQE, so there are blocks; each of the ring has room for one.
            unsafe {
                let to = self.block(first.wrapping_add(block));
                to.cast().write(*from);
            }
        }
    }

    /// Rings by copying the last WQE to the register, if it is alone and in one piece and has so many blocks;
    /// else by its first 8 bytes.
    ///
    /// # Safety
    ///
    /// There is such a WQE. The register is this queue's alone, or it is its turn.
    #[inline(always)]
    unsafe fn ring_register(&self, blocks: Option<u32>) {
        // SAFETY: the last WQE lies in the ring, with so many blocks next to each other.
        unsafe {
            match blocks {
                Some(blocks) => self.register.copy(self.last, blocks),
                None => self.register.ring(self.last.cast::<u64>().read()),
            }
        }
    }

    /// As [`Self::ring_register`], when it is this queue's turn at a register that others share.
    ///
    /// # Safety
    ///
    /// As for [`Self::ring_register`].
    #[cold]
    #[inline(never)]
    unsafe fn ring_shared_register(&self, blocks: Option<u32>) {
        let _turn = self.register.turn();
        // SAFETY: by this function's contract.
        unsafe { self.ring_register(blocks) };
    }
}

impl contract::SendQueue for SendQueue {
    type Ah = Ah;

    fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    fn max_sge(&self) -> u32 {
        self.layout.max_sge
    }

    fn max_inline(&self) -> u32 {
        self.layout.max_inline
    }

    fn in_flight(&self) -> u32 {
        self.rung.count.wrapping_sub(self.ledger.done())
    }

    #[inline(always)]
    fn begin(&mut self) {
        self.tail = self.rung;
    }

    #[inline(always)]
    fn pending(&self) -> u32 {
        self.tail.count.wrapping_sub(self.rung.count)
    }

    #[inline(always)]
    fn write(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        if let Operation::BindMw(bind) = operation {
            umr::check_bind(bind)?;
        }
        self.check(operation, payload)?;
        if self.tail.count == self.room_until {
            self.look_for_room()?;
        }
        let Position { block, count, .. } = self.tail;
        let count = count.wrapping_add(1);
        let may_wrap = block & self.mask > self.last_whole;
        // SAFETY: there is room for a request, so the ring has blocks; the payload fits, and the scratch
        // space has room for the largest request.
        let (wqe, blocks) = unsafe {
            let wqe = self.block(block);
            let at = match may_wrap {
                true => NonNull::from(&mut *self.scratch).cast(),
                false => wqe,
            };
            (wqe, self.write_wqe(at, flags, operation, to, payload))
        };
        if may_wrap {
            self.wrap_round(block, blocks);
        }
        let change = key_change(operation);
        let note = self.ledger.note(block);
        note.write(wr_id, count, change.unwrap_or(0));
        (self.last, self.last_note) = (wqe, NonNull::from(note));
        self.tail = Position {
            block: block.wrapping_add(blocks),
            count,
            fence: change.is_some(),
        };
        Ok(())
    }

    #[inline(always)]
    fn amend(&mut self, wr_id: Option<u64>, flags: SendFlags) {
        if let Some(wr_id) = wr_id {
            // SAFETY: the note is the ledger's, which the queue keeps.
            unsafe { self.last_note.as_ref() }.set_id(wr_id);
        }
        // SAFETY: the byte lies in the last WQE, of which the device does not know yet.
        unsafe {
            let at = self.last.add(FM_CE_SE);
            let mut now = at.read();
            if flags.contains(SendFlags::FENCE) {
                // As in `write_wqe`.
                now &= !control::SMALL_FENCE;
            }
            at.write(now | control_flags(flags));
        }
    }

    /// The record says how far the ring is filled, the register notifies the device.
    #[inline(always)]
    fn ring(&mut self) -> Result<usize, Errno> {
        let (rung, tail) = (self.rung, self.tail);
        let requests = tail.count.wrapping_sub(rung.count);
        if requests == 0 {
            return Ok(0);
        }
        self.rung = tail;
        self.ledger.post(tail.count);
        barrier::ring_before_record();
        // Relaxed: ordered by the barriers around it.
        let counter = self.rings.record.counter(RECORD_SEND);
        counter.store((tail.block as u16).to_be(), Ordering::Relaxed);
        // A request that is alone begins at `rung`: its WQE is in one piece if it ends before the ring does.
        let blocks = tail.block.wrapping_sub(rung.block);
        let is_whole = (rung.block & self.mask) + blocks <= self.layout.blocks;
        let blocks = (requests == 1 && is_whole).then_some(blocks);
        // SAFETY: there is at least one request.
        unsafe {
            match self.shares_register {
                true => self.ring_shared_register(blocks),
                false => self.ring_register(blocks),
            }
        }
        Ok(requests as usize)
    }
}

/// A program's flags as the control segment has them.
#[inline(always)]
fn control_flags(flags: SendFlags) -> u8 {
    let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
    bit(SendFlags::SIGNALED, control::CQ_UPDATE)
        | bit(SendFlags::SOLICITED, control::SOLICITED)
        | bit(SendFlags::FENCE, control::FENCE)
}

/// What a request changes a memory key of this side for, if it does. Requests after it have to wait.
#[inline(always)]
fn key_change(operation: Operation) -> Option<u32> {
    match operation {
        Operation::BindMw(_) => Some(BIND),
        Operation::LocalInv { .. } => Some(INVALIDATE),
        _ => None,
    }
}

/// What the control segment of a WQE says.
struct Head {
    opcode: u8,
    imm: Be32,
    /// Units with the control segment.
    units: u32,
}

/// Writes everything of a WQE but its control segment, and returns what that says.
///
/// # Safety
///
/// At `wqe` there is room for a request of this operation, which the device has, with this payload.
#[inline(always)]
unsafe fn write_segments(
    wqe: NonNull<u8>,
    qpn: u32,
    operation: Operation,
    to: Option<Destination<'_, Ah>>,
    payload: Payload<'_>,
) -> Head {
    // SAFETY: every write goes to the room that this function's contract speaks of, one after the other.
    unsafe {
        let mut at = wqe.add(size_of::<Control>());
        let mut imm = Be32::ZERO;
        match to {
            None => {}
            Some(Destination::Datagram(DatagramTo { ah, qpn, qkey, .. })) => {
                let mut datagram = ah.datagram();
                datagram.qkey = Be32::new(qkey);
                datagram.dqp_dct = Be32::new(qpn | EXTENDED);
                at = put(at, datagram);
            }
            Some(Destination::Srq(srqn)) => {
                let srqn = Be32::new(srqn);
                at = put(
                    at,
                    XrcQueue {
                        srqn,
                        ..XrcQueue::default()
                    },
                );
            }
        }
        let opcode = match operation {
            Operation::Send => opcode::SEND,
            Operation::SendImm { imm: value } => {
                imm = Be32::new(value);
                opcode::SEND_IMM
            }
            Operation::SendInv { rkey } => {
                imm = Be32::new(rkey.0);
                opcode::SEND_INVAL
            }
            Operation::Write { remote } => {
                at = put_remote(at, remote);
                opcode::RDMA_WRITE
            }
            Operation::WriteImm { remote, imm: value } => {
                imm = Be32::new(value);
                at = put_remote(at, remote);
                opcode::RDMA_WRITE_IMM
            }
            Operation::Read { remote } => {
                at = put_remote(at, remote);
                opcode::RDMA_READ
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
            } => {
                at = put_remote(at, remote);
                at = put(
                    at,
                    AtomicOperands {
                        swap_add: Be64::new(swap),
                        compare: Be64::new(compare),
                    },
                );
                opcode::ATOMIC_CS
            }
            Operation::FetchAdd { remote, add } => {
                at = put_remote(at, remote);
                at = put(
                    at,
                    AtomicOperands {
                        swap_add: Be64::new(add),
                        compare: Be64::ZERO,
                    },
                );
                opcode::ATOMIC_FA
            }
            Operation::LocalInv { rkey } => {
                imm = Be32::new(rkey.0);
                at = umr::put_invalidate(at, rkey);
                opcode::UMR
            }
            Operation::BindMw(bind) => {
                imm = Be32::new(bind.mw_rkey.0);
                at = umr::put_bind(at, qpn, bind);
                opcode::UMR
            }
            // No queue pair is created for these.
            Operation::AtomicWrite { .. } | Operation::Flush { .. } => opcode::NOP,
        };
        let before = at.offset_from(wqe) as u32 / UNIT as u32;
        Head {
            opcode,
            imm,
            units: before + put_payload(at, payload),
        }
    }
}

/// Writes a segment and returns the place after it.
///
/// # Safety
///
/// There is room for it.
#[inline(always)]
pub(super) unsafe fn put<T>(at: NonNull<u8>, segment: T) -> NonNull<u8> {
    // SAFETY: by this function's contract.
    unsafe {
        at.cast::<T>().write_unaligned(segment);
        at.add(size_of::<T>())
    }
}

/// # Safety
///
/// There is room for the segment.
#[inline(always)]
unsafe fn put_remote(at: NonNull<u8>, remote: Remote) -> NonNull<u8> {
    let segment = RemoteAddress {
        raddr: Be64::new(remote.address),
        rkey: Be32::new(remote.rkey.0),
        reserved: Be32::ZERO,
    };
    // SAFETY: by this function's contract.
    unsafe { put(at, segment) }
}

/// Writes slices, or the bytes themselves, and returns how many units they take.
///
/// # Safety
///
/// As for [`write_segments`].
#[inline(always)]
unsafe fn put_payload(mut at: NonNull<u8>, payload: Payload<'_>) -> u32 {
    // SAFETY: by this function's contract.
    unsafe {
        match payload {
            Payload::Gather(slices) => put_list(at, slices),
            Payload::Sges(sges) => put_list(at, sges),
            Payload::Inline([]) => 0,
            Payload::Inline(bytes) => {
                at = put(at, Be32::new(INLINE | bytes.len() as u32));
                at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
                (INLINE_HEAD + bytes.len()).div_ceil(UNIT) as u32
            }
            Payload::InlineSges(pieces) => match pieces.len() {
                0 => 0,
                length => {
                    at = put(at, Be32::new(INLINE | length as u32));
                    pieces.copy_to(at);
                    (INLINE_HEAD + length).div_ceil(UNIT) as u32
                }
            },
        }
    }
}

/// Writes slices and returns how many units they take.
///
/// # Safety
///
/// As for [`write_segments`].
#[inline(always)]
unsafe fn put_list<E: Element>(mut at: NonNull<u8>, slices: &[E]) -> u32 {
    let mut units = 0;
    for slice in slices {
        // A length of 0 would mean the longest slice.
        if slice.length() > 0 {
            // SAFETY: by this function's contract.
            at = unsafe { put(at, data(slice)) };
            units += 1;
        }
    }
    units
}

/// A slice as the device has it.
#[inline(always)]
pub(super) fn data(slice: &impl Element) -> Data {
    // The longest slice is written as 0: its bit would mark inline data.
    Data {
        byte_count: Be32::new(slice.length() & (LONGEST_SLICE - 1)),
        lkey: Be32::new(slice.lkey()),
        addr: Be64::new(slice.address()),
    }
}
