//! The queues that report to a completion queue, by the device's numbers of their queue pairs.
//!
//! The kernel may give a number to a new queue pair while completions of the previous one wait unread. So
//! each queue is known with the index in the ring from which on entries are its own, and once it is gone also
//! with the index where they end. Creating, resetting and destroying a queue pair passes these to the poller
//! as *changes* and counts `version` up. The poller compares the version before it interprets a completion.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::order;
use super::ring::View;
use crate::driver::kit::directory::is_before;
use crate::driver::kit::ledger::NumberedLedger;

/// A queue that reports.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) ledger: Arc<NumberedLedger>,
    qpn: u32,
    /// The ring that it reports in, and the first entry of it that may be its own.
    ring: u32,
    from: u32,
    /// As in [`Name`].
    pub(super) takes_unsolicited: bool,
}

impl Reporter {
    /// Whether it has this number, and reports in this ring.
    #[inline(always)]
    fn reports(&self, name: Name, ring: u32) -> bool {
        self.qpn == name.qpn && self.ring == ring
    }

    fn is(&self, ledger: &Arc<NumberedLedger>) -> bool {
        Arc::ptr_eq(&self.ledger, ledger)
    }
}

/// A queue that is gone: its place in the poller's table, and the first entry of its ring that is not its
/// own.
#[derive(Debug)]
struct Gone {
    place: usize,
    reporter: Reporter,
    until: u32,
    /// What it reported goes with it.
    is_forgotten: bool,
}

impl Gone {
    fn new(place: usize, reporter: Reporter, until: u32) -> Self {
        Self {
            place,
            reporter,
            until,
            is_forgotten: false,
        }
    }
}

/// Who wrote an entry.
#[derive(Debug)]
pub(super) enum Whose<'r> {
    Queue(&'r Reporter),
    /// A queue that is gone, whose entries go with it.
    Forgotten,
    Nobody,
}

/// The name of a queue: its queue pair's number, and which of the queue pair's two queues it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) qpn: u32,
    pub(super) is_receive: bool,
    /// Messages may come that consume no receive. This does not identify the queue.
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
    /// Which of the queue's rings it is.
    pub(super) number: u32,
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

    /// Goes on to the entry at this index.
    #[inline(always)]
    pub(super) fn pass(&self, index: u32) {
        // Relaxed: as in `passed`.
        self.passed.store(index, Ordering::Relaxed);
    }
}

/// The side of a completion queue that its queue pairs share with its poller.
#[derive(Debug)]
pub(super) struct Directory {
    /// Counts changes.
    version: AtomicU64,
    rings: Box<[Ring]>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    changes: Vec<Change>,
    /// The program polls by itself, and nobody may ever hear the changes.
    is_polled_by_program: bool,
    /// Nobody polls any more.
    is_closed: bool,
}

impl Directory {
    pub(super) fn new(rings: Box<[View]>) -> Self {
        let ring = |(view, number)| Ring {
            view,
            number,
            passed: AtomicU32::new(0),
        };
        Self {
            version: AtomicU64::new(0),
            rings: rings.into_iter().zip(0..).map(ring).collect(),
            inner: Mutex::default(),
        }
    }

    #[inline(always)]
    pub(super) fn rings(&self) -> &[Ring] {
        &self.rings
    }

    /// The ring that comes after the one with this number.
    #[inline(always)]
    pub(super) fn behind(&self, ring: u32) -> &Ring {
        let next = self.rings.get(ring as usize + 1);
        next.unwrap_or(&self.rings[0])
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Its contents are consistent after every statement, so a panic elsewhere did no harm.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index after the present entries of a ring, including those that the device has written over.
    fn end(&self, ring: u32) -> u32 {
        let ring = &self.rings[ring as usize];
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
            // Meanwhile the poller may have passed this index, and the device may have gone round the ring:
            // then the entry seems not to have arrived. That the poller has passed it must be seen here.
            order::after_phase();
            let passed = ring.passed();
            if !is_before(index, passed) {
                return index;
            }
            index = passed;
        }
    }

    fn push(&self, inner: &mut Inner, change: Change) {
        inner.changes.push(change);
        // Relaxed: under the lock. A change is made before the device can report anything that depends on it,
        // and the barrier after the phase keeps the poller's load of the version after its look at the
        // completion.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    fn set(&self, name: Name, ring: u32, ledger: &Arc<NumberedLedger>) {
        let mut inner = self.lock();
        if inner.is_closed {
            return;
        }
        let reporter = Reporter {
            ledger: Arc::clone(ledger),
            qpn: name.qpn,
            ring,
            from: self.end(ring),
            takes_unsolicited: name.takes_unsolicited,
        };
        self.push(&mut inner, Change::Set(name, reporter));
    }

