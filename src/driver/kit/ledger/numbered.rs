//! Requests that finish in any order, all of them, and that the device names by numbers of this side's.

use super::super::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::work::Progress;

/// The notes of a queue. A request has a number from when it is written until its completion has been taken.
///
/// Numbers go round: the request of a count has the count modulo their number. There are at least twice as
/// many as requests may be posted at a time, so one that is left behind does not stop the others, until they
/// have gone once round. How far the queue is counts from that one on.
///
/// The requests cannot be read back, so the keys in them are noted as well.
#[derive(Debug)]
pub(crate) struct NumberedLedger {
    /// As many as a power of two, and one less than that.
    notes: Box<[Note]>,
    mask: u32,
    /// How many of the finished requests may be behind the first that is not, for the poster.
    ahead: u32,
    /// Requests that the device knows of, counted from the start, modulo 2^32.
    posted: AtomicU32,
    /// Requests that are finished, and those before the first that is not.
    count: AtomicU32,
    before: AtomicU32,
}

/// What is noted of a request. Relaxed throughout, but for `finished`: see the module on who reads it when.
#[derive(Debug, Default)]
struct Note {
    id: AtomicU64,
    about: AtomicU64,
    bytes: AtomicU32,
    /// It is finished, and one before it is not.
    finished: AtomicBool,
}

/// What a completion is told of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) id: u64,
    /// Somebody wants to hear of it even if all is well.
    pub(crate) is_signaled: bool,
    pub(crate) bytes: u32,
}

/// Whether a request is signaled, and the keys in it: two, or more than are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct About(u64);

impl About {
    /// Bits of a key.
    const KEY: u32 = 24;
    /// How many keys there are, up to 3 for more than 2.
    const KEYS: u32 = 2 * Self::KEY;
    const SIGNALED: u64 = 1 << 63;

    /// A request without keys.
    #[inline(always)]
    pub(crate) fn new(is_signaled: bool) -> Self {
        Self(if is_signaled { Self::SIGNALED } else { 0 })
    }

    /// With one key more.
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

    /// Whether this key may be one of them.
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
    /// The most requests of a queue: numbers have 16 bits.
    pub(crate) const MOST: u32 = 1 << 15;

