//! The send half of a queue pair: what every request is checked for, and its batches.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;

use super::membership::{InDomain, Membership, NoDomain};
use super::request::Request;
use super::transport::{Addressing, Transport};
use super::{Of, QpShared};
use crate::domain::{DomainKey, ThreadDomain};
use crate::driver::{self, Position, Posting, SendQueue};
use crate::work::{Bounds, Destination, Operation, Operations, PdTag, PostError, WorkRequest};

/// What is fixed when a queue pair is created, and read by posts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    pub(super) pd: PdTag,
    pub(super) transport: QpType,
    pub(super) operations: Operations,
    /// The thread domain that it belongs to.
    pub(super) domain: Option<DomainKey>,
}

/// What is asked before a request is written or rung, whatever the transport and the device.
pub(super) struct Checks {
    pub(super) fixed: Fixed,
    shared: Arc<QpShared>,
    /// What it can post; nothing before it was found in a state in which it sends. It then sends until it is
    /// reset, which takes the queue.
    ready: Operations,
}

/// The send half of a queue pair.
pub struct SendHalf<T: Transport, M: Membership = NoDomain> {
    queue: SendQueue,
    checks: Checks,
    of: Of<(T, M)>,
}

impl<T: Transport, M: Membership> SendHalf<T, M> {
    /// With the thread domain if it belongs to one.
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

    pub(super) fn domain(&self) -> Option<DomainKey> {
        self.checks.fixed.domain
    }

    pub(super) fn queue(&self) -> &SendQueue {
        &self.queue
    }

    /// The queue, for a reset of the queue pair: whether it sends is asked anew.
    pub(super) fn queue_to_reset(&mut self) -> &mut SendQueue {
        self.checks.ready = Operations::empty();
        &mut self.queue
    }

    pub(super) fn into_queue(self) -> SendQueue {
        self.queue
    }

    pub(super) fn shared(&self) -> &Arc<QpShared> {
        &self.checks.shared
    }

    /// The queue pair's number; see [`Qp::qpn`](super::Qp::qpn).
    pub fn qpn(&self) -> u32 {
        self.checks.shared.qpn()
    }

    /// The number of send requests that have been rung and are not known to be finished.
    ///
    /// Soft-RoCE shows its progress. Hardware reports it only by completions: when a completion is polled,
    /// the number falls by that request and all before it. So to wait for the number to fall, poll meanwhile,
    /// and request a completion now and then: requests after the last signaled one stay in flight and keep
    /// their slots in the ring. On soft-RoCE a request that is no longer in flight keeps its slot until its
    /// completion has been polled.
    pub fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }
}

impl<T: Transport> SendHalf<T> {
    /// Starts a batch of send requests.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch::new(self.queue.lend(T::TYPE), &mut self.checks)
    }
}

impl<T: Transport> SendHalf<T> {
    /// Starts a signaled request that is posted alone: see [`Qp::one`](super::Qp::one).
    #[inline(always)]
    pub fn one(&mut self, wr_id: u64) -> Request<'_, '_, T> {
        Request::alone(self.queue.lend(T::TYPE), &mut self.checks, wr_id)
    }

    /// Posts send requests: see [`Qp::post`](super::Qp::post).
    ///
    /// # Errors
    ///
    /// As for [`Qp::post`](super::Qp::post).
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
    /// Starts a batch of send requests: see [`Qp::batch`](super::Qp::batch).
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

    /// Starts a signaled request that is posted alone: see [`Qp::one`](super::Qp::one).
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

/// Warns about requests that were added to a batch and will never be posted. In debug builds only: code that
/// runs when a batch is dropped would cost each post the registers that it needs after a panic.
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

/// Whether a request that needs these operations goes there on such a queue pair.
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
    /// Checks what can be checked of every request on every device.
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

    /// Refuses a datagram that no packet holds.
    #[inline(always)]
    fn check_datagram(&self, given: u64) -> Result<(), PostError> {
        let max = self.shared.max_datagram();
        match given > max {
            true => Err(PostError::MessageTooLong { given, max }),
            false => Ok(()),
        }
    }

