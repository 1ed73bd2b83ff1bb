//! Lists that grow while other threads read them, and take no memory before they grow.

use std::sync::OnceLock;

/// Places of the first segment. Each further segment has twice as many as the one before it.
const FIRST: usize = 8;

/// Enough segments for a place for every `u32`.
const SEGMENTS: usize = 30;

/// A list in segments, which are made when they are needed and never move.
#[derive(Debug)]
pub(super) struct Growing<T> {
    segments: [OnceLock<Box<[T]>>; SEGMENTS],
}

/// The segment that has the place of a number, and the index in it.
#[inline(always)]
fn place(number: u32) -> (usize, usize) {
    let number = u64::from(number) + FIRST as u64;
    let segment = number.ilog2() - FIRST.ilog2();
    (
        segment as usize,
        (number - ((FIRST as u64) << segment)) as usize,
    )
}

impl<T: Default> Growing<T> {
    /// Without places.
    pub(super) fn new() -> Self {
        Self {
            segments: [const { OnceLock::new() }; SEGMENTS],
        }
    }

    /// The place of a number, if the list has grown so far.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let (segment, at) = place(number);
        self.segments[segment].get()?.get(at)
    }

    /// Makes the places of all numbers below this one.
    pub(super) fn reach(&self, bound: u32) {
        let Some(last) = bound.checked_sub(1) else {
            return;
        };
        let needed = &self.segments[..=place(last).0];
        for (segment, places) in needed.iter().enumerate() {
            places.get_or_init(|| (0..FIRST << segment).map(|_| T::default()).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Would catch two numbers with one place, and a wrong place at either end of a segment.
    #[test]
    fn each_number_has_a_place_of_its_own() {
        let list = Growing::<AtomicU32>::new();
        assert!(list.get(0).is_none());
        list.reach(0);
        assert!(list.get(0).is_none());
        for bound in [1, 9, 8, 1000] {
            list.reach(bound);
            assert!(list.get(bound - 1).is_some());
        }
        let numbers = 0..1000;
        for number in numbers.clone() {
            list.get(number).unwrap().store(number, Ordering::Relaxed);
        }
        for number in numbers {
            assert_eq!(list.get(number).unwrap().load(Ordering::Relaxed), number);
        }
        assert!(list.get(u32::MAX).is_none());
    }

    #[test]
    fn the_last_segment_has_the_place_of_the_last_number() {
        assert_eq!(place(0), (0, 0));
        assert_eq!(place(7), (0, 7));
        assert_eq!(place(8), (1, 0));
        let (segment, at) = place(u32::MAX);
        assert_eq!(segment, SEGMENTS - 1);
        assert!(at < FIRST << segment);
    }
}
