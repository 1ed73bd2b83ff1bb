//! The queues that report to a completion queue, by the device's numbers of their queue pairs.
//!
//! A number may be given to a new queue pair while completions of the one before wait unread. So each queue
//! is known with the place of the ring from which on entries are its own, and once it is gone with the place
//! where they end. Creating, resetting and destroying queue pairs tell the poller of that as *changes*, and
//! count `version` up; the poller compares the version before it interprets a completion.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ring::View;
use crate::driver::kit::directory::is_before;
use crate::driver::kit::ledger::NumberedLedger;

/// A queue that reports.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) ledger: Arc<NumberedLedger>,
    /// As in [`Name`].
    pub(super) takes_unsolicited: bool,
    /// The ring that it reports in.
    ring: usize,
    /// The first entry of that ring that may be its own, and the first that is not, if it is gone.
    from: u32,
    until: Option<u32>,
    /// What it reported goes with it.
    pub(super) is_forgotten: bool,
}

impl Reporter {
    /// Whether it may have written the entry at this index of the ring.
    #[inline(always)]
    fn reports(&self, ring: usize, index: u32) -> bool {
        let may = |until| !is_before(index, self.from) && is_before(index, until);
        self.ring == ring && self.until.is_none_or(may)
    }

    fn is(&self, ledger: &Arc<NumberedLedger>) -> bool {
        Arc::ptr_eq(&self.ledger, ledger)
    }
}

/// Which queue: the queue pair's number, and which of its two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) qpn: u32,
    pub(super) is_receive: bool,
    /// Messages may come that consume no receive. It tells nothing of which queue it is.
    pub(super) takes_unsolicited: bool,
}

/// A change for the poller.
#[derive(Debug)]
enum Change {
    /// The name means this from now on.
    Set(Name, Reporter),
    /// The queue is gone.
    End {
        name: Name,
        ledger: Arc<NumberedLedger>,
        until: u32,
        is_forgotten: bool,
    },
}

/// A ring, and how far the poller is in it.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) view: View,
    /// The first entry that the poller has not taken. Indices count on and wrap at 2^32.
    passed: AtomicU32,
}

impl Ring {
    /// The first entry that the poller has not taken.
    #[inline(always)]
    pub(super) fn passed(&self) -> u32 {
        // Relaxed: only the poller stores it. To others it says where to look for entries, and the entries
        // say whether they are valid.
        self.passed.load(Ordering::Relaxed)
    }
}

/// The side of a completion queue that its queue pairs share with its poller.
#[derive(Debug)]
pub(super) struct Directory {
    /// Counts changes.
    version: AtomicU64,
    rings: Box<[Ring]>,
    /// Entries that the poller has taken of all rings, modulo 2^32.
    taken: AtomicU32,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    changes: Vec<Change>,
    /// Nobody polls any more.
    is_closed: bool,
}

impl Directory {
    pub(super) fn new(rings: Box<[View]>) -> Self {
        let ring = |view| Ring {
            view,
            passed: AtomicU32::new(0),
        };
        Self {
            version: AtomicU64::new(0),
            rings: rings.into_iter().map(ring).collect(),
            taken: AtomicU32::new(0),
            inner: Mutex::default(),
        }
    }

