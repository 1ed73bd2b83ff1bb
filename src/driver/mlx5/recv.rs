//! Receive queues: a queue pair's own, and shared ones. Neither has a register: the device looks at the
//! record when a message arrives.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::barrier;
use super::directory::Receiver;
use super::format::{Data, LONGEST_SLICE, RECORD_RECEIVE, SrqNext, TERMINATOR};
use super::ledger::{LooseLedger, RecvLedger, SrqElement, SrqLedger};
use super::qp::Rings;
use super::send::{data, plain, put};
use super::srq::SrqRing;
use crate::driver::contract;
use crate::work::{Element, PostError, is_plain};

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
    /// The counter of the record that says how far the ring is filled.
    counter: NonNull<AtomicU16>,
    /// Elements less one, 0 if there are none, and bytes of one.
    mask: u64,
    stride: usize,
    max_sge: u32,
    /// Requests that the device was told of; they count on round the ring.
    published: u64,
    /// There is room until so many have been written, without looking how far the device has come. 0 before
    /// the first look, and where there is no room for a slice.
    room_until: u64,
    layout: RecvLayout,
    ledger: Arc<RecvLedger>,
    _rings: Arc<Rings>,
}

// SAFETY: ring and record are memory that `_rings` keeps, the ids the ledger's; of the ring and the counter
// only this value writes.
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
/// There is room for `max` slices, and there are at most so many. They are plain where `PLAIN` says so.
#[inline(always)]
unsafe fn put_slices<const PLAIN: bool, E: Element>(mut at: NonNull<u8>, slices: &[E], max: &u32) {
    let mut written = 0;
    // SAFETY: by this function's contract.
    unsafe {
        for slice in slices {
            if PLAIN {
                at = put(at, plain(slice));
                written += 1;
            } else if slice.length() > 0 {
                at = put(at, data(slice));
                written += 1;
            }
        }
        if written < *max {
            put(at, TERMINATOR);
        }
    }
}

/// Tells the device how many requests there are.
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
            ids: ledger.first(),
            counter: NonNull::from(rings.record.counter(RECORD_RECEIVE)),
            mask: layout.count.saturating_sub(1).into(),
            stride: layout.stride as usize,
            max_sge: layout.max_sge,
            published: 0,
            room_until: 0,
            layout,
            ledger,
            _rings: rings,
        }
    }

    /// Starts again, with an empty ring and another ledger.
    pub(super) fn reset(&mut self, ledger: Arc<RecvLedger>) {
        (self.published, self.room_until) = (0, 0);
        self.ids = ledger.first();
        self.ledger = ledger;
    }

    /// Writes a request with at most `max_sge` slices behind so many others, and which is plain where `PLAIN`
    /// says so.
    ///
    /// # Safety
    ///
    /// There is room for it.
    #[inline(always)]
    unsafe fn write<const PLAIN: bool, E: Element>(&self, count: u64, wr_id: u64, slices: &[E]) {
        let index = (count & self.mask) as usize;
        // SAFETY: the masked index is below the count of elements, of which there are some, for there is
        // room. Each has room for `max_sge` slices, and an id in the ledger, which the queue keeps; the
        // device has finished with this one.
        unsafe {
            let element = self.ring.add(index * self.stride);
            put_slices::<PLAIN, E>(element, slices, &self.max_sge);
            self.ids.add(index).as_ref().store(wr_id, Ordering::Relaxed);
        }
    }
}

/// How far a batch is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    count: u64,
    room_until: u64,
}

impl contract::RecvQueue for RecvQueue {
    type At = At;

    fn capacity(&self) -> u32 {
        self.layout.capacity
    }

    fn max_sge(&self) -> u32 {
        self.layout.max_sge
    }

    fn in_flight(&self) -> u32 {
        (self.published as u32).wrapping_sub(self.ledger.done())
    }

    #[inline(always)]
    fn begin(&mut self) -> At {
        At {
            count: self.published,
            room_until: self.room_until,
        }
    }

    #[inline(always)]
    fn pending(&self, at: At) -> u32 {
        at.count.wrapping_sub(self.published) as u32
    }

