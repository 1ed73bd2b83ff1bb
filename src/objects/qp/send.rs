//! Posting send requests: written straight into the ring, handed over by one doorbell.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;

use super::membership::{InDomain, Membership, NoDomain};
use super::one::One;
use super::transport::{
    Addressing, Atomic, Connected, Datagram, NamesSrq, RdmaRead, RdmaWrite, Transport,
};
use super::{Of, QpShared};
use crate::ah::UdPeer;
use crate::domain::{DomainKey, ThreadDomain};
use crate::driver::{self, SendQueue};
use crate::work::{
    Bounds, Destination, LocalSlice, Operation, Operations, Payload, PdTag, PostError, Remote,
    RemoteSlice,
};

/// Bytes that an atomic operation works on.
pub(super) const ATOMIC: u64 = 8;

/// What is fixed when a queue pair is created, and read by posts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    pub(super) pd: PdTag,
    pub(super) transport: QpType,
    pub(super) operations: Operations,
    /// The thread domain that it belongs to.
    pub(super) domain: Option<DomainKey>,
}

/// What posts send requests, whatever the transport: a [`Batch`] and a [`One`] are two callers of it.
pub(super) struct Sender {
    queue: SendQueue,
    fixed: Fixed,
    shared: Arc<QpShared>,
    /// The queue pair was found in a state in which it sends. It then sends until it is reset, which takes
    /// the queue.
    sends: bool,
}

/// The send half of a queue pair.
pub struct SendHalf<T: Transport, M: Membership = NoDomain> {
    sender: Sender,
    of: Of<(T, M)>,
}

impl<T: Transport, M: Membership> SendHalf<T, M> {
    /// With the thread domain if it belongs to one.
    pub(super) fn new(queue: SendQueue, shared: &Arc<QpShared>, domain: Option<DomainKey>) -> Self {
        let sender = Sender {
            queue,
            fixed: Fixed {
                pd: shared.tag(),
                transport: shared.transport,
                operations: shared.operations,
                domain,
            },
            shared: Arc::clone(shared),
            sends: false,
        };
        let of = PhantomData;
        Self { sender, of }
    }

    pub(super) fn domain(&self) -> Option<DomainKey> {
        self.sender.fixed.domain
    }

    pub(super) fn queue(&self) -> &SendQueue {
        &self.sender.queue
    }

    /// The queue, for a reset of the queue pair: whether it sends is asked anew.
    pub(super) fn queue_to_reset(&mut self) -> &mut SendQueue {
        self.sender.sends = false;
        &mut self.sender.queue
    }

    pub(super) fn into_queue(self) -> SendQueue {
        self.sender.queue
    }

    pub(super) fn shared(&self) -> &Arc<QpShared> {
        &self.sender.shared
    }

    /// The queue pair's number; see [`Qp::qpn`](super::Qp::qpn).
    pub fn qpn(&self) -> u32 {
        self.sender.shared.qpn()
    }

    /// The number of send requests that have been rung and are not known to be finished.
    ///
    /// Soft-RoCE shows its progress. Hardware reports it only by completions: when a completion is polled,
    /// the number falls by that request and all before it. So to wait for the number to fall, poll meanwhile,
    /// and request a completion now and then: requests after the last signaled one stay in flight and keep
    /// their slots in the ring. On soft-RoCE a request that is no longer in flight keeps its slot until its
    /// completion has been polled.
    pub fn in_flight(&self) -> u32 {
        self.sender.queue.in_flight()
    }
}

impl<T: Transport> SendHalf<T> {
    /// Starts a batch of send requests.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, T> {
        Batch::new(&mut self.sender)
    }
}