    /// A ledger for up to `capacity` requests at a time, at most [`Self::MOST`].
    pub(crate) fn new(capacity: u32) -> Self {
        assert!(capacity <= Self::MOST);
        let numbers = (2 * capacity.max(1)).next_power_of_two();
        Self {
            notes: (0..numbers).map(|_| Note::default()).collect(),
            mask: numbers - 1,
            ahead: numbers - capacity,
            posted: AtomicU32::new(0),
            count: AtomicU32::new(0),
            before: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    fn at(&self, index: u32) -> &Note {
        // SAFETY: there are as many as a power of two, so the masked index is below that.
        unsafe { self.notes.get_unchecked((index & self.mask) as usize) }
    }

    /// Notes the request of this count, for which there is room; returns its number.
    #[inline(always)]
    pub(crate) fn note(&self, count: u32, id: u64, about: About, bytes: u32) -> u16 {
        let number = count & self.mask;
        let note = self.at(number);
        note.id.store(id, Ordering::Relaxed);
        note.about.store(about.0, Ordering::Relaxed);
        note.bytes.store(bytes, Ordering::Relaxed);
        number as u16
    }

    /// Notes how many requests the device knows of, before it does.
    #[inline(always)]
    pub(crate) fn post(&self, count: u32) {
        // Relaxed: the poller loads it behind a completion, which the barriers around the doorbell and the
        // entry order; who asks about requests is ordered after the poster.
        self.posted.store(count, Ordering::Relaxed);
    }

    /// Requests that the device knows of.
    pub(crate) fn posted(&self) -> u32 {
        // Acquire: what is finished is looked at behind it.
        self.posted.load(Ordering::Acquire)
    }

    /// The count of finished requests that the poster may rely on: it may post up to the queue's capacity
    /// beyond it.
    pub(crate) fn done(&self) -> u32 {
        // In this order: `count` is stored before what `before` shows, so it is no less.
        let before = self.before();
        // Acquire: pairs with the release in `Found::finish`.
        let behind = self.count.load(Ordering::Acquire).wrapping_sub(before);
        // So many may be posted, beyond what the poster is told, that the first keeps its number.
        before.wrapping_add(behind.min(self.ahead))
    }

    /// Requests before the first that is not finished.
    pub(crate) fn before(&self) -> u32 {
        // Acquire: pairs with the release in `Found::finish`.
        self.before.load(Ordering::Acquire)
    }

    /// Requests that are not finished.
    pub(crate) fn in_flight(&self) -> u32 {
        // In this order: what is finished was posted before. Relaxed: it is a number to look at.
        let count = self.count.load(Ordering::Relaxed);
        self.posted.load(Ordering::Relaxed).wrapping_sub(count)
    }

    /// How far the queue is.
    pub(crate) fn progress(&self) -> Progress {
        Progress::look(u32::MAX, || self.posted(), || self.before())
    }

    /// Whether one of the requests of these counts may be unfinished and have this key in it.
    pub(crate) fn names(&self, mut counts: impl Iterator<Item = u32>, key: u32) -> bool {
        counts.any(|count| {
            let note = self.at(count);
            // Relaxed: who looks for a region's key has a fence behind it (`flight.rs`), for the release in
            // `Found::finish`. While it is seen to be finished, its number is not given out: that is
            // behind the store that takes the mark back.
            let about = About(note.about.load(Ordering::Relaxed));
            !note.finished.load(Ordering::Relaxed) && about.may_have(key)
        })
    }

    /// The request in flight that has this number, for the one poller; `None` if none has it.
    #[inline(always)]
    pub(crate) fn find(&self, number: u16) -> Option<Found<'_>> {
        // Relaxed: only the poller stores it; `posted` as told in `post`.
        let before = self.before.load(Ordering::Relaxed);
        let in_flight = self.posted.load(Ordering::Relaxed).wrapping_sub(before);
        let behind = u32::from(number).wrapping_sub(before) & self.mask;
        let is_number = u32::from(number) <= self.mask;
        let note = self.at(number.into());
        // Relaxed: only the poller stores it.
        if !is_number || behind >= in_flight || note.finished.load(Ordering::Relaxed) {
            return None;
        }
        Some(Found {
            ledger: self,
            note,
            before,
            is_first: behind == 0,
        })
    }

    /// Takes the request of a number as finished; as [`find`](Self::find).
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

    /// The first request behind the first, which is finished now, that is not.
    #[inline(always)]
    fn go_on(&self, mut before: u32) -> u32 {
        loop {
            before = before.wrapping_add(1);
            let note = self.at(before);
            // Relaxed: only the poller stores it; numbers are given out behind the release in
            // `Found::finish`.
            if !note.finished.load(Ordering::Relaxed) {
                return before;
            }
            note.finished.store(false, Ordering::Relaxed);
        }
    }
}

/// A request in flight, for the poller.
#[derive(Debug)]
pub(crate) struct Found<'l> {
    ledger: &'l NumberedLedger,
    note: &'l Note,
    /// Requests before the first that is not finished; and whether this is that one.
    before: u32,
    is_first: bool,
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

    /// Somebody wants to hear of it even if all is well.
    #[inline(always)]
    pub(crate) fn is_signaled(&self) -> bool {
        self.note.about.load(Ordering::Relaxed) & About::SIGNALED != 0
    }

