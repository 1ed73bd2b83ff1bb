//! Requests that all complete, in any order, and that the device names by numbers which this side chose.

use super::super::sync::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use crate::work::Progress;

/// The notes of a queue. A request has a number from when it is written until its completion has been taken.
///
/// A number that a request has given back goes to the end of a ring, and the next request takes the one at
/// the start: the request of a count has what lies at that count. So one that is left behind stops nobody,
/// and the queue has room for as many more as requests have finished.
///
/// The requests cannot be read back, so the keys in them are noted too.
#[derive(Debug)]
pub(crate) struct NumberedLedger {
    notes: Box<[Note]>,
    /// Numbers, at the counts of the requests that take them: as many as a power of two, no fewer than notes.
    numbers: Box<[AtomicU16]>,
    /// What the numbers of this queue have in the bits that no place of a note needs.
    generation: u16,
    /// Requests that the device knows of, counted from the start, modulo 2^32.
    posted: AtomicU32,
    /// Requests that are finished.
    finished: AtomicU32,
}

/// What is noted of a request. Relaxed throughout, but for `is_finished`: see the module on who reads it
/// when.
#[derive(Debug)]
struct Note {
    id: AtomicU64,
    about: AtomicU64,
    bytes: AtomicU32,
    /// The request's count.
    count: AtomicU32,
    /// The poster takes it back with the next request that has the number, the poller stores it.
    is_finished: AtomicBool,
}

/// What a completion learns of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) id: u64,
    /// Its completion is wanted even if it succeeds.
    pub(crate) is_signaled: bool,
    pub(crate) bytes: u32,
}

/// Whether a request is signaled, and the keys in it: two, or the fact that there are more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About(u64);

impl About {
    /// Bits of a key.
    const KEY: u32 = 24;
    /// Where the number of keys is: up to 2, or 3 for more.
    const KEYS: u32 = 2 * Self::KEY;
    const SIGNALED: u64 = 1 << 63;

    /// A request without keys.
    #[inline(always)]
    pub(crate) fn new(is_signaled: bool) -> Self {
        Self(if is_signaled { Self::SIGNALED } else { 0 })
    }

    /// The same with one more key.
    #[inline(always)]
    pub(crate) fn with(self, key: u32) -> Self {
        let count = self.count();
        let key = u64::from(key & ((1 << Self::KEY) - 1));
        let keys = match count {
            0 => key,
            1 => key << Self::KEY,
            _ => 0,
        };
        let more = u64::from(count < 3) << Self::KEYS;
        Self((self.0 | keys) + more)
    }

    fn count(self) -> u64 {
        self.0 >> Self::KEYS & 3
    }

    /// Whether this key may be in the request.
    pub(crate) fn may_have(self, key: u32) -> bool {
        let mask = (1 << Self::KEY) - 1;
        let key = u64::from(key) & mask;
        let (first, second) = (self.0 & mask, self.0 >> Self::KEY & mask);
        match self.count() {
            0 => false,
            1 => first == key,
            2 => first == key || second == key,
            _ => true,
        }
    }
}

impl NumberedLedger {
    /// The most requests of a queue: numbers have 16 bits, and one of them tells generations apart.
    pub(crate) const MOST: u32 = 1 << 15;
    /// The oldest request in flight is no further behind: counts of 32 bits tell it from a new one.
    const FURTHEST: u32 = 1 << 30;

    /// A ledger for up to `capacity` requests at a time, at most [`Self::MOST`]. The numbers of generations
    /// differ, as far as there are bits for it.
    pub(crate) fn new(capacity: u32, generation: u16) -> Self {
        assert!(capacity <= Self::MOST);
        let note = || Note {
            id: AtomicU64::new(0),
            about: AtomicU64::new(0),
            bytes: AtomicU32::new(0),
            count: AtomicU32::new(0),
            is_finished: AtomicBool::new(true),
        };
        let places = capacity.next_power_of_two() as u16;
        Self {
            notes: (0..capacity).map(|_| note()).collect(),
            numbers: (0..places).map(AtomicU16::new).collect(),
            generation: generation.wrapping_mul(places),
            posted: AtomicU32::new(0),
            finished: AtomicU32::new(0),
        }
    }