impl<T: Transport> SendHalf<T> {
    /// Posts one signaled request: see [`Qp::one`](super::Qp::one).
    #[inline(always)]
    pub fn one(&mut self, wr_id: u64) -> One<'_, T> {
        One::new(&mut self.sender, wr_id)
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
    /// Starts a batch of send requests: see [`Qp::send`](super::Qp::send).
    ///
    /// # Errors
    ///
    /// [`PostError::ForeignDomain`] if the queue pair belongs to another thread domain.
    #[inline(always)]
    pub fn batch<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
    ) -> Result<Batch<'q, T>, PostError> {
        domain.check(self.sender.fixed.domain)?;
        Ok(Batch::new(&mut self.sender))
    }

    /// Posts one signaled request: see [`Qp::one`](super::Qp::one).
    ///
    /// # Errors
    ///
    /// As for [`SendHalf::batch`].
    #[inline(always)]
    pub fn one<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
        wr_id: u64,
    ) -> Result<One<'q, T>, PostError> {
        domain.check(self.sender.fixed.domain)?;
        Ok(One::new(&mut self.sender, wr_id))
    }
}

impl<T: Transport, M: Membership> fmt::Debug for SendHalf<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHalf")
            .field("qpn", &self.qpn())
            .field("queue", &self.sender.queue)
            .finish()
    }
}

/// A batch of send requests, being written into the ring.
///
/// The device does not see them before [`Batch::ring`]. A batch that is dropped or forgotten posts nothing. A
/// method that fails leaves the batch as it was; [`Batch::len`] is the number of requests in it.
///
/// A batch borrows the regions of its slices until it is rung. From then on, a region that is dropped stays
/// registered until the requests have completed: see [`Mr`](crate::Mr). Until then the device may read the
/// memory of a SEND or WRITE, and write to the memory of a READ or atomic operation, at any time: bytes that
/// the program changes may or may not be sent, and bytes that it reads may be old or new, in any mixture.
#[must_use = "a batch that is not rung posts nothing"]
pub struct Batch<'q, T: Transport> {
    sender: &'q mut Sender,
    /// The peer's shared receive queue for the requests to come, of a transport that has such.
    srq: T::Srq,
    of: Of<T>,
}

impl<T: NamesSrq> Batch<'_, T> {
    /// For [`Xrc`](super::Xrc): selects the peer's shared receive queue for the following requests, by its
    /// number ([`Srq::srqn`](crate::Srq::srqn)). Their receives complete on that queue's completion queue.
    /// READs, WRITEs and atomic operations name a queue too: the memory must be in its protection domain.
    ///
    /// ```no_run
    /// # use uverbs::{LocalSlice, Qp, RemoteSlice, transport::Xrc};
    /// # fn post(qp: &mut Qp<Xrc>, slice: LocalSlice<'_>, remote: RemoteSlice, one: u32, other: u32)
    /// #     -> Result<(), uverbs::PostError> {
    /// let mut batch = qp.send();
    /// batch.to_srq(one).send(slice)?;
    /// batch.write(slice, remote)?.signaled(1);        // to the same
    /// batch.to_srq(other).send(slice)?.signaled(2);
    /// batch.ring()?;
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn to_srq(&mut self, srqn: u32) -> &mut Self {
        self.srq = Some(srqn);
        self
    }
}

impl<'q, T: Transport> Batch<'q, T> {
    #[inline(always)]
    pub(super) fn new(sender: &'q mut Sender) -> Self {
        sender.queue.begin();
        Self {
            sender,
            srq: T::NO_SRQ,
            of: PhantomData,
        }
    }

    pub(super) fn fixed(&self) -> &Fixed {
        &self.sender.fixed
    }

    /// The number of requests in the batch.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.sender.queue.pending() as usize
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
    /// [`PostError::WrongState`] if the queue pair does not send yet: nothing is posted.
    /// [`PostError::Doorbell`] if the kernel refuses the doorbell, for example after the device's removal.
    #[doc(alias = "ibv_post_send")]
    #[inline(always)]
    pub fn ring(self) -> Result<usize, PostError> {
        let sender = &mut *ManuallyDrop::new(self).sender;
        sender.check_sends()?;
        sender.queue.ring().map_err(PostError::Doorbell)
    }

