//! The send queue: work requests into basic blocks, and the doorbell.
//!
//! A request starts with a control segment and goes on with what its operation needs, in units of 16 bytes;
//! it takes as many basic blocks of 64 bytes as it fills and may go on at the ring's start. The ring has room
//! for as many requests of the largest size as the queue holds, so only requests are counted, not blocks.
//!
//! A batch counts for itself where it is and tells the queue when it is rung: the compiler keeps what it
//! counts in registers, and a batch that is not rung leaves nothing to undo. For most requests all that has
//! to be asked is whether they are ordinary: that there is room is known, in one piece, and nothing has to be
//! waited for. Everything else is out of line ([`SendQueue::write_otherwise`], [`ring_otherwise`]), the same
//! code with another place to write to.

#[cfg(feature = "c-abi")]
mod steps;

use std::hint::{assert_unchecked, black_box};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use uverbs_uapi::flags::SendFlags;

use super::ah::Ah;
use super::barrier;
use super::cq::{BIND, INVALIDATE};
use super::format::{
    AtomicOperands, BLOCK, Be32, Be64, Control, Data, EXTENDED, FM_CE_SE, INDEX, INLINE,
    INLINE_HEAD, LONGEST_SLICE, RECORD_SEND, RemoteAddress, UNIT, XrcQueue, control, opcode,
};
use super::ledger::{SendLedger, SendNote};
use super::qp::Rings;
use super::recv;
use super::uar::{Lease, Register};
use super::umr;
use crate::command::Failed;
use crate::driver::contract;
#[cfg(feature = "c-abi")]
use crate::driver::contract::Opened;
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
    /// The ring's first byte, and the ledger's first note: one for each block.
    ring: NonNull<u8>,
    notes: NonNull<SendNote>,
    /// The counter of the record that says how far the ring is filled.
    counter: NonNull<AtomicU16>,
    /// Blocks of the ring less one, 0 if there are none.
    mask: u64,
    layout: SendLayout,
    /// Blocks that the device has been notified of; they count on round the ring. How many requests it has
    /// been notified of stands before the first note.
    post: u64,
    /// The block at `post` and its note, where the next request is an ordinary one.
    block: NonNull<u8>,
    note: NonNull<SendNote>,
    /// A request at a block before this address is an ordinary one: there is room for it, before the ring's
    /// end, it waits for nothing, and the last one needs no more looking after. So it is for as many requests
    /// as begin in between, whatever their sizes.
    ordinary_until: usize,
    /// As `ordinary_until`, and a single request of one block can be posted by a copy of it without further
    /// ado; 0 where [`Self::copied`] is not 1.
    alone_until: usize,
    /// What every request has in the word of its flags, and what a signaled one has.
    always: u64,
    signaled: u64,
    /// The place behind the last change to a memory key: the request that begins there waits for it. Then the
    /// same of what the device was told of: the other may be of a batch that was abandoned.
    fenced: Option<u64>,
    rung_fence: Option<u64>,
    /// The place in the ring of the request in `scratch`.
    scratched: Option<u64>,
    /// The queue pair's number, and the same as it stands in the first two words of a request.
    qpn: u32,
    head: u64,
    ledger: Arc<SendLedger>,
    /// Whoever posts has the register to itself.
    alone: bool,
    /// The blocks of a batch that is copied there without further ado: 1, or more than there ever are if
    /// there is more to do. There is where the register takes no copies, or takes them at once, or others use
    /// it, and after [`Self::write_otherwise`], until the next doorbell, and as long as there was none since
    /// the queue pair was reset: whether it sends has not been asked yet.
    copied: u64,
    /// What `copied` is behind a doorbell.
    copied_again: u64,
    register: Arc<Register>,
    _lease: Arc<Lease>,
    _rings: Arc<Rings>,
    /// Where a request is put together that goes on at the ring's start.
    scratch: Box<[Block]>,
}

/// A place in the ring. All that is counted counts on round the ring. (Of 64 bits, since two that share a
/// word are taken out of it and put back.)
#[derive(Clone, Copy, Debug)]
struct Cursor {
    /// Blocks that have been written.
    post: u64,
    /// Requests that have been written.
    count: u64,
    /// See [`SendQueue::ordinary_until`].
    ordinary_until: usize,
    /// The next block and its note, where the next request is an ordinary one.
    block: NonNull<u8>,
    note: NonNull<SendNote>,
}

