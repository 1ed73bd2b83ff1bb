//! Receive queues: a queue pair's own, and shared ones. Neither has a register: the device looks at the
//! doorbell record when a message arrives.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Weak};

use super::barrier;
use super::format::{Data, LONGEST_SLICE, RECORD_RECEIVE, SrqNext, TERMINATOR};
use super::ledger::{LooseLedger, RecvLedger, SrqLedger};
use super::qp::Rings;
use super::reporter::Receiver;
use super::send::{data, has_room, put, rarely};
use super::srq::SrqRing;
use crate::driver::contract;
use crate::driver::kit::gate::Inside;
use crate::work::{Element, PostError};

/// The layout of a receive queue.
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
    /// A new ledger for its completions.
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

/// A queue pair's own receive queue. Its counts of requests run on in every round and wrap at 2^32.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    /// The ring's first byte.
    ring: NonNull<u8>,
    layout: RecvLayout,
    /// Requests that the device knows of.
    rung: u32,
    /// There is room for requests before this count, as the ledger said when it was last asked.
    room_until: u32,
    ledger: Arc<RecvLedger>,
    rings: Arc<Rings>,
}

// SAFETY: the elements are memory that `ring` keeps. Only this value writes to them, and a poller while the
// gate is closed.
unsafe impl Send for SharedRecvQueue {}
// SAFETY: shared references read plain fields only.
unsafe impl Sync for SharedRecvQueue {}

// SAFETY: the ring is memory that `rings` keeps; only this value writes to it.
unsafe impl Send for RecvQueue {}
// SAFETY: shared references read plain fields only.
unsafe impl Sync for RecvQueue {}

/// Refuses a request with too many slices, or with slices of a C program that are too long for the device's
/// 31 bits.
#[inline(always)]
pub(super) fn check<E: Element>(slices: &[E], max: u32) -> Result<(), PostError> {
    if slices.len() > max as usize {
        return Err(PostError::TooManySges {
            given: slices.len(),
            max,
        });
    }
    let is_too_long = |slice: &&E| E::FOREIGN && slice.length() > LONGEST_SLICE;
    match slices.iter().find(is_too_long) {
        None => Ok(()),
        Some(slice) => Err(PostError::MessageTooLong {
            given: slice.length().into(),
            max: LONGEST_SLICE.into(),
        }),
    }
}

/// Writes slices, and the mark of the end after them if there is room for more.
///
/// # Safety
/// There is room for `max` slices, and `slices` are at most that many.
#[inline(always)]
unsafe fn put_slices<E: Element>(mut at: NonNull<u8>, slices: &[E], max: u32) {
    let mut written = 0;
    // SAFETY: by this function's contract.
    unsafe {
        for slice in slices {
            if slice.length() > 0 {
                at = put(at, data(slice));
                written += 1;
            } else {
                rarely();
            }
        }
        if written < max {
            put(at, TERMINATOR);
        }
    }
}

/// Publishes to the device how many requests were posted.
#[inline(always)]
pub(super) fn tell(counter: &AtomicU16, count: u32) {
    barrier::ring_before_record();
    // Relaxed: ordered by the barrier.
    counter.store((count as u16).to_be(), Ordering::Relaxed);
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
            layout,
            rung: 0,
            room_until: 0,
            ledger,
            rings,
        }
    }

    /// Requests that the device knows of, counted from the start.
    pub(super) fn rung(&self) -> u32 {
        self.rung
    }

    /// Starts again, with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<RecvLedger>) {
        (self.rung, self.room_until) = (0, 0);
        self.ledger = ledger;
    }

    /// Asks the ledger how far the device is; false if a ring with `count` requests posted has no room left.
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
}

impl contract::RecvQueue for RecvQueue {
    fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    fn max_sge(&self) -> u32 {
        self.layout.max_sge
    }

    fn in_flight(&self) -> u32 {
        self.rung.wrapping_sub(self.ledger.done())
    }

    #[inline(always)]
    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        let RecvLayout {
            stride, max_sge, ..
        } = self.layout;
        check(slices, max_sge)?;
        let at = self.rung.wrapping_add(nth);
        if at == self.room_until && !self.finds_room(at) {
            let capacity = self.layout.capacity;
            return Err(PostError::QueueFull { capacity });
        }
        let index = self.ledger.note(at, wr_id);
        // SAFETY: the masked index is below the count of elements, which is not 0, since there is room. Each
        // element has room for `max_sge` slices, and the device has finished with this one.
        unsafe {
            put_slices(
                self.ring.add(index as usize * stride as usize),
                slices,
                max_sge,
            )
        };
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self, count: u32) {
        self.rung = self.rung.wrapping_add(count);
        tell(self.rings.record.counter(RECORD_RECEIVE), self.rung);
    }
}

