//! Which queue a completion belongs to: the numbers by which a completion queue's entries name the queues
//! that report to it, and what has changed among them.
//!
//! A completion carries a number that this side chose when it created the queue pair. It is an index into the
//! poller's table ([`poller`]), which nobody else touches. Creating, resetting or destroying a queue pair
//! adds a *change* here and counts `version` up. The poller compares the version before it interprets a
//! completion, and takes the changes over. So polling takes no lock while nothing changes.
//!
//! Completions outlive their queue pair. A number is reused only when the poller has passed everything that
//! its last queue pair reported. The poller skips what a queue pair reported before a reset, and what one
//! reported whose completions are dropped with it.

pub(crate) mod poller;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError};

use super::barrier;
use super::ledger::SrqLedger;
use super::memory::Record;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// The ring of a completion queue, for threads that do not poll.
pub(crate) trait Ring: Debug {
    /// The highest number by which an entry can name a queue.
    const MOST: u32;
    /// The word of the doorbell record, and its bits, in which the device reads how many entries were given
    /// back.
    const CONSUMER: (usize, u32);

    /// The number of the queue that the entry at this index belongs to, if the device has written one.
    fn number(&self, index: u32) -> Option<u32>;

    /// The index of the request that the entry at this index belongs to, if it reports a receive.
    fn received(&self, index: u32) -> Option<u16>;
}

/// What a queue reports to a completion queue; by default nothing.
pub(crate) trait Report: Debug + Default {
    /// Splits it into what it reports of sends and of receives, for two completion queues.
    fn halves(self) -> (Self, Self);

    /// The ledger of the shared queue from which it receives.
    fn shared(&self) -> Option<&Arc<SrqLedger>>;
}

/// A change for the poller. `until` is an index of the ring: entries before it precede the change.
#[derive(Debug)]
pub(crate) enum Change<R> {
    /// From now on the number means this reporter: a new queue pair, or one that starts again, whose entries
    /// before `forget_until` are skipped.
    Set {
        number: u32,
        reporter: R,
        forget_until: Option<u32>,
    },
    /// The queue pair is gone. Its entries before `until` still count, unless they are forgotten.
    Remove {
        number: u32,
        until: u32,
        forgotten: bool,
    },
    /// The device had no room for a completion.
    Overrun,
}

impl<R> Change<R> {
    fn is_of(&self, of: u32) -> bool {
        match self {
            Self::Set { number, .. } | Self::Remove { number, .. } => *number == of,
            Self::Overrun => false,
        }
    }

    /// Whether a new queue pair has this number.
    fn is_new(&self, of: u32) -> bool {
        matches!(self, Self::Set { number, forget_until: None, .. } if *number == of)
    }

    /// Whether the queue pair with this number starts again.
    fn is_restart(&self, of: u32) -> bool {
        matches!(self, Self::Set { number, forget_until: Some(_), .. } if *number == of)
    }
}

/// The side of a completion queue that its queue pairs share with its poller.
#[derive(Debug)]
pub(crate) struct Directory<E, R> {
    /// Counts changes.
    version: AtomicU64,
    /// The first entry that the poller has not given back. Indices count on in every round and wrap at 2^32.
    passed: AtomicU32,
    /// By it the device learns the same.
    record: Record,
    inner: Mutex<Inner<E, R>>,
}

/// The state under the lock, which only creating, resetting, destroying and resizing take.
#[derive(Debug)]
pub(crate) struct Inner<E, R> {
    /// The ring's entries, to see what lies in it.
    pub(crate) entries: E,
    changes: Vec<Change<R>>,
    /// Numbers that are in use.
    taken: Vec<bool>,
    /// The program polls by itself, and nobody may ever hear the changes.
    is_polled_by_program: bool,
    /// Once nobody polls any more: the shared receive queues that are reported of, by the numbers.
    closed: Option<HashMap<u32, Arc<SrqLedger>>>,
}

/// Whether an index of the ring comes before another.
#[inline(always)]
pub(crate) fn is_before(index: u32, other: u32) -> bool {
    index.wrapping_sub(other).cast_signed() < 0
}

