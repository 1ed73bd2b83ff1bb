//! The poller's table of the queues that report to its completion queue, by their numbers.
//!
//! It is the poller's alone: the [`Directory`] tells it what has changed.

use std::collections::HashMap;
use std::sync::Arc;

use super::directory::{Change, Directory, Report, Ring, is_before};
use super::ledger::SrqLedger;

/// The table.
#[derive(Debug)]
pub(crate) struct Reporters<R> {
    /// By their numbers; with nothing that reports where nobody has the number.
    known: Vec<Known<R>>,
    /// The version of the directory that this is of.
    version: u64,
    /// Some wait for the poller to pass entries of theirs.
    waiting: bool,
}

/// A queue that reports.
#[derive(Debug, Default)]
pub(crate) struct Known<R> {
    pub(crate) reporter: R,
    /// Entries before this index are passed over.
    forget_until: Option<u32>,
    /// The number is free once entries before this index have been taken.
    leave_at: Option<u32>,
}

impl<R> Known<R> {
    /// Whether it has started again, or is to be forgotten, and entries of before may still be in the ring.
    #[inline(always)]
    pub(crate) fn forgets(&self) -> bool {
        self.forget_until.is_some()
    }

    /// Whether the entry at this index is to be passed over.
    pub(crate) fn has_forgotten(&self, index: u32) -> bool {
        self.forget_until
            .is_some_and(|until| is_before(index, until))
    }
}

impl<R: Report> Reporters<R> {
    pub(crate) fn new() -> Self {
        Self {
            known: Vec::new(),
            version: 0,
            waiting: false,
        }
    }

    /// Who has this number, or had it last.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&Known<R>> {
        self.known.get(number as usize)
    }

    /// Whether there are changes to take over.
    #[inline(always)]
    pub(crate) fn are_stale(&self, directory: &Directory<impl Ring, R>) -> bool {
        self.version != directory.version()
    }

    /// Whether some wait for the poller to pass entries of theirs ([`Self::settle`]).
    #[inline(always)]
    pub(crate) fn are_waiting(&self) -> bool {
        self.waiting
    }

    /// Takes over what has changed; tells whether the device had no room for a completion.
    pub(crate) fn catch_up(&mut self, directory: &Directory<impl Ring, R>) -> bool {
        let (changes, version) = directory.hear();
        self.version = version;
        let mut overrun = false;
        for change in changes {
            match change {
                Change::Set {
                    number,
                    reporter,
                    forget_until,
                } => {
                    let known = self.place(number);
                    *known = Known {
                        reporter,
                        forget_until,
                        leave_at: None,
                    };
                    self.waiting |= forget_until.is_some();
                }
                Change::Remove {
                    number,
                    until,
                    forgotten,
                } => {
                    let known = self.place(number);
                    if forgotten {
                        known.forget_until = Some(until);
                    }
                    known.leave_at = Some(until);
                    self.waiting = true;
                }
                Change::Overrun => overrun = true,
            }
        }
        overrun
    }

    fn place(&mut self, number: u32) -> &mut Known<R> {
        let place = number as usize;
        if place >= self.known.len() {
            self.known.resize_with(place + 1, Known::default);
        }
        &mut self.known[place]
    }

    /// Lets those go whose entries the poller has passed, which has come to this index.
    pub(crate) fn settle(&mut self, directory: &Directory<impl Ring, R>, next: u32) {
        // Dropped when the lock is no longer held: with them rings may go, whose memory an allocator gets
        // back.
        let mut gone = Vec::new();
        let mut inner = directory.lock();
        self.waiting = false;
        for (known, number) in self.known.iter_mut().zip(0..) {
            known.forget_until = known.forget_until.filter(|until| is_before(next, *until));
            match known.leave_at {
                Some(until) if !is_before(next, until) => {
                    gone.push(std::mem::take(known));
                    inner.free(number);
                }
                leave_at => self.waiting |= leave_at.is_some() || known.forget_until.is_some(),
            }
        }
        drop(inner);
        drop(gone);
    }

    /// All entries that have not been taken have moved on by one place.
    pub(crate) fn shift(&mut self) {
        for known in &mut self.known {
            for until in [&mut known.forget_until, &mut known.leave_at] {
                *until = until.map(|until| until.wrapping_add(1));
            }
        }
    }

    /// The shared receive queues that are reported of.
    pub(crate) fn shared(&self) -> HashMap<u32, Arc<SrqLedger>> {
        let known = self.known.iter().zip(0..);
        known
            .filter_map(|(known, number)| Some((number, Arc::clone(known.reporter.shared()?))))
            .collect()
    }
}
