//! Shared receive queues. The kernel takes an element out of the ring when the first packet of a message
//! arrives and writes to its memory until the last one (`get_srq_wqe` in
//! `drivers/infiniband/sw/rxe/rxe_resp.c`), so the ring's index does not say when a request is finished. Its
//! completion does: pollers count them. Nor does the index say which slots may be filled again: those whose
//! completions nobody has taken stay occupied, as in other queues (see [`super::watch`]).

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::PdHandle;

use super::counts::Counts;
use super::map::RingView;
use super::recv::RecvQueue;
use super::watch::{Message, Shared, Watch};
use crate::driver::contract;
use crate::work::{Element, LocalKey, PostError, Progress};

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedRecvQueue {
    queue: RecvQueue,
    ring: Arc<SrqRing>,
}

/// How far a shared receive queue's requests are.
#[derive(Debug)]
pub(crate) struct SrqRing {
    /// Under a lock, since the queue may change its size; `None` meanwhile. It stays `None` once posting has
    /// ended: then the user owns the ring's memory again.
    look: Mutex<Option<Look>>,
    counts: Counts,
    /// Queue pairs that receive from it: those that may have been in RTR since they were made or reset.
    receivers: Mutex<u32>,
    /// Where its receives complete.
    reports: Mutex<Vec<Report>>,
    /// The protection domain that it was created in.
    pd: PdHandle,
    /// See [`SharedRecvQueue::lose`].
    is_lost: AtomicBool,
}

/// A completion queue of receives from a shared queue.
#[derive(Debug)]
struct Report {
    cq: Arc<Shared>,
    /// How many queue pairs receive from the queue and report here.
    queue_pairs: u32,
}

/// The ring, and which of its indices belongs to which count of requests.
#[derive(Debug)]
struct Look {
    view: RingView,
    /// The index of the first request that was ever posted, as if it had been posted to this ring.
    first: u32,
}

impl Look {
    /// For the ring to which request number `posted` goes next.
    fn new(view: RingView, posted: u32) -> Self {
        let first = view.progress().posted().wrapping_sub(posted);
        Self { view, first }
    }

    /// How many of the `posted` requests the kernel has not taken out.
    fn waiting(&self, posted: u32) -> u32 {
        self.view
            .progress()
            .with_posted(self.first.wrapping_add(posted))
            .in_flight()
    }
}

impl SharedRecvQueue {
    pub(super) fn new(mut queue: RecvQueue, view: RingView, pd: PdHandle) -> Self {
        let ring = SrqRing {
            look: Mutex::new(Some(Look::new(view, 0))),
            counts: Counts::default(),
            receivers: Mutex::new(0),
            reports: Mutex::default(),
            pd,
            is_lost: AtomicBool::new(false),
        };
        let ring = Arc::new(ring);
        queue.heed(Watch::SharedQueue(Arc::clone(&ring)));
        Self { queue, ring }
    }

    pub(super) fn ring(&self) -> &Arc<SrqRing> {
        &self.ring
    }

    /// Bytes of a slot of its ring.
    pub(super) fn slot_size(&self) -> usize {
        self.queue.slot_size()
    }

    /// From now on refuses requests: the kernel may have no ring for the queue, or one that is not mapped.
    pub(super) fn lose(&mut self) {
        self.queue.shut();
        // Relaxed: callers learn of it by the error that is returned next.
        self.ring.is_lost.store(true, Ordering::Relaxed);
    }

    /// Changes to another ring: `resize` makes the kernel move the waiting requests, and `map` maps the ring
    /// of its answer. If `map` fails, no other thread sees a ring any more, and the queue is lost.
    ///
    /// No other thread looks meanwhile: one that looked at the old ring would miss what the kernel takes out
    /// of the new one. But no lock is held either: an allocator is called, and gets memory back, and it may
    /// call into queue pairs that receive from this queue.
    pub(super) fn replace<T, E>(
        &mut self,
        resize: impl FnOnce() -> Result<T, E>,
        map: impl FnOnce(T, &RecvQueue) -> Result<(RecvQueue, RingView), E>,
    ) -> Result<(), E> {
        let old = self.ring.look().take();
        let resized = match resize() {
            Ok(resized) => resized,
            Err(error) => {
                self.ring.show(old);
                return Err(error);
            }
        };
        let (mut queue, view) = map(resized, &self.queue).inspect_err(|_| self.lose())?;
        queue.heed(Watch::SharedQueue(Arc::clone(&self.ring)));
        let new = Look::new(view, self.ring.counts.posted());
        let old = (mem::replace(&mut self.queue, queue), old);
        self.ring.show(Some(new));
        drop(old);
        Ok(())
    }
}

