//! Completion queues, the channels that tell of them, and whose a completion is.
//!
//! A kernel gives a queue pair's number out again, and completions of the old queue pair may still lie in a
//! queue then. So numbers of requests are never given out again: those of a queue pair begin behind all that
//! queue pairs before it had on the same completion queue.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use uverbs::Notify;

use crate::device::Context;
use crate::header::ibv_wc;
use crate::types::WRID;
use crate::{Error, ErrorKind, Result, lock};

/// A channel that tells which completion queue has something.
#[derive(Debug)]
pub struct CompChannel {
    inner: uverbs::CompletionChannel,
    blocks: AtomicBool,
}

impl CompChannel {
    /// Makes one.
    pub fn create(context: &Arc<Context>) -> Result<Arc<Self>> {
        let inner = context.inner.create_channel();
        Ok(Arc::new(Self {
            inner: inner.map_err(ErrorKind::IBCreateCompChannelFail.because())?,
            blocks: AtomicBool::new(true),
        }))
    }

    /// From now on [`CompChannel::get_event`] does not wait.
    pub fn set_nonblock(&self) -> Result<()> {
        self.blocks.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// What poll(2) and runtimes wait for.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }

    /// The next event: the number of the completion queue that it is of, see [`CompletionQueue::id`].
    pub fn get_event(&self) -> Result<u64> {
        let failed = ErrorKind::IBGetCompQueueEventFail;
        // The descriptor itself never blocks.
        let event = match self.blocks.load(Ordering::Relaxed) {
            true => self.inner.wait().map(Some),
            false => self.inner.try_next(),
        };
        match event {
            Ok(Some(event)) => Ok(event.cq),
            Ok(None) => Err(failed.because()("there is none yet")),
            Err(error) => Err(failed.because()(error)),
        }
    }
}

/// A completion queue that any thread may poll.
pub struct CompletionQueue {
    inner: Mutex<uverbs::Cq>,
    context: Arc<Context>,
    id: u64,
    capacity: u32,
    registry: Mutex<Registry>,
}

impl CompletionQueue {
    /// Creates one with room for at least that many completions.
    pub fn create(
        context: &Arc<Context>,
        cq_size: i32,
        channel: Option<&Arc<CompChannel>>,
    ) -> Result<Arc<Self>> {
        let entries = u32::try_from(cq_size)
            .ok()
            .filter(|&entries| entries > 0)
            .ok_or(ErrorKind::InvalidCompletionQueueConfig)?;
        let mut cq = context.inner.cq(entries);
        if let Some(channel) = channel {
            cq = cq.channel(&channel.inner);
        }
        let cq = cq
            .create()
            .map_err(ErrorKind::IBCreateCompQueueFail.because())?;
        Ok(Arc::new(Self {
            id: cq.id(),
            capacity: cq.capacity(),
            inner: Mutex::new(cq),
            context: Arc::clone(context),
            registry: Mutex::default(),
        }))
    }

    /// The number by which events name it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How many completions it has room for.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Who is accounted for, and where the next one's numbers begin.
    pub fn qp_registry_stats(&self) -> QpRegistryStats {
        let registry = self.registry();
        QpRegistryStats {
            active: registry.live.len(),
            next_sequence_floor: registry.floor,
        }
    }

    /// Asks for one event when the next completion arrives. Poll once more behind it: what is there causes
    /// none.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        let notify = match solicited_only {
            true => Notify::Solicited,
            false => Notify::Next,
        };
        let armed = self.cq().arm(notify);
        armed.map_err(ErrorKind::IBReqNotifyCompQueueFail.because())
    }

    /// Takes completions, as many as there are and as there is room for.
    pub fn poll(&self, wc: &mut [ibv_wc]) -> Result<usize> {
        let mut cq = self.cq();
        let mut completions = cq
            .poll()
            .map_err(ErrorKind::IBPollCompQueueFail.because())?;
        let mut taken = 0;
        for (place, completion) in wc.iter_mut().zip(completions.iter()) {
            *place = ibv_wc::new(&completion);
            taken += 1;
        }
        Ok(taken)
    }

    /// Takes completions as evidence for [`QueuePair::complete`](crate::QueuePair::complete).
    pub fn poll_batch<'a, const N: usize>(
        &'a self,
        batch: &'a mut CompletionBatch<N>,
    ) -> Result<Completions<'a>> {
        let taken = self.poll(&mut batch.entries)?;
        Ok(Completions {
            cq: self,
            entries: batch.entries[..taken].iter(),
        })
    }

    /// Does nothing: events need no acknowledgement here.
    pub fn ack_events(&self, _nevents: u32) {}

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The queue, for who creates a queue pair on it or polls it.
    pub(crate) fn cq(&self) -> MutexGuard<'_, uverbs::Cq> {
        lock(&self.inner)
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue")
            .field("id", &self.id)
            .field("capacity", &self.capacity)
            .field("qp_registry", &self.qp_registry_stats())
            .finish_non_exhaustive()
    }
}

