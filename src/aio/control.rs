//! Controls a queue pair from anywhere: fails it, drains it, shows what is in flight.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::cq::Cq;
use super::qp::Anchor;
use super::table::Table;
use crate::buf::Buf;
use crate::error::Result;
use crate::qp;

/// Polls of the completion queue between two looks at the device, each of which is a system call.
const LOOKS: u32 = 256;

/// A handle that controls a queue pair independently of its halves. Clones control the same queue pair. It
/// does not keep the queue pair alive.
#[derive(Clone)]
pub struct Control {
    raw: qp::Control,
    table: Arc<Table>,
    cq: Cq,
}

impl Control {
    pub(super) fn new(raw: qp::Control, anchor: &Anchor) -> Self {
        Self {
            raw,
            table: Arc::clone(&anchor.table),
            cq: anchor.cq.clone(),
        }
    }

    /// The number of operations that the device is not done with, including those whose futures were dropped.
    /// Those of a [`Batch`](super::Batch) that is not rung do not count: the device does not have them yet.
    pub fn in_flight(&self) -> usize {
        self.table.in_flight()
    }

    /// Takes the queue pair to the state ERR: operations in flight end as flushed and return their buffers.
    ///
    /// # Errors
    ///
    /// The queue pair or the device has gone.
    pub fn fail(&self) -> Result<()> {
        self.table.note_failure();
        self.raw.fail()
    }

    /// Takes the queue pair to the state ERR and waits until the device has finished all operations. Each
    /// ends as flushed, unless it has succeeded before, and returns its buffer; buffers of dropped futures
    /// are then back in their pools. The connection is over.
    ///
    /// It pumps by itself. Dropping it leaves the queue pair in the state ERR.
    ///
    /// # Errors
    ///
    /// The device has been removed, or the completion queue has failed: buffers that are still missing return
    /// to their pools when the queue pair is dropped. Or the queue pair is gone: its operations end when the
    /// kernel has destroyed it.
    pub async fn abort(&self) -> Result<()> {
        if self.in_flight() > 0 || !self.is_gone() {
            self.fail()?;
        }
        self.drained().await
    }

    /// Waits until the device has finished all operations, and pumps meanwhile.
    ///
    /// # Errors
    ///
    /// The device has been removed, the completion queue has failed, or the queue pair has been dropped and
    /// the kernel has not destroyed it.
    pub async fn drained(&self) -> Result<()> {
        let mut looks = 0;
        poll_fn(|cx| {
            if self.in_flight() == 0 {
                return Poll::Ready(Ok(()));
            }
            if let Err(error) = self.look(&mut looks) {
                return Poll::Ready(Err(error));
            }
            // Completions wake the futures of their operations, and this future has none: it looks again.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Pumps, and checks now and then whether the device is still there.
    fn look(&self, looks: &mut u32) -> Result<()> {
        self.cq.pump_here()?;
        *looks = looks.wrapping_add(1);
        if looks.is_multiple_of(LOOKS) {
            self.cq.look_for_device()?;
        }
        match self.table.is_broken() && self.in_flight() > 0 {
            true => Err(self.table.why_broken().into()),
            false => Ok(()),
        }
    }

    /// Takes the buffers of all operations that have ended and whose results were not taken, for forgotten
    /// futures. Futures that still exist then return [`OpError::Reclaimed`](super::OpError::Reclaimed), and a
    /// buffer without capacity.
    pub fn reclaim(&self) -> Vec<Buf> {
        let bufs = self.table.reclaim();
        bufs.filter(|buf| buf.capacity() > 0 && !buf.is_frozen())
            .collect()
    }

    fn is_gone(&self) -> bool {
        self.raw.is_gone()
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("raw", &self.raw)
            .field("in_flight", &self.in_flight())
            .finish()
    }
}