impl Drop for SharedRecvQueue {
    fn drop(&mut self) {
        let look = self.ring.look().take();
        // Without the lock: the ring's place goes back to an allocator.
        drop(look);
    }
}

impl SrqRing {
    /// The protection domain that it was created in.
    pub(super) fn pd(&self) -> PdHandle {
        self.pd
    }

    fn look(&self) -> MutexGuard<'_, Option<Look>> {
        lock(&self.look)
    }

    /// Shows the ring to other threads, which saw none until now.
    fn show(&self, look: Option<Look>) {
        *self.look() = look;
        self.make_up(*lock(&self.receivers));
    }

    /// If no queue pair receives, counts as received what a queue pair had taken and did not finish when it
    /// went.
    fn make_up(&self, receivers: u32) {
        if receivers == 0
            && let Some(taken) = self.taken()
        {
            self.counts.complete_all(taken);
        }
    }

    /// A queue pair receives no longer, and its messages are counted.
    pub(super) fn leave(&self) {
        let mut receivers = lock(&self.receivers);
        *receivers -= 1;
        self.make_up(*receivers);
    }

    /// A queue pair that receives from it reports to this completion queue.
    fn begin_report(&self, cq: &Arc<Shared>) {
        let mut reports = lock(&self.reports);
        match reports.iter_mut().find(|it| Arc::ptr_eq(&it.cq, cq)) {
            Some(known) => known.queue_pairs += 1,
            None => reports.push(Report {
                cq: Arc::clone(cq),
                queue_pairs: 1,
            }),
        }
    }

    /// A queue pair that reported to this completion queue is gone.
    fn end_report(&self, cq: &Arc<Shared>) {
        lock(&self.reports).retain_mut(|it| {
            it.queue_pairs -= u32::from(Arc::ptr_eq(&it.cq, cq));
            it.queue_pairs > 0
        });
    }

    /// How many completions of its receives nobody has taken.
    pub(super) fn unread(&self) -> u32 {
        let reports = lock(&self.reports);
        let each = reports.iter().map(|report| report.cq.unread_of(self));
        each.fold(0, u32::saturating_add)
    }

    /// Requests that the kernel has taken out of the ring, if that can be seen.
    fn taken(&self) -> Option<u32> {
        let look = self.look();
        let look = look.as_ref()?;
        Some(self.counts.taken(|posted| look.waiting(posted)))
    }
}

impl contract::SrqBacking for Arc<SrqRing> {
    fn progress(&self) -> Progress {
        let (posted, finished) = self.counts.progress(|| self.taken());
        Progress::new(posted, finished, u32::MAX)
    }

    fn names(&self, in_flight: Progress, key: LocalKey) -> bool {
        let named = match &*self.look() {
            Some(Look { view, .. }) => view.names(view.progress(), key),
            None => return true,
        };
        // Requests that were taken out and are not finished are not in the ring any more. They are counted
        // after the look at the ring: one that was taken out before the look is counted, and one that was
        // taken out later was seen in the ring.
        named || self.taken() != Some(in_flight.finished())
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
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
    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        self.queue.write(nth, wr_id, slices)
    }

    #[inline(always)]
    fn ring(&mut self, count: u32) {
        // Before the kernel and others see the requests in the ring.
        self.ring.counts.post(count);
        self.queue.ring(count);
    }
}

/// The queue pairs whose receives complete on a completion queue and come from shared receive queues.
///
/// Messages are counted in the completion ring before they are polled: up to an index, in the order in which
/// the kernel has written them. Whenever a queue pair comes or goes, all messages in the ring are counted
/// first. So each counts for the queue pair that had its number when it arrived.
#[derive(Debug, Default)]
pub(super) struct Receivers {
    /// Ordered by their numbers.
    queues: Vec<Receiver>,
    /// Where the last one was found. The next message is often of the same queue pair.
    last: usize,
    /// Messages are counted up to this index of the completion ring.
    counted: u32,
}

