//! Posting sends: the send half of a queue pair, the checks of every request, and its batches.

#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;

use super::membership::{InDomain, Membership, NoDomain};
use super::request::Request;
use super::transport::{Addressing, Any, Transport};
use super::{Of, Qp, QpShared};
use crate::domain::{DomainKey, ThreadDomain};
use crate::driver::{self, Position, Posting, SendQueue};
use crate::work::{Bounds, Destination, Operation, Operations, PdTag, PostError, WorkRequest};

/// Values that are fixed when a queue pair is created, and that posts read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    pub(super) pd: PdTag,
    pub(super) transport: QpType,
    pub(super) operations: Operations,
    /// The thread domain that it belongs to.
    pub(super) domain: Option<DomainKey>,
}

/// The checks before a request is written or rung, whatever the transport and the device.
pub(super) struct Checks {
    pub(super) fixed: Fixed,
    shared: Arc<QpShared>,
    /// The operations that it can post. Empty until it was seen in a state in which it sends. It then sends
    /// until a reset, which borrows the queue, as does a change that takes operations away.
    ready: Operations,
}

/// The send half of a queue pair.
pub struct SendHalf<T: Transport, M: Membership = NoDomain> {
    queue: SendQueue,
    checks: Checks,
    of: Of<(T, M)>,
}

impl<T: Transport, M: Membership> SendHalf<T, M> {
    /// With the key of the thread domain, if it belongs to one.
    pub(super) fn new(queue: SendQueue, shared: &Arc<QpShared>, domain: Option<DomainKey>) -> Self {
        let checks = Checks {
            fixed: Fixed {
                pd: shared.tag(),
                transport: shared.transport,
                operations: shared.operations,
                domain,
            },
            shared: Arc::clone(shared),
            ready: Operations::empty(),
        };
        let of = PhantomData;
        Self { queue, checks, of }
    }

    pub(super) fn queue(&self) -> &SendQueue {
        &self.queue
    }

    /// The queue, for a reset of the queue pair: the next post checks again whether it sends.
    pub(super) fn queue_to_reset(&mut self) -> &mut SendQueue {
        self.check_again();
        &mut self.queue
    }

    /// The next post checks again what the queue pair can do.
    pub(super) fn check_again(&mut self) {
        self.checks.ready = Operations::empty();
    }

    /// The same half, with its transport known only at run time.
    pub(super) fn into_any(self) -> SendHalf<Any, M> {
        let Self { queue, checks, .. } = self;
        let of = PhantomData;
        SendHalf { queue, checks, of }
    }

    pub(super) fn shared(&self) -> &Arc<QpShared> {
        &self.checks.shared
    }

    /// The queue pair's number; see [`Qp::qpn`].
    pub fn qpn(&self) -> u32 {
        self.checks.shared.qpn()
    }

    /// The number of send requests that have been rung and are not known to be finished.
    ///
    /// On soft-RoCE the ring itself shows this. Hardware reports it only by completions: when a completion is
    /// polled, the number falls by that request and all before it. So a program that waits for the number to
    /// fall must poll meanwhile, and request a completion now and then: requests after the last signaled one
    /// stay in flight and keep their slots in the ring. On soft-RoCE a request that is no longer in flight
    /// keeps its slot until its completion has been polled.
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }
}

