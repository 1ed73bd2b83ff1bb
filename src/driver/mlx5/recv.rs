//! Receive queues: a queue pair's own, and shared ones. Neither has a register: the device looks at the
//! record when a message arrives.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::barrier;
use super::directory::Receiver;
use super::format::{Data, LONGEST_SLICE, RECORD_RECEIVE, SrqNext, TERMINATOR};
use super::ledger::{LooseLedger, RecvLedger, SrqLedger};
use super::qp::Rings;
use super::send::{data, put};
use super::srq::SrqRing;
use crate::driver::contract;
use crate::work::{Element, PostError};

/// How a receive queue is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecvLayout {
    /// Elements, a power of two or 0.
    pub(super) count: u32,
    /// Requests that may be posted at a time.
    pub(super) capacity: u32,
    /// Bytes of an element, a power of two.
    pub(super) stride: u32,
    pub(super) max_sge: u32,
}

impl RecvLayout {
    /// What its completions finish, from the start on.
    pub(super) fn receiver(&self) -> Receiver {
        match self.capacity == self.count {
            true => Receiver::Own(Arc::new(RecvLedger::new(self.count))),
            false => Receiver::Loose(Arc::new(LooseLedger::new(self.count))),
        }
    }

    /// Bytes of the ring.
    pub(super) fn bytes(&self) -> usize {
        self.count as usize * self.stride as usize
    }
}

/// A queue pair's own receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    /// The ring's first byte, and the ledger's first id: one for each element.
    ring: NonNull<u8>,
    ids: NonNull<AtomicU64>,
    /// The word of the record that says how far the ring is filled.
    word: NonNull<AtomicU32>,
    /// Elements less one, 0 if there are none, and bytes of one.
    mask: u32,
    stride: usize,
    max_sge: u32,
    /// Requests that the device was told of; they count on round the ring.
    published: u32,
    /// There is room until so many have been written, without looking how far the device has come.
    room_until: u32,
    layout: RecvLayout,
    ledger: Arc<RecvLedger>,
    _rings: Arc<Rings>,
}

// SAFETY: ring and record are memory that `_rings` keeps, the ids the ledger's; of the ring and the word only
// this value writes.
unsafe impl Send for RecvQueue {}
// SAFETY: shared references read plain fields only.
unsafe impl Sync for RecvQueue {}

/// Refuses a request with too many slices, or slices that are too long for the device's 31 bits.
#[inline(always)]
pub(super) fn check<E: Element>(slices: &[E], max: u32) -> Result<(), PostError> {
    if slices.len() > max as usize {
        return Err(PostError::TooManySges {
            given: slices.len(),
            max,
        });
    }
    match slices.iter().find(|slice| slice.length() > LONGEST_SLICE) {
        None => Ok(()),
        Some(slice) => Err(PostError::MessageTooLong {
            given: slice.length().into(),
            max: LONGEST_SLICE.into(),
        }),
    }
}

/// Writes slices, and if there is room for more what ends them.
///
/// # Safety
///
/// There is room for `max` slices, and there are at most so many.
#[inline(always)]
unsafe fn put_slices<E: Element>(mut at: NonNull<u8>, slices: &[E], max: u32) {
    let mut room = max;
    // SAFETY: by this function's contract.
    unsafe {
        for slice in slices {
            if slice.length() > 0 {
                at = put(at, data(slice));
                room -= 1;
            }
        }
        if room > 0 {
            put(at, TERMINATOR);
        }
    }
}

/// Tells the device how many requests there are.
#[inline(always)]
pub(super) fn tell(word: &AtomicU32, count: u32) {
    barrier::ring_before_record();
    // Relaxed: ordered by the barrier.
    word.store((count & 0xffff).to_be(), Ordering::Relaxed);
}

impl RecvQueue {
    /// A receive queue over the ring that begins at `ring` in `rings`.
    pub(super) fn new(
        rings: Arc<Rings>,
        ring: NonNull<u8>,
        layout: RecvLayout,
        ledger: Arc<RecvLedger>,
    ) -> Self {
        Self {
            ring,
            ids: ledger.first(),
            word: NonNull::from(rings.record.word(RECORD_RECEIVE)),
            mask: layout.count.saturating_sub(1),
            stride: layout.stride as usize,
            max_sge: layout.max_sge,
            published: 0,
            room_until: layout.capacity,
            layout,
            ledger,
            _rings: rings,
        }
    }

