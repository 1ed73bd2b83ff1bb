//! The send queue: work requests into basic blocks, and the doorbell.
//!
//! A request starts with a control segment and goes on with what its operation needs, in units of 16 bytes; it takes as
//! many basic blocks of 64 bytes as it fills and may go on at the ring's start. The ring has room for as many requests
//! of the largest size as the queue holds, so only requests are counted, not blocks.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::flags::{DeviceCapFlags, SendFlags};

use super::barrier;
use super::cq::{BIND, INVALIDATE};
use super::format::{
    AtomicOperands, BLOCK, Be32, Be64, Control, Data, EXTENDED, FM_CE_SE, INLINE, INLINE_HEAD,
    LONGEST_SLICE, RECORD_SEND, RemoteAddress, UNIT, control, opcode,
};
use super::ledger::{SendLedger, SendNote};
use super::qp::Rings;
use super::uar::{Lease, Own, Register};
use super::umr;
use crate::key::LocalSlice;
use crate::wr::{Destination, Operation, Payload, PostError, Remote};

/// How a send queue is cut.
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
    /// The ring's first byte, and the ledger's first note: one for each block.
    ring: NonNull<u8>,
    notes: NonNull<SendNote>,
    /// The word of the record that says how far the ring is filled.
    word: NonNull<AtomicU32>,
    /// The register, if it is this queue's alone; else the lease's is shared.
    own: Option<Own>,
    /// Blocks of the ring less one, 0 if there are none.
    mask: u32,
    layout: SendLayout,
    /// Blocks and requests written, and of those the ones that the device was told of; all count on round the ring.
    post: u32,
    count: u32,
    published: u32,
    published_count: u32,
    /// Where the last request begins.
    last: u32,
    /// Requests that were finished when this was last looked at.
    done: u32,
    /// What the next request waits for, of `fm_ce_se`.
    next_fence: u8,
    /// What every request has in `fm_ce_se`.
    always: u8,
    /// The queue pair's number where the control segment has it.
    qpn: u32,
    ledger: Arc<SendLedger>,
    lease: Arc<Lease>,
    _rings: Arc<Rings>,
    /// Where a request is put together that goes on at the ring's start.
    scratch: Box<[Block]>,
}

// SAFETY: ring and record are memory that `_rings` keeps, the notes the ledger's; of the ring and the word only this
// value writes.
unsafe impl Send for SendQueue {}
// SAFETY: shared references read plain fields only.
unsafe impl Sync for SendQueue {}

/// A basic block.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Block([u8; BLOCK]);

/// A request that has been written: its id and flags may still change until the doorbell.
#[derive(Debug)]
pub(crate) struct SendSlot {
    /// The request's `fm_ce_se`.
    flags: NonNull<u8>,
    note: NonNull<SendNote>,
}

/// What the control segment of a request says.
struct Head {
    opcode: u8,
    imm: Be32,
    /// Bytes with the control segment.
    bytes: usize,
}

impl SendQueue {
    /// A send queue over the ring that begins at `ring` in `rings`.
    pub(super) fn new(
        rings: Arc<Rings>,
        ring: NonNull<u8>,
        layout: SendLayout,
        ledger: Arc<SendLedger>,
        (lease, shared_register): (Arc<Lease>, bool),
        (qpn, signal_all): (u32, bool),
    ) -> Self {
        let register = lease.register();
        // SAFETY: it is not shared, and the lease is kept beside it.
        let own = (!shared_register).then(|| unsafe { Own::new(register) });
        Self {
            ring,
            notes: ledger.first(),
            word: NonNull::from(rings.record.word(RECORD_SEND)),
            own,
            mask: layout.blocks.saturating_sub(1),
            layout,
            post: 0,
            count: 0,
            published: 0,
            published_count: 0,
            last: 0,
            done: 0,
            next_fence: 0,
            always: if signal_all { control::CQ_UPDATE } else { 0 },
            qpn: qpn << 8,
            ledger,
            lease,
            _rings: rings,
            scratch: vec![Block([0; BLOCK]); layout.request_blocks as usize].into(),
        }
    }

