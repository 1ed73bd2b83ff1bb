//! Which queue pair a completion belongs to: the numbers by which a completion queue's entries name the
//! queues that report to it, and what the poller must know about each.
//!
//! A completion carries a number that this side chose when it created the queue pair (`uidx`). The numbers of
//! a completion queue are small and dense, so the poller's table is an array that nobody else touches.
//! Creating, resetting or destroying a queue pair adds a *change* and increments `version`. The poller
//! compares the version once for each completion, and applies the changes before it interprets the
//! completion. So polling takes no lock while nothing changes.
//!
//! Completions outlive their queue pair. A number is reused only when the poller has passed everything that
//! its last queue pair reported. What a queue pair reported before a reset is skipped, and so is what one
//! reported that is to be forgotten with it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

use super::entries::Entries;
use super::inline::Landing;
use super::ledger::{LooseLedger, RecvLedger, SendLedger, SrqLedger};
use super::srq::SrqRing;
use super::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::work::Progress;

/// What a queue pair reports to a completion queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Reporter {
    pub(super) send: Option<Arc<SendLedger>>,
    pub(super) recv: Receiver,
    /// Where data in completions go; `None` unless it has asked for them.
    pub(super) landing: Option<Arc<Landing>>,
    /// The ring of the shared queue that it receives from, as long as there is one.
    pub(super) shared_ring: Weak<SrqRing>,
}

/// What it receives from.
#[derive(Clone, Debug, Default)]
pub(super) enum Receiver {
    /// Nothing that reports here.
    #[default]
    None,
    /// Its own queue.
    Own(Arc<RecvLedger>),
    /// Its own queue, whose requests finish in any order.
    Loose(Arc<LooseLedger>),
    /// A shared one.
    Shared(Arc<SrqLedger>),
}

impl Receiver {
    /// What the poster of its own queue knows.
    pub(super) fn notes(&self) -> Option<&Arc<RecvLedger>> {
        match self {
            Self::Own(ledger) => Some(ledger),
            Self::Loose(ledger) => Some(ledger.notes()),
            Self::Shared(_) | Self::None => None,
        }
    }

    /// How far its own queue is. The low halves of two counts are compared: how many requests the device was
    /// told of, which `told` looks up with acquire, and how many are finished.
    pub(super) fn progress(&self, told: impl Fn() -> u32) -> Option<Progress> {
        let mask = u16::MAX.into();
        match self {
            Self::Own(ledger) => Some(Progress::look(mask, told, || ledger.done())),
            Self::Loose(ledger) => Some(Progress::look(mask, told, || ledger.before())),
            Self::Shared(_) | Self::None => None,
        }
    }
}

/// A change for the poller. `until` is an index of the ring: entries before it precede the change.
#[derive(Debug)]
pub(super) enum Change {
    /// The number means this from now on: a new queue pair, or one that starts again, whose entries before
    /// `forget_until` are skipped.
    Set {
        number: u32,
        reporter: Reporter,
        forget_until: Option<u32>,
    },
    /// The queue pair is gone; what it reported before still counts, unless it is forgotten.
    Remove {
        number: u32,
        until: u32,
        forgotten: bool,
    },
}

impl Change {
    fn number(&self) -> u32 {
        match self {
            Self::Set { number, .. } | Self::Remove { number, .. } => *number,
        }
    }
}

/// The side of a completion queue that its queue pairs share with its poller.
#[derive(Debug)]
pub(super) struct Directory {
    version: AtomicU64,
    /// The first entry that the poller has not given back.
    consumer: AtomicU32,
    /// The poller has something to attend to before it takes more.
    attention: AtomicBool,
    /// The device had no room for a completion.
    overrun: AtomicBool,
    inner: Mutex<Inner>,
}

/// What is behind the lock, which only creating, resetting, destroying and resizing take.
#[derive(Debug)]
pub(super) struct Inner {
    /// The ring's entries, to see what lies in it.
    pub(super) entries: Entries,
    changes: Vec<Change>,
    /// Numbers that are in use.
    taken: Vec<bool>,
    /// Once nobody polls any more: the shared receive queues that are reported of, by the numbers.
    closed: Option<HashMap<u32, Arc<SrqLedger>>>,
}

/// The device has 24 bits for the number.
const MOST_NUMBERS: usize = 1 << 24;