impl<T: Transport> Qp<T> {
    /// Starts a batch of send requests.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, T> {
        self.send.batch()
    }

    /// Starts a signaled request that is posted alone, with a doorbell of its own: fewer instructions than a
    /// batch of one.
    ///
    /// ```no_run
    /// # fn post(qp: &mut uverbs::Qp<uverbs::Rc>, from: uverbs::LocalSlice<'_>, to: uverbs::RemoteSlice)
    /// #     -> Result<(), uverbs::PostError> {
    /// qp.one(7).write(from, to)?;
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn one(&mut self, wr_id: u64) -> Request<'_, '_, T> {
        self.send.one(wr_id)
    }

    /// Posts send requests: `fill` adds them to a batch, which is then rung. Returns their number.
    ///
    /// If `fill` fails, nothing is posted.
    ///
    /// ```no_run
    /// # use uverbs::{Inline, Qp, Rc};
    /// # fn post(qp: &mut Qp<Rc>) -> Result<(), uverbs::PostError> {
    /// qp.post(|batch| {
    ///     batch.unsignaled(1).send(Inline(b"one"))?;
    ///     batch.signaled(2).send(Inline(b"two"))
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `fill`, and as for [`Batch::ring`].
    #[inline(always)]
    pub fn post<'q>(
        &'q mut self,
        fill: impl FnOnce(&mut Batch<'q, T>) -> Result<(), PostError>,
    ) -> Result<usize, PostError> {
        self.send.post(fill)
    }
}

impl<T: Transport> Qp<T, InDomain> {
    /// Starts a batch of send requests. Until it is rung or dropped, nobody else can post in the domain.
    ///
    /// # Errors
    ///
    /// [`PostError::ForeignDomain`] if the queue pair belongs to another thread domain.
    #[inline(always)]
    pub fn batch<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
    ) -> Result<Batch<'q, T>, PostError> {
        self.send.batch(domain)
    }

    /// Starts a signaled request that is posted alone. It never takes a lock, however many queue pairs the
    /// context has.
    ///
    /// ```no_run
    /// # use uverbs::{InDomain, LocalSlice, Qp, Rc, RemoteSlice, ThreadDomain};
    /// # fn post(qp: &mut Qp<Rc, InDomain>, domain: &mut ThreadDomain, from: LocalSlice<'_>, to: RemoteSlice)
    /// #     -> Result<(), uverbs::PostError> {
    /// qp.one(domain, 7)?.write(from, to)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Qp::batch`].
    #[inline(always)]
    pub fn one<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
        wr_id: u64,
    ) -> Result<Request<'q, 'q, T>, PostError> {
        self.send.one(domain, wr_id)
    }
}

impl<T: Transport> SendHalf<T> {
    /// Starts a batch of send requests.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch::new(self.queue.lend(T::TYPE), &mut self.checks)
    }

    /// Starts a signaled request that is posted alone: see [`Qp::one`].
    #[inline(always)]
    pub fn one(&mut self, wr_id: u64) -> Request<'_, '_, T> {
        Request::alone(self.queue.lend(T::TYPE), &mut self.checks, wr_id)
    }

    /// Posts send requests: see [`Qp::post`].
    ///
    /// # Errors
    ///
    /// As for [`Qp::post`].
    #[inline(always)]
    pub fn post<'q>(
        &'q mut self,
        fill: impl FnOnce(&mut Batch<'q, T>) -> Result<(), PostError>,
    ) -> Result<usize, PostError> {
        let mut batch = self.batch();
        fill(&mut batch)?;
        batch.ring()
    }
}

impl<T: Transport> SendHalf<T, InDomain> {
    /// Starts a batch of send requests: see [`Qp::batch`].
    ///
    /// # Errors
    ///
    /// [`PostError::ForeignDomain`] if the queue pair belongs to another thread domain.
    #[inline(always)]
    pub fn batch<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
    ) -> Result<Batch<'q, T>, PostError> {
        domain.check(self.checks.fixed.domain)?;
        Ok(Batch::new(self.queue.lend(T::TYPE), &mut self.checks))
    }

    /// Starts a signaled request that is posted alone: see [`Qp::one`].
    ///
    /// # Errors
    ///
    /// As for [`SendHalf::batch`].
    #[inline(always)]
    pub fn one<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
        wr_id: u64,
    ) -> Result<Request<'q, 'q, T>, PostError> {
        domain.check(self.checks.fixed.domain)?;
        Ok(Request::alone(
            self.queue.lend(T::TYPE),
            &mut self.checks,
            wr_id,
        ))
    }
}

