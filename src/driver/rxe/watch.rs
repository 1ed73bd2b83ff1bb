//! Completions that wait unread, as those who post see them.
//!
//! The kernel frees the slot of a request when it is done with it, whether or not there is room for the
//! completion of another, and drops completions that have no room. So a queue counts as full by what the
//! kernel has of it *and* by its completions that nobody has taken: then a completion queue that holds as
//! much as the queues that report to it never overruns. Who polls has no part in that. Who posts looks for
//! them in the completion ring itself, and only where its queue seems full.
//!
//! One completion of each queue is in neither count for a moment: the kernel moves the work queue's index
//! (`do_complete` in `rxe_comp.c` and `rxe_resp.c`) before it puts the completion in. The completion ring has
//! room for those besides what it is said to hold (`create_cq` in the parent module). Where C programs post,
//! none of this is done: it is as libibverbs has it.
//!
//! A queue pair that is reset in its place starts anew: what its completions of before the reset were of is
//! gone, and a failed receive among them would count as a send. They wait for the poller as before, and
//! whoever posts counts those behind them alone ([`Shared::forget`]).

use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::{Consumer, Observer};
use super::srq::{Receivers, SrqRing};

/// The kernel had no room for a completion.
#[derive(Debug)]
pub(super) struct Overrun;

/// What a completion queue's poller shares with those who post.
#[derive(Debug)]
pub(crate) struct Shared {
    /// None once nobody polls any more.
    ring: Mutex<Option<Ring>>,
    /// Whoever polls looks closer: there is news, or messages of shared queues come in. It is stored under
    /// the lock, as is the next.
    attention: AtomicBool,
    /// Whoever polls has something to see to: an overrun, completions to be forgotten, or that messages of
    /// shared queues come in from now on.
    news: AtomicBool,
}

#[derive(Debug)]
struct Ring {
    // Before the map, because it points into it.
    observer: Observer,
    _map: Option<RingMap>,
    /// The kernel had no room for a completion.
    overrun: bool,
    /// One for each queue pair that has been reset while completions waited, as long as they do.
    forgotten: Vec<Forgotten>,
    /// Those that receive from shared queues, if there ever were any. The poller looks closer from then on.
    receivers: Receivers,
    has_receivers: bool,
}

/// Completions that no longer count: those of a queue pair among the next ones of the ring.
#[derive(Debug)]
struct Forgotten {
    qpn: u32,
    /// How many there were when the poller was here, and where that is.
    left: u32,
    at: u32,
}

impl Forgotten {
    /// How many there are now that the poller is there: less than once round the ring from where it was.
    fn left_at(&self, next: u32, mask: u32) -> u32 {
        let taken = next.wrapping_sub(self.at) & mask;
        self.left.saturating_sub(taken)
    }
}

impl Ring {
    fn new(observer: Observer, map: Option<RingMap>) -> Self {
        Self {
            observer,
            _map: map,
            overrun: false,
            forgotten: Vec::new(),
            receivers: Receivers::default(),
            has_receivers: false,
        }
    }

    /// Notes where the poller is. Those that have been taken need not be remembered.
    fn pass(&mut self, next: u32, mask: u32) {
        self.forgotten.retain_mut(|forgotten| {
            (forgotten.left, forgotten.at) = (forgotten.left_at(next, mask), next);
            forgotten.left > 0
        });
    }

    /// Counts the messages that have come into shared queues since the last time, and returns up to where in
    /// the ring.
    #[inline(always)]
    fn count_received(&mut self) -> u32 {
        let filled = self.observer.filled();
        let mask = self.observer.mask();
        let up_to = filled & mask;
        let from = self.receivers.count_from(up_to);
        match up_to.wrapping_sub(from) & mask {
            0 => {}
            1 => {
                // SAFETY: it lies between what is counted and what is filled.
                let (qpn, received) = unsafe { message(self.observer.slot(from)) };
                if received {
                    self.receivers.complete(qpn, 1);
                }
            }
            _ => self.count_several(from, up_to),
        }
        filled
    }

    /// Counts the messages among several completions. Out of line, so that the loop has the registers.
    #[inline(never)]
    fn count_several(&mut self, from: u32, up_to: u32) {
        // They often come one behind the other to one queue pair, which is then looked up once.
        let (mut last, mut messages) = (0, 0);
        for run in self.observer.runs(from, up_to) {
            for slot in run {
                // SAFETY: as in `count_received`.
                let (qpn, received) = unsafe { message(slot) };
                if received && qpn == last {
                    messages += 1;
                } else if received {
                    self.receivers.complete(last, messages);
                    (last, messages) = (qpn, 1);
                }
            }
        }
        self.receivers.complete(last, messages);
    }
}

