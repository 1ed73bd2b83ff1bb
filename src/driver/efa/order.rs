//! The order of accesses between this side and the device: the driver's barriers, named by what they
//! separate.
//!
//! In the unit tests the device is memory, which works without barriers too. So the tests watch each step.

use crate::driver::kit::barrier;

/// A step of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// What was written to rings is visible before what is stored next.
    Written,
    /// What was read of entries was read before what is stored next.
    Taken,
    /// What was copied to the device's memory has left the CPU.
    Flushed,
    /// The request at this place of the ring is copied to the device's memory.
    Copied(u32),
    /// This is stored to a register.
    Stored(u32),
    /// What is read next is no older than a phase that was read.
    Arrived,
    /// An entry is read.
    Read,
}

/// Orders what was written to a ring before the next store.
#[inline(always)]
pub(super) fn after_writing() {
    barrier::ring_before_record();
    step(Step::Written);
}

/// Orders what was read of entries before the next store, which gives them back to the device.
#[inline(always)]
pub(super) fn after_reading() {
    barrier::entry_before_record();
    step(Step::Taken);
}

/// Makes copied requests leave the CPU before the next store.
#[inline(always)]
pub(super) fn after_copying() {
    barrier::flush_write_combining();
    step(Step::Flushed);
}

/// Orders the read of an entry's phase before the reads of the rest.
#[inline(always)]
pub(super) fn after_phase() {
    barrier::owner_before_entry();
    step(Step::Arrived);
}

/// Reports a step to unit tests before it is taken.
#[cfg(not(test))]
#[inline(always)]
pub(super) fn step(_: Step) {}

#[cfg(test)]
pub(super) use watch::step;

#[cfg(test)]
pub(super) mod watch {
    use super::Step;
    use std::cell::RefCell;

    type Watcher = Box<dyn FnMut(Step)>;

    thread_local! {
        static WATCHER: RefCell<Option<Watcher>> = RefCell::default();
    }

    pub(in super::super) fn step(step: Step) {
        WATCHER.with_borrow_mut(|watcher| {
            if let Some(watcher) = watcher {
                watcher(step);
            }
        });
    }

    /// Calls a function for each step that this thread takes from now on.
    pub(in super::super) fn watch(watcher: impl FnMut(Step) + 'static) {
        WATCHER.set(Some(Box::new(watcher)));
    }
}
