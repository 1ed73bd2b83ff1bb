//! Tables of objects by number.

use std::collections::BTreeMap;

use crate::command::Status;

/// Objects of one kind. A number that was given up comes back only after all others were used.
#[derive(Debug)]
pub(crate) struct Table<T> {
    objects: BTreeMap<u32, T>,
    first: u32,
    end: u32,
    next: u32,
}

impl<T> Table<T> {
    /// An empty table for numbers from `first` to before `end`.
    pub(crate) const fn new(first: u32, end: u32) -> Self {
        Self {
            objects: BTreeMap::new(),
            first,
            end,
            next: first,
        }
    }

    /// Has new objects get numbers before `end` only.
    pub(crate) fn end_at(&mut self, end: u32) {
        self.end = end;
    }

    /// Adds an object and gives its number.
    ///
    /// # Errors
    /// If there is no number left.
    pub(crate) fn insert(&mut self, object: T) -> Result<u32, Status> {
        let number = (self.next..self.end)
            .chain(self.first..self.next)
            .find(|number| !self.objects.contains_key(number))
            .ok_or(Status::NoResources)?;
        self.objects.insert(number, object);
        self.next = number + 1;
        Ok(number)
    }

    /// Finds an object.
    ///
    /// # Errors
    /// If there is none of that number.
    pub(crate) fn get(&self, number: u32) -> Result<&T, Status> {
        self.objects.get(&number).ok_or(Status::BadResource)
    }

    /// Finds an object to change it.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub(crate) fn get_mut(&mut self, number: u32) -> Result<&mut T, Status> {
        self.objects.get_mut(&number).ok_or(Status::BadResource)
    }

    /// Takes an object out.
    ///
    /// # Errors
    /// As [`Table::get`].
    pub(crate) fn remove(&mut self, number: u32) -> Result<T, Status> {
        self.objects.remove(&number).ok_or(Status::BadResource)
    }

    /// Whether there is an object of that number.
    pub(crate) fn contains(&self, number: u32) -> bool {
        self.objects.contains_key(&number)
    }

    /// All objects with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.objects
            .iter()
            .map(|(&number, object)| (number, object))
    }

    /// All objects.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_late_and_run_out() {
        let mut table = Table::new(4, 7);
        assert_eq!(table.insert('a'), Ok(4));
        assert_eq!(table.remove(4), Ok('a'));
        assert_eq!(table.insert('b'), Ok(5));
        assert_eq!(table.insert('c'), Ok(6));
        assert_eq!(table.insert('d'), Ok(4));
        assert_eq!(table.insert('e'), Err(Status::NoResources));
        assert_eq!(table.remove(9), Err(Status::BadResource));
    }
}
