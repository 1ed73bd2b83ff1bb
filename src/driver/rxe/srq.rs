//! Shared receive queues. The kernel takes an element out of the ring when the first packet of a message
//! arrives and writes to its memory until the last one (`get_srq_wqe` in `drivers/infiniband/sw/rxe/rxe_resp.c`),
//! so the ring's index does not tell when a request is finished. Its completion does: pollers count them.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::map::RingView;
use super::recv::RecvQueue;
use super::watch::Shared;
use crate::driver::contract;
use crate::work::{Element, LocalKey, PostError, Progress};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedRecvQueue {
    queue: RecvQueue,
    ring: Arc<SrqRing>,
}

/// What a shared receive queue's requests are counted by. All counts go round modulo 2^32.
#[derive(Debug)]
pub(crate) struct SrqRing {
    /// Under a lock, since the queue may change its size. None once nobody posts any more: its place is its
    /// user's again.
    view: Mutex<Option<RingView>>,
    /// Requests that were handed to the kernel.
    posted: AtomicU32,
    /// Requests whose completions were taken.
    completed: AtomicU32,
    /// So many requests are surely finished: all that the kernel had taken out at a time when it had no
    /// message under way.
    finished: AtomicU32,
    /// Queue pairs that receive from it.
    receivers: Mutex<u32>,
}

impl SharedRecvQueue {
    pub(super) fn new(queue: RecvQueue, view: RingView) -> Self {
        let ring = SrqRing {
            view: Mutex::new(Some(view)),
            posted: AtomicU32::new(0),
            completed: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            receivers: Mutex::new(0),
        };
        Self {
            queue,
            ring: Arc::new(ring),
        }
    }

    pub(super) fn ring(&self) -> &Arc<SrqRing> {
        &self.ring
    }

    /// Takes over another ring, to which `resize` has moved the waiting requests. Nobody looks meanwhile: one
    /// who looked at the old ring would miss what the kernel takes out of the new one.
    pub(super) fn replace<E>(
        &mut self,
        resize: impl FnOnce(&RecvQueue) -> Result<(RecvQueue, RingView), E>,
    ) -> Result<(), E> {
        let mut view = self.ring.view();
        let (queue, new) = resize(&self.queue)?;
        let old = (mem::replace(&mut self.queue, queue), view.replace(new));
        // Without the lock: the old ring's place goes back to an allocator.
        drop(view);
        drop(old);
        Ok(())
    }
}

impl Drop for SharedRecvQueue {
    fn drop(&mut self) {
        let view = self.ring.view().take();
        // Without the lock: its place goes back to an allocator.
        drop(view);
    }
}

impl SrqRing {
    fn view(&self) -> MutexGuard<'_, Option<RingView>> {
        lock(&self.view)
    }

    /// Requests that the kernel has taken out of the ring, if that can still be seen.
    fn taken(&self) -> Option<u32> {
        let waiting = self.view().as_ref()?.progress().in_flight();
        // Acquire: pairs with the release in `ring`, so that what the look at the ring has seen is counted
        // here, and more rather than less.
        Some(self.posted.load(Ordering::Acquire).wrapping_sub(waiting))
    }

    /// Counts completions that were taken.
    fn count(&self, completed: u32) {
        // Release: pairs with the acquire in `progress`; the message has been received.
        self.completed.fetch_add(completed, Ordering::Release);
    }
}

impl contract::SrqBacking for Arc<SrqRing> {
    fn progress(&self) -> Progress {
        // In this order: if as many were completed as were taken out later, all that had been taken out by
        // then were complete.
        let completed = self.completed.load(Ordering::Acquire);
        if self.taken() == Some(completed) {
            // Relaxed: the number alone counts.
            self.finished.store(completed, Ordering::Relaxed);
        }
        let posted = self.posted.load(Ordering::Relaxed);
        Progress::new(posted, self.finished.load(Ordering::Relaxed), u32::MAX)
    }