    #[inline(always)]
    pub(super) fn rings(&self) -> &[Ring] {
        &self.rings
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Its contents are consistent after every statement, so a panic elsewhere did no harm.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how far the poller is in a ring, one of these.
    #[inline(always)]
    pub(super) fn pass(&self, ring: &Ring, index: u32) {
        let more = index.wrapping_sub(ring.passed());
        // Relaxed: as in `Ring::passed`, and in `taken`.
        ring.passed.store(index, Ordering::Relaxed);
        let taken = self.taken.load(Ordering::Relaxed).wrapping_add(more);
        self.taken.store(taken, Ordering::Relaxed);
    }

    /// Entries that were taken of all rings, modulo 2^32.
    #[inline(always)]
    pub(super) fn taken(&self) -> u32 {
        // Relaxed: only the poller stores it, and who tells the device of it does so by turns.
        self.taken.load(Ordering::Relaxed)
    }

    /// Where the present entries of a ring end, behind those too that the device has written over.
    fn end(&self, ring: usize) -> u32 {
        let ring = &self.rings[ring];
        let view = ring.view;
        let mut index = ring.passed();
        loop {
            loop {
                index = match view.has_arrived(index) {
                    true => index.wrapping_add(1),
                    false if view.has_overrun(index) => match view.behind_lost(index) {
                        Some(behind) => behind,
                        None => break,
                    },
                    false => break,
                };
            }
            // While this looked, the poller may have gone past the place and the device round the ring.
            let passed = ring.passed();
            if !is_before(index, passed) {
                return index;
            }
            index = passed;
        }
    }

    fn push(&self, inner: &mut Inner, change: Change) {
        inner.changes.push(change);
        // Relaxed: under the lock. Whoever made a change did so before the device could report anything of
        // it, and the barrier behind the phase keeps the poller's load behind the look at the completion.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    fn set(&self, name: Name, ring: usize, ledger: &Arc<NumberedLedger>) {
        let mut inner = self.lock();
        if inner.is_closed {
            return;
        }
        let reporter = Reporter {
            ledger: Arc::clone(ledger),
            takes_unsolicited: name.takes_unsolicited,
            ring,
            from: self.end(ring),
            until: None,
            is_forgotten: false,
        };
        self.push(&mut inner, Change::Set(name, reporter));
    }

    fn end_of(&self, name: Name, ring: usize, ledger: &Arc<NumberedLedger>, is_forgotten: bool) {
        let mut inner = self.lock();
        if inner.is_closed {
            return;
        }
        let until = self.end(ring);
        // The poller does not know of it and never needs to, if it reported nothing.
        let is_idle = |change: &Change| match change {
            Change::Set(_, reporter) => reporter.is(ledger) && reporter.from == until,
            Change::End { .. } => false,
        };
        match inner.changes.iter().position(is_idle) {
            Some(at) => drop(inner.changes.remove(at)),
            None => {
                let ledger = Arc::clone(ledger);
                let end = Change::End {
                    name,
                    ledger,
                    until,
                    is_forgotten,
                };
                self.push(&mut inner, end);
            }
        }
    }

    /// Notes that nobody polls any more.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.changes = Vec::new();
    }
}

/// A queue's place in the directory of its completion queue, until it is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    directory: Arc<Directory>,
    name: Name,
    ring: usize,
    /// That of the requests since the last reset; and whether what was reported goes with the queue.
    now: Mutex<(Arc<NumberedLedger>, bool)>,
}

impl Registration {
    /// `None` if the completion queue has no such ring.
    pub(super) fn new(
        directory: &Arc<Directory>,
        ring: usize,
        name: Name,
        ledger: Arc<NumberedLedger>,
    ) -> Option<Self> {
        directory.rings.get(ring)?;
        directory.set(name, ring, &ledger);
        Some(Self {
            directory: Arc::clone(directory),
            name,
            ring,
            now: Mutex::new((ledger, false)),
        })
    }

    fn now(&self) -> MutexGuard<'_, (Arc<NumberedLedger>, bool)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ledger(&self) -> Arc<NumberedLedger> {
        Arc::clone(&self.now().0)
    }

    /// Starts again with another ledger: whatever was reported before now is passed over.
    pub(super) fn replace(&self, ledger: Arc<NumberedLedger>) {
        let mut now = self.now();
        self.directory.end_of(self.name, self.ring, &now.0, true);
        self.directory.set(self.name, self.ring, &ledger);
        now.0 = ledger;
    }

    /// Has what was reported go with the queue.
    #[cfg(feature = "c-abi")]
    pub(super) fn forget(&self) {
        self.now().1 = true;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let (ledger, is_forgotten) = &*self.now();
        self.directory
            .end_of(self.name, self.ring, ledger, *is_forgotten);
    }
}

