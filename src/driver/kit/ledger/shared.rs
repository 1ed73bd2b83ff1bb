//! The elements of shared receive queues, which finish in any order.

use super::super::gate::Gate;
use super::super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The elements of a shared receive queue: which are free, and the ids of those that are not.
///
/// The device finishes them in any order. The poster takes the nearest free one after the last, round the
/// ring: the device fetches elements that lie one after the other together. Pollers of several completion
/// queues free them. The element that is posted next is always free, since the one before it names it.
///
/// A poller may have to post a request again (after a page fault). It then closes the gate, which the poster
/// passes whenever it posts.
#[derive(Debug)]
pub(crate) struct SrqLedger {
    /// As many as a power of two. `last` is one less.
    elements: Box<[SrqElement]>,
    last: u32,
    /// Requests that are finished, counted from the start, modulo 2^32.
    done: AtomicU32,
    pub(crate) gate: Gate,
    /// How far posting has come, for the thread that is inside the gate or has closed it.
    pub(crate) posting: Posting,
}

/// How far posting to a shared receive queue has come. Requests are counted from the start, modulo 2^32.
#[derive(Debug, Default)]
pub(crate) struct Posting {
    /// The free element that the poster fills next, and the one that the device takes next.
    head: AtomicU32,
    told_head: AtomicU32,
    /// Requests that the device knows of.
    told: AtomicU32,
}

// All are Relaxed: the gate orders them.
impl Posting {
    #[inline(always)]
    pub(crate) fn head(&self) -> u32 {
        self.head.load(Ordering::Relaxed)
    }

    /// The element that the device takes next, once it knows of one more.
    #[inline(always)]
    pub(crate) fn told_head(&self) -> u32 {
        self.told_head.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn told(&self) -> u32 {
        self.told.load(Ordering::Relaxed)
    }

    /// Notes the element that is filled next.
    #[inline(always)]
    pub(crate) fn go_on(&self, head: u32) {
        self.head.store(head, Ordering::Relaxed);
    }

    /// Notes that the device knows of `count` requests, and that the element `head` comes after them.
    #[inline(always)]
    pub(crate) fn tell(&self, count: u32, head: u32) {
        self.told.store(count, Ordering::Relaxed);
        self.told_head.store(head, Ordering::Relaxed);
    }
}

/// The note of an element.
#[derive(Debug, Default)]
pub(crate) struct SrqElement {
    id: AtomicU64,
    /// How many requests had been posted before.
    number: AtomicU32,
    /// The device has it.
    posted: AtomicBool,
}

impl SrqElement {
    /// The id of its request, for pollers.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn is_free(&self) -> bool {
        // Acquire: pairs with the release in `finish`, so that the poller has read the id before it changes.
        !self.posted.load(Ordering::Acquire)
    }

    /// Notes that it goes to the device with this id, after `number` others since the start.
    #[inline(always)]
    pub(crate) fn post(&self, id: u64, number: u32) {
        self.id.store(id, Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        // Release: pairs with the acquire in `progress`.
        self.posted.store(true, Ordering::Release);
    }
}

impl SrqLedger {
    /// So many `elements`, a power of two from 2 to 65,536, all free.
    pub(crate) fn new(elements: u32) -> Self {
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
        // SAFETY: `new` checked that the length is a power of two, so the masked index is below it.
        unsafe { self.elements.get_unchecked((index & self.last) as usize) }
    }

    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        self.last
    }

    /// The free element that follows the free element `index`; `None` if no other is free.
    #[inline(always)]
    pub(crate) fn behind(&self, index: u32) -> Option<u32> {
        self.right_behind(index).or_else(|| self.search(index))
    }

    /// The element that follows `index`, round the ring, if it is free.
    #[inline(always)]
    pub(crate) fn right_behind(&self, index: u32) -> Option<u32> {
        let next = index.wrapping_add(1) & self.last;
        self.element(next).is_free().then_some(next)
    }

    /// As [`Self::behind`], if the very next one is not free.
    #[cold]
    #[inline(never)]
    pub(crate) fn search(&self, index: u32) -> Option<u32> {
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

    /// Notes that the element goes to the device with this id, after `number` others since the start.
    #[inline(always)]
    pub(crate) fn post(&self, index: u32, id: u64, number: u32) {
        self.element(index).post(id, number);
    }

    /// The id of the request of an element, and how many had been posted before.
    pub(crate) fn of(&self, index: u32) -> (u64, u32) {
        let element = self.element(index);
        // Relaxed: as in `finish`.
        let id = element.id.load(Ordering::Relaxed);
        (id, element.number.load(Ordering::Relaxed))
    }

    /// Notes that a request is in element `to` instead of `from`.
    pub(crate) fn move_to(&self, from: u32, to: u32) {
        let (id, number) = self.of(from);
        self.post(to, id, number);
    }

    /// Notes that one more request has been posted before that of this element.
    pub(crate) fn put_off(&self, index: u32) {
        // Relaxed: the gate orders it.
        self.element(index).number.fetch_add(1, Ordering::Relaxed);
    }

    /// How many requests the device knows of, and how many were posted before all those that it still has. No
    /// thread may move requests meanwhile: the caller keeps the gate.
    pub(crate) fn progress(&self) -> (u32, u32) {
        // Relaxed: the caller is ordered after the poster.
        let told = self.posting.told();
        // An element that is posted meanwhile has a number that does not count here.
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
    pub(crate) fn unpost(&self, index: u32) {
        self.element(index).posted.store(false, Ordering::Relaxed);
    }

    /// Requests that are finished.
    #[inline(always)]
    pub(crate) fn done(&self) -> u32 {
        // Acquire: pairs with the release in `finish`, so that the caller finds the elements of these
        // requests free.
        self.done.load(Ordering::Acquire)
    }

    /// Whether the device has this element.
    pub(crate) fn is_posted(&self, index: u16) -> bool {
        let element = self.elements.get(usize::from(index));
        // Relaxed: the barriers around doorbell and completion order it, as they order the ids. A thread that
        // looks for a region's key has a fence after this load (`flight.rs`).
        element.is_some_and(|element| element.posted.load(Ordering::Relaxed))
    }

    /// The element to which a completion belongs; `None` if the device does not have it.
    #[inline(always)]
    pub(crate) fn reported(&self, index: u16) -> Option<&SrqElement> {
        let element = self.elements.get(usize::from(index))?;
        // Relaxed: as in `is_posted`.
        element.posted.load(Ordering::Relaxed).then_some(element)
    }

    /// Finishes the request of an element that was reported, whose id has been read. The entry of its
    /// completion has been given back: from here on there is room for one more.
    #[inline(always)]
    pub(crate) fn finish_element(&self, element: &SrqElement) {
        // A swap: only one thread finds it posted and frees it, whatever the device reports. Release: pairs
        // with the acquire in `is_free`.
        if element.posted.swap(false, Ordering::Release) {
            self.count();
        }
    }

    /// Finishes the request of the element at this index and returns its id; `None` if the device does not
    /// have it.
    pub(crate) fn finish(&self, index: u16) -> Option<u64> {
        let element = self.reported(index)?;
        let id = element.id();
        self.finish_element(element);
        Some(id)
    }

    /// Notes that one more request is finished.
    #[inline(always)]
    pub(crate) fn count(&self) {
        // Release: pairs with the acquire in `done`.
        self.done.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // From the last one on round the ring, in whatever order they came back.
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