/// A shared receive queue. Its head is in the ledger, since a poller may also post.
#[derive(Debug)]
pub(crate) struct SharedRecvQueue {
    /// The ring's first byte, and bytes of an element.
    elements: NonNull<u8>,
    stride: usize,
    max_sge: NonZeroU32,
    ledger: Arc<SrqLedger>,
    ring: Arc<SrqRing>,
}

/// A shared receive queue, as seen by the completion queues that report its messages.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) ledger: Arc<SrqLedger>,
    /// The ring goes with the queue, even if the poller has not polled since.
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
    pub(super) fn new(ring: Arc<SrqRing>, ledger: Arc<SrqLedger>) -> Self {
        let max_sge = NonZeroU32::new(ring.max_sge());
        Self {
            elements: ring.element(0),
            stride: ring.stride(),
            max_sge: max_sge.expect("the smallest element has room for one"),
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

    /// Writes a request to the element `head`, and links that to `next`.
    #[inline(always)]
    fn put<E: Element>(
        &self,
        _inside: Inside<'_>,
        ledger: &SrqLedger,
        (head, next): (u32, u32),
        (nth, wr_id): (u32, u64),
        slices: &[E],
    ) {
        // SAFETY: the head is a free element of the ring, and has room for the link and `max_sge` slices.
        unsafe {
            let element = self.elements.add(head as usize * self.stride);
            let link = element.add(SrqNext::INDEX).cast::<u16>();
            link.write((next as u16).to_be());
            put_slices(
                element.add(size_of::<SrqNext>()),
                slices,
                self.max_sge.get(),
            );
        }
        let number = ledger.posting.told().wrapping_add(nth);
        ledger.post(head, wr_id, number);
        ledger.posting.go_on(next);
    }

    /// As `write`, where the gate may be closed, a batch may have been abandoned, or the next element may be
    /// in use.
    #[cold]
    #[inline(never)]
    fn write_closely<E: Element>(
        &self,
        nth: u32,
        wr_id: u64,
        slices: &[E],
    ) -> Result<(), PostError> {
        let ledger = &*self.ledger;
        let posting = &ledger.posting;
        let inside = ledger.gate.pass();
        if nth == 0 && posting.head() != posting.told_head() {
            self.take_back();
        }
        let head = posting.head();
        let Some(next) = ledger.behind(head) else {
            let capacity = ledger.capacity();
            return Err(PostError::QueueFull { capacity });
        };
        self.put(inside, ledger, (head, next), (nth, wr_id), slices);
        Ok(())
    }

    /// Frees the elements of a batch that was never rung. The caller is inside the gate.
    #[cold]
    fn take_back(&self) {
        let posting = &self.ledger.posting;
        let mut index = posting.told_head();
        while index != posting.head() {
            let next = self.ring.link(index);
            self.ledger.unpost(index);
            index = next;
        }
        posting.go_on(posting.told_head());
    }
}

impl contract::RecvQueue for SharedRecvQueue {
    fn capacity(&self) -> u32 {
        self.ledger.capacity()
    }

    fn max_sge(&self) -> u32 {
        self.ring.max_sge()
    }

    fn in_flight(&self) -> u32 {
        // In this order: finished requests were posted before, also by a poller.
        let done = self.ledger.done();
        self.ledger.posting.told().wrapping_sub(done)
    }

    #[inline(always)]
    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        check(slices, self.max_sge.get())?;
        let ledger = &*self.ledger;
        let posting = &ledger.posting;
        if let Some(inside) = ledger.gate.pass_if_open() {
            let head = posting.head();
            if (nth > 0 || head == posting.told_head())
                && let Some(next) = ledger.right_behind(head)
            {
                self.put(inside, ledger, (head, next), (nth, wr_id), slices);
                return Ok(());
            }
        }
        self.write_closely(nth, wr_id, slices)
    }

    #[inline(always)]
    fn ring(&mut self, count: u32) {
        let SrqLedger { gate, posting, .. } = &*self.ledger;
        let _inside = gate.pass();
        let count = posting.told().wrapping_add(count);
        posting.tell(count, posting.head());
        tell(self.ring.record().counter(RECORD_RECEIVE), count);
    }
}

/// Bytes of an element of a receive queue with `max_sge` slices.
pub(super) fn recv_bytes(max_sge: u32) -> u64 {
    u64::from(max_sge.max(1)) * size_of::<Data>() as u64
}
