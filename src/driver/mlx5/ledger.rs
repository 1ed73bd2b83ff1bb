//! What a completion must be told apart by: the ids of the requests that a queue has posted.
//!
//! The device reports a request by its place in the ring, not by its id, and only those that asked for it. So
//! a queue notes the id of each request, and where its successor begins; whoever polls the completion queue
//! looks it up and notes how far the queue has come. Poster and poller may be different threads and take no
//! lock:
//!
//! - the poster writes a note and then tells the device; the device writes the completion; the poller reads
//!   it and then the note. The barriers around doorbell and completion order the two ([`super::barrier`]).
//! - the poller reads a note and then stores `done` with release; the poster loads it with acquire before it
//!   uses the note's place again.
//!
//! Everything is an atomic, so that a device that reports nonsense spoils ids and not memory.

use std::sync::Arc;

use super::gate::Gate;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What is noted of a send request. Relaxed throughout: see the module on who reads it when.
#[derive(Debug, Default)]
pub(super) struct SendNote {
    id: AtomicU64,
    /// Requests posted, this one included, counted from the start, modulo 2^32.
    count: AtomicU32,
    /// What the request changes a memory key for; 0 if it changes none.
    change: AtomicU32,
}

impl SendNote {
    /// Notes a request.
    #[inline(always)]
    pub(super) fn write(&self, id: u64, count: u32, change: u32) {
        self.id.store(id, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.change.store(change, Ordering::Relaxed);
    }
}

/// The notes of a send queue, one for each basic block of its ring.
#[derive(Debug)]
pub(super) struct SendLedger {
    /// As many as a power of two, and one less than that.
    notes: Box<[SendNote]>,
    mask: u32,
    /// Requests that the device knows of, and those that are finished, counted from the start, modulo 2^32.
    posted: AtomicU32,
    done: AtomicU32,
}

impl SendLedger {
    /// A ledger for a ring of `blocks` basic blocks, a power of two or 0.
    pub(super) fn new(blocks: u32) -> Self {
        assert!(blocks == 0 || blocks.is_power_of_two());
        Self {
            notes: (0..blocks.max(1)).map(|_| SendNote::default()).collect(),
            mask: blocks.max(1) - 1,
            posted: AtomicU32::new(0),
            done: AtomicU32::new(0),
        }
    }

    /// The note of the request that begins in this block; the index is taken modulo the ring.
    #[inline(always)]
    pub(super) fn note(&self, block: u32) -> &SendNote {
        // SAFETY: there are as many as a power of two, which `new` sees to, so the masked index is below
        // that.
        unsafe { self.notes.get_unchecked((block & self.mask) as usize) }
    }

    /// Notes how many requests the device knows of.
    #[inline(always)]
    pub(super) fn post(&self, count: u32) {
        // Relaxed: who asks about requests is ordered after the poster (`progress`).
        self.posted.store(count, Ordering::Relaxed);
    }

    /// How many requests the device knows of, and how many of them are finished.
    pub(super) fn progress(&self) -> (u32, u32) {
        // In this order: what is finished was posted before. Relaxed: who asks about requests is ordered
        // after the poster.
        let finished = self.done();
        (self.posted.load(Ordering::Relaxed), finished)
    }

    /// Requests that are finished.
    #[inline(always)]
    pub(super) fn done(&self) -> u32 {
        // Acquire: pairs with the release in `finish_seen`.
        self.done.load(Ordering::Acquire)
    }

    /// Whether a request that is not finished begins in this block, for the poller.
    pub(super) fn is_in_flight(&self, block: u16) -> bool {
        // Relaxed: see the module on the note, and only the one poller stores `done`.
        let count = self.note(block.into()).count.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed);
        count.wrapping_sub(done).cast_signed() > 0
    }

    /// Takes the request that begins in this block, and all before it, as finished; returns its id, and what
    /// it changed a memory key for.
    #[inline(always)]
    pub(super) fn finish(&self, block: u16) -> (u64, u32) {
        let (id, count, change) = self.look(block);
        self.finish_seen(count);
        (id, change)
    }

