//! The send queue: requests (WQEs) in a ring of basic blocks (WQEBBs), and the doorbell.
//!
//! A WQE starts with a control segment and goes on with what its operation needs, in units of 16 bytes (DS). It
//! takes as many WQEBBs of 64 bytes as it fills and may go on at the ring's start. The ring has room for as many
//! WQEs of the largest size as the queue's capacity, so only requests are counted, not WQEBBs.
//!
//! The queue has two [`Position`]s: `rung`, up to which the device knows the ring, and `tail`, where the next
//! WQE goes. [`begin`](contract::SendQueue::begin) takes the tail back to `rung`, which gives up what was written
//! and never rung. [`write`](contract::SendQueue::write) moves the tail on,
//! [`ring`](contract::SendQueue::ring) makes it the new `rung`.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uverbs_uapi::flags::SendFlags;

use super::ah::Ah;
use super::barrier;
use super::cq::{BIND, INVALIDATE};
use super::format::{
    AtomicOperands, BLOCK, Be32, Be64, Control, Data, EXTENDED, FM_CE_SE, INLINE, INLINE_HEAD,
    LONGEST_SLICE, RECORD_SEND, RemoteAddress, UNIT, XrcQueue, control, opcode,
};
use super::ledger::SendLedger;
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
    layout: SendLayout,
    rung: Position,
    tail: Position,
    /// There is room for requests before this count: the ledger was asked for it.
    room_until: u32,
    /// The block in which the last WQE begins.
    last: u32,
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

