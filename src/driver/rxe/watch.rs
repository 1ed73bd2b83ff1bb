//! Completions that wait unread, as those who post see them.
//!
//! The kernel frees the slot of a request when it is done with it, whether or not there is room for the
//! completion of another, and drops completions that have no room. So a queue counts as full by what the
//! kernel has of it *and* by its completions that nobody has taken: then a completion queue that holds as much
//! as the queues that report to it never overruns. Who polls has no part in that. Who posts looks for them in
//! the completion ring itself, and only where its queue seems full.
//!
//! One completion of each queue is in neither count for a moment: the kernel moves the work queue's index
//! (`do_complete` in `rxe_comp.c` and `rxe_resp.c`) before it puts the completion in. The completion ring has
//! room for those besides what it is said to hold (`create_cq` in the parent module).
//!
//! A queue pair that is reset in its place starts anew: what its completions of before the reset were of is gone,
//! and a failed receive among them would count as a send. They wait for the poller as before, and whoever posts
//! counts those behind them alone ([`Shared::forget`]).

use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::{Consumer, Observer};
use super::srq::Receivers;
use crate::work::PollError;

/// What a completion queue's poller shares with those who post.
#[derive(Debug)]
pub(crate) struct Shared {
    /// None once nobody polls any more.
    ring: Mutex<Option<Ring>>,
    /// The kernel had no room for a completion.
    overrun: AtomicBool,
    /// Completions are to be forgotten, and the poller tells where it is.
    forgets: AtomicBool,
    /// The number of the ring's slots: the kernel's indices are below it. 0 once whoever polls is to look
    /// closer, since one of the above is so, or messages of shared queues come in. So one comparison asks for all.
    usual_below: AtomicU32,
    /// For the poller, which counts what shared receive queues received.
    receivers: Receivers,
}

#[derive(Debug)]
struct Ring {
    // Before the map, because it points into it.
    observer: Observer,
    _map: Option<RingMap>,
    /// One for each queue pair that has been reset while completions waited, as long as they do.
    forgotten: Vec<Forgotten>,
    /// The poller is to look closer for as long as the queue is there.
    always_closer: bool,
}

/// Completions that no longer count: those of a queue pair among the next so many of the ring.
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
    /// Notes where the poller is. Those that have been taken need not be remembered.
    fn pass(&mut self, next: u32, mask: u32) {
        self.forgotten.retain_mut(|forgotten| {
            (forgotten.left, forgotten.at) = (forgotten.left_at(next, mask), next);
            forgotten.left > 0
        });
    }
}

impl Shared {
    /// For a completion ring; as for [`Shared::set`].
    pub(super) fn new(ring: &Consumer, observer: Observer, map: Option<RingMap>) -> Self {
        Self {
            ring: Mutex::new(Some(Ring {
                observer,
                _map: map,
                forgotten: Vec::new(),
                always_closer: false,
            })),
            overrun: AtomicBool::new(false),
            forgets: AtomicBool::new(false),
            usual_below: AtomicU32::new(ring.slots()),
            receivers: Receivers::default(),
        }
    }

    /// The shared receive queues that are received from.
    pub(super) fn receivers(&self) -> &Receivers {
        &self.receivers
    }

    fn lock(&self) -> MutexGuard<'_, Option<Ring>> {
        // It is whole after every statement, so a panic elsewhere has not spoilt it.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the ring that is polled from now on; `map` keeps its memory mapped. The one before goes.
    pub(super) fn set(&self, polled: &Consumer, observer: Observer, map: Option<RingMap>) {
        // Relaxed: for the poller, which is the caller. What is 0 stays so.
        let usual = |below| (below != 0).then_some(polled.slots());
        let _ = self
            .usual_below
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, usual);
        let mut ring = Ring {
            observer,
            _map: map,
            forgotten: Vec::new(),
            always_closer: false,
        };
        let mut place = self.lock();
        if let Some(old) = &mut *place {
            // The kernel has moved what waits.
            let (next, _) = old.observer.indices();
            old.pass(next, old.observer.mask());
            ring.always_closer = old.always_closer;
            ring.forgotten = mem::take(&mut old.forgotten);
            for forgotten in &mut ring.forgotten {
                forgotten.at = polled.next();
            }
        }
        let old = place.replace(ring);
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
        self.forgets.store(true, Ordering::Relaxed);
        // Release: behind the store above; pairs with the acquire in `usual_below`.
        self.usual_below.store(0, Ordering::Release);
    }

    /// Notes where the poller is, which looks closer until nothing is to be forgotten any more.
    #[inline(always)]
    pub(super) fn pass(&self, polled: &Consumer) {
        // Relaxed: as in `forget`.
        if self.forgets.load(Ordering::Relaxed) {
            self.note_place(polled);
        }
    }

    #[cold]
    fn note_place(&self, polled: &Consumer) {
        let mut ring = self.lock();
        let Some(ring) = &mut *ring else {
            return;
        };
        ring.pass(polled.next(), polled.capacity());
        if !ring.forgotten.is_empty() {
            return;
        }
        // Relaxed: all of these are set under the lock, but for what is the caller's own.
        self.forgets.store(false, Ordering::Relaxed);
        if !ring.always_closer && !self.overrun.load(Ordering::Relaxed) {
            self.usual_below.store(polled.slots(), Ordering::Relaxed);
        }
    }

    /// Tells the poller that the kernel had no room for a completion.
    pub(super) fn overran(&self) {
        // So that `pass` does not take it back.
        let _ring = self.lock();
        self.overrun.store(true, Ordering::Relaxed);
        // Release: behind the store above; pairs with the acquire in `usual_below`.
        self.usual_below.store(0, Ordering::Release);
    }

    /// Has the poller look closer from now on.
    pub(super) fn look_closer(&self) {
        let mut ring = self.lock();
        if let Some(ring) = &mut *ring {
            ring.always_closer = true;
        }
        // Release: pairs with the acquire in `usual_below`.
        self.usual_below.store(0, Ordering::Release);
    }

    /// The number of slots of the ring that is polled, or 0 if the poller is to look closer.
    #[inline(always)]
    pub(super) fn usual_below(&self) -> u32 {
        self.usual_below.load(Ordering::Acquire)
    }

    /// Whether the poller is to be told so.
    pub(super) fn has_overrun(&self) -> bool {
        // Relaxed: as in `overran`.
        self.overrun.load(Ordering::Relaxed)
    }

    /// Tells it, once.
    #[cold]
    #[inline(never)]
    pub(super) fn tell(&self) -> PollError {
        // Relaxed: as in `overran`.
        self.overrun.store(false, Ordering::Relaxed);
        PollError::Overrun
    }

    /// Lets the ring go.
    pub(super) fn close(&self) {
        let old = self.lock().take();
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

    /// How many of the queue's completions nobody has taken, of those that are not forgotten; at least so many as
    /// there are at one moment of the call. None if nobody polls any more.
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
        // SAFETY: the slot holds a completion, whose bytes the kernel may be writing anew if it has been taken
        // meanwhile; each field is read once, and every bit pattern is one.
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
