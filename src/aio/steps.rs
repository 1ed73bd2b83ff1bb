//! What completions lead to, to be done when nothing is locked any more: wakers and pools do as they like.

use std::sync::Arc;
use std::task::Waker;

use arrayvec::ArrayVec;

use super::slot::After;
use super::table::Table;

/// Completions that are taken before the tasks are woken that wait for them.
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
        // SAFETY: `release` makes one where a slot was found to be released, and it is dropped once.
        unsafe { self.table.release(self.index) };
    }
}

impl Step {
    /// What comes after the completion of a slot, if anything.
    pub(super) fn of(table: &Arc<Table>, index: u32, after: After) -> Option<Self> {
        match after {
            After::Nothing => None,
            After::Wake(waker) => Some(Self::Wake(waker)),
            After::Release => Some(Self::release(table, index)),
        }
    }

    fn release(table: &Arc<Table>, index: u32) -> Self {
        Self::Release(Release {
            table: Arc::clone(table),
            index,
        })
    }

    pub(super) fn follow(self) {
        match self {
            Self::Wake(waker) => waker.wake(),
            Self::Fail(table) => table.fail(),
            Self::Release(release) => drop(release),
        }
    }
}

/// What some completions lead to, in two lists: tasks that are to be woken, and what happens seldom.
pub(super) struct Steps {
    wakers: ArrayVec<Waker, AT_ONCE>,
    others: ArrayVec<Step, AT_ONCE>,
    /// With as many wakers they are many.
    most: usize,
}

impl Steps {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self {
            wakers: ArrayVec::new(),
            others: ArrayVec::new(),
            most: AT_ONCE,
        }
    }

    /// Whether they are so many that they are to be followed first. A completion adds at most one waker, and
    /// at most two others.
    #[inline(always)]
    pub(super) fn are_many(&self) -> bool {
        self.wakers.len() >= self.most
    }

    /// Adds what the completion of a slot leads to.
    #[inline(always)]
    pub(super) fn add(&mut self, table: &Arc<Table>, index: u32, after: After) {
        match after {
            After::Nothing => {}
            After::Wake(waker) => self.wakers.push(waker),
            After::Release => self.add_other(Step::release(table, index)),
        }
    }

    /// Adds that a queue pair is to fail.
    pub(super) fn fail(&mut self, table: &Arc<Table>) {
        self.add_other(Step::Fail(Arc::clone(table)));
    }

    #[cold]
    #[inline(never)]
    fn add_other(&mut self, step: Step) {
        self.others.push(step);
        if self.others.remaining_capacity() < 2 {
            self.most = 0;
        }
    }

    /// Does all, and forgets it.
    #[inline(always)]
    pub(super) fn follow(&mut self) {
        // One after the other, from behind: to move them all, or to set up for many, is longer than to wake
        // one.
        if self.wakers.len() > 1 {
            self.wakers.reverse();
        }
        while let Some(waker) = self.wakers.pop() {
            waker.wake();
        }
        if !self.others.is_empty() {
            self.follow_others();
        }
    }

    #[cold]
    #[inline(never)]
    fn follow_others(&mut self) {
        self.most = AT_ONCE;
        self.others.drain(..).for_each(Step::follow);
    }

    /// All of them.
    pub(super) fn into_steps(self) -> impl Iterator<Item = Step> {
        self.wakers.into_iter().map(Step::Wake).chain(self.others)
    }
}
