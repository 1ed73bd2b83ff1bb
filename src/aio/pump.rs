//! The pump: takes completions from a queue and brings them to the operations that wait for them.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::table::{ANY_QP, Id, MOST_TABLES, Step, Table};
use crate::cq::{Cq, Notify};
use crate::error::{Error, Result, Subject, Verb};
use crate::flight::Flight;

/// Completions that are taken before the tasks are woken that wait for them.
pub(super) const AT_ONCE: usize = 32;

/// What completions lead to, to be done when the queue is not borrowed any more.
pub(super) type Steps = ArrayVec<Step, AT_ONCE>;

/// A completion queue with the queue pairs that report to it. Borrowed exclusively by who takes completions.
pub(super) struct Pump {
    cq: Cq,
    tables: Vec<Option<Arc<Table>>>,
    /// Places in the completion queue that queue pairs have.
    admitted: u32,
    /// Of queue pairs that are gone, and of which the device may not have let go: the kernel refused to destroy
    /// them, or another thread is about to.
    orphans: Vec<(Arc<Table>, Arc<Flight>)>,
    /// The device is gone, or the queue has failed.
    broken: bool,
}

impl Pump {
    pub(super) fn new(cq: Cq) -> Self {
        Self {
            cq,
            tables: Vec::new(),
            admitted: 0,
            orphans: Vec::new(),
            broken: false,
        }
    }

    pub(super) fn cq(&self) -> &Cq {
        &self.cq
    }

    /// Makes a place for a queue pair, or a shared receive queue, of so many requests: its table's number.
    pub(super) fn admit(&mut self, verb: Verb, requests: u32) -> Result<u32> {
        let left = self.cq.capacity().saturating_sub(self.admitted);
        let number = self.tables.iter().position(Option::is_none);
        let number = number.unwrap_or(self.tables.len());
        if requests > left || number >= MOST_TABLES || self.broken {
            let why = match self.broken {
                true => "the device has been removed, or the queue has failed".to_owned(),
                false => format!(
                    "{requests} requests, but the completion queue has room for {left} more: it must hold \
                     the completions of all queue pairs that report to it"
                ),
            };
            return Err(Error::invalid(verb, Subject::the("queue"), why));
        }
        Ok(number as u32)
    }

    /// Enters a table at the place that was made for it.
    pub(super) fn enter(&mut self, number: u32, table: &Arc<Table>) {
        let number = number as usize;
        if self.tables.len() <= number {
            self.tables.resize_with(number + 1, || None);
        }
        self.tables[number] = Some(Arc::clone(table));
        self.admitted += table.len();
    }

    /// Takes completions until none is left or no more can be followed up at once, and tells how many there were.
    pub(super) fn take(&mut self, steps: &mut Steps) -> Result<usize> {
        let Self { cq, tables, .. } = self;
        let mut taken = 0;
        for completion in &mut cq.poll()? {
            taken += 1;
            let id = Id::of(completion.wr_id());
            let Some(Some(table)) = tables.get(id.table as usize) else {
                // Of a queue pair that is gone.
                continue;
            };
            if completion.qp_num() != table.qpn && table.qpn != ANY_QP {
                continue;
            }
            if let Some(step) = Step::of(table, id.index, table.complete(id, &completion)) {
                steps.push(step);
            }
            if !completion.is_ok() && table.note_failure() {
                steps.push(Step::Fail(Arc::clone(table)));
            }
            if steps.remaining_capacity() < 2 {
                break;
            }
        }
        Ok(taken)
    }

    /// Asks for an event; false if there are completions.
    pub(super) fn arm(&mut self) -> Result<bool> {
        Ok(self.cq.poll_or_arm(Notify::Next)?.is_none())
    }

    /// Notes that a queue pair is gone, and what that leads to.
    pub(super) fn retire(&mut self, table: Arc<Table>, flight: Arc<Flight>) -> Vec<Step> {
        self.orphans.push((table, flight));
        self.reap()
    }

    /// Ends the operations of queue pairs that the device has let go of.
    pub(super) fn reap(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let gone: Vec<_> = self
            .orphans
            .extract_if(.., |(_, flight)| flight.is_over())
            .collect();
        if !gone.is_empty() {
            self.drain(&mut steps);
        }
        for (table, _) in gone {
            self.remove(&table);
            // SAFETY: the device has let go of the requests, and the halves that posted are gone.
            unsafe {
                table.forget_all(|index, after| steps.extend(Step::of(&table, index, after)));
            }
        }
        // Those that the device may still have are not to be waited for.
        for (table, _) in &self.orphans {
            table.break_off(|waker| steps.push(Step::Wake(waker)));
        }
        steps
    }

    /// Takes what is in the completion queue now: no completion of a queue pair that is gone stays behind, which
    /// could be taken for one of the next with its numbers.
    fn drain(&mut self, steps: &mut Vec<Step>) {
        let mut left = self.cq.capacity() as usize + 1;
        while left > 0 {
            let mut some = Steps::new();
            let taken = self.take(&mut some);
            steps.extend(some);
            match taken {
                // What is broken is told of by who pumps.
                Ok(0) | Err(_) => break,
                Ok(taken) => left = left.saturating_sub(taken),
            }
        }
    }

    fn remove(&mut self, table: &Arc<Table>) {
        let place = self
            .tables
            .iter_mut()
            .find(|place| place.as_ref().is_some_and(|of| Arc::ptr_eq(of, table)));
        if let Some(place) = place {
            *place = None;
            self.admitted -= table.len();
        }
    }

    /// Notes that no completions will come any more, and what that leads to.
    pub(super) fn break_off(&mut self) -> Vec<Step> {
        self.broken = true;
        let mut steps = Vec::new();
        for table in self.tables.iter().flatten() {
            table.break_off(|waker| steps.push(Step::Wake(waker)));
        }
        steps
    }
}

impl Drop for Pump {
    /// The last time to look: what the device may still have is leaked.
    fn drop(&mut self) {
        self.reap().into_iter().for_each(Step::follow);
        for (table, _) in self.orphans.drain(..) {
            tracing::warn!(target: "uverbs", "a QP was not destroyed; the buffers of its operations are leaked");
            std::mem::forget(table);
        }
    }
}