// SAFETY: the ring is memory that `rings` keeps; only this value writes to it.
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
            layout,
            rung: Position::default(),
            tail: Position::default(),
            room_until: 0,
            last: 0,
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

    /// Whether the payload fits into the largest request.
    #[inline(always)]
    fn takes(&self, operation: Operation, payload: Payload<'_>) -> bool {
        let (max_sge, max_inline) = self.most(operation);
        match payload {
            // There is always room for one.
            Payload::Gather(slices) => slices.len() <= 1 || slices.len() <= max_sge as usize,
            Payload::Inline(bytes) => bytes.len() <= max_inline as usize,
            // A C program's lengths were not checked before.
            Payload::Sges(sges) => recv::check(sges, max_sge).is_ok(),
            Payload::InlineSges(pieces) => pieces.len() <= max_inline as usize,
        }
    }

    /// Why the payload does not fit.
    #[cold]
    fn refusal(&self, operation: Operation, payload: Payload<'_>) -> PostError {
        let (max_sge, max_inline) = self.most(operation);
        let too_long = |given| PostError::InlineTooLong {
            given,
            max: max_inline,
        };
        let too_many = |given| PostError::TooManySges {
            given,
            max: max_sge,
        };
        match payload {
            Payload::Gather(slices) => too_many(slices.len()),
            Payload::Sges(sges) => match recv::check(sges, max_sge) {
                Err(error) => error,
                Ok(()) => too_many(sges.len()),
            },
            Payload::InlineSges(pieces) => too_long(pieces.len()),
            Payload::Inline(bytes) => too_long(bytes.len()),
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

    /// Blocks from this one up to the ring's end.
    #[inline(always)]
    fn blocks_to_end(&self, block: u32) -> u32 {
        self.layout.blocks - (block & (self.layout.blocks - 1))
    }

    /// The address of a block.
    ///
    /// # Safety
    ///
    /// The ring has blocks.
    #[inline(always)]
    unsafe fn block(&self, block: u32) -> NonNull<u8> {
        let at = (block & (self.layout.blocks - 1)) as usize;
        // SAFETY: the masked index is below the count of blocks, so the block lies in the ring.
        unsafe { self.ring.add(at * BLOCK) }
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
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> u32 {
        let Position { block, fence, .. } = self.tail;
        let flags = match fence {
            true => self.always | control::SMALL_FENCE,
            false => self.always,
        };
        // SAFETY: by this function's contract.
        unsafe {
            let head = write_segments(at, self.qpn, operation, to, payload);
            let index = u32::from(block as u16) << 8;
            put(
                at,
                Control {
                    opmod_idx_opcode: Be32::new(index | u32::from(head.opcode)),
                    qpn_ds: Be32::new(self.qpn << 8 | head.units),
                    fm_ce_se: Be32::new(flags.into()),
                    imm: head.imm,
                },
            );
            head.units.div_ceil((BLOCK / UNIT) as u32)
        }
    }

    /// Writes a WQE that may reach beyond the ring's end: to the scratch space, from where its blocks are copied
    /// to the ring's end and start.
    ///
    /// # Safety
    ///
    /// As for [`Self::write_wqe`].
    #[cold]
    #[inline(never)]
    unsafe fn write_wrapping(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> u32 {
        let scratch = NonNull::from(&mut *self.scratch).cast();
        // SAFETY: the scratch space has room for the largest request; a block of the ring has room for one.
        unsafe {
            let blocks = self.write_wqe(scratch, operation, to, payload);
            for (block, from) in (0..blocks).zip(&self.scratch) {
                self.block(self.tail.block.wrapping_add(block))
                    .cast()
                    .write(*from);
            }
            blocks
        }
    }

    /// Rings by copying the WQE to the register, if the register takes copies of so many blocks, else by the
    /// first 8 bytes of the last WQE.
    ///
    /// # Safety
    ///
    /// So many blocks of requests, at least one, were written before the tail, the last one at `last`.
    #[inline(always)]
    unsafe fn ring_register(&self, requests: u32, blocks: u32) {
        let _turn = match self.shares_register {
            true => self.register.turn(),
            false => None,
        };
        let is_whole = requests == 1 && blocks <= self.blocks_to_end(self.last);
        // SAFETY: the last WQE lies in the ring, its blocks next to each other if it does not wrap round. The
        // register is this queue's alone, or it is its turn.
        unsafe {
            let wqe = self.block(self.last);
            match is_whole {
                true => self.register.copy(wqe, blocks),
                false => self.register.ring(wqe.cast::<u64>().read()),
            }
        }
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
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        if let Operation::BindMw(bind) = operation {
            umr::check_bind(bind)?;
        }
        if !self.takes(operation, payload) {
            return Err(self.refusal(operation, payload));
        }
        if self.tail.count == self.room_until {
            self.look_for_room()?;
        }
        let Position { block, count, .. } = self.tail;
        let count = count.wrapping_add(1);
        let may_wrap = self.blocks_to_end(block) < self.layout.request_blocks;
        // SAFETY: there is room for a request, so the ring has blocks; the payload fits.
        let blocks = unsafe {
            match may_wrap {
                true => self.write_wrapping(operation, to, payload),
                false => self.write_wqe(self.block(block), operation, to, payload),
            }
        };
        let change = key_change(operation);
        self.ledger.note(block).write(0, count, change.unwrap_or(0));
        self.last = block;
        self.tail = Position {
            block: block.wrapping_add(blocks),
            count,
            fence: change.is_some(),
        };
        Ok(())
    }

    #[inline(always)]
    fn set_id(&mut self, wr_id: u64) {
        self.ledger.note(self.last).set_id(wr_id);
    }

    #[inline(always)]
    fn add_flags(&mut self, flags: SendFlags) {
        let mut bits = 0;
        if flags.contains(SendFlags::SIGNALED) {
            bits |= control::CQ_UPDATE;
        }
        if flags.contains(SendFlags::SOLICITED) {
            bits |= control::SOLICITED;
        }
        // SAFETY: the byte lies in the last WQE, of which the device does not know yet.
        unsafe {
            let at = self.block(self.last).add(FM_CE_SE);
            let mut now = at.read();
            if flags.contains(SendFlags::FENCE) {
                // One field of three bits: the larger fence takes the place of the smaller.
                now = now & !control::SMALL_FENCE | control::FENCE;
            }
            at.write(now | bits);
        }
    }

    /// The record says how far the ring is filled, the register notifies the device.
    #[inline(always)]
    fn ring(&mut self) -> Result<usize, Errno> {
        let requests = self.pending();
        if requests == 0 {
            return Ok(0);
        }
        let blocks = self.tail.block.wrapping_sub(self.rung.block);
        self.rung = self.tail;
        self.ledger.post(self.rung.count);
        barrier::ring_before_record();
        // Relaxed: ordered by the barriers around it.
        let counter = self.rings.record.counter(RECORD_SEND);
        counter.store((self.rung.block as u16).to_be(), Ordering::Relaxed);
        // SAFETY: there is at least one request.
        unsafe { self.ring_register(requests, blocks) };
        Ok(requests as usize)
    }
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