impl<T: Transport, M: Membership> fmt::Debug for SendHalf<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHalf")
            .field("qpn", &self.qpn())
            .field("queue", &self.queue)
            .finish()
    }
}

/// A batch of send requests, being written into the ring.
///
/// ```no_run
/// # fn post(qp: &mut uverbs::Qp<uverbs::Rc>, from: uverbs::LocalSlice<'_>, to: uverbs::RemoteSlice)
/// #     -> Result<(), uverbs::PostError> {
/// let mut batch = qp.batch();
/// batch.unsignaled(1).write(from, to)?;
/// batch.signaled(2).fence().send(from)?;
/// batch.ring()?;
/// # Ok(()) }
/// ```
///
/// The device does not see the requests before [`Batch::ring`]. A batch that is dropped or forgotten posts
/// nothing. A request that fails leaves the batch as it was; [`Batch::len`] is the number of requests in it.
///
/// A batch borrows the regions of its slices until it is rung. From then on, a region that is dropped stays
/// registered until the requests have completed: see [`Mr`](crate::Mr). Until then the device may read the
/// memory of a SEND or WRITE, and write to the memory of a READ or atomic operation, at any time: bytes that
/// the program changes may or may not be sent, and bytes that it reads may be old or new, in any mixture.
#[must_use = "a batch that is not rung posts nothing"]
pub struct Batch<'q, T: Transport> {
    queue: Posting<'q>,
    checks: &'q mut Checks,
    /// Where its first request is, and where the next one goes.
    start: Position,
    end: Position,
    of: Of<T>,
}

impl<'q, T: Transport> Batch<'q, T> {
    #[inline(always)]
    fn new(queue: Posting<'q>, checks: &'q mut Checks) -> Self {
        let start = queue.position();
        Self {
            queue,
            checks,
            start,
            end: start,
            of: PhantomData,
        }
    }

    /// Starts a request with this id that asks for a completion.
    #[inline(always)]
    pub fn signaled(&mut self, wr_id: u64) -> Request<'_, 'q, T> {
        self.request(wr_id, SendFlags::SIGNALED)
    }

    /// Starts a request with this id that asks for no completion. It has one only if it fails, or if all
    /// requests of the queue pair are signaled ([`QpBuilder::signal_all`](super::QpBuilder::signal_all)).
    #[inline(always)]
    pub fn unsignaled(&mut self, wr_id: u64) -> Request<'_, 'q, T> {
        self.request(wr_id, SendFlags::empty())
    }

    #[inline(always)]
    fn request(&mut self, wr_id: u64, flags: SendFlags) -> Request<'_, 'q, T> {
        Request::of_batch(
            (self.queue.again(), self.checks),
            &mut self.end,
            wr_id,
            flags,
        )
    }

    /// The number of requests in the batch.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.end.count.wrapping_sub(self.start.count) as usize
    }

    /// True if there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands the batch to the device with one doorbell, and returns the number of requests. An empty batch
    /// makes no system call.
    ///
    /// # Errors
    ///
    /// [`PostError::Doorbell`] if the kernel refuses the doorbell, for example after the device's removal.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn ring(self) -> Result<usize, PostError> {
        let mut batch = ManuallyDrop::new(self);
        let (start, end) = (batch.start, batch.end);
        batch.queue.ring(start, end).map_err(PostError::Doorbell)
    }
}

#[cfg(debug_assertions)]
impl<T: Transport> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        warn_of_lost(self.len());
    }
}

/// Warns about requests that were added to a batch and will never be posted. In debug builds only: with a
/// destructor for batches, each post would keep values in registers that are only needed after a panic.
#[cfg(debug_assertions)]
#[cold]
pub(super) fn warn_of_lost(requests: usize) {
    if requests > 0 {
        tracing::warn!(target: "uverbs", requests, "a batch was dropped and not rung: nothing of it is posted");
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish()
    }
}

