//! The pump: takes completions from a queue and brings them to the operations that wait for them.

use std::sync::Arc;
use std::task::Waker;

use super::slot::Success;
use super::steps::{Step, Steps};
use super::table::{MOST_TABLES, Slot, Table, index, number, succeed, succeed_closer};
use crate::callbacks::each;
use crate::cq::Cq;
use crate::error::{Error, Result, Subject, Verb};
use crate::flight::Flight;
use crate::wc::Completion;
use crate::work::PollError;

/// A completion queue with the queue pairs that report to it. The thread that takes completions borrows it
/// exclusively.
pub(super) struct Pump {
    cq: Cq,
    tables: Vec<Option<Arc<Table>>>,
    /// Numbers of tables that are being created.
    promised: Vec<u32>,
    /// Entries of the completion queue that are reserved for queue pairs.
    admitted: u32,
    orphans: Orphans,
    /// The device is gone, or the queue has failed.
    broken: bool,
}

impl Pump {
    pub(super) fn new(cq: Cq) -> Self {
        Self {
            cq,
            tables: Vec::new(),
            promised: Vec::new(),
            admitted: 0,
            orphans: Orphans::default(),
            broken: false,
        }
    }

    /// Reserves room for a queue pair, or a shared receive queue, of `requests` requests. Returns the number
    /// for its table, which no other table gets. Then the table is [entered](Self::enter), or the room is
    /// [withdrawn](Self::withdraw).
    pub(super) fn admit(&mut self, verb: Verb, requests: u32) -> Result<u32> {
        let left = self.cq.capacity().saturating_sub(self.admitted);
        let is_free = |number: &usize| {
            let has_table = self.tables.get(*number).is_some_and(Option::is_some);
            !has_table && !self.promised.contains(&(*number as u32))
        };
        let number = (0..MOST_TABLES).find(is_free).unwrap_or(MOST_TABLES);
        if requests > left || number >= MOST_TABLES || self.broken {
            let why = match self.broken {
                true => "nobody takes completions any more: the device has been removed, the queue has failed, or its \
                         runtime could not watch it"
                    .to_owned(),
                false => format!(
                    "{requests} requests, but the completion queue has room for {left} more: it must hold \
                     the completions of all queue pairs that report to it"
                ),
            };
            return Err(Error::invalid(verb, Subject::the("queue"), why));
        }
        self.promised.push(number as u32);
        self.admitted += requests;
        Ok(number as u32)
    }

    /// Gives back the room that was reserved for `requests` requests.
    pub(super) fn withdraw(&mut self, number: u32, requests: u32) {
        self.promised.retain(|promised| *promised != number);
        self.admitted -= requests;
    }

    /// Enters a table, for as many requests, at the place that was reserved for it. Nobody waits on it yet.
    pub(super) fn enter(&mut self, number: u32, table: &Arc<Table>) {
        if self.broken {
            // Since the place was reserved: a pump that is broken reserves none.
            table.break_off(drop);
        }
        self.promised.retain(|promised| *promised != number);
        let number = number as usize;
        if self.tables.len() <= number {
            self.tables.resize_with(number + 1, || None);
        }
        self.tables[number] = Some(Arc::clone(table));
    }

    /// Takes completions until none is left, or until the list of steps is full.
    #[inline(always)]
    pub(super) fn take(&mut self, steps: &mut Steps) -> Result<Taken> {
        let Self { cq, tables, .. } = self;
        let mut taken = Taken {
            any: false,
            first: None,
        };
        let mut polled = match cq.poll() {
            Ok(polled) => polled,
            Err(error) => {
                steps.add_failure(error)?;
                taken.any = true;
                return Ok(taken);
            }
        };
        for completion in &mut polled {
            taken.any = true;
            match send_that_succeeded(tables, &completion) {
                Some(slot) => succeeded(tables, (slot, completion.wr_id()), &mut taken, steps),
                None => complete(tables, &completion, steps),
            }
            if steps.are_many() {
                break;
            }
        }
        Ok(taken)
    }

    /// Whether no completion waits.
    pub(super) fn is_empty(&mut self) -> std::result::Result<bool, PollError> {
        self.cq.is_empty()
    }

    /// Notes that a queue pair is gone, and returns the steps that follow.
    pub(super) fn retire(&mut self, table: Arc<Table>, flight: Arc<Flight>) -> Vec<Step> {
        let is_over = flight.is_over();
        self.orphans.0.push((Arc::clone(&table), flight));
        let mut steps = self.reap();
        if !is_over {
            // Nobody should wait for requests that the device may still have.
            table.orphan(|waker| steps.push(Step::Wake(waker)));
        }
        steps
    }