    /// Starts again, with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<RecvLedger>) {
        (self.published, self.room_until) = (0, self.layout.capacity);
        self.ids = ledger.first();
        self.ledger = ledger;
    }

    /// Looks how far the device has come when so many requests have been written; true if there is room. In
    /// line, since a call, even one that is not made, costs whoever might make it the registers that it would
    /// spoil.
    #[inline(always)]
    fn look(&mut self, count: u32) -> bool {
        let in_flight = count.wrapping_sub(self.ledger.done());
        let free = self.layout.capacity.saturating_sub(in_flight);
        self.room_until = count.wrapping_add(free);
        free > 0
    }
}

impl contract::RecvQueue for RecvQueue {
    fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    fn max_sge(&self) -> u32 {
        self.layout.max_sge
    }

    fn in_flight(&self) -> u32 {
        self.published.wrapping_sub(self.ledger.done())
    }

    #[inline(always)]
    fn begin(&mut self) -> u64 {
        self.published.into()
    }

    #[inline(always)]
    fn pending(&self, at: u64) -> u32 {
        (at as u32).wrapping_sub(self.published)
    }

    #[inline(always)]
    fn push<E: Element>(
        &mut self,
        at: &mut u64,
        wr_id: u64,
        slices: &[E],
    ) -> Result<(), PostError> {
        let count = *at as u32;
        if count == self.room_until && !self.look(count) {
            return Err(PostError::QueueFull {
                capacity: self.layout.capacity,
            });
        }
        check(slices, self.max_sge)?;
        let index = (count & self.mask) as usize;
        // SAFETY: the masked index is below the count of elements, of which there are some, for there is
        // room. Each has room for `max_sge` slices, and an id in the ledger, which the queue keeps; the
        // device has finished with this one.
        unsafe {
            let element = self.ring.add(index * self.stride);
            put_slices(element, slices, self.max_sge);
            self.ids.add(index).as_ref().store(wr_id, Ordering::Relaxed);
        }
        *at = count.wrapping_add(1).into();
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self, at: u64) {
        self.published = at as u32;
        // SAFETY: the word is the record's, which `_rings` keeps.
        tell(unsafe { self.word.as_ref() }, self.published);
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedRecvQueue {
    /// The ring's first byte, bytes of an element, and the word of the record that says how far it is filled.
    first: NonNull<u8>,
    stride: usize,
    word: NonNull<AtomicU32>,
    max_sge: u32,
    /// Requests written that the device was not told of.
    written: u32,
    /// It knows how far posting has come, since pollers may post as well.
    ledger: Arc<SrqLedger>,
    ring: Arc<SrqRing>,
}

// SAFETY: ring and record are memory that `ring` keeps. Whoever writes it is inside the gate, or writes the
// word.
unsafe impl Send for SharedRecvQueue {}
// SAFETY: shared references read plain fields, and atomics.
unsafe impl Sync for SharedRecvQueue {}

/// A shared receive queue, as those who report of it know it.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) ledger: Arc<SrqLedger>,
    /// It goes with the queue, even if the poller has not looked since.
    pub(super) ring: Weak<SrqRing>,
}

impl Drawn {
    pub(super) fn new(ring: &Arc<SrqRing>, ledger: &Arc<SrqLedger>) -> Self {
        Self {
            ledger: Arc::clone(ledger),
            ring: Arc::downgrade(ring),
        }
    }
}

impl SharedRecvQueue {
    /// A queue over a ring with as many elements as the ledger has.
    pub(super) fn new(ring: Arc<SrqRing>, ledger: Arc<SrqLedger>) -> Self {
        Self {
            first: ring.element(0),
            stride: ring.stride(),
            max_sge: ring.max_sge(),
            word: NonNull::from(ring.record().word(RECORD_RECEIVE)),
            written: 0,
            ledger,
            ring,
        }
    }

    pub(super) fn drawn(&self) -> Drawn {
        Drawn::new(&self.ring, &self.ledger)
    }

