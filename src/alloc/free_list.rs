//! The free addresses of a range: first fit, and free neighbours are merged.

use std::collections::BTreeMap;

/// The free parts of a range, start to end; no two touch.
#[derive(Debug)]
pub(super) struct FreeList(BTreeMap<usize, usize>);

impl FreeList {
    /// All of a range is free.
    pub(super) fn new(start: usize, end: usize) -> Self {
        Self(BTreeMap::from([(start, end)]))
    }

    /// Takes `size` bytes at a multiple of `alignment`, a power of two.
    pub(super) fn take(&mut self, size: usize, alignment: usize) -> Option<usize> {
        let (start, end, at) = self.0.iter().find_map(|(&start, &end)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (at.checked_add(size)? <= end).then_some((start, end, at))
        })?;
        self.0.remove(&start);
        if start < at {
            self.0.insert(start, at);
        }
        if at + size < end {
            self.0.insert(at + size, end);
        }
        Some(at)
    }

    /// Frees a part that was taken. The list does not check that it was; the caller must.
    pub(super) fn give_back(&mut self, mut start: usize, mut end: usize) {
        if let Some((&before, &touching)) = self.0.range(..start).next_back()
            && touching == start
        {
            self.0.remove(&before);
            start = before;
        }
        if let Some(further) = self.0.remove(&end) {
            end = further;
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn alignment_is_of_the_address() {
        let mut list = FreeList::new(0x1008, 0x3000);
        assert_eq!(list.take(8, 0x1000), Some(0x2000));
        assert_eq!(list.take(8, 8), Some(0x1008));
        assert_eq!(list.take(0x1000, 0x1000), None);
        assert_eq!(list.take(usize::MAX, 1), None);
    }

    proptest! {
        /// No byte is in two parts that are taken, and all is one part again when everything was given back.
        #[test]
        fn what_is_taken_is_taken_once(
            steps in prop::collection::vec((1usize..0x300, 0u32..10, any::<prop::sample::Index>()), 1..60)
        ) {
            let (start, end) = (0x1100, 0x5000);
            let mut list = FreeList::new(start, end);
            let mut taken: Vec<(usize, usize)> = Vec::new();
            for (size, shift, index) in steps {
                if index.index(3) == 0 && !taken.is_empty() {
                    let (at, end) = taken.swap_remove(index.index(taken.len()));
                    list.give_back(at, end);
                } else if let Some(at) = list.take(size, 1 << shift) {
                    prop_assert_eq!(at % (1 << shift), 0);
                    prop_assert!(start <= at && at + size <= end);
                    prop_assert!(taken.iter().all(|&(other, other_end)| at + size <= other || other_end <= at));
                    taken.push((at, at + size));
                }
            }
            for (at, end) in taken {
                list.give_back(at, end);
            }
            prop_assert_eq!(list.0, BTreeMap::from([(start, end)]));
        }
    }
}
