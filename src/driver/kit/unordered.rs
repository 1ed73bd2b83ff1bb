//! Notes of requests that finish in any order.

use std::collections::VecDeque;

use crate::work::Progress;

/// A queue's notes of its requests, each under a number that the device gives back with the completion.
///
/// How far the queue is counts from the oldest request on: a request counts as finished when all before it
/// are. While the oldest one is not, at most [`WINDOW`] times the capacity are posted, so that the memory for
/// that has a bound.
#[derive(Debug)]
pub(crate) struct Unordered<N> {
    /// By number; none where the number is free. With the count of requests before it.
    notes: Box<[Option<(u32, N)>]>,
    free: Vec<u32>,
    /// Requests that were posted, round modulo 2^32.
    posted: u32,
    /// Of each request from the oldest unfinished one on, whether it is finished.
    finished: VecDeque<bool>,
}

/// How many capacities may be posted while the oldest request is not finished.
const WINDOW: usize = 4;

impl<N> Unordered<N> {
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            notes: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
            posted: 0,
            finished: VecDeque::with_capacity(WINDOW * capacity as usize),
        }
    }

    /// How many more requests can be posted now.
    pub(crate) fn room(&self) -> usize {
        let window = WINDOW * self.notes.len() - self.finished.len();
        self.free.len().min(window)
    }

    /// Requests that are not finished.
    pub(crate) fn in_flight(&self) -> u32 {
        (self.notes.len() - self.free.len()) as u32
    }

    /// Notes a request that is posted now, and gives its number. None without room.
    pub(crate) fn begin(&mut self, note: N) -> Option<u32> {
        if self.room() == 0 {
            return None;
        }
        let number = self.free.pop()?;
        self.notes[number as usize] = Some((self.posted, note));
        self.finished.push_back(false);
        self.posted = self.posted.wrapping_add(1);
        Some(number)
    }

    /// Takes the note of a request that is finished. None if no request has the number.
    pub(crate) fn finish(&mut self, number: u32) -> Option<N> {
        let (count, note) = self.notes.get_mut(number as usize)?.take()?;
        self.free.push(number);
        let oldest = self.progress().finished();
        if let Some(finished) = self.finished.get_mut(count.wrapping_sub(oldest) as usize) {
            *finished = true;
        }
        while self.finished.front() == Some(&true) {
            self.finished.pop_front();
        }
        Some(note)
    }

    /// Lets all requests be finished.
    pub(crate) fn finish_all(&mut self) {
        for number in 0..self.notes.len() as u32 {
            self.finish(number);
        }
    }

    /// How far the queue is.
    pub(crate) fn progress(&self) -> Progress {
        let unfinished = self.finished.len() as u32;
        Progress::new(self.posted, self.posted.wrapping_sub(unfinished), u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_note_comes_back_once_and_numbers_are_used_again() {
        let mut notes = Unordered::new(2);
        let (first, second) = (notes.begin('a').unwrap(), notes.begin('b').unwrap());
        assert_eq!(notes.begin('c'), None);
        assert_eq!(notes.finish(second), Some('b'));
        assert_eq!(notes.finish(second), None);
        assert_eq!(notes.finish(7), None);
        assert_eq!(notes.begin('c'), Some(second));
        assert_eq!(notes.finish(first), Some('a'));
        assert_eq!(notes.in_flight(), 1);
    }

    /// Would catch a request whose memory counts as free because later ones are finished.
    #[test]
    fn a_request_counts_as_finished_when_all_before_it_are() {
        let mut notes = Unordered::new(4);
        notes.posted = u32::MAX;
        let numbers: Vec<u32> = (0..3).map(|it| notes.begin(it).unwrap()).collect();
        notes.finish(numbers[1]);
        notes.finish(numbers[2]);
        assert_eq!(notes.progress().in_flight(), 3);
        assert_eq!(notes.in_flight(), 1);
        notes.finish(numbers[0]);
        assert_eq!(notes.progress().in_flight(), 0);
        assert_eq!(notes.progress().posted(), 2);
    }

    #[test]
    fn what_may_be_posted_behind_one_that_does_not_finish_has_a_bound() {
        let mut notes = Unordered::new(2);
        notes.begin(0).unwrap();
        let mut behind = 0;
        while let Some(number) = notes.begin(1) {
            notes.finish(number);
            behind += 1;
        }
        assert_eq!(behind, WINDOW * 2 - 1);
    }
}
