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
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::{Consumer, Observer};
use crate::work::PollError;

/// What a completion queue's poller shares with those who post.
#[derive(Debug)]
pub(crate) struct Shared {
    /// None once nobody polls any more.
    ring: Mutex<Option<Ring>>,
    /// The kernel had no room for a completion.
    overrun: AtomicBool,
    /// The number of the ring's slots: the kernel's indices are below it. 0 once whoever polls is to look
    /// closer, since the above is so, or messages of shared queues come in. So one comparison asks for both.
    usual_below: AtomicU32,
}

#[derive(Debug)]
struct Ring {
    // Before the map, because it points into it.
    observer: Observer,
    _map: Option<RingMap>,
}

impl Shared {
    /// For a completion ring; as for [`Shared::set`].
    pub(super) fn new(ring: &Consumer, observer: Observer, map: Option<RingMap>) -> Self {
        Self {
            ring: Mutex::new(Some(Ring {
                observer,
                _map: map,
            })),
            overrun: AtomicBool::new(false),
            usual_below: AtomicU32::new(ring.slots()),
        }
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
        // Release: behind the store above; pairs with the acquire in `usual_below`.
        self.usual_below.store(0, Ordering::Release);
    }

    /// Has the poller look closer from now on.
    pub(super) fn look_closer(&self) {
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
