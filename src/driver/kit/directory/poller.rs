//! The poller's side: how far it is in the ring, and its table of the queues that report there, by their
//! numbers. Only the poller uses the table; changes reach it through the [`Directory`].

use std::collections::HashMap;
use std::sync::Arc;

use super::super::ledger::SrqLedger;
use super::super::memory::Record;
use super::super::sync::Ordering;
use super::{Change, Directory, Report, Ring, is_before};

/// The poller's table.
#[derive(Debug)]
pub(crate) struct Reporters<R> {
    /// By their numbers. Where no queue has the number, an entry that reports nothing.
    known: Vec<Known<R>>,
    /// The version of the directory to which the table corresponds.
    version: u64,
    /// Some queues wait until the poller has passed entries of theirs.
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
    /// Whether it has started again, or the poller drops its completions, and the ring may still hold older
    /// entries of it.
    #[inline(always)]
    pub(crate) fn forgets(&self) -> bool {
        self.forget_until.is_some()
    }

    /// Whether the poller skips the entry at this index.
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

    /// The queue that has this number, or had it last.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&Known<R>> {
        self.known.get(number as usize)
    }

    /// Whether there are changes to take over.
    #[inline(always)]
    pub(crate) fn are_stale(&self, directory: &Directory<impl Ring, R>) -> bool {
        self.version != directory.version()
    }

    /// Whether some queues wait until the poller has passed entries of theirs ([`Self::settle`]).
    #[inline(always)]
    pub(crate) fn are_waiting(&self) -> bool {
        self.waiting
    }

    /// Takes over what has changed; returns whether the device had no room for a completion.
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

    /// Ends the wait of queues whose entries the poller has passed. It has come to index `next`.
    pub(crate) fn settle(&mut self, directory: &Directory<impl Ring, R>, next: u32) {
        // Dropped when the lock is no longer held: with them rings may be dropped, whose memory an allocator
        // gets back.
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

    /// No entry before `end` is passed over any more, and those that are left begin at `first`. They may have
    /// moved, so a number whose entries are to be taken waits for all of them.
    #[cfg(feature = "c-abi")]
    pub(crate) fn were_cleaned(&mut self, first: u32, end: u32) {
        for known in &mut self.known {
            let forgotten = known.forget_until.take();
            known.leave_at = known.leave_at.map(|leave_at| match forgotten {
                Some(until) if !is_before(until, leave_at) => first,
                _ => end,
            });
        }
    }

    /// All entries that have not been taken have moved by one place.
    pub(crate) fn shift(&mut self) {
        for known in &mut self.known {
            for until in [&mut known.forget_until, &mut known.leave_at] {
                *until = until.map(|until| until.wrapping_add(1));
            }
        }
    }

    /// The shared receive queues on which entries report, by their numbers.
    pub(crate) fn shared(&self) -> HashMap<u32, Arc<SrqLedger>> {
        let known = self.known.iter().zip(0..);
        known
            .filter_map(|(known, number)| Some((number, Arc::clone(known.reporter.shared()?))))
            .collect()
    }
}

impl<E: Ring, R: Report> Directory<E, R> {
    /// How many changes there have been.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        // Relaxed: a change is made before the device can report anything that depends on it, and the barrier
        // after the owner bit keeps this load after the look at the completion.
        self.version.load(Ordering::Relaxed)
    }

    /// Takes the changes, for the poller, and the version that they lead to.
    pub(crate) fn hear(&self) -> (Vec<Change<R>>, u64) {
        let mut inner = self.lock();
        (std::mem::take(&mut inner.changes), self.version())
    }

    /// The first entry that has not been given back.
    #[inline(always)]
    pub(crate) fn passed(&self) -> u32 {
        // Relaxed: only the poller stores it. To others it says where to look for entries, and the entries
        // say whether they are valid.
        self.passed.load(Ordering::Relaxed)
    }

    /// The record, whose other word arms the queue.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Gives the entries before this index back to the device. Their contents have been copied. What their
    /// completions free may be used again only after this.
    #[inline(always)]
    pub(crate) fn pass(&self, index: u32) {
        // Relaxed: as in `passed`.
        self.passed.store(index, Ordering::Relaxed);
        // Release: the entries have been read before the device may write them again; its counterpart is the
        // device's look at the record before it writes. When the device writes a completion for which one of
        // these entries made room, it must see this index. That follows from the ledgers' release, which
        // comes after this store, the poster's acquire, and the barrier before its doorbell.
        let (word, bits) = E::CONSUMER;
        let index = (index & bits).to_be();
        self.record.word(word).store(index, Ordering::Release);
    }
}