    fn capacity(&self) -> u32 {
        self.notes.len() as u32
    }

    /// What lies in the ring at a count.
    #[inline(always)]
    fn number_at(&self, count: u32) -> &AtomicU16 {
        let at = count as usize & (self.numbers.len() - 1);
        // SAFETY: there are as many as a power of two, so the masked index is below that.
        unsafe { self.numbers.get_unchecked(at) }
    }

    /// Notes the request of this count, for which there is room; returns its number.
    #[inline(always)]
    pub(crate) fn note(&self, count: u32, id: u64, about: About, bytes: u32) -> u16 {
        // Relaxed: the poller stored it before the release that `finished` pairs with.
        let place = self.number_at(count).load(Ordering::Relaxed);
        let note = &self.notes[usize::from(place)];
        note.id.store(id, Ordering::Relaxed);
        note.about.store(about.0, Ordering::Relaxed);
        note.bytes.store(bytes, Ordering::Relaxed);
        // Release: whoever finds this count finds the request finished that had the number before; pairs with
        // the fence in `progress`.
        note.count.store(count, Ordering::Release);
        note.is_finished.store(false, Ordering::Relaxed);
        place ^ self.generation
    }

    /// Notes how many requests the device knows of, before it does.
    #[inline(always)]
    pub(crate) fn post(&self, count: u32) {
        // Relaxed: the poller loads it after a completion, which the barriers around doorbell and entry
        // order. Threads that ask about requests are ordered after the poster.
        self.posted.store(count, Ordering::Relaxed);
    }

    /// Requests that the device knows of.
    pub(crate) fn posted(&self) -> u32 {
        // Acquire: the finished count is loaded after this.
        self.posted.load(Ordering::Acquire)
    }

    /// Requests that are finished.
    fn finished(&self) -> u32 {
        // Acquire: pairs with the release in `Found::finish`.
        self.finished.load(Ordering::Acquire)
    }

    /// The count up to which the poster may go on, which knows of an earlier one.
    pub(crate) fn room(&self, known: u32) -> u32 {
        let room = self.finished().wrapping_add(self.capacity());
        // Seldom, since it looks at all notes.
        let is_time = (room ^ known) / (Self::FURTHEST / 4) != 0;
        match is_time && self.behind(self.posted()) > Self::FURTHEST {
            true => known,
            false => room,
        }
    }

    /// Requests that are not finished.
    pub(crate) fn in_flight(&self) -> u32 {
        // In this order: what is finished was posted before. Relaxed: it is a number to look at.
        let finished = self.finished.load(Ordering::Relaxed);
        self.posted.load(Ordering::Relaxed).wrapping_sub(finished)
    }

    /// How far the queue is: requests count as finished up to the first that is not.
    pub(crate) fn progress(&self) -> Progress {
        let posted = self.posted();
        let behind = self.behind(posted);
        // Acquire: pairs with the release of the poller in `Found::finish`, or of the poster that has given
        // the number to another request since.
        fence(Ordering::Acquire);
        Progress::new(posted, posted.wrapping_sub(behind), u32::MAX)
    }

    /// How far the oldest request in flight is behind those that were posted; 0 if there is none.
    fn behind(&self, posted: u32) -> u32 {
        let in_flight = self.notes.iter().filter(|note| note.is_in_flight(posted));
        let behind = in_flight.map(|note| posted.wrapping_sub(note.count.load(Ordering::Relaxed)));
        behind.max().unwrap_or(0)
    }

    /// Whether a request in flight, of those up to the posted ones of `then`, may have this key in it.
    pub(crate) fn names(&self, then: Progress, key: u32) -> bool {
        let mut in_flight = self
            .notes
            .iter()
            .filter(|note| note.is_in_flight(then.posted()));
        // Relaxed: who looks for a region's key has a fence behind it (`flight.rs`), for the release in
        // `Found::finish`.
        in_flight.any(|note| About(note.about.load(Ordering::Relaxed)).may_have(key))
    }

