//! What remains to do after completions, once nothing is locked: wakers and pools may run any code.

use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::slot::After;
use super::table::Table;
use crate::callbacks::each;
use crate::error::Result;
use crate::work::PollError;

/// Steps are followed when there are this many.
pub(super) const AT_ONCE: usize = 32;

/// What remains to do after a completion.
pub(super) enum Step {
    Wake(Waker),
    /// Fail a queue pair.
    Fail(Arc<Table>),
    Release(Release),
    /// Tell of a completion that names the queue of this number, which does not report here.
    TellOfStray(u32),
}

/// The buffer of an operation for which nobody waits, in a released slot: both go back when this is dropped.
pub(super) struct Release {
    table: Arc<Table>,
    index: u32,
}

impl Drop for Release {
    fn drop(&mut self) {
        // SAFETY: a value is made when a slot was found to be released, and it is dropped once.
        unsafe { self.table.release(self.index) };
    }
}

impl Step {
    /// What remains to do after the completion of a slot, if anything.
    pub(super) fn of(table: &Arc<Table>, index: u32, after: After) -> Option<Self> {
        match after {
            After::Nothing => None,
            After::Wake(waker) => Some(Self::Wake(waker)),
            After::Release => Some(Self::Release(Release {
                table: Arc::clone(table),
                index,
            })),
        }
    }

    /// What remains to do after a poll that has failed, if others can go on: it has passed over a completion
    /// of nobody's, such as one that the device has written late. Other failures are returned.
    pub(super) fn of_failure(error: PollError) -> Result<Self> {
        match error {
            PollError::Stray { number } => Ok(Self::TellOfStray(number)),
            error => Err(error.into()),
        }
    }

    pub(super) fn follow(self) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Fail(table) => table.fail(),
            Self::Release(release) => drop(release),
            Self::TellOfStray(number) => tracing::warn!(
                target: "uverbs",
                number,
                "a completion names a queue that does not report to its CQ"
            ),
        }
    }
}

/// What remains to do after some completions.
pub(super) struct Steps(ArrayVec<Step, { AT_ONCE + 1 }>);

impl Steps {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self(ArrayVec::new())
    }

    #[inline(always)]
    pub(super) fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether to follow them before more completions are taken, each of which adds at most two.
    #[inline(always)]
    pub(super) fn are_many(&self) -> bool {
        self.0.len() >= AT_ONCE
    }

    /// Adds a task to wake.
    #[inline(always)]
    pub(super) fn wake(&mut self, waker: Waker) {
        self.0.push(Step::Wake(waker));
    }

    /// Adds what remains to do after the completion of a slot.
    pub(super) fn add(&mut self, table: &Arc<Table>, index: u32, after: After) {
        self.0.extend(Step::of(table, index, after));
    }

    /// Adds a queue pair to fail.
    pub(super) fn fail(&mut self, table: &Arc<Table>) {
        self.0.push(Step::Fail(Arc::clone(table)));
    }

    /// Adds what remains to do after a poll that has failed.
    #[cold]
    pub(super) fn add_failure(&mut self, error: PollError) -> Result<()> {
        self.0.push(Step::of_failure(error)?);
        Ok(())
    }

    /// Follows all steps, and clears the list.
    pub(super) fn follow(&mut self) {
        each(self.0.drain(..), Step::follow);
    }

    /// All steps.
    pub(super) fn into_steps(mut self) -> impl Iterator<Item = Step> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// The steps that are left when a panic ends following them: a waker's, or a subscriber's.
impl Drop for Steps {
    fn drop(&mut self) {
        self.follow();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::owned::tests::Listener;
    use crate::work::PdTag;

    /// A waker that counts.
    #[derive(Default)]
    pub(in crate::aio) struct Count(pub(in crate::aio) AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A waker that panics.
    pub(in crate::aio) struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker");
        }
    }

    /// Would catch tasks that are not woken because an earlier waker panics, in the list or as the first
    /// task, which is not in it.
    #[test]
    fn a_waker_that_panics_costs_no_other_task() {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        let count = Arc::new(Count::default());
        let mut steps = Steps::new();
        for number in 0..10 {
            steps.wake(match number {
                3 | 5 => Waker::from(Arc::new(Panics)),
                _ => Waker::from(Arc::clone(&count)),
            });
        }
        let followed = catch_unwind(AssertUnwindSafe(|| steps.follow()));
        assert!(followed.is_err(), "the wakers were not called");
        assert_eq!(count.0.load(Ordering::Relaxed), 8);
        assert!(steps.are_none());

        steps.wake(Waker::from(Arc::clone(&count)));
        steps.wake(Waker::from(Arc::new(Panics)));
        steps.wake(Waker::from(Arc::clone(&count)));
        let woken = catch_unwind(AssertUnwindSafe(|| {
            let _steps = steps;
            Waker::from(Arc::new(Panics)).wake();
        }));
        assert!(woken.is_err());
        assert_eq!(count.0.load(Ordering::Relaxed), 10);
    }

    /// Would catch a queue that is given up for a completion that concerns none of its queue pairs, and one
    /// that goes on although it has lost completions.
    #[test]
    fn a_completion_of_nobody_is_told_and_others_go_on() {
        let told = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&told);
        let listener = Listener("uverbs", move |text: String| {
            assert!(text.contains("names a queue"), "{text}");
            counts.fetch_add(1, Ordering::Relaxed);
        });
        tracing::subscriber::with_default(listener, || {
            let mut steps = Steps::new();
            assert!(steps.add_failure(PollError::Stray { number: 7 }).is_ok());
            assert!(steps.add_failure(PollError::Overrun).is_err());
            assert!(steps.add_failure(PollError::Unknown { code: 1 }).is_err());
            assert_eq!(told.load(Ordering::Relaxed), 0);
            steps.follow();
            assert!(steps.are_none());
        });
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }

    /// Would catch a list that is full before `are_many` says so: a completion that wakes a task and makes
    /// its queue pair fail would then panic.
    #[test]
    fn there_is_room_for_a_completion_until_they_are_many() {
        let count = Arc::new(Count::default());
        let wake = || After::Wake(Waker::from(Arc::clone(&count)));
        let table = Arc::new(Table::new(0, (Some(1), PdTag::new(1, 1)), (1, 0), None));
        // However many there were before.
        for before in 0..2 * AT_ONCE {
            let mut steps = Steps::new();
            let mut wakes = 0;
            while wakes < before && !steps.are_many() {
                steps.add(&table, 0, wake());
                wakes += 1;
            }
            if !steps.are_many() {
                steps.add(&table, 0, wake());
                steps.fail(&table);
                wakes += 1;
            }
            count.0.store(0, Ordering::Relaxed);
            steps.follow();
            assert_eq!(count.0.load(Ordering::Relaxed), wakes);
            assert!(steps.are_none());
        }
    }
}