    /// Checks what can be checked of every request and writes it into the ring. The peer has room for so many
    /// bytes, as far as is known.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, driver::Ah>>,
        payload: Payload<'_>,
        room: u64,
    ) -> Result<Posted<'_>, PostError> {
        let sender = &mut *self.sender;
        sender.check::<T>(operation, to, payload, room)?;
        let queue = &mut sender.queue;
        queue.write(0, SendFlags::empty(), operation, to, payload)?;
        Ok(Posted { queue })
    }

    /// As `push`, to the peer of the connection.
    #[inline(always)]
    pub(super) fn push_to_peer(
        &mut self,
        operation: Operation,
        payload: Payload<'_>,
        room: u64,
    ) -> Result<Posted<'_>, PostError> {
        let to = T::named(self.srq)?.map(Destination::Srq);
        self.push(operation, to, payload, room)
    }

    /// As `push`, for a payload that goes to or comes from `remote`.
    #[inline(always)]
    pub(super) fn push_remote(
        &mut self,
        operation: impl FnOnce(Remote) -> Operation,
        remote: RemoteSlice,
        payload: Payload<'_>,
    ) -> Result<Posted<'_>, PostError> {
        let RemoteSlice {
            address,
            rkey,
            length,
        } = remote;
        self.push_to_peer(operation(Remote { address, rkey }), payload, length)
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
        (None, Addressing::Connection) => true,
        (None, Addressing::PeersSrq) => Operations::OF_KEYS.contains(needed),
        (None, Addressing::EachRequest) | (Some(_), _) => false,
    }
}

/// Whether a request is a message without a connection, whose length is limited.
#[inline(always)]
fn is_datagram(operation: Operation, to: Option<Destination<'_, driver::Ah>>) -> bool {
    let names_destination = matches!(to, Some(Destination::Datagram(_)));
    names_destination && Operations::SENDS.contains(operation.needs())
}

/// As much room as there may be.
pub(super) const ANY: u64 = u64::MAX;

#[cfg(debug_assertions)]
impl<T: Transport> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        warn_of_lost(self.sender.queue.pending());
    }
}

/// Warns about requests that were added to a batch and will never be posted. In debug builds only: code that
/// runs when a batch is dropped would cost each post the registers that it needs after a panic.
#[cfg(debug_assertions)]
#[cold]
pub(super) fn warn_of_lost(requests: u32) {
    if requests > 0 {
        tracing::warn!(target: "uverbs", requests, "a batch was dropped and not rung: nothing of it is posted");
    }
}

impl Sender {
    /// Checks what can be checked of every request on every device.
    #[inline(always)]
    fn check<T: Transport>(
        &self,
        operation: Operation,
        to: Option<Destination<'_, driver::Ah>>,
        payload: Payload<'_>,
        room: u64,
    ) -> Result<(), PostError> {
        let pd = self.fixed.pd;
        Bounds { room, pd }.check(payload)?;
        self.fixed.check(operation, to, T::TYPE.is_some())?;
        match is_datagram(operation, to) {
            true => self.check_datagram(payload.len()),
            false => Ok(()),
        }
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

    /// Refuses to ring if the queue pair does not send: the one place where that is asked, for every driver.
    #[inline(always)]
    fn check_sends(&mut self) -> Result<(), PostError> {
        if !self.sends {
            self.shared.check_sends()?;
            self.sends = true;
        }
        Ok(())
    }

    /// Posts one signaled request.
    #[inline(always)]
    pub(super) fn post<T: Transport>(
        &mut self,
        wr_id: u64,
        operation: Operation,
        to: Option<Destination<'_, driver::Ah>>,
        payload: Payload<'_>,
        room: u64,
    ) -> Result<(), PostError> {
        self.check::<T>(operation, to, payload, room)?;
        self.check_sends()?;
        let signaled = SendFlags::SIGNALED;
        self.queue.post(wr_id, signaled, operation, to, payload)
    }
}

impl Fixed {
    /// Refuses what the queue pair cannot do, and what it cannot do there; if it is certain, its type tells
    /// where requests go.
    #[inline(always)]
    pub(super) fn check(
        &self,
        operation: Operation,
        to: Option<Destination<'_, driver::Ah>>,
        is_certain: bool,
    ) -> Result<(), PostError> {
        let Self {
            transport,
            operations,
            pd,
            ..
        } = *self;
        let needed = operation.needs();
        if !is_certain && !is_destination(to, transport, needed) {
            return Err(PostError::Destination);
        }
        if !operations.contains(needed) {
            return Err(operations.refusal(needed, transport));
        }
        match to {
            Some(Destination::Datagram(to)) if to.pd != pd => Err(PostError::ForeignPd),
            _ => Ok(()),
        }
    }
}

// Which requests a transport has is a bound on each method and not on the block around them: only there does
// the compiler show the trait's own message when the bound does not hold.

impl<'q, T: Transport> Batch<'q, T> {
    /// Adds a SEND of registered memory to the peer.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send(&mut self, from: impl AsRef<[LocalSlice<'q>]>) -> Result<Posted<'_>, PostError>
    where
        T: Connected,
    {
        self.push_to_peer(Operation::Send, Payload::Gather(from.as_ref()), ANY)
    }