    /// The request in flight that has this number, for the one poller; `None` if none has it.
    #[inline(always)]
    pub(crate) fn find(&self, number: u16) -> Option<Found<'_>> {
        // Of another generation it is beyond the notes.
        let place = number ^ self.generation;
        let note = self.notes.get(usize::from(place))?;
        // Relaxed: as told in `post`.
        let is_its = note.is_in_flight(self.posted.load(Ordering::Relaxed));
        is_its.then_some(Found {
            ledger: self,
            note,
            place,
        })
    }

    /// Finishes the request of a number, as [`find`](Self::find) finds it.
    #[inline(always)]
    pub(crate) fn finish(&self, number: u16) -> Option<Noted> {
        let found = self.find(number)?;
        let noted = Noted {
            id: found.id(),
            is_signaled: found.is_signaled(),
            bytes: found.bytes(),
        };
        found.finish();
        Some(noted)
    }
}

impl Note {
    /// Whether it is that of a request in flight, of those up to a count of posted ones.
    #[inline(always)]
    fn is_in_flight(&self, posted: u32) -> bool {
        // Relaxed: the poller stores the one, and the poster both before it posts; others have a fence, as in
        // `names`. A number that is given out while others look is of a later count.
        let behind = posted.wrapping_sub(self.count.load(Ordering::Relaxed));
        !self.is_finished.load(Ordering::Relaxed) && behind.cast_signed() > 0
    }
}

/// A request in flight, for the poller.
#[derive(Debug)]
pub(crate) struct Found<'l> {
    ledger: &'l NumberedLedger,
    note: &'l Note,
    place: u16,
}