    /// Starts anew, with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<SendLedger>) {
        (self.post, self.count, self.published, self.published_count) = (0, 0, 0, 0);
        (self.last, self.done, self.next_fence) = (0, 0, 0);
        self.notes = ledger.first();
        self.ledger = ledger;
    }

    pub(super) fn layout(&self) -> SendLayout {
        self.layout
    }

    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    /// The most slices of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        self.layout.max_sge
    }

    /// The most inline bytes of a request.
    pub(crate) fn max_inline(&self) -> u32 {
        self.layout.max_inline
    }

    /// Requests that have been posted and that no completion has been taken of, nor of a later one.
    pub(crate) fn in_flight(&self) -> u32 {
        self.published_count.wrapping_sub(self.ledger.done())
    }

    /// Requests in the batch that has not been rung yet.
    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        self.count.wrapping_sub(self.published_count)
    }

    /// Writes a request into the next blocks. The caller has checked that the transport has the operation.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_>>,
        payload: Payload<'_>,
    ) -> Result<SendSlot, PostError> {
        // Copies, so that they need not be read again after every write to the ring.
        let (post, count, mask, layout) = (self.post, self.count, self.mask, self.layout);
        if count.wrapping_sub(self.done) >= layout.capacity && !self.look() {
            return Err(PostError::QueueFull {
                capacity: layout.capacity,
            });
        }
        match payload {
            Payload::Gather(slices) if slices.len() > layout.max_sge as usize => {
                return Err(PostError::TooManySges {
                    given: slices.len(),
                    max: layout.max_sge,
                });
            }
            Payload::Inline(bytes) if bytes.len() > layout.max_inline as usize => {
                return Err(PostError::InlineTooLong {
                    given: bytes.len(),
                    max: layout.max_inline,
                });
            }
            _ => {}
        }
        let block = post & mask;
        // SAFETY: the masked index is below the count of blocks, so the block lies in the ring, and has a note. There are
        // blocks, for there is room for a request.
        let (first, note) = unsafe {
            (
                self.ring.add(block as usize * BLOCK),
                self.notes.add(block as usize).as_ref(),
            )
        };
        let whole = layout.blocks - block >= layout.request_blocks;
        let request = if whole {
            first
        } else {
            NonNull::from(&mut *self.scratch).cast()
        };
        let (qpn, flags) = (self.qpn, self.always | self.next_fence);
        // SAFETY: behind `request` there are `request_blocks` blocks that are this value's to write, which is room for
        // every request within the limits checked above; `qp::send_layout` made sure of it.
        let head = unsafe { write_request(request, qpn >> 8, operation, to, payload)? };
        // Rounded up; shifts, since the counts are positive.
        let units = ((head.bytes + (UNIT - 1)) >> UNIT.ilog2()) as u32;
        let blocks = (units + 3) >> 2;
        let control = Control {
            opmod_idx_opcode: Be32::new((post & 0xffff) << 8 | u32::from(head.opcode)),
            qpn_ds: Be32::new(qpn | units),
            fm_ce_se: Be32::new(flags.into()),
            imm: head.imm,
        };
        // SAFETY: as above.
        unsafe { request.cast::<Control>().write(control) };
        if !whole {
            self.copy_round(block, blocks);
        }
        self.last = post;
        self.post = post.wrapping_add(blocks);
        self.count = count.wrapping_add(1);
        note.write(0, count.wrapping_add(1));
        if head.opcode == opcode::UMR {
            note.set_change(match operation {
                Operation::BindMw(_) => BIND,
                _ => INVALIDATE,
            });
            self.next_fence = control::SMALL_FENCE;
        } else {
            self.next_fence = 0;
        }
        Ok(SendSlot {
            // SAFETY: the control segment lies in the first block.
            flags: unsafe { first.add(FM_CE_SE) },
            note: NonNull::from(note),
        })
    }

    /// Looks how far the device has come; true if there is room.
    #[cold]
    fn look(&mut self) -> bool {
        self.done = self.ledger.done();
        self.count.wrapping_sub(self.done) < self.layout.capacity
    }

    /// Copies the request in the scratch space to the ring's end and on to its start.
    #[cold]
    fn copy_round(&mut self, block: u32, blocks: u32) {
        for (index, from) in (0..blocks).zip(&self.scratch) {
            let to = (block + index) & self.mask;
            // SAFETY: the masked index is below the count of blocks.
            unsafe { self.ring.add(to as usize * BLOCK).cast().write(*from) };
        }
    }

    /// Hands the batch to the device: the record says how far, the register that there is something.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        let (post, count, last) = (self.post, self.count, self.last & self.mask);
        let blocks = post.wrapping_sub(self.published);
        let single = count.wrapping_sub(self.published_count) == 1;
        // A request that goes on at the ring's start is not in one piece.
        let whole = single && last + blocks <= self.layout.blocks;
        // SAFETY: the masked index is below the count of blocks; the word is the record's, which `_rings` keeps.
        let (request, word) = unsafe { (self.ring.add(last as usize * BLOCK), self.word.as_ref()) };
        (self.published, self.published_count) = (post, count);
        barrier::ring_before_record();
        // Relaxed: ordered by the barriers around it.
        word.store((post & 0xffff).to_be(), Ordering::Relaxed);
        let (bytes, blocks) = (blocks as usize * BLOCK, blocks as usize);
        // SAFETY: a request has a first block, which is aligned. What is copied lies in the ring, its blocks one behind
        // the other, and fits into a half.
        unsafe {
            match &mut self.own {
                Some(register) if whole && bytes <= register.half() => {
                    register.copy(request, blocks);
                }
                Some(register) => register.ring(request.cast::<u64>().read()),
                None => ring_shared(self.lease.register(), request, blocks, whole),
            }
        }
    }

    /// Forgets the batch.
    #[inline(always)]
    pub(crate) fn abandon(&mut self) {
        if self.post != self.published {
            self.post = self.published;
            self.count = self.published_count;
            // What went before may have been a change to a key, and waiting for it in vain costs little.
            self.next_fence = control::SMALL_FENCE;
        }
    }
}