/// The queue pair of a completion, and whether a message has come with it.
///
/// # Safety
///
/// The slot lies between what is counted and what the kernel has filled. The slot is not the kernel's again
/// before the completion is taken, which it is not before it is counted.
#[inline(always)]
unsafe fn message(slot: NonNull<u8>) -> (u32, bool) {
    // SAFETY: by this function's contract; every bit pattern is a completion.
    let wc = unsafe { slot.cast::<Wc>().read() };
    // A failed one does not tell whether it was a receive: the queue pair has come to its end then.
    let received = WcStatus(wc.status) == WcStatus::SUCCESS && wc.opcode & WcOpcode::RECV.0 != 0;
    (wc.qp_num, received)
}

impl Shared {
    /// For a completion ring; as for [`Shared::set`].
    pub(super) fn new(observer: Observer, map: Option<RingMap>) -> Self {
        Self {
            ring: Mutex::new(Some(Ring::new(observer, map))),
            attention: AtomicBool::new(false),
            news: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ring>> {
        // It is whole after every statement, so a panic elsewhere has not spoilt it.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the ring that is polled from now on; `map` keeps its memory mapped. The one before goes.
    pub(super) fn set(&self, polled: &Consumer, observer: Observer, map: Option<RingMap>) {
        let mut ring = Ring::new(observer, map);
        let mut place = self.lock();
        if let Some(old) = &mut *place {
            // The kernel has moved what waits.
            let (next, _) = old.observer.indices();
            old.pass(next, old.observer.mask());
            ring.overrun = old.overrun;
            ring.has_receivers = old.has_receivers;
            ring.receivers = mem::take(&mut old.receivers);
            let behind = ring.receivers.counted().wrapping_sub(next) & old.observer.mask();
            let counted = polled.next().wrapping_add(behind) & polled.capacity();
            let _ = ring.receivers.count_from(counted);
            ring.forgotten = mem::take(&mut old.forgotten);
            for forgotten in &mut ring.forgotten {
                forgotten.at = polled.next();
            }
        }
        let old = place.replace(ring);
        // What it knew was of the ring before.
        self.draw_attention();
        drop(place);
        // Not under the lock: an allocator may get the memory back, and may do with other queues as it likes.
        drop(old);
    }

    /// Forgets the completions of a queue pair that wait: it has been reset.
    pub(super) fn forget(&self, qpn: u32) {
        let mut ring = self.lock();
        let Some(ring) = &mut *ring else {
            return;
        };
        let (at, filled) = ring.observer.indices();
        let left = filled.wrapping_sub(at) & ring.observer.mask();
        if left == 0 {
            return;
        }
        // What was to be forgotten before comes before.
        ring.forgotten.retain(|forgotten| forgotten.qpn != qpn);
        ring.forgotten.push(Forgotten { qpn, left, at });
        // From its next poll on the poller tells where it is.
        self.draw_attention();
    }

    /// Tells the poller that the kernel had no room for a completion.
    pub(super) fn overran(&self) {
        if let Some(ring) = &mut *self.lock() {
            ring.overrun = true;
            self.draw_attention();
        }
    }

    /// Has the poller see to something. For who has the lock.
    fn draw_attention(&self) {
        // Relaxed: what there is to see is under the lock. A poll that finds a completion of later finds this
        // too: it loads the ring's index first, with acquire.
        self.news.store(true, Ordering::Relaxed);
        self.attention.store(true, Ordering::Relaxed);
    }

    /// Whether the poller has to look closer.
    #[inline(always)]
    pub(super) fn needs_attention(&self) -> bool {
        // Relaxed: as in `draw_attention`.
        self.attention.load(Ordering::Relaxed)
    }

    /// Whether the poller has something to see to.
    #[inline(always)]
    pub(super) fn has_news(&self) -> bool {
        // Relaxed: as in `draw_attention`.
        self.news.load(Ordering::Relaxed)
    }

    /// Sees to what has come up since the last poll: what has been taken need not be forgotten any more, and
    /// an overrun is told, once.
    #[cold]
    fn attend(&self, ring: &mut Ring, polled: &Consumer) -> Result<(), Overrun> {
        ring.pass(polled.next(), polled.capacity());
        if mem::take(&mut ring.overrun) {
            // What else there is waits for the next poll.
            return Err(Overrun);
        }
        // Relaxed: for the poller, which is the caller.
        let is_left = !ring.forgotten.is_empty();
        self.news.store(is_left, Ordering::Relaxed);
        let counts = ring.has_receivers;
        self.attention.store(is_left || counts, Ordering::Relaxed);
        Ok(())
    }

    /// A new queue pair that receives from a shared queue. Nothing of it has come yet.
    pub(super) fn attach(&self, qpn: u32, srq: &Arc<SrqRing>) {
        let mut place = self.lock();
        let known = place.as_mut().and_then(|ring| {
            if ring.has_receivers {
                let _ = ring.count_received();
            } else {
                // Nobody has counted before. What lies there is of others, and may be the kernel's again.
                let filled = ring.observer.filled() & ring.observer.mask();
                let _ = ring.receivers.count_from(filled);
                ring.has_receivers = true;
            }
            ring.receivers.insert(qpn, srq)
        });
        self.draw_attention();
        drop(place);
        // Not under the lock, as in `set`.
        drop(known);
    }

    /// A queue pair that received from a shared queue, and is gone.
    pub(super) fn detach(&self, qpn: u32, srq: &Arc<SrqRing>) {
        let mut place = self.lock();
        let known = place.as_mut().and_then(|ring| {
            let _ = ring.count_received();
            ring.receivers.remove(qpn, srq)
        });
        drop(place);
        // Not under the lock, as in `set`.
        drop(known);
    }

    /// Looks closer, for the poller: sees to what has come up, and counts the messages that came into shared
    /// queues before they are taken. Gives the index behind the last completion that is counted, and whether
    /// messages are to be counted from now on.
    #[inline(always)]
    pub(super) fn closer(&self, polled: &Consumer) -> Result<(u32, bool), Overrun> {
        let mut ring = self.lock();
        // There is one as long as somebody polls.
        let Some(ring) = &mut *ring else {
            return Ok((polled.next(), false));
        };
        if self.has_news() {
            self.attend(ring, polled)?;
        }
        Ok((ring.count_received(), ring.has_receivers))
    }

    /// Lets the ring go.
    pub(super) fn close(&self) {
        let mut place = self.lock();
        if let Some(ring) = &mut *place
            && ring.has_receivers
        {
            let _ = ring.count_received();
        }
        let old = place.take();
        drop(place);
        // Not under the lock, as in `set`.
        drop(old);
    }
}

/// What a work queue's completions are told by.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    shared: Arc<Shared>,
    qpn: u32,
    receives: bool,
}

impl Watch {
    /// For the sends of a queue pair, or its receives.
    pub(super) fn new(shared: &Arc<Shared>, qpn: u32, receives: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            qpn,
            receives,
        }
    }

    /// How many of the queue's completions nobody has taken, of those that are not forgotten; at least so
    /// many as there are at one moment of the call. None if nobody polls any more.
    pub(super) fn unread(&self) -> u32 {
        let ring = self.shared.lock();
        let Some(Ring {
            observer,
            forgotten,
            ..
        }) = &*ring
        else {
            return 0;
        };
        let forgotten = forgotten.iter().find(|it| it.qpn == self.qpn);
        let skip = |next| forgotten.map_or(0, |it| it.left_at(next, observer.mask()));
        let mut count = 0;
        observer.each(skip, |slot| count += u32::from(self.is_mine(slot.cast())));
        count
    }

    /// Whether a completion is of this queue. What failed says not of what kind it was, and counts for both.
    fn is_mine(&self, wc: NonNull<Wc>) -> bool {
        let wc = wc.as_ptr();
        // SAFETY: the slot holds a completion, whose bytes the kernel may be writing anew if it has been
        // taken meanwhile; each field is read once, and every bit pattern is one.
        let (qpn, status, opcode) = unsafe {
            (
                (&raw const (*wc).qp_num).read_volatile(),
                (&raw const (*wc).status).read_volatile(),
                (&raw const (*wc).opcode).read_volatile(),
            )
        };
        let is_receive = opcode & WcOpcode::RECV.0 != 0;
        qpn == self.qpn && (status != WcStatus::SUCCESS.0 || is_receive == self.receives)
    }
}