    /// Refuses a request that needs what the queue pair cannot do, or if it does not send: the one place
    /// where that is asked, whatever the driver.
    #[cold]
    #[inline(never)]
    fn check_ready(&mut self, needed: Operations) -> Result<(), PostError> {
        let Fixed {
            operations,
            transport,
            ..
        } = self.fixed;
        // First: what never works is a better reason than what does not work yet.
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
    /// Refuses what does not go there; if it is certain, the queue pair's type tells where requests go.
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

#[cfg(test)]
mod tests {
    use uverbs_uapi::enums::QpState;

    use super::super::payload::Inline;
    use super::super::shared::tests::shared;
    use super::super::transport::Any;
    use super::*;
    use crate::context::Context;
    use crate::driver::samples;
    use crate::work::{LocalKey, LocalSlice, RemoteKey, RemoteSlice};

    /// A send half over a queue of each driver, in this state. One of them, the sample driver's, checks
    /// nothing.
    fn halves(state: QpState) -> Vec<SendHalf<Any>> {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let half = |queue| {
            let shared = Arc::new(shared(&context, QpType::RC));
            shared.store(state);
            SendHalf::new(queue, &shared, None)
        };
        samples::send_queues().into_iter().map(half).collect()
    }

    /// Posts some in each way.
    fn post(half: &mut SendHalf<Any>) -> Result<(), PostError> {
        half.one(1).send(Inline(b"one"))?;
        half.one(2).send(Inline(b"another"))?;
        half.batch().ring()?;
        half.post(|batch| batch.unsignaled(3).send(Inline(b"three")))?;
        half.post(|batch| {
            batch.unsignaled(4).send(Inline(b"four"))?;
            batch.signaled(5).send(Inline(b"five"))?;
            Ok(())
        })
        .map(drop)
    }

    /// Would catch requests that go into the ring of a queue pair that does not send, and one that is not
    /// asked whether it does.
    #[test]
    fn a_queue_pair_that_does_not_send_takes_no_request() {
        for mut half in halves(QpState::RESET) {
            for state in [QpState::RESET, QpState::INIT, QpState::RTR] {
                half.checks.shared.store(state);
                let refused = Err(PostError::WrongState { state });
                for _ in 0..2 {
                    assert_eq!(half.one(1).send(Inline(b"early")), refused);
                    let mut batch = half.batch();
                    assert_eq!(batch.signaled(1).send(Inline(b"early")), refused);
                    assert_eq!(batch.unsignaled(2).send(Inline(b"early")), refused);
                    assert_eq!((batch.len(), batch.ring()), (0, Ok(0)));
                }
                assert_eq!(half.in_flight(), 0);
            }
            half.checks.shared.store(QpState::RTS);
            post(&mut half).unwrap();
            assert_eq!(half.in_flight(), 5);
            // After a reset the state is asked again.
            half.queue_to_reset();
            half.checks.shared.store(QpState::RESET);
            let refused = PostError::WrongState {
                state: QpState::RESET,
            };
            assert_eq!(half.one(1).send(Inline(b"late")), Err(refused));
            let mut batch = half.batch();
            assert_eq!(batch.unsignaled(0).send(Inline(b"late")), Err(refused));
            drop(batch);
        }
    }

    /// Would catch memory of others that is sent, or a peer's that is written beyond its slice.
    #[test]
    fn every_request_is_checked() {
        for mut half in halves(QpState::RTS) {
            let (pd, lkey) = (half.checks.fixed.pd, LocalKey(1));
            let of = |length, pd| LocalSlice::new(0x1000, length, lkey, pd);
            let to = |length| RemoteSlice {
                address: 0x2000,
                length,
                rkey: RemoteKey(2),
            };
            let beyond = PostError::BeyondRemote {
                local: 9,
                remote: 8,
            };
            let long = PostError::MessageTooLong {
                given: (1 << 31) + 1,
                max: 1 << 31,
            };
            let cases = [
                (of(8, PdTag::new(77, 77)), to(8), PostError::ForeignPd),
                (
                    of(8, PdTag::new(77, 77).read_only()),
                    to(8),
                    PostError::ForeignPd,
                ),
                (of(9, pd), to(8), beyond),
                (of((1 << 31) + 1, pd), to(u64::MAX), long),
                (
                    of(u32::MAX, pd),
                    to(0),
                    PostError::MessageTooLong {
                        given: u32::MAX.into(),
                        max: 1 << 31,
                    },
                ),
            ];
            for _ in 0..2 {
                for (from, to, error) in &cases {
                    assert_eq!(half.one(1).write(from, *to), Err(*error));
                    let mut batch = half.batch();
                    assert_eq!(batch.unsignaled(0).write(from, *to).err(), Some(*error));
                }
                let read_only = of(8, pd.read_only());
                assert_eq!(half.one(1).read(read_only, to(8)), Err(PostError::ReadOnly));
                let many = [of(1, pd); 64];
                let refused = half.one(1).write(many, to(64));
                assert!(matches!(refused, Err(PostError::TooManySges { .. })));
                let refused = half.one(1).send(Inline(&[0; 4096]));
                assert!(matches!(refused, Err(PostError::InlineTooLong { .. })));
                let before = half.in_flight();
                // Nothing, and as much as there may be, are not as usual but are taken.
                half.one(1).write(of(0, pd), to(0)).unwrap();
                half.one(1).write(of(1 << 31, pd), to(1 << 31)).unwrap();
                half.one(1).write(read_only, to(8)).unwrap();
                assert_eq!(half.in_flight(), before + 3);
            }
        }
    }
}
