//! Which queue pair a completion belongs to: the numbers by which a completion queue's entries name the
//! queues that report to it, and what the poller must know about each.
//!
//! A completion carries a number that this side chose when it created the queue pair (`uidx`). It stands for
//! a place in the poller's table. Places are dense, so the table is an array, which nobody else touches.
//! Creating, resetting or destroying a queue pair adds a *change*, increments `version` and takes away the
//! mask with which the poller looks into its table, once for each completion. It then applies the changes
//! before it interprets the completion. So polling takes no lock while nothing changes.
//!
//! Completions outlive their queue pair. A number is reused only when the poller has passed everything that
//! its last queue pair reported. What a queue pair reported before a reset is skipped, and so is what one
//! reported that is to be forgotten with it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, Weak};

use super::entries::Entries;
use super::format::{INDEX_MASK, RECORD_CONSUMER};
use super::inline::Landing;
use super::ledger::{LooseLedger, RecvLedger, SendLedger, SrqLedger};
use super::memory::Record;
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

    /// The place that the poller's table must have for it, if it must.
    fn needs(&self) -> Option<u32> {
        match self {
            Self::Set { number, .. } => Some(*number),
            Self::Remove { .. } => None,
        }
    }
}

/// The side of a completion queue that its queue pairs share with its poller.
#[derive(Debug)]
pub(super) struct Directory {
    version: AtomicU64,
    /// It tells the device, and everyone here, the first entry that the poller has not given back.
    record: Record,
    /// The last place of the poller's table; 0 if there are changes, or the poller has something else to
    /// attend to before it takes more. Nobody has the place 0. It is stored under the lock, or it is 0 and
    /// the poller's.
    last_place: AtomicU32,
    inner: Mutex<Inner>,
}

/// What is behind the lock, which only creating, resetting, destroying and resizing take.
#[derive(Debug)]
pub(super) struct Inner {
    /// The ring's entries, to see what lies in it.
    pub(super) entries: Entries,
    /// The device had no room for a completion, and the poller has not heard of it.
    overrun: bool,
    changes: Vec<Change>,
    /// Numbers that are in use.
    taken: Vec<bool>,
    /// Once nobody polls any more: the shared receive queues that are reported of, by the numbers.
    closed: Option<HashMap<u32, Arc<SrqLedger>>>,
}

/// What a poller hears of.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) changes: Vec<Change>,
    /// The version that they make.
    pub(super) version: u64,
    /// The last place that its table has now.
    pub(super) last_place: u32,
    /// The device had no room for a completion.
    pub(super) overrun: bool,
}

/// The device has 24 bits for the number. The first place is nobody's: see `last_place`.
const NUMBERS: Range<usize> = 1..1 << 24;

/// The number, in the device's terms, of a queue pair at this place of the pollers' tables: its bytes the
/// other way round, so that an entry has the place in this host's order, on most hosts.
pub(super) fn number_of(place: u32) -> u32 {
    place.swap_bytes() >> 8
}

/// The first entry that has not been given back, by that word of the record. Indices go round modulo 2^24.
#[inline(always)]
pub(super) fn index_of(word: &AtomicU32) -> u32 {
    // Relaxed: only the poller stores it. To others it says where to look for entries, and the entries say
    // whether they are valid.
    u32::from_be(word.load(Ordering::Relaxed))
}

/// Gives the entries before this index back to the device, by that word of the record. What is in them has
/// been copied; what their completions free is given out behind this.
#[inline(always)]
pub(super) fn give_back(word: &AtomicU32, index: u32) {
    // Release: the entries have been read before the device may write them again; its counterpart is the
    // device's look at the record before it writes. That this look finds the index at the latest when a
    // completion comes for which one of these entries made room is the ledgers' release, which comes behind
    // this store, with the poster's acquire and the barrier before its doorbell.
    word.store((index & INDEX_MASK).to_be(), Ordering::Release);
}

/// As [`give_back`], of one more entry, behind which the index's last byte is not 0.
#[inline(always)]
pub(super) fn give_one_back(word: &AtomicU32) {
    /// In the word's order.
    const ONE: u32 = 1_u32.to_be();
    // Relaxed: as in `index_of`. Release: as in `give_back`.
    let next = word.load(Ordering::Relaxed).wrapping_add(ONE);
    word.store(next, Ordering::Release);
}