    /// Whether there are queue pairs that are gone, but that the device may not have released.
    #[inline(always)]
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.0.is_empty()
    }

    /// Ends the operations of queue pairs that the device has released.
    pub(super) fn reap(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        let gone: Vec<_> = self
            .orphans
            .0
            .extract_if(.., |(_, flight)| flight.is_over())
            .collect();
        if !gone.is_empty() {
            self.drain(&mut steps);
        }
        for (table, _) in gone {
            self.remove(&table);
            // SAFETY: the device has released the requests, and the halves that posted are gone.
            unsafe {
                table.forget_all(|index, after| steps.extend(Step::of(&table, index, after)));
            }
        }
        steps
    }

    /// Takes everything that is in the completion queue now. Otherwise a completion of a queue pair that is
    /// gone could pass for one of the next queue pair with its numbers.
    fn drain(&mut self, steps: &mut Vec<Step>) {
        // Often enough to take a full queue, and once more to find it empty.
        for _ in 0..=self.cq.capacity() {
            let mut some = Steps::new();
            let taken = self.take(&mut some);
            steps.extend(some.into_steps());
            match taken {
                Ok(Taken { any: true, first }) => steps.extend(first.map(Step::Wake)),
                // The next pump reports the failure.
                Ok(_) | Err(_) => break,
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

    /// Notes that no completions will come any more, and returns the steps that follow.
    pub(super) fn break_off(&mut self) -> Vec<Step> {
        self.broken = true;
        let mut steps = Vec::new();
        for table in self.tables.iter().flatten() {
            table.break_off(|waker| steps.push(Step::Wake(waker)));
        }
        steps
    }
}

/// The result of taking completions.
pub(super) struct Taken {
    /// Whether there were any.
    pub(super) any: bool,
    /// The first task to wake. Most often there is nothing else to do: it needs no list.
    pub(super) first: Option<Waker>,
}

/// The slot of the send whose success a completion reports, if it reports one.
#[inline(always)]
fn send_that_succeeded<'t>(
    tables: &'t [Option<Arc<Table>>],
    completion: &Completion,
) -> Option<&'t Slot> {
    let id = completion.wr_id();
    // There is no table for a queue pair that is gone.
    let table = tables.get(number(id))?.as_ref()?;
    let slot = table.send_of(id, completion.qp_num())?;
    completion.is_ok().then_some(slot)
}

/// Notes the success of an operation.
#[inline(always)]
fn succeeded(
    tables: &[Option<Arc<Table>>],
    (slot, wr_id): (&Slot, u64),
    taken: &mut Taken,
    steps: &mut Steps,
) {
    match succeed(slot, wr_id) {
        Success::Nobody => {}
        Success::Wake(waker) if taken.first.is_none() => taken.first = Some(waker),
        Success::Wake(waker) => steps.wake(waker),
        Success::Closer => closer(tables, (slot, wr_id), steps),
    }
}

/// Notes the success of an operation whose future is gone, or is being dropped.
#[cold]
#[inline(never)]
fn closer(tables: &[Option<Arc<Table>>], (slot, wr_id): (&Slot, u64), steps: &mut Steps) {
    let after = succeed_closer(slot, wr_id);
    if let Some(Some(table)) = tables.get(number(wr_id)) {
        steps.add(table, index(wr_id), after);
    }
}

/// Notes a completion that is more than the success of a send.
#[inline(never)]
fn complete(tables: &[Option<Arc<Table>>], completion: &Completion, steps: &mut Steps) {
    let id = completion.wr_id();
    if let Some(Some(table)) = tables.get(number(id))
        && table.is_of(completion.qp_num())
    {
        let after = table.complete(id, completion);
        steps.add(table, index(id), after);
        if !completion.is_ok() && table.note_failed_request(id, completion.status()) {
            steps.fail(table);
        }
    }
}

impl Drop for Pump {
    /// The last look: buffers that the device may still have are leaked.
    fn drop(&mut self) {
        each(self.reap(), Step::follow);
    }
}

/// Queue pairs that are gone, but that the device may not have released: the kernel refused to destroy them,
/// or another thread is about to. When nobody looks any more, the buffers of their operations are leaked.
#[derive(Default)]
struct Orphans(Vec<(Arc<Table>, Arc<Flight>)>);

impl Drop for Orphans {
    fn drop(&mut self) {
        let kept = self.0.len();
        for (table, _) in self.0.drain(..) {
            std::mem::forget(table);
        }
        // After everything else: a subscriber may panic.
        if kept > 0 {
            tracing::warn!(target: "uverbs", kept, "QPs were not destroyed; the buffers of their operations are leaked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::flight::{Flights, Queues};
    use crate::owned::tests::Listener;
    use crate::work::PdTag;

    /// Would catch buffers that go back to their pool, and to its next user, while a device may write to
    /// them, because a subscriber of traces panics at the report that they are leaked.
    #[test]
    fn a_panic_gives_no_buffer_back() {
        let flights = Flights::default();
        let mut orphans = Orphans::default();
        let mut tables = Vec::new();
        for number in 0..2 {
            let table = Arc::new(Table::new(
                number,
                (Some(1), PdTag::new(1, 1)),
                (1, 0),
                None,
            ));
            tables.push(Arc::downgrade(&table));
            let flight = flights.begin(Subject::numbered("QP", 7), Queues::Unknown);
            orphans.0.push((table, flight));
        }
        let panics = Listener("uverbs", |text| panic!("told of {text}"));
        let dropped = tracing::subscriber::with_default(panics, || {
            catch_unwind(AssertUnwindSafe(|| drop(orphans)))
        });
        assert!(dropped.is_err(), "the subscriber was not asked");
        assert!(tables.iter().all(|table| table.upgrade().is_some()));
    }
}