impl<E: Ring, R: Report> Directory<E, R> {
    /// For a ring that begins at its first entry.
    pub(crate) fn new(entries: E, record: Record) -> Self {
        Self {
            version: AtomicU64::new(0),
            passed: AtomicU32::new(0),
            record,
            inner: Mutex::new(Inner {
                entries,
                changes: Vec::new(),
                taken: Vec::new(),
                is_polled_by_program: false,
                closed: None,
            }),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner<E, R>> {
        // Its contents are consistent after every statement, so a panic elsewhere did no harm.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next poll report that the device had no room for a completion.
    pub(crate) fn overran(&self) {
        self.push(&mut self.lock(), Change::Overrun);
    }

    /// Expects that the program polls by itself from now on. It may poll here as well.
    #[allow(
        dead_code,
        reason = "direct verbs of C programs alone tell where rings lie"
    )]
    pub(crate) fn leave_to_program(&self) {
        self.lock().is_polled_by_program = true;
    }

    fn push(&self, inner: &mut Inner<E, R>, change: Change<R>) {
        inner.changes.push(change);
        // Relaxed: under the lock; `version` says why its loads may be relaxed too.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// The index after the present entries, and whether one of them has this number.
    fn look(&self, inner: &Inner<E, R>, number: u32) -> (u32, bool) {
        let mut index = self.passed();
        let mut found = false;
        loop {
            while let Some(of) = inner.entries.number(index) {
                found |= of == number;
                index = index.wrapping_add(1);
            }
            // Meanwhile the poller may have passed this index, and the device may have gone round the ring:
            // then the entry seems not to have arrived. That the poller has passed it must be seen here.
            barrier::owner_before_entry();
            let passed = self.passed();
            if !is_before(index, passed) {
                return (index, found);
            }
            index = passed;
        }
    }

    fn add(&self, inner: &mut Inner<E, R>, number: u32, reporter: R) {
        let least = inner.taken.len().max(number as usize + 1);
        inner.taken.resize(least, false);
        inner.taken[number as usize] = true;
        match &mut inner.closed {
            None => {
                let change = Change::Set {
                    number,
                    reporter,
                    forget_until: None,
                };
                self.push(inner, change);
            }
            Some(shared) => {
                if let Some(ledger) = reporter.shared() {
                    shared.insert(number, Arc::clone(ledger));
                }
            }
        }
    }

    /// Frees the elements of shared receive queues that were reported since nobody polls any more.
    fn sweep(&self, inner: &mut Inner<E, R>) {
        let Some(shared) = &inner.closed else {
            return;
        };
        let mut index = self.passed();
        while let Some(number) = inner.entries.number(index) {
            if let Some(element) = inner.entries.received(index)
                && let Some(ledger) = shared.get(&number)
            {
                ledger.finish(element);
            }
            index = index.wrapping_add(1);
        }
        self.pass(index);
    }

    fn replace(&self, number: u32, reporter: R) {
        // Dropped when the lock is no longer held, as in `remove`.
        let mut superseded = Vec::new();
        let mut inner = self.lock();
        self.sweep(&mut inner);
        if inner.closed.is_none() {
            let (until, _) = self.look(&inner, number);
            // If the poller has not seen an earlier restart yet, what that one skips is skipped by this one
            // too.
            let earlier = |change: &mut Change<R>| change.is_restart(number);
            superseded.extend(inner.changes.extract_if(.., earlier));
            let change = Change::Set {
                number,
                reporter,
                forget_until: Some(until),
            };
            self.push(&mut inner, change);
        }
    }

    fn remove(&self, number: u32, forgotten: bool) {
        // Dropped when the lock is no longer held, as are all changes. With a landing, rings may be dropped;
        // an allocator then gets their memory back, and may call into other queues.
        let mut gone = Vec::new();
        let mut inner = self.lock();
        self.sweep(&mut inner);
        let ledger = inner.closed.as_mut().map(|shared| shared.remove(&number));
        // One that started again the poller may know from before.
        let unseen = inner.changes.iter().any(|change| change.is_new(number));
        // What the ring has for a program that polls by itself is that program's matter, and would keep the
        // changes for ever: finished entries lie there too, since nobody here passes them.
        let (until, reported) = match unseen && inner.is_polled_by_program {
            true => (0, false),
            false => self.look(&inner, number),
        };
        if inner.closed.is_some() || (unseen && !reported) {
            // The poller does not know it and never needs to.
            let its = |change: &mut Change<R>| change.is_of(number);
            gone.extend(inner.changes.extract_if(.., its));
            inner.free(number);
        } else {
            let change = Change::Remove {
                number,
                until,
                forgotten,
            };
            self.push(&mut inner, change);
        }
        drop(inner);
        drop(ledger);
    }

    /// Notes that nobody polls any more, and on which shared receive queues entries report. Entries that have
    /// arrived and were not taken free their elements.
    pub(crate) fn close(&self, shared: HashMap<u32, Arc<SrqLedger>>) {
        let mut inner = self.lock();
        inner.closed = Some(shared);
        self.sweep(&mut inner);
        let changes = std::mem::take(&mut inner.changes);
        drop(inner);
        drop(changes);
    }
}

impl<E, R> Inner<E, R> {
    /// Whether the program polls by itself.
    #[cfg(feature = "c-abi")]
    pub(crate) fn is_polled_by_program(&self) -> bool {
        self.is_polled_by_program
    }

    /// Lets a number be used again.
    pub(crate) fn free(&mut self, number: u32) {
        if let Some(taken) = self.taken.get_mut(number as usize) {
            *taken = false;
        }
    }

    fn is_free(&self, number: u32) -> bool {
        !self.taken.get(number as usize).is_some_and(|taken| *taken)
    }

    /// All entries that the poller has not seen have moved by one place.
    pub(crate) fn shift(&mut self) {
        for change in &mut self.changes {
            if let Change::Set {
                forget_until: Some(until),
                ..
            }
            | Change::Remove { until, .. } = change
            {
                *until = until.wrapping_add(1);
            }
        }
    }
}

/// A queue pair's number in the completion queues that it reports to, until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration<E: Ring, R: Report> {
    send: Arc<Directory<E, R>>,
    recv: Arc<Directory<E, R>>,
    number: u32,
    /// Its unread completions are dropped with it.
    forgets: AtomicBool,
}

impl<E: Ring, R: Report> Registration<E, R> {
    /// Finds a number that is free in both completion queues, which may be one; `None` if there is none.
    pub(crate) fn new(
        send: &Arc<Directory<E, R>>,
        recv: &Arc<Directory<E, R>>,
        reporter: R,
    ) -> Option<Self> {
        let number = if Arc::ptr_eq(send, recv) {
            let mut inner = send.lock();
            let number = (0..=E::MOST).find(|number| inner.is_free(*number))?;
            send.add(&mut inner, number, reporter);
            number
        } else {
            // Two threads that create queue pairs on the same two queues lock them in the same order.
            let (mut sends, mut recvs);
            if Arc::as_ptr(send) < Arc::as_ptr(recv) {
                sends = send.lock();
                recvs = recv.lock();
            } else {
                recvs = recv.lock();
                sends = send.lock();
            }
            let free = |number: &u32| sends.is_free(*number) && recvs.is_free(*number);
            let number = (0..=E::MOST).find(free)?;
            let (of_send, of_recv) = reporter.halves();
            send.add(&mut sends, number, of_send);
            recv.add(&mut recvs, number, of_recv);
            number
        };
        Some(Self {
            send: Arc::clone(send),
            recv: Arc::clone(recv),
            number,
            forgets: AtomicBool::new(false),
        })
    }

    /// The number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Makes the queue pair's unread completions go with it.
    #[cfg(feature = "c-abi")]
    pub(crate) fn forget(&self) {
        // Relaxed: the thread that drops this has it exclusively.
        self.forgets.store(true, Ordering::Relaxed);
    }

    /// Starts again with other ledgers: whatever was reported before now is passed over.
    pub(crate) fn replace(&self, reporter: R) {
        if Arc::ptr_eq(&self.send, &self.recv) {
            self.send.replace(self.number, reporter);
        } else {
            let (of_send, of_recv) = reporter.halves();
            self.send.replace(self.number, of_send);
            self.recv.replace(self.number, of_recv);
        }
    }
}

impl<E: Ring, R: Report> Drop for Registration<E, R> {
    fn drop(&mut self) {
        let forgotten = self.forgets.load(Ordering::Relaxed);
        self.send.remove(self.number, forgotten);
        if !Arc::ptr_eq(&self.send, &self.recv) {
            self.recv.remove(self.number, forgotten);
        }
    }
}
