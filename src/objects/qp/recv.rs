//! Posting receive requests.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use uverbs_uapi::enums::QpState;

use super::transport::Transport;
use super::{Of, QpShared};
use crate::driver::{self, RecvQueue};
use crate::work::{LocalSlice, PdTag, PostError};

/// The receive half of a queue pair.
pub struct RecvHalf<T: Transport> {
    /// None if the queue pair receives from a shared receive queue.
    queue: Option<RecvQueue>,
    pd: PdTag,
    shared: Arc<QpShared>,
    of: Of<T>,
}

impl<T: Transport> RecvHalf<T> {
    pub(super) fn new(queue: Option<RecvQueue>, shared: &Arc<QpShared>) -> Self {
        Self {
            queue,
            pd: shared.tag(),
            shared: Arc::clone(shared),
            of: PhantomData,
        }
    }

    pub(super) fn queue_mut(&mut self) -> Option<&mut RecvQueue> {
        self.queue.as_mut()
    }

    pub(super) fn into_queue(self) -> Option<RecvQueue> {
        self.queue
    }

    pub(super) fn shared(&self) -> &Arc<QpShared> {
        &self.shared
    }

    /// Requests and slices that the queue takes.
    pub(super) fn limits(&self) -> (u32, u32) {
        self.queue
            .as_ref()
            .map_or((0, 0), |queue| (queue.capacity(), queue.max_sge()))
    }

    /// The queue pair's number; see [`Qp::qpn`](super::Qp::qpn).
    pub fn qpn(&self) -> u32 {
        self.shared.qpn()
    }

    /// The number of posted receive requests that no message has been received into.
    ///
    /// On hardware a request counts until its completion has been polled; see
    /// [`SendHalf::in_flight`](super::SendHalf::in_flight).
    pub fn in_flight(&self) -> u32 {
        self.queue.as_ref().map_or(0, RecvQueue::in_flight)
    }

    /// Starts a batch of receive requests.
    #[inline(always)]
    pub fn batch(&mut self) -> RecvBatch<'_> {
        let raw = self.queue.as_mut().map(RecvQueue::batch);
        RecvBatch::new(raw, self.pd, Some(&self.shared))
    }
}

impl<T: Transport> fmt::Debug for RecvHalf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvHalf")
            .field("qpn", &self.qpn())
            .field("queue", &self.queue)
            .finish()
    }
}

/// A batch of receive requests, being written into the ring.
///
/// The device does not see them before [`RecvBatch::ring`]. A batch that is dropped or forgotten posts
/// nothing. See [`Batch`](super::Batch) on the memory that the requests name.
#[must_use = "a batch that is not rung posts nothing"]
pub struct RecvBatch<'q> {
    raw: Option<driver::RecvBatch<'q>>,
    pd: PdTag,
    /// The queue pair that the queue belongs to; none for a shared one.
    qp: Option<&'q Arc<QpShared>>,
}

impl<'q> RecvBatch<'q> {
    /// A batch for a queue pair's receive queue, or for a shared one.
    #[inline(always)]
    pub(crate) fn new(
        raw: Option<driver::RecvBatch<'q>>,
        pd: PdTag,
        qp: Option<&'q Arc<QpShared>>,
    ) -> Self {
        Self { raw, pd, qp }
    }

    /// The number of requests in the batch.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.raw.as_ref().map_or(0, |raw| raw.len() as usize)
    }

    /// True if there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a receive: a message is scattered over `into`. For datagrams, 40 bytes for the global route
    /// header come first.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; the batch stays as it was.
    #[inline(always)]
    pub fn post(
        &mut self,
        wr_id: u64,
        into: impl AsRef<[LocalSlice<'q>]>,
    ) -> Result<(), PostError> {
        let slices = into.as_ref();
        let Some(raw) = &mut self.raw else {
            return Err(PostError::SharedReceive);
        };
        raw.add(wr_id, slices, self.pd)
    }

    /// Adds a receive without memory: for a WRITE with immediate data, or an empty message.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; the batch stays as it was.
    #[inline(always)]
    pub fn post_empty(&mut self, wr_id: u64) -> Result<(), PostError> {
        self.post(wr_id, [])
    }

    /// Hands the batch to the device and returns the number of requests. It makes no system call.
    ///
    /// # Errors
    ///
    /// [`PostError::WrongState`] in the state RESET, unless the batch is empty: nothing is posted.
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub fn ring(self) -> Result<usize, PostError> {
        let count = self.len();
        let Some(raw) = self.raw else {
            return Ok(count);
        };
        // Whoever has posted something since the last reset goes on posting until the next, which takes the
        // queue.
        if let Some(qp) = self.qp
            && !raw.is_usual()
            && qp.state() == QpState::RESET
        {
            return Err(PostError::WrongState {
                state: QpState::RESET,
            });
        }
        raw.ring();
        Ok(count)
    }
}

impl fmt::Debug for RecvBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("len", &self.len())
            .finish()
    }
}