/// The queue pairs of a completion queue.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Where the numbers of each begin, by its number.
    live: HashMap<u32, u64>,
    /// Behind all numbers of those that are gone.
    floor: u64,
}

impl Registry {
    /// Accounts for a new queue pair.
    pub(crate) fn enter(&mut self, qp_num: u32) -> Result<CompletionIdentity> {
        if self.live.contains_key(&qp_num) {
            return Err(ErrorKind::CompletionIdentityInUse.into());
        }
        if self.floor > WRID::MAX_SEQUENCE {
            return Err(ErrorKind::WorkRequestIdsExhausted.into());
        }
        self.live.insert(qp_num, self.floor);
        Ok(CompletionIdentity {
            qp_num,
            first_sequence: self.floor,
        })
    }

    /// Accounts no more for a queue pair that the kernel has destroyed. `next` is the highest number that it
    /// would have given out next. One that gave out none is behind the others all the same.
    pub(crate) fn leave(&mut self, identity: CompletionIdentity, next: u64) {
        self.live.remove(&identity.qp_num);
        self.floor = self.floor.max(next).max(identity.first_sequence + 1);
    }
}

/// Figures of who is accounted for on a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpRegistryStats {
    /// Queue pairs.
    pub active: usize,
    /// Where the numbers of the next one begin.
    pub next_sequence_floor: u64,
}

/// Which numbers of requests are a queue pair's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompletionIdentity {
    first_sequence: u64,
    qp_num: u32,
}

impl CompletionIdentity {
    /// The queue pair's number.
    pub fn qp_num(self) -> u32 {
        self.qp_num
    }

    /// The first number of its requests.
    pub fn first_sequence(self) -> u64 {
        self.first_sequence
    }

    /// Whether a completion is of this queue pair, and not of one that had its number before.
    pub fn contains(self, qp_num: u32, wrid: WRID) -> bool {
        self.qp_num == qp_num && self.first_sequence <= wrid.sequence()
    }
}

/// Room for completions.
pub struct CompletionBatch<const N: usize> {
    entries: [ibv_wc; N],
}

impl<const N: usize> CompletionBatch<N> {
    /// Room for `N`.
    pub fn new() -> Self {
        Self {
            entries: [ibv_wc::default(); N],
        }
    }

    /// How many.
    pub const fn capacity(&self) -> usize {
        N
    }
}

impl<const N: usize> Default for CompletionBatch<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The completions of one look at a queue.
pub struct Completions<'a> {
    cq: &'a CompletionQueue,
    entries: std::slice::Iter<'a, ibv_wc>,
}

impl<'a> Iterator for Completions<'a> {
    type Item = Completion<'a>;

    fn next(&mut self) -> Option<Completion<'a>> {
        let wc = self.entries.next()?;
        Some(Completion { cq: self.cq, wc })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for Completions<'_> {}

/// A completion as it came out of its queue. It cannot be made or copied, so it is evidence that the device
/// has done with a buffer.
///
/// ```compile_fail
/// fn forged<'a>(cq: &'a ruapc_rdma::CompletionQueue, wc: &'a ruapc_rdma::ibv_wc) -> ruapc_rdma::Completion<'a> {
///     ruapc_rdma::Completion { cq, wc }
/// }
/// ```
#[derive(Debug)]
pub struct Completion<'a> {
    cq: &'a CompletionQueue,
    wc: &'a ibv_wc,
}

impl<'a> Completion<'a> {
    /// What it says.
    pub fn info(&self) -> &'a ibv_wc {
        self.wc
    }

    /// The number of the queue pair that it is of.
    pub fn qp_num(&self) -> u32 {
        self.wc.qp_num
    }

    /// The number of the request.
    pub fn sequence(&self) -> u64 {
        self.wc.wr_id.sequence()
    }

    /// What it says, if it came out of this queue and is of this queue pair.
    pub(crate) fn of(
        self,
        cq: &CompletionQueue,
        identity: CompletionIdentity,
    ) -> Result<&'a ibv_wc, Error> {
        let is = ptr::eq(self.cq, cq) && identity.contains(self.wc.qp_num, self.wc.wr_id);
        is.then_some(self.wc)
            .ok_or_else(|| ErrorKind::InvalidCompletion.into())
    }
}
