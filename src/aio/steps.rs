//! What completions lead to, to be done when nothing is locked any more: wakers and pools do as they like.

use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::slot::After;
use super::table::Table;

/// What completions lead to is done when there is so much of it.
pub(super) const AT_ONCE: usize = 32;

/// What a completion leads to.
pub(super) enum Step {
    Wake(Waker),
    /// A queue pair is to fail.
    Fail(Arc<Table>),
    Release(Release),
}

/// The buffer of an operation that nobody waits for, in a slot that is released: both go back when this is
/// dropped.
pub(super) struct Release {
    table: Arc<Table>,
    index: u32,
}

impl Drop for Release {
    fn drop(&mut self) {
        // SAFETY: one is made where a slot was found to be released, and it is dropped once.
        unsafe { self.table.release(self.index) };
    }
}

impl Step {
    /// What comes after the completion of a slot, if anything.
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

    pub(super) fn follow(self) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Fail(table) => table.fail(),
            Self::Release(release) => drop(release),
        }
    }
}

/// What some completions lead to.
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

    /// Whether they are so many that they are to be followed first. A completion adds at most two.
    #[inline(always)]
    pub(super) fn are_many(&self) -> bool {
        self.0.len() >= AT_ONCE
    }

    /// Adds a task that is to be woken.
    #[inline(always)]
    pub(super) fn wake(&mut self, waker: Waker) {
        self.0.push(Step::Wake(waker));
    }

    /// Adds what the completion of a slot leads to.
    pub(super) fn add(&mut self, table: &Arc<Table>, index: u32, after: After) {
        self.0.extend(Step::of(table, index, after));
    }

    /// Adds that a queue pair is to fail.
    pub(super) fn fail(&mut self, table: &Arc<Table>) {
        self.0.push(Step::Fail(Arc::clone(table)));
    }

    /// Does all, and forgets it.
    pub(super) fn follow(&mut self) {
        self.0.drain(..).for_each(Step::follow);
    }

    /// All of them.
    pub(super) fn into_steps(self) -> impl Iterator<Item = Step> {
        self.0.into_iter()
    }
}
