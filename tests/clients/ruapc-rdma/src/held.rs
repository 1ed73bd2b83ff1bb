//! What belongs to the requests in flight of one queue: places in the order of posting.

use std::collections::VecDeque;

/// What requests hold, by their numbers, which follow each other.
#[derive(Debug)]
pub(crate) struct Held<T> {
    /// The number of the first place.
    first: u64,
    /// How many places there may be.
    limit: usize,
    /// A request that holds nothing has a place as well, and one that has been taken.
    places: VecDeque<Option<T>>,
    /// All before this number have been offered to [`Held::before`].
    passed: u64,
}

impl<T> Held<T> {
    /// None yet. A queue of `depth` has at most twice as many places: what has completed, and nobody was told
    /// of yet, has one too.
    pub(crate) fn new(first: u64, depth: u32) -> Self {
        Self {
            first,
            limit: 2 * depth.max(1) as usize,
            places: VecDeque::new(),
            passed: first,
        }
    }

    /// Has the next request hold this, or gives it back if there are too many.
    pub(crate) fn push(&mut self, value: Option<T>) -> Result<(), Option<T>> {
        if self.places.len() >= self.limit {
            return Err(value);
        }
        self.places.push_back(value);
        Ok(())
    }

    /// Takes back what was pushed last: it was not posted.
    pub(crate) fn undo(&mut self) -> Option<T> {
        self.places.pop_back().flatten()
    }

    /// Takes what the request of this number holds.
    pub(crate) fn take(&mut self, number: u64) -> Option<T> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let value = self.places.get_mut(index)?.take();
        self.trim();
        value
    }

    /// Takes what the next request before this number holds, if it is of this kind. Each is looked at once.
    pub(crate) fn before(&mut self, number: u64, is: impl Fn(&T) -> bool) -> Option<T> {
        while self.passed < number {
            let passing = self.passed;
            self.passed += 1;
            let index = usize::try_from(passing.checked_sub(self.first)?).ok()?;
            let place = self.places.get_mut(index)?;
            if place.as_ref().is_some_and(&is) {
                let value = place.take();
                self.trim();
                return value;
            }
        }
        None
    }

    /// Whether a request holds something of this kind.
    pub(crate) fn count(&self, is: impl Fn(&T) -> bool) -> usize {
        let held = self.places.iter().flatten();
        held.filter(|value| is(value)).count()
    }

    /// Gives up the places of the oldest requests that hold nothing.
    fn trim(&mut self) {
        while let Some(None) = self.places.front() {
            self.places.pop_front();
            self.first += 1;
        }
        self.passed = self.passed.max(self.first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(values: &[Option<u32>]) -> Held<u32> {
        let mut held = Held::new(10, 8);
        for &value in values {
            held.push(value).expect("room");
        }
        held
    }

    /// Catches an early completion's place that is given out again, and requests that are passed over.
    #[test]
    fn earlier_requests_are_taken_once() {
        let mut held = held(&[Some(1), None, Some(2), Some(30), Some(3), Some(4)]);
        let small = |value: &u32| *value < 10;
        assert_eq!(held.before(14, small), Some(1));
        assert_eq!(held.before(14, small), Some(2));
        assert_eq!(
            held.before(14, small),
            None,
            "30 is none, 14 itself is not before"
        );
        assert_eq!(held.take(14), Some(3));
        assert_eq!(held.take(14), None);
        assert_eq!(held.before(12, small), None, "a completion that comes late");
        assert_eq!(held.take(13), Some(30));
        assert_eq!(held.before(16, small), Some(4));
        assert_eq!((held.first, held.places.len()), (16, 0));
    }

    /// Catches a number that is given to two requests.
    #[test]
    fn what_was_not_posted_is_given_back() {
        let mut held = held(&[Some(1)]);
        held.push(Some(2)).expect("room");
        assert_eq!(held.undo(), Some(2));
        assert_eq!(held.take(11), None);
        held.push(Some(3)).expect("room");
        assert_eq!(held.take(11), Some(3));
        assert_eq!(held.take(9), None, "of a queue pair before this one");
        assert_eq!(held.count(|_| true), 1);
    }

    /// Catches buffers that pile up behind requests without completions.
    #[test]
    fn places_are_limited() {
        let mut held = Held::new(0, 1);
        assert_eq!(held.push(Some(1)), Ok(()));
        assert_eq!(held.push(None), Ok(()));
        assert_eq!(held.push(Some(3)), Err(Some(3)));
        assert_eq!(held.take(0), Some(1));
        assert_eq!(held.push(Some(4)), Ok(()));
    }
}
