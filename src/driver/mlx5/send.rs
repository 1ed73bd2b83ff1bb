//! The send queue: requests (WQEs) in a ring of basic blocks (WQEBBs), and the doorbell.
//!
//! A WQE starts with a control segment, followed by what its operation needs, in units of 16 bytes (DS). It
//! takes as many WQEBBs of 64 bytes as it fills and may continue at the ring's start. The ring has room for
//! as many WQEs of the largest size as the queue's capacity, so only requests are counted, not WQEBBs.
//!
//! The queue keeps one [`Position`], up to which the device knows the ring. A batch has another one, which
//! starts there, moves on with each WQE, and becomes the queue's when the batch is rung. A position counts
//! requests and WQEBBs; its flags make the next WQE wait if the one before it changes a memory key.

#[cfg(feature = "mlx5-direct")]
pub(crate) mod whole;

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use uverbs_uapi::flags::SendFlags;

use super::ah::Ah;
use super::barrier;
use super::format::{
    AtomicOperands, BLOCK, Be32, Be64, Control, Data, EXTENDED, INLINE, INLINE_HEAD, RECORD_SEND,
    RemoteAddress, UNIT, XrcQueue, control, opcode,
};
use super::ledger::{Does, SendLedger};
use super::qp::Rings;
use super::recv;
use super::register::Register;
use super::uar::Lease;
use super::umr;
use crate::driver::contract::{self, Position};
use crate::error::Errno;
use crate::work::{
    DatagramTo, Destination, Element, Operation, Payload, PostError, Remote, TargetAt, WorkRequest,
};

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
    /// The ring's first byte, and the address of its end.
    ring: NonNull<u8>,
    end: usize,
    /// A WQE that begins in a block after this one may wrap round the ring.
    last_whole: u32,
    layout: SendLayout,
    /// The device knows the ring up to here.
    rung: Position,
    /// There is room for requests before this count, as the ledger said when it was last asked.
    room_until: u32,
    /// The flags that every WQE has.
    always: u8,
    /// The program has written requests itself. Their notes stay when they are finished or not rung, so each
    /// request says in its note what it does.
    #[cfg(feature = "mlx5-direct")]
    has_own: bool,
    /// The queue pair's number, shifted to its place in [`Control::qpn_ds`].
    qpn: u32,
    ledger: Arc<SendLedger>,
    register: Arc<Register>,
    /// Posters of other queues may use the register at the same time.
    shares_register: bool,
    _lease: Arc<Lease>,
    rings: Arc<Rings>,
    /// Where a WQE is composed that may wrap round the ring.
    scratch: Box<[Block]>,
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
        let always = if signal_all { control::CQ_UPDATE } else { 0 };
        Self {
            ring,
            end: ring.addr().get() + layout.blocks as usize * BLOCK,
            last_whole: layout.blocks.saturating_sub(layout.request_blocks),
            layout,
            rung: start(always),
            room_until: 0,
            always,
            #[cfg(feature = "mlx5-direct")]
            has_own: false,
            qpn: qpn << 8,
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
        self.rung = start(self.always);
        self.room_until = 0;
        self.ledger = ledger;
    }

    pub(super) fn layout(&self) -> SendLayout {
        self.layout
    }

    /// The most slices and inline bytes of a request. The operands of an atomic operation take the room of
    /// one slice.
    #[inline(always)]
    fn most(&self, operation: Operation) -> (u32, u32) {
        let SendLayout {
            max_sge,
            max_inline,
            ..
        } = self.layout;
        match operation {
            // There is always room for one slice.
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
            // There is always room for one slice.
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

    /// Refuses a request if the ring, with `count` requests written, has no room left.
    #[inline(always)]
    fn check_room(&mut self, count: u32) -> Result<(), PostError> {
        if count == self.room_until && !self.finds_room(count) {
            let capacity = self.layout.capacity;
            return Err(PostError::QueueFull { capacity });
        }
        Ok(())
    }

    /// Asks the ledger how far the device is; false if the ring, with `count` requests written, has no room
    /// left.
    #[cold]
    #[inline(never)]
    fn finds_room(&mut self, count: u32) -> bool {
        let done = self.ledger.done();
        if !has_room(count, done, self.layout.capacity) {
            // `room_until` stays, so the next request looks again.
            return false;
        }
        self.room_until = done.wrapping_add(self.layout.capacity);
        true
    }

    /// The address of the block at this index.
    ///
    /// # Safety
    ///
    /// `index` is below the ring's number of blocks.
    #[inline(always)]
    unsafe fn block(&self, index: u32) -> NonNull<u8> {
        // SAFETY: by this function's contract the block lies in the ring.
        unsafe { self.ring.add(index as usize * BLOCK) }
    }

    /// Writes the WQE of a position to `wqe`; returns how many blocks it takes.
    ///
    /// # Safety
    ///
    /// There is room for the largest request, and the payload fits into it.
    #[inline(always)]
    unsafe fn write_wqe(
        &self,
        wqe: NonNull<u8>,
        position: Position,
        request: WorkRequest<'_, Ah>,
    ) -> u32 {
        let WorkRequest {
            flags,
            operation,
            to,
            payload,
            ..
        } = request;
        let bits = control_flags(position.flags as u8, flags);
        // SAFETY: by this function's contract.
        unsafe {
            let head = write_segments(wqe, self.qpn, operation, to, payload);
            put(
                wqe,
                Control::new(
                    position.at as u16,
                    head.opcode,
                    self.qpn | head.units,
                    bits | u32::from(head.stream) << control::STREAM,
                    head.imm,
                ),
            );
            head.units.div_ceil((BLOCK / UNIT) as u32)
        }
    }

    /// Copies a WQE of `blocks` blocks from the scratch space to the ring. The part that does not fit before
    /// the ring's end goes to its start.
    #[cold]
    #[inline(never)]
    fn wrap_round(&self, first: u32, blocks: u32) {
        for (block, from) in (0..blocks).zip(&self.scratch) {
            let (index, _) = self.ledger.place(first.wrapping_add(block));
            // SAFETY: there was room for the WQE, so the ring has blocks, as many as the ledger has places.
            unsafe { self.block(index).cast().write(*from) };
        }
    }

    /// Rings by copying the WQE `last` if it is the only one, its `blocks` fit into the register and it lies
    /// in one piece. Otherwise rings with its first 8 bytes.
    ///
    /// # Safety
    ///
    /// There is such a WQE. Only this queue uses the register, or it has the turn.
    #[inline(always)]
    unsafe fn ring_register(&self, last: NonNull<u8>, requests: u32, blocks: u32) {
        let room = self.register.most_blocks();
        let is_whole = (self.end - last.addr().get()) / BLOCK >= blocks as usize;
        // SAFETY: the WQE lies in the ring. If it ends before the ring does, it is in one piece.
        unsafe {
            match requests == 1 && blocks <= room && is_whole {
                true => self.register.copy(last, blocks),
                false => self.register.ring(last.cast::<u64>().read()),
            }
        }
    }

    /// As [`Self::ring_register`], after taking the turn at a register that queues share.
    ///
    /// # Safety
    ///
    /// As for [`Self::ring_register`].
    #[cold]
    #[inline(never)]
    unsafe fn ring_shared_register(&self, last: NonNull<u8>, requests: u32, blocks: u32) {
        let _turn = self.register.turn();
        // SAFETY: by this function's contract.
        unsafe { self.ring_register(last, requests, blocks) };
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
    fn position(&self) -> Position {
        self.rung
    }

    #[inline(always)]
    fn write(&mut self, at: Position, request: WorkRequest<'_, Ah>) -> Result<Position, PostError> {
        let WorkRequest {
            wr_id, operation, ..
        } = request;
        if let Operation::BindMw(bind) = operation {
            umr::check_bind(bind)?;
        }
        self.check(operation, request.payload)?;
        self.check_room(at.count)?;
        let (index, note) = self.ledger.place(at.at as u32);
        let may_wrap = index > self.last_whole;
        // SAFETY: there is room for a request, so the ring has blocks, as many as the ledger has places; the
        // payload fits, and the scratch space has room for the largest request.
        let blocks = unsafe {
            let to = match may_wrap {
                true => NonNull::from(&mut *self.scratch).cast(),
                false => self.block(index),
            };
            self.write_wqe(to, at, request)
        };
        if may_wrap {
            self.wrap_round(index, blocks);
        }
        let count = at.count.wrapping_add(1);
        note.write(wr_id, count);
        #[cfg(feature = "mlx5-direct")]
        if self.has_own {
            note.does(Does::AsTold);
        }
        let fence = match operation {
            Operation::BindMw(_) | Operation::LocalInv { .. } => {
                let does = match operation {
                    Operation::BindMw(_) => Does::Binds,
                    _ => Does::AsTold,
                };
                note.does(does);
                control::SMALL_FENCE
            }
            _ => 0,
        };
        Ok(Position {
            count,
            at: at.at.wrapping_add(blocks.into()),
            last: index.into(),
            flags: u64::from(self.always | fence),
        })
    }

    /// The record says how far the ring is filled, the register notifies the device.
    #[inline(always)]
    fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno> {
        let requests = end.count.wrapping_sub(start.count);
        if requests == 0 {
            return Ok(0);
        }
        self.rung = end;
        self.ledger.post(end.count);
        barrier::ring_before_record();
        // Relaxed: ordered by the barriers around it.
        let counter = self.rings.record.counter(RECORD_SEND);
        counter.store((end.at as u16).to_be(), Ordering::Relaxed);
        let blocks = end.at.wrapping_sub(start.at) as u32;
        // SAFETY: there is at least one request, and `write` put the last one's WQE into that block.
        unsafe {
            let last = self.block(end.last as u32);
            match self.shares_register {
                true => self.ring_shared_register(last, requests, blocks),
                false => self.ring_register(last, requests, blocks),
            }
        }
        Ok(requests as usize)
    }
}

/// Whether a ring of that capacity has room for one more than `count` requests, `done` of which are finished.
///
/// A device that reports an older request behind a newer one, as it may with those of two streams, takes
/// `done` back, by more than there is room perhaps. So that it is the count at which the ring is full is not
/// the question: beyond that count there is no room either.
pub(super) fn has_room(count: u32, done: u32, capacity: u32) -> bool {
    count.wrapping_sub(done) < capacity
}

/// The position in an empty ring.
fn start(always: u8) -> Position {
    Position {
        flags: always.into(),
        ..Position::default()
    }
}

/// The flags of the control segment of a WQE, from those of its position and the program's.
#[inline(always)]
fn control_flags(position: u8, flags: SendFlags) -> u32 {
    let bit = |flag, bit| if flags.contains(flag) { bit } else { 0 };
    let bits = bit(SendFlags::SIGNALED, control::CQ_UPDATE)
        | bit(SendFlags::SOLICITED, control::SOLICITED);
    let bits = match flags.contains(SendFlags::FENCE) {
        // One field of three bits: a program's fence is larger than the one after a key change.
        true => bits | control::FENCE | position & !control::SMALL_FENCE,
        false => bits | position,
    };
    bits.into()
}

/// The parts of a WQE's control segment.
struct Head {
    opcode: u8,
    imm: u32,
    /// Units, the control segment included.
    units: u32,
    /// The initiator's stream.
    stream: u16,
}

/// Writes everything of a WQE except its control segment, and returns what that must contain.
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
    // SAFETY: all writes go to the room that this function's contract promises, one after the other.
    unsafe {
        let mut at = wqe.add(size_of::<Control>());
        let (mut imm, mut stream) = (0, 0);
        match to {
            None => {}
            Some(Destination::Datagram(DatagramTo { ah, qpn, qkey, .. })) => {
                let mut datagram = ah.datagram();
                datagram.qkey = Be32::new(qkey);
                datagram.dqp_dct = Be32::new(qpn | EXTENDED);
                at = put(at, datagram);
            }
            Some(Destination::Target(TargetAt {
                ah,
                number,
                key,
                stream: named,
                ..
            })) => {
                stream = named;
                let mut to = ah.datagram();
                to.set_access_key(key);
                to.dqp_dct = Be32::new(number | EXTENDED);
                at = put(at, to);
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
                imm = value;
                opcode::SEND_IMM
            }
            Operation::SendInv { rkey } => {
                imm = rkey.0;
                opcode::SEND_INVAL
            }
            Operation::Write { remote } => {
                at = put_remote(at, remote);
                opcode::RDMA_WRITE
            }
            Operation::WriteImm { remote, imm: value } => {
                imm = value;
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
                imm = rkey.0;
                at = umr::put_invalidate(at, rkey);
                opcode::UMR
            }
            Operation::BindMw(bind) => {
                imm = bind.mw_rkey.0;
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
            stream,
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
    // SAFETY: by this function's contract.
    unsafe { put(at, RemoteAddress::new(remote.address, remote.rkey.0)) }
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
        // In the device's format a length of 0 is the longest slice.
        if slice.length() > 0 {
            // SAFETY: by this function's contract.
            at = unsafe { put(at, data(slice)) };
            units += 1;
        } else {
            rarely();
        }
    }
    units
}

/// Marks the branch that calls it as rarely taken.
#[cold]
#[inline]
pub(super) fn rarely() {}

/// A slice in the device's format.
#[inline(always)]
pub(super) fn data(slice: &impl Element) -> Data {
    Data::new(slice.length(), slice.lkey(), slice.address())
}
