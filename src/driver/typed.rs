//! Work on a driver's own types: what is dispatched once has nothing to dispatch within.
//!
//! The rest of the crate has a batch or a poll in its hands for a while, and the compiler knows its variant
//! there. A function for C programs has it for one call, or finds it in memory where an earlier call left it.
//! Such a function gives what it does as a value of one of these traits.

use super::contract;
use super::data::{Completions, SendBatch};
use super::{Cq, Listed, RecvQueue, SendQueue, SharedRecvQueue};

/// A batch of requests as driver `D` has it.
pub(crate) type BatchOf<'q, D> =
    <<D as contract::Driver>::SendQueue as contract::SendQueue>::Batch<'q>;

/// Completions that are being taken, as driver `D` has them.
pub(crate) type PolledOf<'q, D> = <<D as contract::Driver>::Cq as contract::Cq>::Polled<'q>;

/// What is done with a send queue.
pub(crate) trait OnSends {
    type Output;
    fn run<D: Listed>(self, queue: &mut D::SendQueue) -> Self::Output;
}

/// What is done with a batch of requests.
pub(crate) trait OnBatch {
    type Output;
    fn run<D: Listed>(self, batch: &mut BatchOf<'_, D>) -> Self::Output;
}

/// What is done with a receive queue of either kind.
pub(crate) trait OnReceives {
    type Output;
    fn run<Q: contract::RecvQueue>(self, queue: &mut Q) -> Self::Output;
}

/// What is done with a completion queue.
pub(crate) trait OnCq {
    type Output;
    fn run<D: Listed>(self, cq: &mut D::Cq) -> Self::Output;
}

/// What is done with completions that are being taken.
pub(crate) trait OnPolled {
    type Output;
    fn run<D: Listed>(self, polled: &mut PolledOf<'_, D>) -> Self::Output;
}

impl SendQueue {
    #[inline(always)]
    pub(crate) fn with<W: OnSends>(&mut self, work: W) -> W::Output {
        dispatch!(self, D(queue) => work.run::<D>(queue))
    }
}

impl SendBatch<'_> {
    #[inline(always)]
    pub(crate) fn with<W: OnBatch>(&mut self, work: W) -> W::Output {
        dispatch!(lent &mut self.0, D(batch) => work.run::<D>(batch))
    }
}

impl RecvQueue {
    #[inline(always)]
    pub(crate) fn with<W: OnReceives>(&mut self, work: W) -> W::Output {
        dispatch!(self, D(queue) => work.run(queue))
    }
}

impl SharedRecvQueue {
    #[inline(always)]
    pub(crate) fn with<W: OnReceives>(&mut self, work: W) -> W::Output {
        dispatch!(self, D(queue) => work.run(queue))
    }
}

impl Cq {
    #[inline(always)]
    pub(crate) fn with<W: OnCq>(&mut self, work: W) -> W::Output {
        dispatch!(self, D(cq) => work.run::<D>(cq))
    }
}

impl<'q> Completions<'q> {
    /// Those of a driver.
    #[inline(always)]
    pub(crate) fn of<D: Listed>(polled: PolledOf<'q, D>) -> Self {
        Self {
            queue: D::lend(polled),
        }
    }

    #[inline(always)]
    pub(crate) fn with<W: OnPolled>(&mut self, work: W) -> W::Output {
        dispatch!(lent &mut self.queue, D(polled) => work.run::<D>(polled))
    }
}
