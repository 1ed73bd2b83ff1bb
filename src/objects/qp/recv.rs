//! Posting receive requests.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use uverbs_uapi::enums::QpState;

use super::transport::{Any, Transport};
use super::{Of, QpShared};
use crate::driver::{Receiving, RecvQueue};
use crate::work::{LocalSlice, PdTag, PostError};

/// The receive half of a queue pair.
pub struct RecvHalf<T: Transport> {
    /// None if the queue pair receives from a shared receive queue.
    queue: Option<RecvQueue>,
    pd: PdTag,
    shared: Arc<QpShared>,
    /// The queue pair was seen in a state in which it takes receives. It then takes them until a reset, which
    /// borrows the queue.
    receives: bool,
    of: Of<T>,
}

impl<T: Transport> RecvHalf<T> {
    pub(super) fn new(queue: Option<RecvQueue>, shared: &Arc<QpShared>) -> Self {
        Self {
            queue,
            pd: shared.tag(),
            shared: Arc::clone(shared),
            receives: false,
            of: PhantomData,
        }
    }

    /// The queue, for a reset of the queue pair: the next post checks again whether it takes receives.
    pub(super) fn queue_to_reset(&mut self) -> Option<&mut RecvQueue> {
        self.receives = false;
        self.queue.as_mut()
    }

    pub(super) fn queue(&self) -> Option<&RecvQueue> {
        self.queue.as_ref()
    }

    /// The same half, with its transport known only at run time.
    pub(super) fn into_any(self) -> RecvHalf<Any> {
        RecvHalf {
            queue: self.queue,
            pd: self.pd,
            shared: self.shared,
            receives: self.receives,
            of: PhantomData,
        }
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
        let asks = Asks {
            shared: &self.shared,
            receives: &mut self.receives,
        };
        RecvBatch::new(
            self.queue.as_mut().map(|queue| queue.lend(T::TYPE)),
            self.pd,
            Some(asks),
        )
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
///
/// ```no_run
/// # fn post(qp: &mut uverbs::Qp<uverbs::Rc>, inbox: &uverbs::Mr<Vec<u8>>) -> Result<(), uverbs::PostError> {
/// let mut batch = qp.recv_batch();
/// batch.post(1, inbox.slice(..64)?)?;
/// batch.post(2, [inbox.slice(64..80)?, inbox.slice(128..)?])?;    // one message, in two places
/// batch.post_empty(3)?;                                           // for a WRITE with immediate data
/// assert_eq!(batch.ring(), 3);
/// # Ok(()) }
/// ```
#[must_use = "a batch that is not rung posts nothing"]
pub struct RecvBatch<'q> {
    /// None if the queue pair receives from a shared queue.
    queue: Option<Receiving<'q>>,
    written: u32,
    pd: PdTag,
    /// For a queue pair's own queue.
    asks: Option<Asks<'q>>,
}

/// Checks whether a queue pair takes receives.
struct Asks<'q> {
    shared: &'q QpShared,
    receives: &'q mut bool,
}

impl Asks<'_> {
    /// Refuses the state RESET.
    #[inline(always)]
    fn check(&mut self) -> Result<(), PostError> {
        if !*self.receives {
            let state = self.shared.state();
            if state == QpState::RESET {
                return Err(PostError::WrongState { state });
            }
            *self.receives = true;
        }
        Ok(())
    }
}

impl<'q> RecvBatch<'q> {
    /// A batch for a shared receive queue.
    #[inline(always)]
    pub(crate) fn shared(queue: Receiving<'q>, pd: PdTag) -> Self {
        Self::new(Some(queue), pd, None)
    }

    #[inline(always)]
    fn new(queue: Option<Receiving<'q>>, pd: PdTag, asks: Option<Asks<'q>>) -> Self {
        Self {
            queue,
            written: 0,
            pd,
            asks,
        }
    }

    /// The number of requests in the batch.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.written as usize
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
    /// [`PostError::WrongState`] in the state RESET. Otherwise see [`PostError`]. The batch stays as it was.
    #[inline(always)]
    pub fn post(
        &mut self,
        wr_id: u64,
        into: impl AsRef<[LocalSlice<'q>]>,
    ) -> Result<(), PostError> {
        let slices = into.as_ref();
        let Some(queue) = &mut self.queue else {
            return Err(PostError::SharedReceive);
        };
        self.pd.check(slices, true)?;
        if let Some(asks) = &mut self.asks {
            asks.check()?;
        }
        queue.write(self.written, wr_id, slices)?;
        self.written += 1;
        Ok(())
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
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline(always)]
    pub fn ring(self) -> usize {
        let mut batch = ManuallyDrop::new(self);
        let count = batch.written;
        if count > 0
            && let Some(queue) = &mut batch.queue
        {
            queue.ring(count);
        }
        count as usize
    }
}

#[cfg(debug_assertions)]
impl Drop for RecvBatch<'_> {
    fn drop(&mut self) {
        super::send::warn_of_lost(self.len());
    }
}

impl fmt::Debug for RecvBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch")
            .field("len", &self.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use uverbs_uapi::enums::QpType;

    use super::super::shared::tests::shared;
    use super::super::transport::Srd;
    use super::*;
    use crate::context::Context;
    use crate::driver::samples;
    use crate::owned::tests::Listener;

    /// A receive half over a queue of a driver that checks no state.
    fn half(state: QpState) -> RecvHalf<Srd> {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let shared = Arc::new(shared(&Context::over(file), QpType::DRIVER));
        shared.store(state);
        RecvHalf::new(Some(samples::recv_queue()), &shared)
    }

    fn post(half: &mut RecvHalf<Srd>) -> Result<usize, PostError> {
        let mut batch = half.batch();
        batch.post_empty(1)?;
        Ok(batch.ring())
    }

    /// Would catch receives that are posted in the state RESET, before the first connection or after a reset.
    #[test]
    fn the_state_reset_takes_no_receives() {
        let mut half = half(QpState::RESET);
        let refused = Err(PostError::WrongState {
            state: QpState::RESET,
        });
        assert_eq!(post(&mut half), refused);
        half.shared.store(QpState::INIT);
        assert_eq!(post(&mut half), Ok(1));
        half.queue_to_reset();
        half.shared.store(QpState::RESET);
        assert_eq!(post(&mut half), refused);
        assert_eq!((half.batch().ring(), half.in_flight()), (0, 1));
    }

    /// Catches a lost batch without a warning, and a warning about one that was posted or is empty.
    #[test]
    fn a_batch_that_is_dropped_with_requests_warns() {
        let mut half = half(QpState::INIT);
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&warnings);
        let listener = Listener("uverbs", move |text| heard.lock().unwrap().push(text));
        tracing::subscriber::with_default(listener, || {
            drop(half.batch());
            post(&mut half).unwrap();
            let mut lost = half.batch();
            lost.post_empty(2).unwrap();
            lost.post_empty(3).unwrap();
            drop(lost);
        });
        let warnings = warnings.lock().unwrap();
        assert_eq!(warnings.len(), usize::from(cfg!(debug_assertions)));
        assert!(
            warnings.iter().all(|text| text.contains("2")),
            "{warnings:?}"
        );
    }
}