/// A queue pair, with the shared receive queue that it receives from.
#[derive(Debug)]
struct Receiver {
    qpn: u32,
    ring: Arc<SrqRing>,
    is_reliable: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each value is whole after each change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Receivers {
    /// Up to which index of the completion ring messages are counted.
    #[inline(always)]
    pub(super) fn counted(&self) -> u32 {
        self.counted
    }

    /// Continues counting at this index of the completion ring, or of another one. Returns the index at which
    /// it would have continued.
    #[inline(always)]
    pub(super) fn count_from(&mut self, counted: u32) -> u32 {
        mem::replace(&mut self.counted, counted)
    }

    /// Counts `messages` for a queue pair, if it receives from a shared queue.
    #[inline(always)]
    pub(super) fn complete(&mut self, qpn: u32, messages: u32) {
        match self.queues.get(self.last) {
            Some(last) if last.qpn == qpn => last.ring.counts.complete(messages),
            _ => self.complete_of_another(qpn, messages),
        }
    }

    #[inline(never)]
    fn complete_of_another(&mut self, qpn: u32, messages: u32) {
        if let Ok(at) = self.find(qpn) {
            self.last = at;
            self.queues[at].ring.counts.complete(messages);
        }
    }

    /// Counts a message that has failed, if its queue pair receives from a shared queue and has not come to
    /// its end by the failure: the kernel fails a message of UC or UD, and takes the next one
    /// (`RESPST_ERR_LENGTH` and its neighbours in `rxe_resp.c`).
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self, qpn: u32) {
        if let Ok(at) = self.find(qpn)
            && !self.queues[at].is_reliable
        {
            self.queues[at].ring.counts.complete(1);
        }
    }

    /// Whether a message has come into this shared queue. Failures of reliable queue pairs do not count, as
    /// in [`Self::fail`].
    pub(super) fn is_receive_from(&self, message: Message, srq: &SrqRing) -> bool {
        let (qpn, has_failed) = match message {
            Message::Received { qpn } => (qpn, false),
            Message::Failed { qpn } => (qpn, true),
            Message::None => return false,
        };
        let receiver = self.find(qpn).map(|at| &self.queues[at]);
        receiver.is_ok_and(|it| ptr::eq(&*it.ring, srq) && !(has_failed && it.is_reliable))
    }

    /// Where a queue pair is, or where it would be inserted.
    fn find(&self, qpn: u32) -> Result<usize, usize> {
        self.queues.binary_search_by_key(&qpn, |known| known.qpn)
    }

    /// Adds a queue pair. Returns the shared receive queue that was known by its number.
    pub(super) fn insert(
        &mut self,
        qpn: u32,
        ring: &Arc<SrqRing>,
        transport: QpType,
    ) -> Option<Arc<SrqRing>> {
        let new = Receiver {
            qpn,
            ring: Arc::clone(ring),
            is_reliable: transport == QpType::RC,
        };
        match self.find(qpn) {
            Ok(at) => Some(mem::replace(&mut self.queues[at], new).ring),
            Err(at) => {
                self.queues.insert(at, new);
                None
            }
        }
    }

    /// Removes a queue pair that is gone, unless the kernel has given its number to a newer one.
    pub(super) fn remove(&mut self, qpn: u32, ring: &Arc<SrqRing>) -> Option<Arc<SrqRing>> {
        let at = self.find(qpn).ok()?;
        let is_known = Arc::ptr_eq(&self.queues[at].ring, ring);
        is_known.then(|| self.queues.remove(at).ring)
    }
}

/// The share of a queue pair in its shared receive queue.
#[derive(Debug)]
pub(super) struct Attached {
    qpn: u32,
    transport: QpType,
    ring: Arc<SrqRing>,
    /// The completion queue of its receives.
    cq: Arc<Shared>,
    /// It counts as a receiver.
    receives: Mutex<bool>,
}

impl Attached {
    pub(super) fn new(qpn: u32, ring: &Arc<SrqRing>, cq: &Arc<Shared>, transport: QpType) -> Self {
        cq.attach(qpn, ring, transport);
        ring.begin_report(cq);
        Self {
            qpn,
            transport,
            ring: Arc::clone(ring),
            cq: Arc::clone(cq),
            receives: Mutex::new(false),
        }
    }

    /// Messages may come in from now on.
    pub(super) fn begin(&self) {
        let mut receives = lock(&self.receives);
        if !*receives {
            *receives = true;
            *lock(&self.ring.receivers) += 1;
        }
    }

    /// No messages come in any more: the kernel has reset the queue pair. Those that have come are counted.
    pub(super) fn stop(&self) {
        self.leave(None);
    }

    fn leave(&self, gone: Option<u32>) {
        let receives = mem::take(&mut *lock(&self.receives));
        self.cq.leave(&self.ring, receives, gone);
    }

    /// The shared receive queue.
    pub(super) fn ring(&self) -> &Arc<SrqRing> {
        &self.ring
    }

    /// The share of the queue pair that replaces this one.
    pub(super) fn renew(&self, qpn: u32) -> Self {
        Self::new(qpn, &self.ring, &self.cq, self.transport)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.leave(Some(self.qpn));
        self.ring.end_report(&self.cq);
    }
}