    /// Adds a SEND with immediate data: a number that arrives in the peer's completion
    /// ([`Completion::imm`](crate::Completion::imm)), whatever the byte order of the two hosts.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_imm(
        &mut self,
        from: impl AsRef<[LocalSlice<'q>]>,
        imm: u32,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Connected,
    {
        self.push_to_peer(
            Operation::SendImm { imm },
            Payload::Gather(from.as_ref()),
            ANY,
        )
    }

    /// Adds a SEND of bytes that are copied into the request.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_inline(&mut self, bytes: &[u8]) -> Result<Posted<'_>, PostError>
    where
        T: Connected,
    {
        self.push_to_peer(Operation::Send, Payload::Inline(bytes), ANY)
    }

    /// Adds a SEND with immediate data of bytes that are copied into the request.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_imm_inline(&mut self, bytes: &[u8], imm: u32) -> Result<Posted<'_>, PostError>
    where
        T: Connected,
    {
        self.push_to_peer(Operation::SendImm { imm }, Payload::Inline(bytes), ANY)
    }
}

impl<'q, T: Transport> Batch<'q, T> {
    /// Adds a SEND of registered memory, at most the path's MTU, to a destination.
    ///
    /// The address handle must live until the request has completed; otherwise the datagram is not sent (on
    /// soft-RoCE the queue pair even fails, see [`Ah`](crate::Ah)).
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_to(
        &mut self,
        to: UdPeer<'_>,
        from: impl AsRef<[LocalSlice<'q>]>,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Datagram,
    {
        self.push(
            Operation::Send,
            Some(to.destination()),
            Payload::Gather(from.as_ref()),
            ANY,
        )
    }

    /// Adds a SEND with immediate data to a destination.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_imm_to(
        &mut self,
        to: UdPeer<'_>,
        from: impl AsRef<[LocalSlice<'q>]>,
        imm: u32,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Datagram,
    {
        self.push(
            Operation::SendImm { imm },
            Some(to.destination()),
            Payload::Gather(from.as_ref()),
            ANY,
        )
    }

    /// Adds a SEND of bytes that are copied into the request, to a destination.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_inline_to(&mut self, to: UdPeer<'_>, bytes: &[u8]) -> Result<Posted<'_>, PostError>
    where
        T: Datagram,
    {
        self.push(
            Operation::Send,
            Some(to.destination()),
            Payload::Inline(bytes),
            ANY,
        )
    }

    /// Adds a SEND with immediate data of bytes that are copied into the request, to a destination.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_imm_inline_to(
        &mut self,
        to: UdPeer<'_>,
        bytes: &[u8],
        imm: u32,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Datagram,
    {
        self.push(
            Operation::SendImm { imm },
            Some(to.destination()),
            Payload::Inline(bytes),
            ANY,
        )
    }
}

impl<'q, T: Transport> Batch<'q, T> {
    /// Adds an RDMA WRITE of registered memory to the peer's memory.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write(
        &mut self,
        from: impl AsRef<[LocalSlice<'q>]>,
        to: RemoteSlice,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Connected + RdmaWrite,
    {
        self.push_remote(
            |remote| Operation::Write { remote },
            to,
            Payload::Gather(from.as_ref()),
        )
    }

    /// Adds an RDMA WRITE with immediate data, which consumes a receive of the peer.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write_imm(
        &mut self,
        from: impl AsRef<[LocalSlice<'q>]>,
        to: RemoteSlice,
        imm: u32,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Connected + RdmaWrite,
    {
        self.push_remote(
            |remote| Operation::WriteImm { remote, imm },
            to,
            Payload::Gather(from.as_ref()),
        )
    }

    /// Adds an RDMA WRITE of bytes that are copied into the request.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write_inline(&mut self, bytes: &[u8], to: RemoteSlice) -> Result<Posted<'_>, PostError>
    where
        T: Connected + RdmaWrite,
    {
        self.push_remote(
            |remote| Operation::Write { remote },
            to,
            Payload::Inline(bytes),
        )
    }

    /// Adds an RDMA WRITE with immediate data of bytes that are copied into the request.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write_imm_inline(
        &mut self,
        bytes: &[u8],
        to: RemoteSlice,
        imm: u32,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Connected + RdmaWrite,
    {
        self.push_remote(
            |remote| Operation::WriteImm { remote, imm },
            to,
            Payload::Inline(bytes),
        )
    }
}

impl<'q, T: Transport> Batch<'q, T> {
    /// Adds an RDMA READ of the peer's memory into registered memory.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn read(
        &mut self,
        into: impl AsRef<[LocalSlice<'q>]>,
        from: RemoteSlice,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Connected + RdmaRead,
    {
        self.push_remote(
            |remote| Operation::Read { remote },
            from,
            Payload::Gather(into.as_ref()),
        )
    }
}

impl<'q, T: Transport> Batch<'q, T> {
    /// Adds an atomic compare-and-swap: 8 bytes of the peer's memory become `swap` if they are `compare`;
    /// what they were is written to `into`. The numbers are in this host's byte order.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn compare_swap(
        &mut self,
        into: LocalSlice<'q>,
        at: RemoteSlice,
        compare: u64,
        swap: u64,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Connected + Atomic,
    {
        self.push_atomic(
            |remote| Operation::CompareSwap {
                remote,
                compare,
                swap,
            },
            into,
            at,
        )
    }

    /// Adds an atomic fetch-and-add: `add` is added to 8 bytes of the peer's memory; what they were is
    /// written to `into`. The numbers are in this host's byte order.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn fetch_add(
        &mut self,
        into: LocalSlice<'q>,
        at: RemoteSlice,
        add: u64,
    ) -> Result<Posted<'_>, PostError>
    where
        T: Connected + Atomic,
    {
        self.push_atomic(|remote| Operation::FetchAdd { remote, add }, into, at)
    }

    #[inline(always)]
    fn push_atomic(
        &mut self,
        operation: impl FnOnce(Remote) -> Operation,
        into: LocalSlice<'q>,
        at: RemoteSlice,
    ) -> Result<Posted<'_>, PostError> {
        if u64::from(into.length) != ATOMIC || !at.address.is_multiple_of(ATOMIC) {
            return Err(PostError::NotAtomic {
                address: at.address,
                length: into.length.into(),
            });
        }
        self.push_remote(operation, at, Payload::Gather(std::slice::from_ref(&into)))
    }
}

impl<T: Transport> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish()
    }
}

/// A request in the batch, for further options. By default it is unsignaled and has the id 0.
pub struct Posted<'b> {
    /// Its last request is this one.
    queue: &'b mut SendQueue,
}

impl Posted<'_> {
    /// Requests a completion, with this id.
    #[inline(always)]
    pub fn signaled(self, wr_id: u64) -> Self {
        self.queue.amend(Some(wr_id), SendFlags::SIGNALED);
        self
    }