// SAFETY: ring and record are memory that `_rings` keeps, the notes the ledger's; of the ring and the counter
// only this value writes.
unsafe impl Send for SendQueue {}
// SAFETY: shared references read plain fields only.
unsafe impl Sync for SendQueue {}

/// A basic block.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Block([u8; BLOCK]);

/// Requests that are being written, of which the device knows nothing yet.
#[derive(Debug)]
pub(crate) struct SendBatch<'q> {
    queue: &'q mut SendQueue,
    // Where it is: each field of a [`Cursor`] is a value of its own here. It began where the queue is.
    post: u64,
    count: u64,
    ordinary_until: usize,
    block: NonNull<u8>,
    note: NonNull<SendNote>,
    /// Where the last request was written: in the ring, or in the queue's scratch space.
    last: NonNull<u8>,
}

/// A request that has been written: its id and flags may still change until the doorbell.
#[derive(Debug)]
pub(crate) struct SendSlot {
    /// Where the request was written.
    request: NonNull<u8>,
    note: NonNull<SendNote>,
}

/// What the control segment of a request says.
struct Head {
    opcode: u8,
    imm: Be32,
    /// Units with the control segment.
    units: u32,
}

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
        let (register, alone) = (Arc::clone(lease.register()), !lease.is_shared());
        let always = if signal_all { control::CQ_UPDATE } else { 0 };
        Self {
            ring,
            notes: ledger.first(),
            counter: NonNull::from(rings.record.counter(RECORD_SEND)),
            mask: layout.blocks.saturating_sub(1).into(),
            layout,
            post: 0,
            block: ring,
            note: ledger.first(),
            ordinary_until: 0,
            alone_until: 0,
            always: flags_word(always),
            signaled: flags_word(control::CQ_UPDATE),
            fenced: None,
            rung_fence: None,
            scratched: None,
            qpn: qpn << 8,
            head: word(Be32::ZERO, Be32::new(qpn << 8)),
            ledger,
            alone,
            copied: NEVER,
            copied_again: match alone && register.takes(1) {
                false => NEVER,
                true if register.stores_at_once() => AT_ONCE,
                true => 1,
            },
            register,
            _lease: lease,
            _rings: rings,
            scratch: vec![Block([0; BLOCK]); layout.request_blocks as usize].into(),
        }
    }

    /// Starts again with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<SendLedger>) {
        (self.post, self.scratched) = (0, None);
        (self.fenced, self.rung_fence) = (None, None);
        (self.ordinary_until, self.alone_until, self.copied) = (0, 0, NEVER);
        self.notes = ledger.first();
        (self.block, self.note) = (self.ring, self.notes);
        self.ledger = ledger;
    }

    /// How many requests the device was told of.
    #[inline(always)]
    fn count(&self) -> u64 {
        // SAFETY: there is a note before the first, and the ledger keeps it.
        unsafe { self.notes.sub(1).as_ref() }.told()
    }

    pub(super) fn layout(&self) -> SendLayout {
        self.layout
    }

    /// Refuses a request that does not fit into the largest one.
    #[inline(always)]
    fn check(&self, operation: Operation, payload: Payload<'_>) -> Result<(), PostError> {
        if let Operation::BindMw(bind) = operation {
            umr::check_bind(bind)?;
        }
        let (max_sge, max_inline) = self.most(operation);
        let too_many = |given| {
            Err(PostError::TooManySges {
                given,
                max: max_sge,
            })
        };
        let too_long = |given| {
            Err(PostError::InlineTooLong {
                given,
                max: max_inline,
            })
        };
        match payload {
            _ if self.takes(operation, payload) => Ok(()),
            Payload::Gather(slices) => too_many(slices.len()),
            Payload::Sges(sges) => recv::check(sges, max_sge),
            Payload::InlineSges(pieces) => too_long(pieces.len()),
            Payload::Inline(bytes) => too_long(bytes.len()),
        }
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

    /// Whether so much fits into the largest request.
    #[inline(always)]
    fn takes(&self, operation: Operation, payload: Payload<'_>) -> bool {
        let (max_sge, max_inline) = self.most(operation);
        match payload {
            // There is always room for one.
            Payload::Gather(slices) => slices.len() <= 1 || slices.len() <= max_sge as usize,
            Payload::Inline(bytes) => bytes.len() <= max_inline as usize,
            // Foreign callers' lengths are whatever they are.
            Payload::Sges(sges) => recv::check(sges, max_sge).is_ok(),
            Payload::InlineSges(pieces) => pieces.len() <= max_inline as usize,
        }
    }

    /// Notes how many requests the device is told of, where others see it too.
    #[inline(always)]
    fn tell_others(&self, count: u64) {
        // SAFETY: there is a note before the first, and the ledger keeps it.
        unsafe { self.notes.sub(1).as_ref() }.tell(count);
    }

    /// Looks how far the device has come, and tells at how many blocks from this place on a request may
    /// begin, for which there is room in one piece: at none, if the next one has to go on at the ring's
    /// start. None if there is no room.
    fn look(&self, post: u64, count: u64) -> Option<u32> {
        let SendLayout {
            blocks,
            request_blocks,
            capacity,
            ..
        } = self.layout;
        let in_flight = (count as u32).wrapping_sub(self.ledger.done());
        let free = capacity.saturating_sub(in_flight);
        if free == 0 {
            return None;
        }
        // There are blocks, for there is room for a request.
        let to_end = blocks - (post & self.mask) as u32;
        Some(free.min((to_end + 1).saturating_sub(request_blocks.max(1))))
    }

    /// Whether a request with this operation and payload is an ordinary one where there is room for it.
    #[inline(always)]
    fn is_ordinary(&self, operation: Operation, payload: Payload<'_>) -> bool {
        payload.is_plain() && !changes_key(operation) && self.takes(operation, payload)
    }

    /// Writes a request that may not be an ordinary one. Out of line, with all that is left to do, so that
    /// who posts keeps as little as can be for it.
    #[cold]
    #[inline(never)]
    fn write_otherwise(
        &mut self,
        (post, count): (u64, u64),
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<Written, PostError> {
        self.check(operation, payload)?;
        // What an abandoned batch has left is of no use. With it, nothing was ordinary any more.
        if count == self.count() {
            self.scratched = None;
            self.fenced = self.rung_fence;
        }
        (self.copied, self.alone_until) = (NEVER, 0);
        self.look_after_last(post);
        let full = || PostError::QueueFull {
            capacity: self.layout.capacity,
        };
        let room = self.look(post, count).ok_or_else(full)?;
        let fenced = self.fenced == Some(post);
        // The next one has to come here too if this one lies in the scratch space.
        let in_one_piece = room > 0;
        // SAFETY: there is room for a request, so there are blocks.
        let (block, note) = unsafe { self.block(post) };
        let first = match in_one_piece {
            true => block,
            false => {
                self.scratched = Some(post);
                self.ordinary_until = 0;
                NonNull::from(&mut *self.scratch).cast()
            }
        };
        let flags = match fenced {
            true => self.always | flags_word(control::SMALL_FENCE),
            false => self.always,
        };
        // SAFETY: the request has been checked, and there is room for it in one piece; the note is its.
        let blocks = unsafe {
            let head = write_request::<false>(first, self.qpn, operation, to, payload);
            self.write_control(first, || (post, ()), flags, &head);
            note.as_ref().write(0, count + 1);
            head.blocks()
        };
        let post = post.wrapping_add(blocks);
        let mut ordinary_until = block.addr().get() + room as usize * BLOCK;
        if changes_key(operation) {
            // SAFETY: the note is the ledger's, which the queue keeps.
            unsafe { note.as_ref() }.set_change(match operation {
                Operation::BindMw(_) => BIND,
                _ => INVALIDATE,
            });
            self.fenced = Some(post);
            ordinary_until = 0;
        }
        // SAFETY: there are blocks.
        let (next, next_note) = unsafe { self.block(post) };
        if next <= block {
            // At the ring's start all blocks are before that address.
            ordinary_until = 0;
        }
        Ok(Written {
            first,
            note,
            at: Cursor {
                post,
                count: count + 1,
                ordinary_until,
                block: next,
                note: next_note,
            },
        })
    }

    /// Writes an ordinary request into the ring, and tells how many blocks it takes, and its place.
    ///
    /// # Safety
    ///
    /// [`Self::is_ordinary`] says so, and block and note are those of the place `post`, for which there is
    /// room in the queue, and behind it for the largest request, in one piece: `qp::send_layout` made sure of
    /// it.
    #[inline(always)]
    unsafe fn write<const SIGNALED: bool>(
        &self,
        block: NonNull<u8>,
        place: impl FnOnce() -> (u64, NonNull<SendNote>),
        (wr_id, count): (u64, u64),
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> (u64, u64) {
        // SAFETY: by this function's contract. The note is the ledger's, which the queue keeps.
        unsafe {
            let head = write_request::<true>(block, self.qpn, operation, to, payload);
            let flags = if SIGNALED { self.signaled } else { self.always };
            let (post, note) = self.write_control(block, place, flags, &head);
            note.as_ref().write(wr_id, count);
            (head.blocks(), post)
        }
    }

    /// Writes a request's control segment.
    ///
    /// # Safety
    ///
    /// `request` is where a request is written.
    #[inline(always)]
    unsafe fn write_control<N>(
        &self,
        request: NonNull<u8>,
        place: impl FnOnce() -> (u64, N),
        flags: u64,
        head: &Head,
    ) -> (u64, N) {
        let control = request.cast::<Control>().as_ptr();
        // SAFETY: by this function's contract.
        unsafe {
            // The word of the flags has the immediate data or key in its other half.
            (&raw mut (*control).fm_ce_se_imm).write(flags | word(Be32::ZERO, head.imm));
            let (post, note) = place();
            // The compiler makes one number of the operation and the units where it knows both. The index
            // alone changes.
            let fixed = word(Be32::new(head.opcode.into()), Be32::new(head.units));
            request.cast::<u64>().write(fixed | self.head);
            let index = request.add(INDEX).cast::<u16>();
            index.write_unaligned((post as u16).to_be());
            (post, note)
        }
    }

    /// From here on a request of one block is copied without further ado where it can be.
    #[inline(always)]
    fn copy_again(&mut self) {
        self.copied = self.copied_again;
        self.alone_until = match self.copied_again {
            1 => self.ordinary_until,
            _ => 0,
        };
    }

    /// Copies the request in the scratch space, if there is one before this place, to the ring's end and on
    /// to its start.
    fn look_after_last(&mut self, post: u64) {
        if let Some(first) = self.scratched.take() {
            self.copy_round(first, post);
        }
    }

    /// Copies the blocks of the scratch space to these places.
    #[cold]
    #[inline(never)]
    fn copy_round(&mut self, first: u64, post: u64) {
        for (at, from) in (first..post).zip(&self.scratch) {
            let to = at & self.mask;
            // SAFETY: the masked index is below the count of blocks.
            unsafe { self.ring.add(to as usize * BLOCK).cast().write(*from) };
        }
    }

    /// Tells the device by the record how far the ring is filled.
    #[inline(always)]
    fn tell(&self, post: u64) {
        barrier::ring_before_record();
        // SAFETY: the counter is the record's, which `_rings` keeps.
        let counter = unsafe { self.counter.as_ref() };
        // Relaxed: ordered by the barriers around it.
        counter.store((post as u16).to_be(), Ordering::Relaxed);
    }

    /// The block at this place, and its note.
    ///
    /// # Safety
    ///
    /// The ring has blocks.
    #[inline(always)]
    unsafe fn block(&self, post: u64) -> (NonNull<u8>, NonNull<SendNote>) {
        let block = (post & self.mask) as usize;
        // SAFETY: the masked index is below the count of blocks, so the block lies in the ring, and has a
        // note.
        unsafe { (self.ring.add(block * BLOCK), self.notes.add(block)) }
    }
}

impl contract::SendQueue for SendQueue {
    type Ah = Ah;
    type Slot = SendSlot;
    type Batch<'q> = SendBatch<'q>;

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
        (self.count() as u32).wrapping_sub(self.ledger.done())
    }

    #[inline(always)]
    fn batch(&mut self) -> SendBatch<'_> {
        SendBatch {
            post: self.post,
            count: self.count(),
            ordinary_until: self.ordinary_until,
            block: self.block,
            note: self.note,
            last: self.block,
            queue: self,
        }
    }

    #[inline(always)]
    fn post(
        &mut self,
        wr_id: u64,
        operation: Operation,
        payload: Payload<'_>,
    ) -> Option<Result<(), Failed>> {
        if !self.is_ordinary(operation, payload) || self.block.addr().get() >= self.alone_until {
            return None;
        }
        // SAFETY: it is an ordinary request. If it has one block it is one to be copied.
        unsafe {
            self.post_by(wr_id, operation, payload, |register, block| {
                register.copy_block(block);
            });
        }
        Some(Ok(()))
    }

    fn post_otherwise(&mut self, wr_id: u64, operation: Operation, payload: Payload<'_>) -> bool {
        let is_usual = self.copied == AT_ONCE
            && self.is_ordinary(operation, payload)
            && self.block.addr().get() < self.ordinary_until;
        if is_usual {
            // SAFETY: it is an ordinary request. If it has one block it is stored at once.
            unsafe {
                self.post_by(wr_id, operation, payload, |register, block| {
                    register.store_block(block);
                });
            }
        }
        is_usual
    }

    fn ring_again(&mut self, _: Failed) -> Result<(), Errno> {
        // A register takes all that is stored.
        Ok(())
    }
}