    fn end_of(&self, name: Name, ring: u32, ledger: &Arc<NumberedLedger>, is_forgotten: bool) {
        let mut inner = self.lock();
        if inner.is_closed {
            return;
        }
        let until = self.end(ring);
        // If the poller has not heard of it, and it has reported nothing, the poller never needs to. What the
        // rings have for a program that polls by itself is that program's matter, and would keep the changes
        // for ever.
        let is_polled_by_program = inner.is_polled_by_program;
        let is_needless = |change: &Change| match change {
            Change::Set(_, reporter) => {
                reporter.is(ledger) && (is_polled_by_program || reporter.from == until)
            }
            Change::End { .. } => false,
        };
        match inner.changes.iter().position(is_needless) {
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

    /// Expects that the program polls by itself from now on. It may poll here as well.
    #[cfg(feature = "c-abi")]
    pub(super) fn leave_to_program(&self) {
        self.lock().is_polled_by_program = true;
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
    ring: u32,
    /// The ledger of the requests since the last reset; and whether unread completions are skipped once the
    /// queue is gone.
    now: Mutex<(Arc<NumberedLedger>, bool)>,
}

impl Registration {
    /// `None` if the completion queue has no such ring.
    pub(super) fn new(
        directory: &Arc<Directory>,
        ring: u32,
        name: Name,
        ledger: Arc<NumberedLedger>,
    ) -> Option<Self> {
        directory.rings.get(ring as usize)?;
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

    /// From the end of the queue on, its unread completions are passed over.
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
    /// The newest queues, by the low bits of their queue pairs' numbers, in which no two queue pairs of the
    /// same time agree, and by which of the two queues it is.
    known: Vec<Option<Reporter>>,
    mask: u32,
    version: u64,
    /// Queues that are gone, of which entries may still wait; the oldest first.
    gone: Vec<Gone>,
}

impl Reporters {
    /// For queue pairs whose numbers differ in these low bits.
    pub(super) fn new(mask: u32) -> Self {
        Self {
            known: Vec::new(),
            mask,
            version: 0,
            gone: Vec::new(),
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

    /// Whether there are queues that are gone, whose entries the poller may have passed.
    #[inline(always)]
    pub(super) fn are_leaving(&self) -> bool {
        !self.gone.is_empty()
    }

    /// The queue that the entry at this index of a ring belongs to.
    #[inline(always)]
    pub(super) fn find(&self, name: Name, ring: u32, index: u32) -> Whose<'_> {
        if self.are_leaving()
            && let Some(gone) = self.find_gone(name, ring, index)
        {
            return match gone.is_forgotten {
                true => Whose::Forgotten,
                false => Whose::Queue(&gone.reporter),
            };
        }
        match self.known.get(self.place(name)) {
            Some(Some(known)) if known.reports(name, ring) => Whose::Queue(known),
            _ => Whose::Nobody,
        }
    }

    /// As [`Self::find`], among the queues that are gone.
    #[cold]
    #[inline(never)]
    fn find_gone(&self, name: Name, ring: u32, index: u32) -> Option<&Gone> {
        let place = self.place(name);
        let may = |gone: &&Gone| {
            let is_its = gone.place == place && gone.reporter.reports(name, ring);
            is_its && is_before(index, gone.until)
        };
        self.gone.iter().find(may)
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
                Change::Set(name, reporter) => self.set(name, reporter, directory),
                Change::End {
                    name,
                    ledger,
                    until,
                    is_forgotten,
                } => self.end(name, &ledger, until, is_forgotten),
            }
        }
    }

    fn set(&mut self, name: Name, reporter: Reporter, directory: &Directory) {
        let (ring, from) = (reporter.ring, reporter.from);
        let place = self.place(name);
        if place >= self.known.len() {
            self.known.resize_with(place + 1, || None);
        }
        // The kernel has given the number to a new queue pair, so the one before is gone, even if its change
        // has not come yet.
        if let Some(reporter) = self.known[place].replace(reporter) {
            let until = match reporter.ring == ring {
                true => from,
                false => directory.end(reporter.ring),
            };
            self.gone.push(Gone::new(place, reporter, until));
        }
    }

    fn end(&mut self, name: Name, ledger: &Arc<NumberedLedger>, until: u32, is_forgotten: bool) {
        let place = self.place(name);
        let known = self.known.get_mut(place);
        if let Some(reporter) = known.and_then(|known| known.take_if(|it| it.is(ledger))) {
            self.gone.push(Gone::new(place, reporter, until));
        }
        if let Some(gone) = self.gone.iter_mut().find(|gone| gone.reporter.is(ledger)) {
            gone.is_forgotten |= is_forgotten;
        }
    }

    /// Removes the queues that are gone and whose entries the poller has passed.
    pub(super) fn settle(&mut self, directory: &Directory) {
        let passed = |ring: u32| directory.rings[ring as usize].passed();
        self.gone
            .retain(|gone| is_before(passed(gone.reporter.ring), gone.until));
    }
}
