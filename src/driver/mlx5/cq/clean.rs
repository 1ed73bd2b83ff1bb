//! Cleaning: the places of completions that no poll will tell of go back to the device at once. Without it a
//! program that destroys or resets queue pairs and does not poll would fill the ring, and keep elements of
//! shared receive queues.

use super::Cq;
use crate::driver::mlx5::format::NUMBER;

/// A completion that was taken out: the number of its reporter, and what that needs of it.
#[derive(Clone, Copy, Debug)]
struct Forgotten {
    number: u32,
    op_own: u8,
    counter: u16,
}

impl Cq {
    /// Takes what is forgotten out of the ring, and moves older entries into the gaps.
    pub(super) fn take_forgotten_out(&mut self) {
        let directory = self.directory.clone();
        let inner = loop {
            if directory.lock().is_polled_by_program() {
                return;
            }
            self.catch_up();
            // Under the lock nobody else looks at the ring, and no change names a place in it.
            let inner = directory.lock();
            if !self.reporters.are_stale(&directory) {
                break inner;
            }
        };
        let first = directory.passed();
        let mut end = first;
        while end.wrapping_sub(first) < self.view.count() && inner.entries.has(end) {
            end = end.wrapping_add(1);
        }
        let mut forgotten = Vec::new();
        let mut index = end;
        while index != first {
            index = index.wrapping_sub(1);
            // SAFETY: the device has written the entry and leaves it alone until it is given back; every bit
            // pattern is a `Cqe`.
            let cqe = unsafe { self.view.entry(index).as_ref() };
            let number = cqe.srqn_uidx.get() & NUMBER;
            let known = self.reporters.get(number);
            if known.is_some_and(|known| known.has_forgotten(index)) {
                forgotten.push(Forgotten {
                    number,
                    op_own: cqe.op_own,
                    counter: cqe.wqe_counter.get(),
                });
            } else if !forgotten.is_empty() {
                let to = index.wrapping_add(forgotten.len() as u32);
                self.view.copy_to(index, self.view, to);
            }
        }
        let left = first.wrapping_add(forgotten.len() as u32);
        directory.pass(left);
        self.reporters.were_cleaned(left, end);
        drop(inner);
        // Only now, as in `pass_forgotten`. The oldest come last in the list.
        for Forgotten {
            number,
            op_own,
            counter,
        } in forgotten.into_iter().rev()
        {
            if let Some(known) = self.reporters.get(number) {
                known.reporter.reclaim(op_own, counter);
            }
        }
        self.reporters.settle(&directory, left);
        self.has_news = true;
    }
}