impl SendQueue {
    /// Posts an ordinary request, signaled. One of one block is copied by `copy`, which has an aligned block
    /// in the ring, while nobody else uses the register.
    ///
    /// # Safety
    ///
    /// It is an ordinary request, there is room for it, and whoever posts has the register to itself.
    #[inline(always)]
    unsafe fn post_by(
        &mut self,
        wr_id: u64,
        operation: Operation,
        payload: Payload<'_>,
        copy: impl FnOnce(&Register, NonNull<u8>),
    ) {
        let block = self.block;
        // SAFETY: there is a note before the first, and the ledger keeps it.
        let told = unsafe { self.notes.sub(1).as_ref() };
        let count = told.told();
        // SAFETY: an ordinary request, for which there is room. What is behind its blocks lies in the ring,
        // or behind its last byte, and so it is with the notes.
        let (blocks, post) = unsafe {
            let place = || (self.post, self.note);
            let what = (wr_id, count + 1);
            let (blocks, post) = self.write::<true>(block, place, what, operation, None, payload);
            self.block = block.add(blocks as usize * BLOCK);
            self.note = self.note.add(blocks as usize);
            (blocks, post)
        };
        let post = post.wrapping_add(blocks);
        self.post = post;
        told.tell(count + 1);
        if blocks != 1 {
            ring_otherwise(self, post, blocks, 1, block);
            return;
        }
        self.tell(post);
        copy(&self.register, block);
    }
}

