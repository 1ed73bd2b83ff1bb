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

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::Observer;
use crate::work::PollError;

/// What a completion queue's poller shares with those who post.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// None once nobody polls any more.
    ring: Mutex<Option<Ring>>,
    /// The kernel had no room for a completion.
    overrun: AtomicBool,
    /// Whoever polls is to look closer: that is so, or messages of shared queues come in.
    unusual: AtomicBool,
}

#[derive(Debug)]
struct Ring {
    // Before the map, because it points into it.
    observer: Observer,
    _map: Option<RingMap>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Ring>> {
        // It is whole after every statement, so a panic elsewhere has not spoilt it.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over a ring; `map` keeps its memory mapped. The one before goes.
    pub(super) fn set(&self, observer: Observer, map: Option<RingMap>) {
        let ring = Ring {
            observer,
            _map: map,
        };
        let old = self.lock().replace(ring);
        // Not under the lock: an allocator may get the memory back, and may do with other queues as it likes.
        drop(old);
    }

    /// Tells the poller that the kernel had no room for a completion.
    pub(super) fn overran(&self) {
        self.overrun.store(true, Ordering::Relaxed);
        // Release: behind the store above; pairs with the acquire in `is_unusual`.
        self.unusual.store(true, Ordering::Release);
    }

    /// Has the poller look closer from now on.
    pub(super) fn look_closer(&self) {
        self.unusual.store(true, Ordering::Release);
    }

    /// Whether the poller is to look closer.
    #[inline(always)]
    pub(super) fn is_unusual(&self) -> bool {
        self.unusual.load(Ordering::Acquire)
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

    /// How many of the queue's completions nobody has taken; at least so many as there are at one moment of
    /// the call. None if nobody polls any more.
    pub(super) fn unread(&self) -> u32 {
        let ring = self.shared.lock();
        let Some(Ring { observer, .. }) = &*ring else {
            return 0;
        };
        let mut count = 0;
        observer.each(|slot| count += u32::from(self.is_mine(slot.cast())));
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
