//! Tables of objects by number.

use std::collections::BTreeMap;
use std::marker::PhantomData;

/// What a device answers where a table cannot.
pub trait Refusal {
    /// There is no number left.
    const FULL: Self;
    /// There is no object of that number.
    const MISSING: Self;
}

/// Objects of one kind. A number that was given up comes back only after all others were used, unless
/// [`Table::insert_lowest`] is asked for one.
#[derive(Debug)]
pub struct Table<T, E> {
    objects: BTreeMap<u32, T>,
    first: u32,
    end: u32,
    next: u32,
    refusal: PhantomData<E>,
}

impl<T, E: Refusal> Table<T, E> {
    /// An empty table for numbers from `first` to before `end`.
    pub const fn new(first: u32, end: u32) -> Self {
        Self {
            objects: BTreeMap::new(),
            first,
            end,
            next: first,
            refusal: PhantomData,
        }
    }

    /// Has new objects get numbers before `end` only.
    pub fn end_at(&mut self, end: u32) {
        self.end = end;
    }

    /// Adds an object and gives its number.
    ///
    /// # Errors
    /// If there is no number left.
    pub fn insert(&mut self, object: T) -> Result<u32, E> {
        let number = (self.next..self.end)
            .chain(self.first..self.next)
            .find(|number| !self.objects.contains_key(number))
            .ok_or(E::FULL)?;
        self.objects.insert(number, object);
        self.next = number + 1;
        Ok(number)
    }

    /// Adds an object and gives its number, which is the lowest that is free: one that was given up may come
    /// back at once.
    ///
    /// # Errors
    /// If there is no number left.
    pub fn insert_lowest(&mut self, object: T) -> Result<u32, E> {
        self.next = self.first;
        self.insert(object)
    }

    /// Finds an object.
    ///
    /// # Errors
    /// If there is none of that number.
    pub fn get(&self, number: u32) -> Result<&T, E> {
        self.objects.get(&number).ok_or(E::MISSING)
    }

    /// Finds an object to change it.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn get_mut(&mut self, number: u32) -> Result<&mut T, E> {
        self.objects.get_mut(&number).ok_or(E::MISSING)
    }

    /// Takes an object out.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub fn remove(&mut self, number: u32) -> Result<T, E> {
        self.objects.remove(&number).ok_or(E::MISSING)
    }

    /// Whether there is an object of that number.
    pub fn contains(&self, number: u32) -> bool {
        self.objects.contains_key(&number)
    }

    /// All objects with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.objects
            .iter()
            .map(|(&number, object)| (number, object))
    }

    /// All objects.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Eq, PartialEq)]
    enum No {
        Full,
        Missing,
    }

    impl Refusal for No {
        const FULL: Self = Self::Full;
        const MISSING: Self = Self::Missing;
    }

    #[test]
    fn numbers_come_back_late_and_run_out() {
        let mut table = Table::new(4, 7);
        assert_eq!(table.insert('a'), Ok(4));
        assert_eq!(table.remove(4), Ok('a'));
        assert_eq!(table.insert('b'), Ok(5));
        assert_eq!(table.insert('c'), Ok(6));
        assert_eq!(table.insert('d'), Ok(4));
        assert_eq!(table.insert('e'), Err(No::Full));
        assert_eq!(table.remove(9), Err(No::Missing));
    }
}