    #[inline(always)]
    fn push_usual<E: Element>(&mut self, at: &mut At, wr_id: u64, slices: &[E]) -> bool {
        let is_usual = at.count < at.room_until
            && (slices.len() == 1 || slices.len() <= self.max_sge as usize)
            && slices.iter().all(is_plain);
        if is_usual {
            // SAFETY: there is room.
            unsafe { self.write::<true, E>(at.count, wr_id, slices) };
            at.count += 1;
        }
        is_usual
    }

    /// Looks how far the device has come, and writes the request if there is room. Out of line, with all that
    /// is left to do, so that who posts keeps as little as can be for it.
    #[cold]
    #[inline(never)]
    fn push<E: Element>(&mut self, at: At, wr_id: u64, slices: &[E]) -> Result<At, PostError> {
        let At { count, .. } = at;
        let in_flight = (count as u32).wrapping_sub(self.ledger.done());
        let free = self.layout.capacity.saturating_sub(in_flight);
        if free == 0 {
            return Err(PostError::QueueFull {
                capacity: self.layout.capacity,
            });
        }
        check(slices, self.max_sge)?;
        // SAFETY: there is room.
        unsafe { self.write::<false, E>(count, wr_id, slices) };
        Ok(At {
            count: count + 1,
            room_until: match self.max_sge {
                0 => 0,
                _ => count + u64::from(free),
            },
        })
    }

    #[inline(always)]
    fn ring_usual(&mut self, at: At) {
        self.published = at.count;
        // SAFETY: the counter is the record's, which `_rings` keeps.
        tell(unsafe { self.counter.as_ref() }, at.count as u32);
    }