impl contract::SendBatch for SendBatch<'_> {
    type Ah = Ah;
    type Slot = SendSlot;

    /// Requests in it.
    #[inline(always)]
    fn len(&self) -> u32 {
        self.count.wrapping_sub(self.queue.count()) as u32
    }

    /// Writes an ordinary request into the next blocks.
    #[inline(always)]
    fn push_usual(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Option<SendSlot> {
        let (count, block, note) = (self.count, self.block, self.note);
        if !self.queue.is_ordinary(operation, payload) || block.addr().get() >= self.ordinary_until
        {
            return None;
        }
        // SAFETY: an ordinary request, for which there is room. What is behind its blocks lies in the ring,
        // or behind its last byte, and so it is with the notes.
        unsafe {
            let (place, what) = (|| (self.post, note), (0, count + 1));
            let queue = &*self.queue;
            let (blocks, _) = queue.write::<false>(block, place, what, operation, to, payload);
            self.post = self.post.wrapping_add(blocks);
            self.block = block.add(blocks as usize * BLOCK);
            self.note = note.add(blocks as usize);
        }
        (self.count, self.last) = (count + 1, block);
        let request = block;
        Some(SendSlot { request, note })
    }

    #[inline(always)]
    fn push_other(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<SendSlot, PostError> {
        let place = (self.post, self.count);
        let queue = &mut *self.queue;
        let Written { first, note, at } = match queue.write_otherwise(place, operation, to, payload)
        {
            Ok(written) => written,
            Err(error) => {
                // SAFETY: nothing was rung.
                unsafe { assert_unchecked(!matches!(error, PostError::Doorbell(_))) };
                return Err(error);
            }
        };
        // From here on nothing fails.
        (self.post, self.count) = (at.post, at.count);
        self.ordinary_until = at.ordinary_until;
        (self.block, self.note, self.last) = (at.block, at.note, first);
        let request = first;
        Ok(SendSlot { request, note })
    }

    #[inline(always)]
    fn is_usual(&self) -> bool {
        // A batch of one block, which is one request, can be copied as it is.
        self.post.wrapping_sub(self.queue.post) == self.queue.copied
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn open(&mut self, operation: Operation, wr_id: u64, flags: SendFlags) -> Option<Opened> {
        self.open_ordinary(operation, wr_id, flags)
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    unsafe fn close(&mut self, opened: Opened, payload: Payload<'_>) -> bool {
        // SAFETY: this function has the same contract.
        unsafe { self.close_ordinary(opened, payload) }
    }

    /// Publishes the batch: the record says how far the ring is filled, the register notifies the device.
    /// Returns how many requests it had.
    #[inline(always)]
    fn ring(&mut self) -> Result<usize, Errno> {
        if !self.is_usual() {
            let at = Cursor {
                post: self.post,
                count: self.count,
                ordinary_until: self.ordinary_until,
                block: self.block,
                note: self.note,
            };
            return Ok(ring_batch(self.queue, black_box(at), self.last));
        }
        // It was an ordinary request, and others are until the same count.
        let (post, count) = (self.post, self.count);
        let queue = &mut *self.queue;
        (queue.post, queue.block, queue.note) = (post, self.block, self.note);
        queue.tell_others(count);
        queue.tell(post);
        // SAFETY: the request lies in the ring, aligned, and who posts has the register to itself.
        unsafe { queue.register.copy_block(self.last) };
        Ok(1)
    }
}

/// More blocks than there ever are: see [`SendQueue::copied`].
const NEVER: u64 = u64::MAX;
/// The same, where a request of one block is stored at once.
const AT_ONCE: u64 = u64::MAX - 1;

/// Rings for a batch up to there that is not one request of one block, in the ring, for a register that
/// whoever posts has to itself, and tells how many requests it had.
#[inline(never)]
fn ring_batch(queue: &mut SendQueue, at: Cursor, last: NonNull<u8>) -> usize {
    let requests = at.count.wrapping_sub(queue.count());
    let blocks = at.post.wrapping_sub(queue.post);
    queue.post = at.post;
    queue.ordinary_until = at.ordinary_until;
    (queue.block, queue.note) = (at.block, at.note);
    if requests > 0 {
        queue.rung_fence = queue.fenced;
    }
    queue.tell_others(at.count);
    // What most are is done here, which needs no more registers than there are to spare.
    if requests < 2 || queue.scratched.is_some() || !queue.alone {
        if blocks != 1 || queue.copied != AT_ONCE {
            return ring_otherwise(queue, at.post, blocks, requests, last);
        }
        // It was an ordinary request, as where `copied` is 1.
        queue.tell(at.post);
        // SAFETY: the request lies in the ring, aligned, and who posts has the register to itself.
        unsafe { queue.register.store_block(last) };
        return 1;
    }
    queue.copy_again();
    queue.tell(at.post);
    // SAFETY: the last request has a first block. Who posts has the register to itself.
    unsafe { queue.register.ring(last.cast::<u64>().read()) };
    requests as usize
}

/// A request that has been written: where, its note, and how far the batch is behind it.
struct Written {
    first: NonNull<u8>,
    note: NonNull<SendNote>,
    at: Cursor,
}

/// Whether it changes a memory key of this side, for which requests behind it have to wait.
#[inline(always)]
fn changes_key(operation: Operation) -> bool {
    matches!(operation, Operation::BindMw(_) | Operation::LocalInv { .. })
}

impl Head {
    /// Basic blocks of the request.
    #[inline(always)]
    fn blocks(&self) -> u64 {
        blocks(self.units)
    }
}

/// Basic blocks of so many units.
#[inline(always)]
fn blocks(units: u32) -> u64 {
    units.div_ceil((BLOCK / UNIT) as u32).into()
}

impl contract::SendSlot for SendSlot {
    #[inline(always)]
    fn set_id(&mut self, wr_id: u64) {
        // SAFETY: the note is the ledger's, which the queue keeps, and the batch that lent this out borrows
        // the queue.
        unsafe { self.note.as_ref() }.set_id(wr_id);
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
        // SAFETY: the byte lies in a request that the device has not been told of, for the batch that lent it
        // out is still borrowed.
        unsafe {
            let at = self.request.add(FM_CE_SE);
            let mut now = at.read();
            if flags.contains(SendFlags::FENCE) {
                // One field of three bits: the larger fence takes the place of the smaller.
                now = now & !control::SMALL_FENCE | control::FENCE;
            }
            at.write(now | bits);
        }
    }
}

/// Rings for some requests, if there are any, and tells how many: by a copy if it is one in one piece, else
/// by the first 8 bytes of the last.
#[inline(never)]
fn ring_otherwise(
    queue: &mut SendQueue,
    post: u64,
    blocks: u64,
    requests: u64,
    last: NonNull<u8>,
) -> usize {
    if requests == 0 {
        return 0;
    }
    let first = post.wrapping_sub(blocks) & queue.mask;
    let whole = requests == 1 && first + blocks <= queue.layout.blocks.into();
    queue.look_after_last(post);
    queue.copy_again();
    queue.tell(post);
    let _turn = match queue.alone {
        true => None,
        false => queue.register.turn(),
    };
    // SAFETY: a request has a first block, which is aligned, and what is copied lies in the ring, its blocks
    // one behind the other. It is our turn, or who posts has the register to itself.
    unsafe {
        match whole {
            true => queue
                .register
                .copy(queue.ring.add(first as usize * BLOCK), blocks),
            false => queue.register.ring(last.cast::<u64>().read()),
        }
    }
    requests as usize
}

/// Writes everything of a request but its control segment, and tells what that says. `qpn` is as in the
/// control segment.
///
/// # Safety
///
/// Behind `request` there is room for a request of this operation, which the device has, with this payload.
/// It is [plain](Payload::is_plain) where `PLAIN` says so.
#[inline(always)]
unsafe fn write_request<const PLAIN: bool>(
    request: NonNull<u8>,
    qpn: u32,
    operation: Operation,
    to: Option<Destination<'_, Ah>>,
    payload: Payload<'_>,
) -> Head {
    // SAFETY: every write goes to the room that this function's contract speaks of, one behind the other.
    unsafe {
        let mut at = request.add(size_of::<Control>());
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
                at = umr::put_bind(at, qpn >> 8, bind);
                opcode::UMR
            }
            // No queue pair is created for these.
            Operation::AtomicWrite { .. } | Operation::Flush { .. } => opcode::NOP,
        };
        let before = at.offset_from(request) as u32 / UNIT as u32;
        Head {
            opcode,
            imm,
            units: before + put_payload::<PLAIN>(at, payload),
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

/// The word of a request's flags.
const fn flags_word(flags: u8) -> u64 {
    word(Be32::new(flags as u32), Be32::ZERO)
}

/// Two fields that one store writes: one of them is 0 in most requests.
#[inline(always)]
const fn word(first: Be32, second: Be32) -> u64 {
    zerocopy::transmute!([first, second])
}

/// # Safety
///
/// There is room for the segment.
#[inline(always)]
unsafe fn put_remote(at: NonNull<u8>, remote: Remote) -> NonNull<u8> {
    let segment = RemoteAddress {
        raddr: Be64::new(remote.address),
        rkey_reserved: word(Be32::new(remote.rkey.0), Be32::ZERO),
    };
    // SAFETY: by this function's contract.
    unsafe { put(at, segment) }
}

/// Writes slices, or the bytes themselves, and returns how many units they take.
///
/// # Safety
///
/// As of [`write_request`].
#[inline(always)]
unsafe fn put_payload<const PLAIN: bool>(mut at: NonNull<u8>, payload: Payload<'_>) -> u32 {
    // SAFETY: by this function's contract.
    unsafe {
        match payload {
            Payload::Gather(slices) => put_list::<PLAIN, _>(at, slices),
            Payload::Sges(sges) => put_list::<PLAIN, _>(at, sges),
            Payload::Inline([]) => 0,
            Payload::Inline(bytes) => {
                let length = Be32::new(INLINE | bytes.len() as u32);
                at = put(at, length);
                debug_assert_eq!(size_of_val(&length), INLINE_HEAD);
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
/// As of [`write_request`].
#[inline(always)]
unsafe fn put_list<const PLAIN: bool, E: Element>(mut at: NonNull<u8>, slices: &[E]) -> u32 {
    let mut units = 0;
    for slice in slices {
        // A length of 0 would mean the longest slice.
        if PLAIN || slice.length() > 0 {
            // SAFETY: by this function's contract.
            at = unsafe {
                match PLAIN {
                    true => put(at, plain(slice)),
                    false => put(at, data(slice)),
                }
            };
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

/// As [`data`], of a [plain](Payload::is_plain) slice. Length and key are taken as the one number that they
/// are in a slice.
#[inline(always)]
pub(super) fn plain(slice: &impl Element) -> [u64; 2] {
    let both = u64::from(slice.lkey()) << 32 | u64::from(slice.length());
    [both.to_be().rotate_left(32), slice.address().to_be()]
}