    /// Sets the id of the request without requesting a completion: for the completion of a failure, or if all
    /// requests are signaled.
    #[inline(always)]
    pub fn id(self, wr_id: u64) -> Self {
        self.queue.amend(Some(wr_id), SendFlags::empty());
        self
    }

    /// Holds the request back until all READs and atomics before it have completed.
    #[inline(always)]
    pub fn fence(self) -> Self {
        self.queue.amend(None, SendFlags::FENCE);
        self
    }

    /// Marks the message as solicited: it wakes a peer that has armed its queue for solicited messages only.
    #[inline(always)]
    pub fn solicited(self) -> Self {
        self.queue.amend(None, SendFlags::SOLICITED);
        self
    }
}

impl fmt::Debug for Posted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Posted")
            .field("queue", &self.queue)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use uverbs_uapi::enums::QpState;

    use super::super::tests::shared;
    use super::super::transport::Rc;
    use super::*;
    use crate::context::Context;
    use crate::driver::samples;
    use crate::work::{LocalKey, RemoteKey};

    /// A send half over a queue of each driver, in this state. One of them, the sample driver's, checks
    /// nothing.
    fn halves(state: QpState) -> Vec<SendHalf<Rc>> {
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
    fn post(half: &mut SendHalf<Rc>) -> Result<(), PostError> {
        half.one(1).send_inline(b"one")?;
        half.one(2).send_inline(b"the usual one")?;
        half.batch().ring()?;
        half.post(|batch| batch.send_inline(b"three").map(drop))?;
        half.post(|batch| {
            batch.send_inline(b"four")?;
            batch.send_inline(b"five")?.signaled(5);
            Ok(())
        })
        .map(drop)
    }

    /// Would catch requests that go into the ring of a queue pair that does not send, and one that is not
    /// asked whether it does because requests are usual ones.
    #[test]
    fn a_queue_pair_that_does_not_send_takes_no_request() {
        for mut half in halves(QpState::RESET) {
            for state in [QpState::RESET, QpState::INIT, QpState::RTR] {
                half.sender.shared.store(state);
                let refused = Err(PostError::WrongState { state });
                for _ in 0..2 {
                    assert_eq!(half.one(1).send_inline(b"early"), refused);
                    let mut batch = half.batch();
                    batch.send_inline(b"early").unwrap().signaled(1);
                    batch.send_inline(b"early").unwrap().signaled(2);
                    assert_eq!(batch.ring().map(drop), refused);
                    assert_eq!(half.batch().ring().map(drop), refused);
                }
                assert_eq!(half.in_flight(), 0);
            }
            half.sender.shared.store(QpState::RTS);
            post(&mut half).unwrap();
            assert_eq!(half.in_flight(), 5);
            // After a reset the state is asked again.
            half.queue_to_reset();
            half.sender.shared.store(QpState::RESET);
            let refused = PostError::WrongState {
                state: QpState::RESET,
            };
            assert_eq!(half.one(1).send_inline(b"late"), Err(refused));
            let mut batch = half.batch();
            batch.send_inline(b"late").unwrap();
            assert_eq!(batch.ring(), Err(refused));
        }
    }

    /// Would catch memory of others that is sent, or a peer's that is written beyond its slice, where
    /// requests are usual ones and where they are not yet.
    #[test]
    fn every_request_is_checked() {
        for mut half in halves(QpState::RTS) {
            let (pd, lkey) = (half.sender.fixed.pd, LocalKey(1));
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
                    assert_eq!(batch.write(from, *to).err(), Some(*error));
                }
                let many = [of(1, pd); 64];
                let refused = half.one(1).write(many, to(64));
                assert!(matches!(refused, Err(PostError::TooManySges { .. })));
                let refused = half.one(1).send_inline(&[0; 4096]);
                assert!(matches!(refused, Err(PostError::InlineTooLong { .. })));
                let before = half.in_flight();
                // Nothing, and as much as there may be, are not as usual but are taken.
                half.one(1).write(of(0, pd), to(0)).unwrap();
                half.one(1).write(of(1 << 31, pd), to(1 << 31)).unwrap();
                half.one(1).write(of(8, pd), to(8)).unwrap();
                assert_eq!(half.in_flight(), before + 3);
            }
        }
    }
}