/// The poller's table.
#[derive(Debug)]
pub(super) struct Reporters {
    /// By the low bits of the number, in which no two queue pairs at a time are alike, and the queue. The
    /// newest of a place comes last.
    known: Vec<Vec<(u32, Reporter)>>,
    mask: u32,
    version: u64,
    /// Some are gone, and entries of theirs may wait.
    are_leaving: bool,
}

impl Reporters {
    /// For queue pairs whose numbers differ in these low bits.
    pub(super) fn new(mask: u32) -> Self {
        Self {
            known: Vec::new(),
            mask,
            version: 0,
            are_leaving: false,
        }
    }

    #[inline(always)]
    fn place(&self, name: Name) -> usize {
        (name.qpn & self.mask) as usize * 2 + usize::from(name.is_receive)
    }

    /// Whether there are changes to take over.
    #[inline(always)]
    pub(super) fn are_stale(&self, directory: &Directory) -> bool {
        // Relaxed: see `Directory::push`.
        self.version != directory.version.load(Ordering::Relaxed)
    }

    /// Whether some are gone that the poller may have passed.
    #[inline(always)]
    pub(super) fn are_leaving(&self) -> bool {
        self.are_leaving
    }

    /// Who wrote the entry at this index of a ring.
    #[inline(always)]
    pub(super) fn find(&self, name: Name, ring: usize, index: u32) -> Option<&Reporter> {
        let known = self.known.get(self.place(name))?;
        let its =
            |(qpn, reporter): &&(u32, Reporter)| *qpn == name.qpn && reporter.reports(ring, index);
        known.iter().find(its).map(|(_, reporter)| reporter)
    }

    /// The queue that has this number, if it reports in this ring, stays, and there is no other: as
    /// [`find`](Self::find) of most entries.
    #[inline(always)]
    pub(super) fn usual(&self, name: Name, ring: usize) -> Option<&Reporter> {
        let [(qpn, reporter)] = self.known.get(self.place(name))?.as_slice() else {
            return None;
        };
        // One that is forgotten is gone as well.
        let stays = reporter.until.is_none();
        (*qpn == name.qpn && reporter.ring == ring && stays).then_some(reporter)
    }

    /// Takes over what has changed.
    pub(super) fn catch_up(&mut self, directory: &Directory) {
        let mut inner = directory.lock();
        let changes = std::mem::take(&mut inner.changes);
        // Relaxed: under the lock.
        self.version = directory.version.load(Ordering::Relaxed);
        drop(inner);
        for change in changes {
            match change {
                Change::Set(name, reporter) => self.set(name, reporter),
                Change::End {
                    name,
                    ledger,
                    until,
                    is_forgotten,
                } => {
                    let place = self.place(name);
                    let known = self.known.get_mut(place).into_iter().flatten();
                    for (_, gone) in known.filter(|(_, reporter)| reporter.is(&ledger)) {
                        gone.until.get_or_insert(until);
                        gone.is_forgotten |= is_forgotten;
                        self.are_leaving = true;
                    }
                }
            }
        }
    }

    fn set(&mut self, name: Name, reporter: Reporter) {
        let place = self.place(name);
        if place >= self.known.len() {
            self.known.resize_with(place + 1, Vec::new);
        }
        // The kernel has given the number away, so the one before is gone, whether it has been told or not.
        for (_, gone) in &mut self.known[place] {
            if gone.ring == reporter.ring {
                gone.until.get_or_insert(reporter.from);
                self.are_leaving = true;
            }
        }
        self.known[place].push((name.qpn, reporter));
    }

    /// Lets those go whose entries the poller has passed.
    pub(super) fn settle(&mut self, directory: &Directory) {
        self.are_leaving = false;
        let passed = |ring: usize| directory.rings[ring].passed();
        for known in &mut self.known {
            known.retain(|(_, reporter)| {
                let until = reporter.until;
                until.is_none_or(|until| is_before(passed(reporter.ring), until))
            });
            self.are_leaving |= known.iter().any(|(_, it)| it.until.is_some());
        }
    }
}