impl Found<'_> {
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.note.id.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> u32 {
        self.note.bytes.load(Ordering::Relaxed)
    }

    /// Whether its completion is wanted even if it succeeds.
    #[inline(always)]
    pub(crate) fn is_signaled(&self) -> bool {
        self.note.about.load(Ordering::Relaxed) & About::SIGNALED != 0
    }

    /// Finishes it: from now on its number may be given to another request.
    #[inline(always)]
    pub(crate) fn finish(self) {
        let ledger = self.ledger;
        // Release: for who looks at all notes, and finds it finished.
        self.note.is_finished.store(true, Ordering::Release);
        // Relaxed: only the poller stores it.
        let finished = ledger.finished.load(Ordering::Relaxed);
        let free = ledger.number_at(finished.wrapping_add(ledger.capacity()));
        free.store(self.place, Ordering::Relaxed);
        // Release: what was done with the completion, and the number, are behind the poster when it finds
        // room; pairs with the acquire in `finished`.
        ledger
            .finished
            .store(finished.wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNALED: About = About(About::SIGNALED);

    fn posted(ledger: &NumberedLedger, counts: std::ops::Range<u32>) -> Vec<u16> {
        let end = counts.end;
        let numbers = counts.map(|count| ledger.note(count, 100 + u64::from(count), SIGNALED, 0));
        let numbers = numbers.collect();
        ledger.post(end);
        numbers
    }

    /// Requests before the first that is not finished.
    fn before(ledger: &NumberedLedger) -> u32 {
        ledger.progress().finished()
    }

    #[test]
    fn each_request_finishes_once_in_any_order() {
        let ledger = NumberedLedger::new(4, 0);
        let numbers = posted(&ledger, 0..4);
        let id = |number| ledger.finish(number).map(|noted| noted.id);
        assert_eq!(id(numbers[2]), Some(102));
        assert_eq!(id(numbers[2]), None, "twice");
        assert_eq!((before(&ledger), ledger.in_flight()), (0, 3));
        assert_eq!(ledger.room(4), 5);
        assert_eq!(id(numbers[0]), Some(100));
        assert_eq!((before(&ledger), ledger.in_flight()), (1, 2));
        assert_eq!(id(numbers[0]), None, "long finished");
        assert_eq!(id(numbers[1]), Some(101));
        assert_eq!(before(&ledger), 3);
        assert_eq!(id(numbers[3]), Some(103));
        assert_eq!((before(&ledger), ledger.in_flight()), (4, 0));
    }

    /// Would catch a number that the device makes up, that was written and not rung, or that a queue before
    /// this one had.
    #[test]
    fn a_number_that_no_request_has_finishes_nothing() {
        let ledger = NumberedLedger::new(4, 0);
        assert_eq!(ledger.finish(0), None);
        let numbers = posted(&ledger, 0..1);
        let written = ledger.note(1, 7, SIGNALED, 0);
        let next = NumberedLedger::new(4, 1);
        for number in posted(&next, 0..4)
            .into_iter()
            .chain([written, 7, u16::MAX])
        {
            assert_eq!(ledger.finish(number), None, "{number}");
        }
        assert!(ledger.finish(numbers[0]).is_some());
        assert_eq!((before(&ledger), ledger.room(4)), (1, 5));
    }

    /// Would catch a request that stops the others as long as it is in flight, and one whose number is given
    /// to another meanwhile, also where the counts wrap. One that is so old that counts could not tell it
    /// from a new one does stop them.
    #[test]
    fn the_one_left_behind_stops_nobody() {
        for capacity in [2, 3, 4] {
            let ledger = NumberedLedger::new(capacity, 3);
            let start = 0_u32.wrapping_sub(capacity);
            for counter in [&ledger.posted, &ledger.finished] {
                counter.store(start, Ordering::Relaxed);
            }
            for (nth, at) in (0..capacity).enumerate() {
                let number = ledger.number_at(start.wrapping_add(at));
                number.store(nth as u16, Ordering::Relaxed);
            }
            let mut next = start;
            let mut post = || {
                let number = ledger.note(next, u64::from(next), SIGNALED, 0);
                next = next.wrapping_add(1);
                ledger.post(next);
                number
            };
            let left_behind = post();
            for _ in 0..1000 {
                assert_ne!(ledger.room(ledger.posted()), ledger.posted());
                let number = post();
                assert_ne!(number, left_behind);
                assert!(ledger.finish(number).is_some());
            }
            assert_eq!((before(&ledger), ledger.in_flight()), (start, 1));
            let room = ledger.room(ledger.posted());
            let far = start.wrapping_add(NumberedLedger::FURTHEST + 1);
            ledger.posted.store(far, Ordering::Relaxed);
            ledger
                .finished
                .store(far.wrapping_sub(1), Ordering::Relaxed);
            assert_eq!(ledger.room(room), room, "no further");
            assert_eq!(before(&ledger), start);
            assert_eq!(ledger.finish(left_behind).unwrap().id, u64::from(start));
            assert_eq!(before(&ledger), ledger.posted());
            assert_ne!(ledger.room(room), room);
        }
    }

    /// Would catch a number of the largest queue that does not fit into 16 bits.
    #[test]
    fn the_largest_queue_has_numbers_for_all() {
        let ledger = NumberedLedger::new(NumberedLedger::MOST, 1);
        for lap in 0..3 {
            let first = lap * NumberedLedger::MOST;
            let counts = first..first + NumberedLedger::MOST;
            let numbers = posted(&ledger, counts.clone());
            for (number, count) in numbers.into_iter().rev().zip(counts.rev()) {
                let id = ledger.finish(number).map(|noted| noted.id);
                assert_eq!(id, Some(100 + u64::from(count)));
            }
            assert_eq!((ledger.in_flight(), before(&ledger)), (0, ledger.posted()));
        }
    }

    /// Would catch a region that is deregistered while a request still names it, and one that waits for a
    /// finished request.
    #[test]
    fn keys_are_found_while_their_request_is_in_flight() {
        let ledger = NumberedLedger::new(4, 0);
        let about = About::new(false).with(0xab_cdef).with(7);
        ledger.note(0, 1, about, 0);
        let number = ledger.note(1, 2, About::new(true).with(9), 5);
        ledger.post(2);
        for (key, named) in [(0xab_cdef, true), (7, true), (9, true), (0, false)] {
            assert_eq!(ledger.names(ledger.progress(), key), named, "{key}");
        }
        let noted = ledger.finish(number).unwrap();
        assert_eq!((noted.is_signaled, noted.bytes), (true, 5));
        assert!(!ledger.names(ledger.progress(), 9));
        assert!(ledger.names(ledger.progress(), 7));
    }

    #[test]
    fn more_keys_than_are_noted_may_be_any() {
        let two = About::new(false).with(1).with(2);
        assert!(!two.may_have(3) && !About::new(true).may_have(0));
        let five = two.with(3).with(4).with(5);
        assert!(five.may_have(1000));
        assert_eq!(five.0 & About::SIGNALED, 0);
    }
}