impl SendSlot {
    /// Sets the id that the completion carries.
    #[inline(always)]
    pub(crate) fn set_id(&mut self, wr_id: u64) {
        // SAFETY: the note is the ledger's, which the queue keeps, and the batch that lent this out borrows the queue.
        unsafe { self.note.as_ref() }.set_id(wr_id);
    }

    /// Sets flags on top of those that are set.
    #[inline(always)]
    pub(crate) fn add_flags(&mut self, flags: SendFlags) {
        let mut bits = 0;
        if flags.contains(SendFlags::SIGNALED) {
            bits |= control::CQ_UPDATE;
        }
        if flags.contains(SendFlags::SOLICITED) {
            bits |= control::SOLICITED;
        }
        // SAFETY: the byte lies in a request that the device has not been told of, for the batch that lent it out is
        // still borrowed.
        unsafe {
            let mut now = self.flags.read();
            if flags.contains(SendFlags::FENCE) {
                // One field of three bits: the larger fence takes the place of the smaller.
                now = now & !control::SMALL_FENCE | control::FENCE;
            }
            self.flags.write(now | bits);
        }
    }
}

/// Rings in a register that others ring in as well.
///
/// # Safety
///
/// `request` is the start of a request of so many blocks, aligned and, if it is `whole`, all one behind the other.
#[inline(never)]
unsafe fn ring_shared(register: &Register, request: NonNull<u8>, blocks: usize, whole: bool) {
    // SAFETY: by this function's contract.
    unsafe {
        if whole && blocks * BLOCK <= register.half() {
            register.copy_shared(request, blocks);
        } else {
            register.ring(request.cast::<u64>().read());
        }
    }
}

/// Writes everything of a request but its control segment, and tells what that says.
///
/// # Safety
///
/// Behind `request` there is room for a request of this operation, with this payload.
#[inline(always)]
unsafe fn write_request(
    request: NonNull<u8>,
    qpn: u32,
    operation: Operation,
    to: Option<Destination<'_>>,
    payload: Payload<'_>,
) -> Result<Head, PostError> {
    // SAFETY: every write goes to the room that this function's contract speaks of, one behind the other.
    unsafe {
        let mut at = request.add(size_of::<Control>());
        let mut imm = Be32::ZERO;
        if let Some(Destination { ah, qpn, qkey, .. }) = to {
            let mut datagram = ah.mlx5();
            datagram.qkey = Be32::new(qkey);
            datagram.dqp_dct = Be32::new(qpn | EXTENDED);
            at = put(at, datagram);
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
                at = umr::put_bind(at, qpn, bind)?;
                opcode::UMR
            }
            Operation::AtomicWrite { .. } => return Err(lacks(DeviceCapFlags::ATOMIC_WRITE)),
            Operation::Flush { .. } => return Err(lacks(DeviceCapFlags::FLUSH_GLOBAL)),
        };
        at = put_payload(at, payload);
        Ok(Head {
            opcode,
            imm,
            bytes: at.offset_from(request) as usize,
        })
    }
}

#[cold]
fn lacks(capability: DeviceCapFlags) -> PostError {
    PostError::MissingCapability { capability }
}

/// Writes a segment and returns the place behind it.
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

/// Writes slices, or the bytes themselves, and returns the place behind, which for bytes need not be a whole unit.
///
/// # Safety
///
/// There is room for the payload.
#[inline(always)]
unsafe fn put_payload(mut at: NonNull<u8>, payload: Payload<'_>) -> NonNull<u8> {
    // SAFETY: by this function's contract.
    unsafe {
        match payload {
            Payload::Gather(slices) => {
                for slice in slices {
                    // A length of 0 would mean the longest slice.
                    if slice.length > 0 {
                        at = put(at, data(slice));
                    }
                }
            }
            Payload::Inline([]) => {}
            Payload::Inline(bytes) => {
                let length = Be32::new(INLINE | bytes.len() as u32);
                at = put(at, length);
                debug_assert_eq!(size_of_val(&length), INLINE_HEAD);
                at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
                at = at.add(bytes.len());
            }
        }
        at
    }
}

/// A slice as the device has it.
#[inline(always)]
pub(super) fn data(slice: &LocalSlice) -> Data {
    Data {
        // The longest slice is written as 0: its bit would mark inline data.
        byte_count: Be32::new(slice.length & (LONGEST_SLICE - 1)),
        lkey: Be32::new(slice.lkey.0),
        addr: Be64::new(slice.address),
    }
}