    /// The id of the request that begins in this block, the count that [`finish_seen`](Self::finish_seen)
    /// takes, and what the request changed a memory key for.
    #[inline(always)]
    pub(super) fn look(&self, block: u16) -> (u64, u32, u32) {
        let note = self.note(block.into());
        (
            note.id.load(Ordering::Relaxed),
            note.count.load(Ordering::Relaxed),
            note.change.load(Ordering::Relaxed),
        )
    }

    /// Takes so many requests as finished: that which was looked at, and all before it.
    #[inline(always)]
    pub(super) fn finish_seen(&self, count: u32) {
        // Release: the note is read before its place may be used again; pairs with the acquire in `done`.
        self.done.store(count, Ordering::Release);
    }
}

/// The notes of a receive queue, one for each of its elements.
#[derive(Debug)]
pub(super) struct RecvLedger {
    /// As many as a power of two, and one less than that.
    ids: Box<[AtomicU64]>,
    mask: u32,
    /// Requests that are finished, counted from the start, modulo 2^32.
    done: AtomicU32,
}

impl RecvLedger {
    /// A ledger for a ring of `elements`, a power of two or 0.
    pub(super) fn new(elements: u32) -> Self {
        assert!(elements == 0 || elements.is_power_of_two());
        Self {
            ids: (0..elements.max(1)).map(|_| AtomicU64::new(0)).collect(),
            mask: elements.max(1) - 1,
            done: AtomicU32::new(0),
        }
    }

    /// The id of the request at this index, which is taken modulo the ring.
    #[inline(always)]
    fn id(&self, index: u32) -> &AtomicU64 {
        // SAFETY: the length is a power of two, which `new` sees to, so the masked index is below it.
        unsafe { self.ids.get_unchecked((index & self.mask) as usize) }
    }

    /// The element of the request of this count, and where its id is noted.
    #[inline(always)]
    pub(super) fn note(&self, count: u32) -> (u32, &AtomicU64) {
        (count & self.mask, self.id(count))
    }

    /// Requests that are finished.
    #[inline(always)]
    pub(super) fn done(&self) -> u32 {
        // Acquire: pairs with the release in `finish`.
        self.done.load(Ordering::Acquire)
    }

    /// Notes how many requests are finished.
    #[inline(always)]
    fn finished(&self, count: u32) {
        // Release: as for sends.
        self.done.store(count, Ordering::Release);
    }

    /// The index of the request that finishes next, for the poller.
    #[inline(always)]
    pub(super) fn next(&self) -> u32 {
        // Relaxed: only the one poller of the completion queue stores it.
        self.done.load(Ordering::Relaxed)
    }

    /// Takes the next request as finished and gives its id. Requests of a receive queue finish in the order
    /// in which they were posted.
    #[inline(always)]
    pub(super) fn finish(&self) -> u64 {
        let index = self.next();
        let id = self.id(index).load(Ordering::Relaxed);
        self.finished(index.wrapping_add(1));
        id
    }
}

/// The notes of a receive queue whose requests finish out of the order in which they were posted.
///
/// It has twice as many elements as requests may be posted at a time. One that is left behind does not stop
/// the others then, until they have gone once round.
#[derive(Debug)]
pub(super) struct LooseLedger {
    /// What the poster knows. Its count is what it may rely on: of so many requests the places are free.
    notes: Arc<RecvLedger>,
    /// The elements whose requests are finished, behind the first that is not.
    finished: Box<[AtomicBool]>,
    /// Requests that are finished, and those before the first that is not, counted from the start.
    count: AtomicU32,
    before: AtomicU32,
}

