//! The book of an engine: transfers under way, counted immediates, messages that have come. Rails write into
//! it.

use std::collections::{HashMap, VecDeque};

use super::waiter::{Completer, Outcome};

#[derive(Default)]
pub(crate) struct Book {
    /// By number: parts that are not done, and who is told.
    transfers: HashMap<u64, (usize, Completer)>,
    last: u64,
    counters: HashMap<u32, Counter>,
    pub(crate) messages: VecDeque<Vec<u8>>,
}

/// A counter of the WRITEs with one immediate. No order is needed among them, so they may take any rail.
#[derive(Default)]
struct Counter {
    /// How many have come that nobody was told of; they may come before anybody waits for them.
    come: usize,
    /// How many each waits for, in the order in which they asked.
    expected: VecDeque<(usize, Completer)>,
}

impl Book {
    /// Notes a transfer of so many parts, and gives its number.
    pub(crate) fn begin(&mut self, parts: usize, done: Completer) -> u64 {
        self.last += 1;
        self.transfers.insert(self.last, (parts, done));
        self.last
    }

    /// Notes that parts of a transfer are done, or that it has failed. Its other parts may go on then.
    pub(crate) fn end(&mut self, transfer: u64, parts: usize, outcome: Outcome) {
        let Some((left, done)) = self.transfers.get_mut(&transfer) else {
            return;
        };
        *left = left.saturating_sub(parts);
        if *left == 0 || outcome.is_err() {
            // Nobody may be waiting.
            let _ = done.send(outcome);
            self.transfers.remove(&transfer);
        }
    }

    /// Has `done` told when so many WRITEs with this immediate have come.
    pub(crate) fn expect(&mut self, imm: u32, count: usize, done: Completer) {
        let counter = self.counters.entry(imm).or_default();
        counter.expected.push_back((count, done));
        self.count(imm, 0);
    }

    /// Counts WRITEs that have come.
    pub(crate) fn count(&mut self, imm: u32, count: usize) {
        let counter = self.counters.entry(imm).or_default();
        counter.come += count;
        while let Some((count, done)) = counter.expected.front()
            && *count <= counter.come
        {
            counter.come -= count;
            let _ = done.send(Ok(()));
            counter.expected.pop_front();
        }
        if counter.come == 0 && counter.expected.is_empty() {
            self.counters.remove(&imm);
        }
    }
}