    /// Takes it as finished: from now on its number may be given to another.
    #[inline(always)]
    pub(crate) fn finish(self) {
        let ledger = self.ledger;
        // Relaxed: only the poller stores it.
        let count = ledger.count.load(Ordering::Relaxed).wrapping_add(1);
        // Release: what was done with the completion is behind the poster when it finds room; pairs with the
        // acquire in `done`.
        ledger.count.store(count, Ordering::Release);
        match self.is_first {
            // Release: the notes are read, and counted as finished, before their numbers may be used again;
            // pairs with the acquire in `before`.
            true => {
                let before = ledger.go_on(self.before);
                ledger.before.store(before, Ordering::Release);
            }
            // Release: for who finds it in `names`.
            false => self.note.finished.store(true, Ordering::Release),
        }
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

    #[test]
    fn each_request_finishes_once_in_any_order() {
        let ledger = NumberedLedger::new(4);
        let numbers = posted(&ledger, 0..4);
        let id = |number| ledger.finish(number).map(|noted| noted.id);
        assert_eq!(id(numbers[2]), Some(102));
        assert_eq!(id(numbers[2]), None, "twice");
        assert_eq!(
            (ledger.before(), ledger.done(), ledger.in_flight()),
            (0, 1, 3)
        );
        assert_eq!(id(numbers[0]), Some(100));
        assert_eq!(
            (ledger.before(), ledger.done(), ledger.in_flight()),
            (1, 2, 2)
        );
        assert_eq!(id(numbers[0]), None, "long finished");
        assert_eq!(id(numbers[1]), Some(101));
        assert_eq!((ledger.before(), ledger.done()), (3, 3));
        assert_eq!(id(numbers[3]), Some(103));
        assert_eq!((ledger.before(), ledger.in_flight()), (4, 0));
    }

    /// Would catch a number that the device makes up, or keeps from a longer queue.
    #[test]
    fn a_number_that_no_request_has_finishes_nothing() {
        let ledger = NumberedLedger::new(4);
        assert_eq!(ledger.finish(0), None);
        let numbers = posted(&ledger, 0..1);
        for number in [1, 7, 8, u16::MAX] {
            assert_eq!(ledger.finish(number), None, "{number}");
        }
        assert!(ledger.finish(numbers[0]).is_some());
        assert_eq!((ledger.before(), ledger.done()), (1, 1));
    }

    /// Would catch a request whose number is given to another while it is in flight, also where the counts
    /// wrap.
    #[test]
    fn the_one_left_behind_keeps_its_number() {
        let ledger = NumberedLedger::new(4);
        let start = 0_u32.wrapping_sub(3);
        for counter in [&ledger.posted, &ledger.count, &ledger.before] {
            counter.store(start, Ordering::Relaxed);
        }
        let capacity = 4;
        let mut next = start;
        let mut post = || {
            let number = ledger.note(next, u64::from(next), SIGNALED, 0);
            next = next.wrapping_add(1);
            ledger.post(next);
            number
        };
        let left_behind = post();
        let mut behind = 0;
        while ledger.posted().wrapping_sub(ledger.done()) < capacity {
            let number = post();
            assert_ne!(number, left_behind);
            assert!(ledger.finish(number).is_some());
            behind += 1;
        }
        assert_eq!(behind, 7, "once round");
        assert_eq!(ledger.in_flight(), 1);
        assert_eq!(ledger.finish(left_behind).unwrap().id, u64::from(start));
        assert_eq!(ledger.before(), ledger.posted());
        assert_eq!(ledger.done(), ledger.posted());
    }

    /// Would catch a number of the largest queue that does not fit.
    #[test]
    fn the_largest_queue_has_numbers_for_all() {
        let ledger = NumberedLedger::new(NumberedLedger::MOST);
        for lap in 0..3 {
            let first = lap * NumberedLedger::MOST;
            let counts = first..first + NumberedLedger::MOST;
            let numbers = posted(&ledger, counts.clone());
            for (number, count) in numbers.into_iter().rev().zip(counts.rev()) {
                let id = ledger.finish(number).map(|noted| noted.id);
                assert_eq!(id, Some(100 + u64::from(count)));
            }
            assert_eq!((ledger.in_flight(), ledger.done()), (0, ledger.posted()));
        }
    }

    /// Would catch a region that goes while a request still names it, and one that waits for a request that
    /// is finished.
    #[test]
    fn keys_are_found_while_their_request_is_in_flight() {
        let ledger = NumberedLedger::new(4);
        let about = About::new(false).with(0xab_cdef).with(7);
        ledger.note(0, 1, about, 0);
        let number = ledger.note(1, 2, About::new(true).with(9), 5);
        ledger.post(2);
        for (key, named) in [(0xab_cdef, true), (7, true), (9, true), (0, false)] {
            assert_eq!(ledger.names(0..2, key), named, "{key}");
        }
        let noted = ledger.finish(number).unwrap();
        assert_eq!((noted.is_signaled, noted.bytes), (true, 5));
        assert!(!ledger.names(0..2, 9));
        assert!(ledger.names(0..2, 7));
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