// Only the poller writes; who asks about requests reads `before` and `finished`.
impl LooseLedger {
    /// A ledger for a ring of `elements`, a power of two above 1.
    pub(super) fn new(elements: u32) -> Self {
        Self {
            notes: Arc::new(RecvLedger::new(elements)),
            finished: (0..elements).map(|_| AtomicBool::new(false)).collect(),
            count: AtomicU32::new(0),
            before: AtomicU32::new(0),
        }
    }

    /// The notes, for the poster.
    pub(super) fn notes(&self) -> &Arc<RecvLedger> {
        &self.notes
    }

    /// Requests before the first that is not finished.
    pub(super) fn before(&self) -> u32 {
        // Acquire: pairs with the release in `finish`.
        self.before.load(Ordering::Acquire)
    }

    /// Whether the request at this index is finished, one behind the first that is not. While it is seen to
    /// be, its place is not given out: that comes behind the store that takes the note back.
    pub(super) fn is_finished(&self, index: u32) -> bool {
        // Relaxed: who looks for a region's key has a fence behind it (`flight.rs`), for the release in
        // `finish`.
        self.element(index).load(Ordering::Relaxed)
    }

    fn element(&self, index: u32) -> &AtomicBool {
        &self.finished[index as usize & (self.finished.len() - 1)]
    }

    /// Takes the request of an element as finished and gives its id; `None` if it is finished.
    pub(super) fn finish(&self, counter: u16) -> Option<u64> {
        // Release: for who finds it in `is_finished`.
        if self.element(counter.into()).swap(true, Ordering::Release) {
            return None;
        }
        let id = self.notes.id(counter.into()).load(Ordering::Relaxed);
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        let mut before = self.before.load(Ordering::Relaxed);
        while self.element(before).load(Ordering::Relaxed) {
            // Relaxed: the place is given out behind the release below.
            self.element(before).store(false, Ordering::Relaxed);
            before = before.wrapping_add(1);
        }
        self.count.store(count, Ordering::Relaxed);
        // Release: pairs with the acquire in `before`.
        self.before.store(before, Ordering::Release);
        // So many may be posted, beyond what the poster is told, that the first keeps its place.
        let ahead = count
            .wrapping_sub(before)
            .min(self.finished.len() as u32 / 2);
        self.notes.finished(before.wrapping_add(ahead));
        Some(id)
    }
}

/// The elements of a shared receive queue: which are free, and the ids of those that are not.
///
/// The device finishes them in any order. The poster takes the nearest free one behind the last, round the
/// ring: elements that lie one behind the other are fetched by the device together. Pollers of several
/// completion queues free them. The element that is posted next is always free, since the one before it says
/// which that is.
///
/// A poller may have to post a request again ([`super::again`]). It then closes the gate, which the poster
/// passes whenever it posts.
#[derive(Debug)]
pub(super) struct SrqLedger {
    /// As many as a power of two, and one less than that.
    elements: Box<[SrqElement]>,
    last: u32,
    /// Requests that are finished, counted from the start, modulo 2^32.
    done: AtomicU32,
    pub(super) gate: Gate,
    /// How far posting has come, for whoever is inside the gate or has closed it.
    pub(super) posting: Posting,
}

/// How far posting to a shared receive queue has come. Requests are counted from the start, modulo 2^32.
#[derive(Debug, Default)]
pub(super) struct Posting {
    /// The free element that is next, and the one that is next for the device.
    head: AtomicU32,
    told_head: AtomicU32,
    /// Requests that the device was told of.
    told: AtomicU32,
}