    #[inline(always)]
    fn ring(&mut self, at: At) {
        self.room_until = at.room_until;
        self.ring_usual(at);
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedRecvQueue {
    // What posting looks at, of the ring and the ledger that are kept below.
    /// The ring's first byte, and the ledger's first element.
    elements: NonNull<u8>,
    notes: NonNull<SrqElement>,
    /// The counter of the record that says how many requests there were.
    counter: NonNull<AtomicU16>,
    /// The index of the last element, and bytes of one.
    last: u32,
    stride: usize,
    max_sge: u32,
    /// Requests written that the device was not told of.
    written: u32,
    /// It knows how far posting has come, since pollers may post as well.
    ledger: Arc<SrqLedger>,
    ring: Arc<SrqRing>,
}

// SAFETY: ring and record are memory that `ring` keeps, the notes the ledger's; of the ring and the counter
// only this value writes, and a poller while the gate is closed.
unsafe impl Send for SharedRecvQueue {}
// SAFETY: shared references read plain fields only.
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
    pub(super) fn new(ring: Arc<SrqRing>, ledger: Arc<SrqLedger>) -> Self {
        assert!(ring.max_sge() > 0, "the smallest element has room for one");
        Self {
            elements: ring.element(0),
            notes: ledger.first(),
            counter: NonNull::from(ring.record().counter(RECORD_RECEIVE)),
            last: ledger.capacity(),
            stride: ring.stride(),
            max_sge: ring.max_sge(),
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

    /// Writes a request to an element that is free, which another free one follows, and which is plain where
    /// `PLAIN` says so.
    ///
    /// # Safety
    ///
    /// There are such elements, and the first one's note is this. The caller is inside the gate, and there
    /// are at most `max_sge` slices.
    #[inline(always)]
    unsafe fn write<const PLAIN: bool, E: Element>(
        &self,
        (index, note, next): (u32, NonNull<SrqElement>, u32),
        (wr_id, number): (u64, u32),
        slices: &[E],
    ) {
        // SAFETY: by this function's contract; each element has room for the link and `max_sge` slices, and
        // one in the ledger.
        unsafe {
            let element = self.elements.add(index as usize * self.stride);
            let link = element.add(SrqNext::INDEX).cast::<u16>();
            link.write((next as u16).to_be());
            let first = element.add(size_of::<SrqNext>());
            put_slices::<PLAIN, E>(first, slices, &self.max_sge);
            note.as_ref().post(wr_id, number);
        }
    }

    /// Whether an element has room for these slices, as it has for one, and they are plain.
    #[inline(always)]
    fn takes<E: Element>(&self, slices: &[E]) -> bool {
        (slices.len() == 1 || slices.len() <= self.max_sge as usize) && slices.iter().all(is_plain)
    }

    /// How many requests there were before the next one.
    #[inline(always)]
    fn number(&self) -> u32 {
        self.ledger.posting.told().wrapping_add(self.written)
    }

    /// The note of the free element, and the element behind it if that is the very next one and free. For
    /// whoever is inside the gate.
    #[inline(always)]
    fn right_behind(&self, head: u32) -> Option<(NonNull<SrqElement>, u32)> {
        if head >= self.last {
            return None;
        }
        // SAFETY: what is behind another than the last one lies in the ledger.
        let (note, next) = unsafe {
            let note = self.notes.add(head as usize);
            (note, note.add(1).as_ref())
        };
        next.is_free().then_some((note, head + 1))
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
    type At = ();

    fn capacity(&self) -> u32 {
        self.ledger.capacity()
    }

    fn max_sge(&self) -> u32 {
        self.ring.max_sge()
    }

    fn in_flight(&self) -> u32 {
        // In this order: what is finished was told before, also by a poller.
        let done = self.ledger.done();
        self.ledger.posting.told().wrapping_sub(done)
    }

    /// The batch counts in the queue itself, from which it takes elements.
    #[inline(always)]
    fn begin(&mut self) {
        if self.written != 0 {
            self.take_back();
        }
    }

    #[inline(always)]
    fn pending(&self, (): ()) -> u32 {
        self.written
    }

    #[inline(always)]
    fn push_usual<E: Element>(&mut self, (): &mut (), wr_id: u64, slices: &[E]) -> bool {
        if !self.takes(slices) {
            return false;
        }
        let ledger = &*self.ledger;
        let inside = ledger.gate.pass();
        let head = ledger.posting.head();
        let Some((note, next)) = self.right_behind(head) else {
            return false;
        };
        // SAFETY: the head is free and there is room for the slices.
        unsafe { self.write::<true, E>((head, note, next), (wr_id, self.number()), slices) };
        ledger.posting.go_on(next);
        drop(inside);
        self.written += 1;
        true
    }

    /// Writes a request if there is a free element. Out of line.
    #[cold]
    #[inline(never)]
    fn push<E: Element>(&mut self, (): (), wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        check(slices, self.max_sge)?;
        let ledger = &*self.ledger;
        let inside = ledger.gate.pass();
        let head = ledger.posting.head();
        let next = ledger.behind(head).ok_or(PostError::QueueFull {
            capacity: ledger.capacity(),
        })?;
        // SAFETY: the head is free and lies in the ledger, as what is behind it does, and there is room for
        // the slices.
        unsafe {
            let note = self.notes.add(head as usize);
            self.write::<false, E>((head, note, next), (wr_id, self.number()), slices);
        }
        ledger.posting.go_on(next);
        drop(inside);
        self.written += 1;
        Ok(())
    }

    #[inline(always)]
    fn ring_usual(&mut self, (): ()) {
        let SrqLedger { gate, posting, .. } = &*self.ledger;
        let _inside = gate.pass();
        let count = posting.told().wrapping_add(self.written);
        self.written = 0;
        posting.tell(count, posting.head());
        // SAFETY: the counter is the record's, which the ring keeps.
        tell(unsafe { self.counter.as_ref() }, count);
    }

    #[inline(always)]
    fn ring(&mut self, (): ()) {
        self.ring_usual(());
    }

    /// All in one go through the gate.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn post_usual<E: Element>(&mut self, wr_id: u64, slices: &[E]) -> bool {
        let is_usual = self.written == 0 && self.takes(slices);
        let SrqLedger { gate, posting, .. } = &*self.ledger;
        let Some(_inside) = is_usual.then(|| gate.try_pass()).flatten() else {
            return false;
        };
        let (head, told) = (posting.head(), posting.told());
        let Some((note, next)) = self.right_behind(head) else {
            return false;
        };
        // SAFETY: the head is free and there is room for the slices.
        unsafe { self.write::<true, E>((head, note, next), (wr_id, told), slices) };
        posting.go_on(next);
        let told = told.wrapping_add(1);
        posting.tell(told, next);
        // SAFETY: the counter is the record's, which the ring keeps.
        tell(unsafe { self.counter.as_ref() }, told);
        true
    }
}

/// Bytes of an element of a receive queue with so many slices.
pub(super) fn recv_bytes(max_sge: u32) -> u64 {
    u64::from(max_sge.max(1)) * size_of::<Data>() as u64
}