/// Whether a request that needs these operations may have this destination on such a queue pair.
#[inline(always)]
fn is_destination(
    to: Option<Destination<'_, driver::Ah>>,
    transport: QpType,
    needed: Operations,
) -> bool {
    match (to, Addressing::of(transport)) {
        (Some(Destination::Datagram(_)), Addressing::EachRequest) => true,
        (Some(Destination::Srq(_)), Addressing::PeersSrq) => true,
        (Some(Destination::Target(_)), Addressing::EachTarget) => true,
        (None, Addressing::Connection) => true,
        (None, Addressing::PeersSrq) => Operations::OF_KEYS.contains(needed),
        (None, Addressing::EachRequest | Addressing::EachTarget) | (Some(_), _) => false,
    }
}

/// Whether a request is a message without a connection, whose length is limited.
#[inline(always)]
fn is_datagram(operation: Operation, to: Option<Destination<'_, driver::Ah>>) -> bool {
    let names_destination = matches!(to, Some(Destination::Datagram(_)));
    names_destination && Operations::SENDS.contains(operation.needs())
}

impl Checks {
    /// Makes the checks that every request on every device needs.
    #[inline(always)]
    pub(super) fn check<T: Transport>(
        &mut self,
        request: &WorkRequest<'_, driver::Ah>,
        room: u64,
    ) -> Result<(), PostError> {
        let WorkRequest {
            operation,
            to,
            payload,
            ..
        } = *request;
        let needed = operation.needs();
        let bounds = Bounds {
            room,
            pd: self.fixed.pd,
            writes: Operations::THAT_FETCH.contains(needed),
        };
        bounds.check(payload)?;
        self.fixed.check(needed, to, T::TYPE.is_some())?;
        if is_datagram(operation, to) {
            self.check_datagram(payload.len())?;
        }
        match self.ready.contains(needed) {
            true => Ok(()),
            false => self.check_ready(needed),
        }
    }

    /// Refuses any request if the queue pair does not send.
    #[allow(dead_code, reason = "as of `Request::put_own`")]
    pub(super) fn check_sends(&mut self) -> Result<(), PostError> {
        self.check_ready(Operations::empty())
    }

    /// Refuses a datagram that does not fit into a packet.
    #[inline(always)]
    fn check_datagram(&self, given: u64) -> Result<(), PostError> {
        let max = self.shared.max_datagram();
        match given > max {
            true => Err(PostError::MessageTooLong { given, max }),
            false => Ok(()),
        }
    }

    /// Refuses a request that the queue pair cannot do, or any request if it does not send. This is the only
    /// place that checks it, whatever the driver.
    #[cold]
    #[inline(never)]
    fn check_ready(&mut self, needed: Operations) -> Result<(), PostError> {
        let Fixed {
            operations,
            transport,
            ..
        } = self.fixed;
        // First: a request that never works is a better reason than a state in which it does not work yet.
        if !operations.contains(needed) {
            return Err(operations.refusal(needed, transport));
        }
        self.shared.check_sends()?;
        self.ready = match self.shared.fetches() {
            true => operations,
            false => operations.difference(Operations::THAT_FETCH),
        };
        match self.ready.contains(needed) {
            true => Ok(()),
            false => Err(PostError::NoReadsInFlight),
        }
    }
}

impl Fixed {
    /// Refuses a wrong destination. If `is_certain`, the queue pair's static type has ruled that out.
    #[inline(always)]
    fn check(
        &self,
        needed: Operations,
        to: Option<Destination<'_, driver::Ah>>,
        is_certain: bool,
    ) -> Result<(), PostError> {
        if !is_certain && !is_destination(to, self.transport, needed) {
            return Err(PostError::Destination);
        }
        match to {
            Some(Destination::Datagram(to)) if to.pd != self.pd => Err(PostError::ForeignPd),
            Some(Destination::Target(to)) if to.pd != self.pd => Err(PostError::ForeignPd),
            _ => Ok(()),
        }
    }
}