// All are Relaxed: the gate orders them.
impl Posting {
    #[inline(always)]
    pub(super) fn head(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    /// The element that the device takes next once it is told of one more.
    #[inline(always)]
    pub(super) fn told_head(&self) -> u32 {
        self.told_head.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn told(&self) -> u32 {
        self.told.load(Ordering::Relaxed)
    }

    /// This element is next.
    #[inline(always)]
    pub(super) fn go_on(&self, head: u32) {
        self.head.store(head, Ordering::Relaxed);
    }

    /// The device is told of so many requests, and this element is behind them.
    #[inline(always)]
    pub(super) fn tell(&self, count: u32, head: u32) {
        self.told.store(count, Ordering::Relaxed);
        self.told_head.store(head, Ordering::Relaxed);
    }
}

/// What is noted of an element.
#[derive(Debug, Default)]
pub(super) struct SrqElement {
    id: AtomicU64,
    /// How many requests had been posted before.
    number: AtomicU32,
    /// It is with the device.
    posted: AtomicBool,
}

impl SrqElement {
    #[inline(always)]
    pub(super) fn is_free(&self) -> bool {
        // Acquire: pairs with the release in `finish`, so that the poller has read the id before it changes.
        !self.posted.load(Ordering::Acquire)
    }

    /// Notes that it goes to the device with this id, behind `number` others since the start.
    #[inline(always)]
    pub(super) fn post(&self, id: u64, number: u32) {
        self.id.store(id, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        // Release: pairs with the acquire in `progress`.
        self.posted.store(true, Ordering::Release);
    }
}

impl SrqLedger {
    /// So many `elements`, a power of two from 2 to 65,536, all free.
    pub(super) fn new(elements: u32) -> Self {
        assert!(elements.is_power_of_two());
        Self {
            elements: (0..elements).map(|_| SrqElement::default()).collect(),
            last: elements - 1,
            done: AtomicU32::new(0),
            gate: Gate::new(),
            posting: Posting::default(),
        }
    }

    /// The element at this index, which is taken modulo the ring.
    #[inline(always)]
    fn element(&self, index: u32) -> &SrqElement {
        // SAFETY: the length is a power of two, which `new` sees to, so the masked index is below it.
        unsafe { self.elements.get_unchecked((index & self.last) as usize) }
    }

    /// The most requests in flight.
    pub(super) fn capacity(&self) -> u32 {
        self.last
    }

    /// The free element that follows the free element `index`; none if no other is free.
    #[inline(always)]
    pub(super) fn behind(&self, index: u32) -> Option<u32> {
        self.right_behind(index).or_else(|| self.search(index))
    }

    /// The element that follows `index`, round the ring, if it is free.
    #[inline(always)]
    pub(super) fn right_behind(&self, index: u32) -> Option<u32> {
        let next = index.wrapping_add(1) & self.last;
        self.element(next).is_free().then_some(next)
    }

    /// As [`Self::behind`], where it is not the very next one.
    #[cold]
    #[inline(never)]
    pub(super) fn search(&self, index: u32) -> Option<u32> {
        let at = index as usize;
        // A full queue is not searched.
        let in_flight = self.posting.told().wrapping_sub(self.done());
        if in_flight.cast_signed() >= self.capacity() as i32 {
            return None;
        }
        let (before, from) = self.elements.split_at_checked(at)?;
        let rest = from.iter().skip(1).zip(at + 1..);
        let mut others = rest.chain(before.iter().zip(0..));
        others.find_map(|(element, at)| element.is_free().then_some(at as u32))
    }

    /// Notes that the element goes to the device with this id, behind `number` others since the start.
    #[inline(always)]
    pub(super) fn post(&self, index: u32, id: u64, number: u32) {
        self.element(index).post(id, number);
    }

    /// The id of the request of an element, and how many had been posted before.
    pub(super) fn of(&self, index: u32) -> (u64, u32) {
        let element = self.element(index);
        // Relaxed: as in `finish_posted`.
        let id = element.id.load(Ordering::Relaxed);
        (id, element.number.load(Ordering::Relaxed))
    }

    /// Notes that a request is in element `to` instead of `from`.
    pub(super) fn move_to(&self, from: u32, to: u32) {
        let (id, number) = self.of(from);
        self.post(to, id, number);
    }

    /// Notes that one more request has been posted before that of this element.
    pub(super) fn put_off(&self, index: u32) {
        // Relaxed: the gate orders it.
        self.element(index).number.fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests the device was told of, and how many before all those that it still has. Nobody may
    /// move requests meanwhile: the caller keeps the gate.
    pub(super) fn progress(&self) -> (u32, u32) {
        // Relaxed: who asks about requests is ordered behind whoever posted them.
        let told = self.posting.told();
        // An element that is posted again meanwhile has a number that is none of those that count here.
        let age = |element: &SrqElement| {
            // Acquire: pairs with the release in `post`, and with that in `finish`.
            let posted = element.posted.load(Ordering::Acquire);
            let age = told.wrapping_sub(element.number.load(Ordering::Relaxed));
            (posted && age.cast_signed() > 0).then_some(age)
        };
        let oldest = self.elements.iter().filter_map(age).max();
        (told, told.wrapping_sub(oldest.unwrap_or(0)))
    }

    /// Takes a note of `post` back: the element is free.
    pub(super) fn unpost(&self, index: u32) {
        self.element(index).posted.store(false, Ordering::Relaxed);
    }

    /// Requests that are finished.
    #[inline(always)]
    pub(super) fn done(&self) -> u32 {
        // Acquire: pairs with the release in `finish`, so that whoever counts finds so many free.
        self.done.load(Ordering::Acquire)
    }

    /// Whether the device has this element.
    pub(super) fn is_posted(&self, index: u16) -> bool {
        let element = self.elements.get(usize::from(index));
        // Relaxed: the barriers around doorbell and completion order it, as the ids. Who looks for a region's
        // key has a fence behind it (`flight.rs`).
        element.is_some_and(|element| element.posted.load(Ordering::Relaxed))
    }

    /// An element that the device has.
    #[inline(always)]
    pub(super) fn posted(&self, index: u16) -> Option<&SrqElement> {
        let element = self.elements.get(usize::from(index))?;
        // Relaxed: as in `is_posted`.
        element.posted.load(Ordering::Relaxed).then_some(element)
    }

    /// Takes the request of an element that was found with the device as finished, and gives its id. What
    /// its completion was in has been given back: from here on there is room for one more.
    #[inline(always)]
    pub(super) fn finish_posted(&self, element: &SrqElement) -> u64 {
        let id = element.id.load(Ordering::Relaxed);
        // A swap: whoever finds it with the device frees it, once, whatever the device reports. Release:
        // pairs with the acquire in `is_free`.
        let was_posted = element.posted.swap(false, Ordering::Release);
        // Release: as in `count`.
        self.done
            .fetch_add(u32::from(was_posted), Ordering::Release);
        id
    }

    /// Takes a request as finished and gives its id; `None` if the device does not have this element.
    pub(super) fn finish(&self, index: u16) -> Option<u64> {
        self.posted(index)
            .map(|element| self.finish_posted(element))
    }

    /// Notes that one more request is finished.
    #[inline(always)]
    pub(super) fn count(&self) {
        // Release: pairs with the acquire in `done`.
        self.done.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_finishes_all_requests_before_it() {
        let ledger = SendLedger::new(8);
        ledger.note(0).write(10, 1, 0);
        ledger.note(2).write(11, 2, 0);
        ledger.note(3).write(12, 3, 7);
        assert_eq!(ledger.done(), 0);
        assert_eq!(ledger.finish(3), (12, 7));
        assert_eq!(ledger.done(), 3);
        ledger.note(8).write(13, 4, 0);
        assert_eq!(
            ledger.finish(0x8000),
            (13, 0),
            "indices are modulo the ring"
        );
    }

    #[test]
    fn receives_finish_in_order() {
        let ledger = RecvLedger::new(4);
        for index in 0..4 {
            ledger
                .note(index)
                .1
                .store(100 + u64::from(index), Ordering::Relaxed);
        }
        assert_eq!([ledger.finish(), ledger.finish()], [100, 101]);
        assert_eq!(ledger.done(), 2);
        assert_eq!(RecvLedger::new(0).finish(), 0);
    }

    #[test]
    fn loose_receives_finish_in_any_order() {
        let ledger = LooseLedger::new(8);
        for index in 0..8 {
            let (_, note) = ledger.notes.note(index);
            note.store(100 + u64::from(index), Ordering::Relaxed);
        }
        assert_eq!(ledger.finish(2), Some(102));
        assert_eq!(ledger.finish(2), None, "once");
        assert_eq!(
            [0, 1, 2, 3].map(|index| ledger.is_finished(index)),
            [false, false, true, false]
        );
        assert_eq!((ledger.before(), ledger.notes.done()), (0, 1));
        assert_eq!(ledger.finish(0), Some(100));
        assert_eq!((ledger.before(), ledger.notes.done()), (1, 2));
        // All but one that is left behind: no place is given out that it may have.
        for index in 3..8 {
            assert_eq!(ledger.finish(index), Some(100 + u64::from(index)));
        }
        assert_eq!((ledger.before(), ledger.notes.done()), (1, 5));
        assert_eq!(ledger.finish(8), Some(100), "round the ring");
        assert_eq!(ledger.finish(1), Some(101));
        assert_eq!((ledger.before(), ledger.notes.done()), (9, 9));
    }

    #[test]
    fn the_nearest_free_element_is_next_round_the_ring() {
        let ledger = SrqLedger::new(8);
        let mut head = 0;
        let mut posted = Vec::new();
        while let Some(next) = ledger.behind(head) {
            ledger.post(head, head.into(), head);
            posted.push(head);
            head = next;
        }
        assert_eq!((&posted[..], head), (&[0, 1, 2, 3, 4, 5, 6][..], 7));
        for index in [3, 0, 1] {
            assert_eq!(ledger.finish(index), Some(index.into()));
        }
        // From the last one on round the ring, whatever came back first.
        for next in [0, 1, 3] {
            assert_eq!(ledger.behind(head), Some(next));
            ledger.post(head, 0, 0);
            head = next;
        }
        assert_eq!(ledger.behind(head), None, "one stays free");
        assert_eq!(ledger.done(), 3);
        ledger.unpost(1);
        assert_eq!(ledger.behind(head), Some(1));
    }

    #[test]
    fn an_element_that_the_device_does_not_have_is_not_taken_twice() {
        let ledger = SrqLedger::new(4);
        let next = ledger.behind(0).unwrap();
        ledger.post(0, 7, 0);
        assert_eq!(ledger.finish(0), Some(7));
        assert_eq!(ledger.finish(0), None);
        assert_eq!(ledger.finish(next as u16), None);
        assert_eq!(ledger.finish(400), None);
    }

    /// Would catch an order of stores that loses or doubles an element between threads.
    #[test]
    fn pollers_of_two_threads_give_every_element_back() {
        use std::sync::mpsc;
        const ROUNDS: u64 = 20_000;
        let ledger = SrqLedger::new(16);
        std::thread::scope(|scope| {
            let (even, evens) = mpsc::channel::<u16>();
            let (odd, odds) = mpsc::channel::<u16>();
            let shared = &ledger;
            let pollers = [evens, odds].map(|posted| {
                scope.spawn(move || {
                    posted
                        .iter()
                        .filter_map(|index| shared.finish(index))
                        .sum::<u64>()
                })
            });
            let mut head = 0;
            for id in 0..ROUNDS {
                let next = loop {
                    match ledger.behind(head) {
                        Some(next) => break next,
                        None => std::thread::yield_now(),
                    }
                };
                ledger.post(head, id, id as u32);
                let channel = if id % 2 == 0 { &even } else { &odd };
                channel.send(head as u16).unwrap();
                head = next;
            }
            drop((even, odd));
            let sum: u64 = pollers.map(|poller| poller.join().unwrap()).iter().sum();
            assert_eq!(sum, ROUNDS * (ROUNDS - 1) / 2);
        });
        assert_eq!(u64::from(ledger.done()), ROUNDS);
    }
}