/// Whether an index of the ring comes before another; both go round modulo 2^24 and are less than 2^23 apart.
#[inline(always)]
pub(super) fn is_before(index: u32, other: u32) -> bool {
    (index.wrapping_sub(other) << 8).cast_signed() < 0
}

impl Directory {
    /// For a ring that begins at its first entry, as the record says.
    pub(super) fn new(entries: Entries, record: Record) -> Self {
        Self {
            version: AtomicU64::new(0),
            record,
            last_place: AtomicU32::new(1),
            inner: Mutex::new(Inner {
                entries,
                overrun: false,
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
    pub(super) fn version(&self) -> u64 {
        // Relaxed: as in `last_place`.
        self.version.load(Ordering::Relaxed)
    }

    /// The last place of the poller's table, or 0 if it has something to attend to: a place that is looked up
    /// with this as the mask is then one that nobody has.
    #[inline(always)]
    pub(super) fn last_place(&self) -> u32 {
        // Relaxed: whoever made a change did so before the device could report anything of it, and the
        // barrier behind the owner bit keeps this load behind the look at the completion. Of what is attended
        // to at the beginning of a poll there is nothing to order: that is under the lock.
        self.last_place.load(Ordering::Relaxed)
    }

    /// Takes over what there is to attend to, for a poller whose table has that last place. What comes behind
    /// this is heard of next time.
    pub(super) fn hear(&self, last_place: u32) -> Heard {
        let mut inner = self.lock();
        let changes = std::mem::take(&mut inner.changes);
        let most = changes.iter().filter_map(Change::needs).max().unwrap_or(0);
        let last_place = last_place.max((most + 1).next_power_of_two() - 1);
        // Relaxed, as is all that is stored under the lock.
        self.last_place.store(last_place, Ordering::Relaxed);
        Heard {
            changes,
            version: self.version(),
            last_place,
            overrun: std::mem::take(&mut inner.overrun),
        }
    }

    /// The record, whose other word arms the queue.
    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    /// The word of the record that says how far entries are given back.
    #[inline(always)]
    pub(super) fn consumer_word(&self) -> &AtomicU32 {
        self.record.word(RECORD_CONSUMER)
    }

    /// The first entry that has not been given back.
    pub(super) fn consumer(&self) -> u32 {
        index_of(self.consumer_word())
    }

    /// Gives the entries before this index back to the device; as for [`give_back`].
    pub(super) fn consumed(&self, index: u32) {
        give_back(self.consumer_word(), index);
    }

    /// Has the poller attend to something that it knows of.
    pub(super) fn attend(&self) {
        // Relaxed: for the poller itself.
        self.last_place.store(0, Ordering::Relaxed);
    }

    /// Tells the poller that the device had no room for a completion.
    pub(super) fn overran(&self) {
        let mut inner = self.lock();
        inner.overrun = true;
        self.last_place.store(0, Ordering::Relaxed);
    }

    fn push(&self, inner: &mut Inner, change: Change) {
        inner.changes.push(change);
        // Relaxed: under the lock; see `last_place` for the looks at them.
        self.version.fetch_add(1, Ordering::Relaxed);
        self.last_place.store(0, Ordering::Relaxed);
    }

    /// Where the present entries end, and whether one of them has this number.
    fn look(&self, inner: &Inner, number: u32) -> (u32, bool) {
        let mut index = self.consumer();
        let mut found = false;
        loop {
            while inner.entries.is_valid(index) {
                found |= inner.entries.place(index) == number;
                index = index.wrapping_add(1);
            }
            // While this looked, the poller may have gone past the place and the device round the ring.
            let consumer = self.consumer();
            if !is_before(index, consumer) {
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
                && let Some(ledger) = shared.get(&inner.entries.place(index))
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
            let number = { NUMBERS }.find(|number| inner.is_free(*number))? as u32;
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
            let number = { NUMBERS }.find(free)? as u32;
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

    /// The number, in the device's terms.
    pub(super) fn number(&self) -> u32 {
        number_of(self.number)
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