impl Directory {
    pub(super) fn new(entries: Entries) -> Self {
        Self {
            version: AtomicU64::new(0),
            consumer: AtomicU32::new(0),
            attention: AtomicBool::new(false),
            overrun: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                entries,
                changes: Vec::new(),
                taken: Vec::new(),
                closed: None,
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        // Its contents are consistent after every statement, so a panic elsewhere did no harm.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when there are changes.
    #[inline(always)]
    pub(super) fn version(&self) -> u64 {
        // Relaxed: whoever made the change did so before the device could report anything of it, and the
        // barrier behind the owner bit keeps this load behind the look at the completion.
        self.version.load(Ordering::Relaxed)
    }

    /// Takes the changes over, and the version that they make.
    pub(super) fn changes(&self) -> (u64, Vec<Change>) {
        let mut inner = self.lock();
        (self.version(), std::mem::take(&mut inner.changes))
    }

    /// The first entry that has not been given back, for the poller.
    #[inline(always)]
    pub(super) fn consumer(&self) -> u32 {
        // Relaxed: only the poller stores it.
        self.consumer.load(Ordering::Relaxed)
    }

    /// Notes how far the poller has come.
    #[inline(always)]
    pub(super) fn consumed(&self, index: u32) {
        // Relaxed: it says where to look for entries, and the entries say whether they are valid.
        self.consumer.store(index, Ordering::Relaxed);
    }

    /// Whether the poller has something to attend to.
    #[inline(always)]
    pub(super) fn needs_attention(&self) -> bool {
        // Relaxed: whoever attends to it acquires.
        self.attention.load(Ordering::Relaxed)
    }

    /// Has the poller attend to something that it knows of.
    pub(super) fn attend(&self) {
        // Relaxed: for the poller itself.
        self.attention.store(true, Ordering::Relaxed);
    }

    /// Tells the poller that the device had no room for a completion.
    pub(super) fn overran(&self) {
        self.overrun.store(true, Ordering::Relaxed);
        // Release: pairs with the acquire in `attended`.
        self.attention.store(true, Ordering::Release);
    }

    /// Takes over, for the poller, that it had something to attend to; true if the device had no room for a
    /// completion.
    pub(super) fn attended(&self) -> bool {
        // Acquire: pairs with the release in `overran`. Who tells of an overrun behind this is heard next
        // time.
        self.attention.swap(false, Ordering::Acquire);
        self.overrun.swap(false, Ordering::Relaxed)
    }

    fn push(&self, inner: &mut Inner, change: Change) {
        inner.changes.push(change);
        // Release: with the lock enough for everyone who takes the changes; see `version` for the look at it.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Where the present entries end, and whether one of them has this number.
    fn look(&self, inner: &Inner, number: u32) -> (u32, bool) {
        let mut index = self.consumer.load(Ordering::Relaxed);
        let mut found = false;
        loop {
            while inner.entries.is_valid(index) {
                found |= inner.entries.number(index) == number;
                index = index.wrapping_add(1);
            }
            // While this looked, the poller may have gone past the place and the device round the ring.
            let consumer = self.consumer.load(Ordering::Relaxed);
            if consumer.wrapping_sub(index).cast_signed() <= 0 {
                return (index, found);
            }
            index = consumer;
        }
    }

    fn add(&self, inner: &mut Inner, number: u32, reporter: Reporter) {
        if let Some(taken) = inner.taken.get_mut(number as usize) {
            *taken = true;
        } else {
            inner.taken.resize(number as usize + 1, false);
            inner.taken[number as usize] = true;
        }
        match (&mut inner.closed, &reporter.recv) {
            (None, _) => {
                let change = Change::Set {
                    number,
                    reporter,
                    forget_until: None,
                };
                self.push(inner, change);
            }
            (Some(shared), Receiver::Shared(ledger)) => {
                shared.insert(number, Arc::clone(ledger));
            }
            (Some(_), _) => {}
        }
    }

    /// Frees the elements of shared receive queues that were reported of since nobody polls any more.
    fn sweep(&self, inner: &mut Inner) {
        let Some(shared) = &inner.closed else {
            return;
        };
        let mut index = self.consumer();
        while inner.entries.is_valid(index) {
            if let Some(element) = inner.entries.received(index)
                && let Some(ledger) = shared.get(&inner.entries.number(index))
            {
                ledger.finish(element);
            }
            index = index.wrapping_add(1);
        }
        self.consumed(index);
    }

    fn replace(&self, number: u32, reporter: Reporter) {
        // Dropped when the lock is no longer held, as in `remove`.
        let mut superseded = Vec::new();
        let mut inner = self.lock();
        self.sweep(&mut inner);
        if inner.closed.is_none() {
            let (until, _) = self.look(&inner, number);
            // An earlier start that the poller has not seen: what it was to skip is skipped with this one.
            let earlier = |change: &mut Change| {
                change.number() == number
                    && matches!(
                        change,
                        Change::Set {
                            forget_until: Some(_),
                            ..
                        }
                    )
            };
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
        // Dropped when the lock is no longer held, as are all changes: with a landing rings may go, whose
        // memory an allocator gets back, and which may do with other queues as it likes.
        let mut gone = Vec::new();
        let mut inner = self.lock();
        self.sweep(&mut inner);
        let ledger = inner.closed.as_mut().map(|shared| shared.remove(&number));
        let (until, reported) = self.look(&inner, number);
        // Made since the poller looked last; one that started again it may know from before.
        let unseen = inner.changes.iter().any(|change| {
            change.number() == number
                && matches!(
                    change,
                    Change::Set {
                        forget_until: None,
                        ..
                    }
                )
        });
        if inner.closed.is_some() || (unseen && !reported) {
            // The poller does not know of it and never needs to.
            gone.extend(
                inner
                    .changes
                    .extract_if(.., |change| change.number() == number),
            );
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

    /// Notes that nobody polls any more, and which shared receive queues are reported of. What has been
    /// reported and not taken frees its element.
    pub(super) fn close(&self, shared: HashMap<u32, Arc<SrqLedger>>) {
        let mut inner = self.lock();
        inner.closed = Some(shared);
        self.sweep(&mut inner);
        let changes = std::mem::take(&mut inner.changes);
        drop(inner);
        drop(changes);
    }
}

impl Inner {
    /// Lets a number be used again.
    pub(super) fn free(&mut self, number: u32) {
        if let Some(taken) = self.taken.get_mut(number as usize) {
            *taken = false;
        }
    }

    fn is_free(&self, number: usize) -> bool {
        !self.taken.get(number).is_some_and(|taken| *taken)
    }

    /// Entries that the poller has not seen have moved on by one place.
    pub(super) fn shift(&mut self) {
        for change in &mut self.changes {
            match change {
                Change::Set {
                    forget_until: None, ..
                } => {}
                Change::Set {
                    forget_until: Some(until),
                    ..
                }
                | Change::Remove { until, .. } => *until = until.wrapping_add(1),
            }
        }
    }
}

/// A queue pair's number in the completion queues that it reports to, until it is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    send: Arc<Directory>,
    recv: Arc<Directory>,
    number: u32,
    /// What was reported goes with it.
    forgets: AtomicBool,
}

impl Registration {
    /// Finds a number that is free in both completion queues, which may be one; `None` if there is none.
    pub(super) fn new(
        send: &Arc<Directory>,
        recv: &Arc<Directory>,
        reporter: Reporter,
    ) -> Option<Self> {
        let number = if Arc::ptr_eq(send, recv) {
            let mut inner = send.lock();
            let number = (0..MOST_NUMBERS).find(|number| inner.is_free(*number))? as u32;
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
            let free = |number: &usize| sends.is_free(*number) && recvs.is_free(*number);
            let number = (0..MOST_NUMBERS).find(free)? as u32;
            let (of_send, of_recv) = halves(reporter);
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
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Has what was reported go with the queue pair.
    #[cfg(feature = "c-abi")]
    pub(super) fn forget(&self) {
        // Relaxed: whoever drops it has it to itself.
        self.forgets.store(true, Ordering::Relaxed);
    }

    /// Starts again with other ledgers: whatever was reported before now is passed over.
    pub(super) fn replace(&self, reporter: Reporter) {
        if Arc::ptr_eq(&self.send, &self.recv) {
            self.send.replace(self.number, reporter);
        } else {
            let (of_send, of_recv) = halves(reporter);
            self.send.replace(self.number, of_send);
            self.recv.replace(self.number, of_recv);
        }
    }
}

fn halves(reporter: Reporter) -> (Reporter, Reporter) {
    let Reporter {
        send,
        recv,
        landing,
        shared_ring,
    } = reporter;
    let of_send = Reporter {
        send,
        recv: Receiver::None,
        landing: landing.clone(),
        shared_ring: Weak::new(),
    };
    let of_recv = Reporter {
        send: None,
        recv,
        landing,
        shared_ring,
    };
    (of_send, of_recv)
}

impl Drop for Registration {
    fn drop(&mut self) {
        let forgotten = self.forgets.load(Ordering::Relaxed);
        self.send.remove(self.number, forgotten);
        if !Arc::ptr_eq(&self.send, &self.recv) {
            self.recv.remove(self.number, forgotten);
        }
    }
}