    #[cfg(test)]
    pub(super) fn elements(&self) -> &Arc<SrqRing> {
        &self.ring
    }

    /// Writes a request. False if there is no other free element right behind the one for it; then nothing is
    /// written.
    #[inline(always)]
    fn write<E: Element>(&mut self, wr_id: u64, slices: &[E]) -> bool {
        let ledger = &*self.ledger;
        let _inside = ledger.gate.pass();
        let head = ledger.posting.head();
        let Some(next) = ledger.right_behind(head) else {
            return false;
        };
        // SAFETY: both are elements of the ring, the first one is free, and this is inside the gate.
        unsafe { self.put(head, next, wr_id, slices) };
        self.written += 1;
        true
    }

    /// As [`Self::write`], wherever there is a free element. Out of line as a whole, so that the usual way
    /// keeps nothing for the call.
    #[cold]
    #[inline(never)]
    fn write_elsewhere<E: Element>(&mut self, wr_id: u64, slices: &[E]) -> bool {
        let ledger = &*self.ledger;
        let _inside = ledger.gate.pass();
        let head = ledger.posting.head();
        let Some(next) = ledger.behind(head) else {
            return false;
        };
        // SAFETY: as in `write`.
        unsafe { self.put(head, next, wr_id, slices) };
        self.written += 1;
        true
    }

    /// Writes a request to an element, which leads to the next one.
    ///
    /// # Safety
    ///
    /// Both are elements of the ring, nobody else has the first one, and the caller is inside the gate.
    #[inline(always)]
    unsafe fn put<E: Element>(&self, head: u32, next: u32, wr_id: u64, slices: &[E]) {
        // SAFETY: by this function's contract; each has room for the link and `max_sge` slices.
        unsafe {
            let at = self.first.add(head as usize * self.stride);
            put_slices(put(at, SrqNext::to(next)), slices, self.max_sge);
        }
        let posting = &self.ledger.posting;
        let count = posting.told().wrapping_add(self.written);
        self.ledger.post(head, wr_id, count);
        posting.go_on(next);
    }

    /// Frees the elements of a batch that was never rung.
    #[cold]
    fn take_back(&mut self) {
        let SrqLedger { gate, posting, .. } = &*self.ledger;
        let _inside = gate.pass();
        let mut index = posting.told_head();
        while index != posting.head() {
            let next = self.ring.link(index);
            self.ledger.unpost(index);
            index = next;
        }
        posting.go_on(posting.told_head());
        self.written = 0;
    }
}

impl contract::RecvQueue for SharedRecvQueue {
    fn capacity(&self) -> u32 {
        self.ledger.capacity()
    }

    fn max_sge(&self) -> u32 {
        self.max_sge
    }

    fn in_flight(&self) -> u32 {
        // In this order: what is finished was told before, also by a poller.
        let done = self.ledger.done();
        self.ledger.posting.told().wrapping_sub(done)
    }

    /// The batch counts in the queue itself, from which it takes elements.
    #[inline(always)]
    fn begin(&mut self) -> u64 {
        if self.written != 0 {
            self.take_back();
        }
        0
    }

    #[inline(always)]
    fn pending(&self, _: u64) -> u32 {
        self.written
    }

    #[inline(always)]
    fn push<E: Element>(&mut self, _: &mut u64, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        check(slices, self.max_sge)?;
        if self.write(wr_id, slices) || self.write_elsewhere(wr_id, slices) {
            return Ok(());
        }
        Err(PostError::QueueFull {
            capacity: self.ledger.capacity(),
        })
    }

    #[inline(always)]
    fn ring(&mut self, _: u64) {
        let SrqLedger { gate, posting, .. } = &*self.ledger;
        let _inside = gate.pass();
        let count = posting.told().wrapping_add(self.written);
        self.written = 0;
        posting.tell(count, posting.head());
        // SAFETY: the word is the record's, which the ring keeps.
        tell(unsafe { self.word.as_ref() }, count);
    }
}

/// Bytes of an element of a receive queue with so many slices.
pub(super) fn recv_bytes(max_sge: u32) -> u64 {
    u64::from(max_sge.max(1)) * size_of::<Data>() as u64
}