    fn names(&self, in_flight: Progress, key: LocalKey) -> bool {
        let named = match &*self.view() {
            Some(view) => view.names(view.progress(), key),
            None => return true,
        };
        // Those that were taken out and are not finished have no place in the ring any more. They are counted behind
        // the look: one that was taken out before it is among them, one that was taken out later has been looked at.
        named || self.taken() != Some(in_flight.finished())
    }
}

impl contract::RecvQueue for SharedRecvQueue {
    fn capacity(&self) -> u32 {
        self.queue.capacity()
    }

    fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    #[inline(always)]
    fn begin(&mut self) -> u64 {
        self.queue.begin()
    }

    #[inline(always)]
    fn pending(&self, at: u64) -> u32 {
        self.queue.pending(at)
    }

    #[inline(always)]
    fn push<E: Element>(
        &mut self,
        at: &mut u64,
        wr_id: u64,
        slices: &[E],
    ) -> Result<(), PostError> {
        self.queue.push(at, wr_id, slices)
    }

    #[inline(always)]
    fn ring(&mut self, at: u64) {
        // Only this queue stores it. Release: before the kernel and others see the requests in the ring;
        // pairs with the acquire in `taken`.
        let posted = self.ring.posted.load(Ordering::Relaxed);
        let posted = posted.wrapping_add(self.queue.pending(at));
        self.ring.posted.store(posted, Ordering::Release);
        self.queue.ring(at);
    }
}

/// The shared receive queues from which queue pairs receive whose receives complete on a completion queue.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    /// By the numbers of these queue pairs.
    queues: Mutex<BTreeMap<u32, Arc<SrqRing>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both kinds of value are whole after each change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receivers {
    /// Counts messages that were received, given as the numbers of their queue pairs.
    #[inline(always)]
    pub(super) fn count(&self, qpns: impl Iterator<Item = u32>) {
        let queues = lock(&self.queues);
        let count = |qpn, messages| {
            if let Some(ring) = queues.get(&qpn) {
                ring.count(messages);
            }
        };
        // Messages often come one behind the other to one queue pair, which is then looked up once.
        let (mut last, mut messages) = (0, 0);
        for qpn in qpns {
            if qpn != last && messages > 0 {
                count(last, mem::take(&mut messages));
            }
            last = qpn;
            messages += 1;
        }
        if messages > 0 {
            count(last, messages);
        }
    }
}

/// The share of a queue pair in its shared receive queue.
#[derive(Debug)]
pub(super) struct Attached {
    qpn: u32,
    ring: Arc<SrqRing>,
    /// Of the completion queue.
    shared: Arc<Shared>,
}

impl Attached {
    /// Of a queue pair whose receives complete on the completion queue of which `shared` is.
    pub(super) fn new(qpn: u32, ring: &Arc<SrqRing>, shared: &Arc<Shared>) -> Self {
        lock(&shared.receivers().queues).insert(qpn, Arc::clone(ring));
        *lock(&ring.receivers) += 1;
        Self {
            qpn,
            ring: Arc::clone(ring),
            shared: Arc::clone(shared),
        }
    }

    /// The share of a queue pair that takes the place of this one.
    pub(super) fn renew(&self, qpn: u32) -> Self {
        Self::new(qpn, &self.ring, &self.shared)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut queues = lock(&self.shared.receivers().queues);
        // The kernel may have given the number to a newer queue pair.
        if queues
            .get(&self.qpn)
            .is_some_and(|ring| Arc::ptr_eq(ring, &self.ring))
        {
            queues.remove(&self.qpn);
        }
        drop(queues);
        let mut receivers = lock(&self.ring.receivers);
        *receivers -= 1;
        if *receivers == 0 {
            // Nobody receives. What a queue pair took with it when it went is made up for.
            if let Some(taken) = self.ring.taken() {
                self.ring.completed.store(taken, Ordering::Release);
            }
        }
    }
}
