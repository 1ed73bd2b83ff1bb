//! A request that is being composed: its options, its payload, its operation.

use std::fmt;
use std::marker::PhantomData;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::SendFlags;

use self::sealed::Carried;
use super::Of;
use super::send::{Checks, Fixed};
use super::transport::{
    Atomic, Peer, RdmaRead, RdmaWrite, Reaches, RemoteInvalidate, Transport, sealed::Names,
};
use crate::driver::{Listed, Position, Posting};
use crate::work::{
    LocalSlice, Operation, Payload, PdTag, PostError, Remote, RemoteKey, RemoteSlice, WorkRequest,
};

/// Bytes of the operand of an atomic operation.
pub(super) const ATOMIC: u64 = 8;

/// Room without a limit.
pub(super) const ANY: u64 = u64::MAX;

/// A send request that is about to be written. Its options come first; the method for its operation ends it.
///
/// A request of a [`Batch`](super::Batch) is added to the batch, and is posted when the batch is rung. One
/// that was started by [`Qp::one`](super::Qp::one) is posted at once, with a doorbell of its own. If the
/// method fails, nothing is posted or added.
///
/// `D` is its destination: the [`Peer`] of the queue pair, unless [`to`](Self::to) has named another.
#[must_use = "nothing is posted until the request is told what to do"]
pub struct Request<'b, 'q, T: Transport, D = Peer> {
    queue: Posting<'b>,
    checks: &'b mut Checks,
    /// The end of the batch to which it is added; `None` if it is posted alone.
    batch: Option<&'b mut Position>,
    wr_id: u64,
    flags: SendFlags,
    to: D,
    of: Of<T>,
    /// The payload lives exactly as long as the batch.
    lives: PhantomData<fn(&'q ()) -> &'q ()>,
}

impl<'b, 'q, T: Transport> Request<'b, 'q, T> {
    /// A request of a batch that ends at `at`.
    #[inline(always)]
    pub(super) fn of_batch(
        queue: (Posting<'b>, &'b mut Checks),
        at: &'b mut Position,
        wr_id: u64,
        flags: SendFlags,
    ) -> Self {
        Self::new(queue, Some(at), wr_id, flags)
    }

    /// A signaled request that is posted alone.
    #[inline(always)]
    pub(super) fn alone(queue: Posting<'b>, checks: &'b mut Checks, wr_id: u64) -> Self {
        Self::new((queue, checks), None, wr_id, SendFlags::SIGNALED)
    }

    #[inline(always)]
    fn new(
        (queue, checks): (Posting<'b>, &'b mut Checks),
        batch: Option<&'b mut Position>,
        wr_id: u64,
        flags: SendFlags,
    ) -> Self {
        Self {
            queue,
            checks,
            batch,
            wr_id,
            flags,
            to: Peer,
            of: PhantomData,
            lives: PhantomData,
        }
    }

    /// Names the destination: an [`UdPeer`](crate::ah::UdPeer) of a datagram, a
    /// [`DcPeer`](crate::dc::DcPeer), or a [`PeerSrq`](crate::transport::PeerSrq).
    ///
    /// An address handle must live until the request has completed; otherwise the datagram is not sent (on
    /// soft-RoCE the queue pair even fails, see [`Ah`](crate::Ah)).
    ///
    /// ```no_run
    /// # use uverbs::{Ah, Inline, LocalSlice, PeerSrq, Qp, transport::{Ud, Xrc}};
    /// # fn post(ud: &mut Qp<Ud>, xrc: &mut Qp<Xrc>, ah: &Ah, slice: LocalSlice<'_>, srqn: u32)
    /// #     -> Result<(), uverbs::PostError> {
    /// ud.one(1).to(ah.to(0x11, 0x1111_1111)).send(Inline(b"a datagram"))?;
    /// xrc.one(2).to(PeerSrq(srqn)).send(slice)?;
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn to<D: Names>(self, to: D) -> Request<'b, 'q, T, D> {
        let Self {
            queue,
            checks,
            batch,
            wr_id,
            flags,
            of,
            lives,
            ..
        } = self;
        Request {
            queue,
            checks,
            batch,
            wr_id,
            flags,
            to,
            of,
            lives,
        }
    }
}

impl<T: Transport, D> Request<'_, '_, T, D> {
    /// Holds the request back until all READs and atomics before it have completed.
    #[inline(always)]
    pub fn fence(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }

    /// Marks the message as solicited: it wakes a peer that has armed its queue for solicited messages only.
    #[inline(always)]
    pub fn solicited(mut self) -> Self {
        self.flags |= SendFlags::SOLICITED;
        self
    }

    pub(super) fn fixed(&self) -> &Fixed {
        &self.checks.fixed
    }

    /// The protection domain of its queue pair.
    #[allow(dead_code, reason = "as of `put_own`")]
    pub(crate) fn pd(&self) -> PdTag {
        self.checks.fixed.pd
    }

    /// Makes the checks that every request needs, and writes or posts it. `room` is how many bytes the peer
    /// has room for, as far as is known.
    #[inline(always)]
    pub(super) fn put(
        mut self,
        operation: Operation,
        payload: Payload<'_>,
        room: u64,
    ) -> Result<(), PostError>
    where
        D: Names,
    {
        let request = WorkRequest {
            wr_id: self.wr_id,
            flags: self.flags,
            operation,
            to: self.to.destination().0,
            payload,
        };
        self.checks.check::<T>(&request, room)?;
        match self.batch {
            Some(at) => *at = self.queue.write(*at, request)?,
            None => self.queue.post(request)?,
        }
        Ok(())
    }

    /// Writes or posts a request of a driver's own: `write` gets the queue, the position, the id and the
    /// flags. The request names no destination, and is one of RC: all drivers' own requests are.
    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    pub(crate) fn put_own<L: Listed>(
        mut self,
        write: impl FnOnce(&mut L::SendQueue, Position, (u64, SendFlags)) -> Result<Position, PostError>,
    ) -> Result<(), PostError> {
        let transport = self.fixed().transport;
        let start = self.batch.as_deref().copied();
        let start = start.unwrap_or_else(|| self.queue.position());
        let queue = L::get_mut(&mut self.queue).filter(|_| transport == QpType::RC);
        let queue = queue.ok_or(PostError::NotInTransport { transport })?;
        self.checks.check_sends()?;
        let end = write(queue, start, (self.wr_id, self.flags))?;
        match self.batch {
            Some(at) => *at = end,
            None => {
                let rung = self.queue.ring(start, end);
                rung.map_err(PostError::Doorbell)?;
            }
        }
        Ok(())
    }

    /// As `put`, for a payload that is written to or read from `remote`.
    #[inline(always)]
    pub(super) fn put_remote(
        self,
        operation: impl FnOnce(Remote) -> Operation,
        remote: RemoteSlice,
        payload: Payload<'_>,
    ) -> Result<(), PostError>
    where
        D: Names,
    {
        let RemoteSlice {
            address,
            rkey,
            length,
        } = remote;
        self.put(operation(Remote { address, rkey }), payload, length)
    }
}

// The bounds on the transport are on each method and not on the block around them: only there does the
// compiler show the trait's own message when a bound does not hold.
impl<'q, T: Transport, D: Names> Request<'_, 'q, T, D> {
    /// A SEND. A datagram has at most the path's MTU.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send(self, from: impl IntoPayload<'q>) -> Result<(), PostError>
    where
        T: Reaches<D>,
    {
        self.put(Operation::Send, from.as_payload().0, ANY)
    }

    /// A SEND with immediate data: a number that arrives in the peer's completion
    /// ([`Completion::imm`](crate::Completion::imm)), whatever the byte order of the two hosts.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_imm(self, from: impl IntoPayload<'q>, imm: u32) -> Result<(), PostError>
    where
        T: Reaches<D>,
    {
        self.put(Operation::SendImm { imm }, from.as_payload().0, ANY)
    }

    /// A SEND that, when it is received, invalidates a key of the peer: of a memory window of type 2. The
    /// peer finds the key in its completion
    /// ([`Completion::invalidated_rkey`](crate::Completion::invalidated_rkey)).
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_inv(self, from: impl IntoPayload<'q>, rkey: RemoteKey) -> Result<(), PostError>
    where
        T: RemoteInvalidate + Reaches<D>,
    {
        self.put(Operation::SendInv { rkey }, from.as_payload().0, ANY)
    }

    /// An RDMA WRITE to the peer's memory.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write(self, from: impl IntoPayload<'q>, to: RemoteSlice) -> Result<(), PostError>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.put_remote(
            |remote| Operation::Write { remote },
            to,
            from.as_payload().0,
        )
    }

    /// An RDMA WRITE with immediate data, which consumes a receive of the peer.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write_imm(
        self,
        from: impl IntoPayload<'q>,
        to: RemoteSlice,
        imm: u32,
    ) -> Result<(), PostError>
    where
        T: RdmaWrite + Reaches<D>,
    {
        self.put_remote(
            |remote| Operation::WriteImm { remote, imm },
            to,
            from.as_payload().0,
        )
    }

    /// An RDMA READ of the peer's memory into registered memory.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn read(
        self,
        into: impl AsRef<[LocalSlice<'q>]>,
        from: RemoteSlice,
    ) -> Result<(), PostError>
    where
        T: RdmaRead + Reaches<D>,
    {
        let into = Payload::Gather(into.as_ref());
        self.put_remote(|remote| Operation::Read { remote }, from, into)
    }

    /// An atomic compare-and-swap: 8 bytes of the peer's memory become `swap` if they are `compare`; what
    /// they were is written to `into`. The numbers are in this host's byte order.
    ///
    /// # Errors
    ///
    /// [`PostError::NotAtomic`] if `into` is not 8 bytes long or the address no multiple of 8. Otherwise see
    /// [`PostError`].
    #[inline(always)]
    pub fn compare_swap(
        self,
        into: LocalSlice<'q>,
        at: RemoteSlice,
        compare: u64,
        swap: u64,
    ) -> Result<(), PostError>
    where
        T: Atomic + Reaches<D>,
    {
        self.put_atomic(
            |remote| Operation::CompareSwap {
                remote,
                compare,
                swap,
            },
            into,
            at,
        )
    }

    /// An atomic fetch-and-add: `add` is added to 8 bytes of the peer's memory; what they were is written to
    /// `into`. The numbers are in this host's byte order.
    ///
    /// # Errors
    ///
    /// As for [`compare_swap`](Self::compare_swap).
    #[inline(always)]
    pub fn fetch_add(self, into: LocalSlice<'q>, at: RemoteSlice, add: u64) -> Result<(), PostError>
    where
        T: Atomic + Reaches<D>,
    {
        self.put_atomic(|remote| Operation::FetchAdd { remote, add }, into, at)
    }

    #[inline(always)]
    fn put_atomic(
        self,
        operation: impl FnOnce(Remote) -> Operation,
        into: LocalSlice<'q>,
        at: RemoteSlice,
    ) -> Result<(), PostError> {
        if u64::from(into.length) != ATOMIC || !at.address.is_multiple_of(ATOMIC) {
            return Err(PostError::NotAtomic {
                address: at.address,
                length: into.length.into(),
            });
        }
        self.put_remote(operation, at, Payload::Gather(std::slice::from_ref(&into)))
    }
}

impl<T: Transport, D> fmt::Debug for Request<'_, '_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("wr_id", &self.wr_id)
            .field("flags", &self.flags)
            .field("is_alone", &self.batch.is_none())
            .finish()
    }
}

pub(super) mod sealed {
    use crate::work::Payload;

    /// The payload in the form that drivers take.
    #[derive(Debug)]
    pub struct Carried<'a>(pub(crate) Payload<'a>);

    pub trait AsPayload<'q> {
        fn as_payload<'a>(&'a self) -> Carried<'a>
        where
            'q: 'a;
    }
}

/// The payload of a SEND or WRITE: slices of registered memory (one, or an array or slice of them), or bytes
/// that are copied into the request ([`Inline`]).
///
/// Slices borrow their regions for `'q`, the life of the batch.
#[diagnostic::on_unimplemented(
    message = "a request cannot carry `{Self}`",
    label = "this needs slices of registered memory, or `Inline(bytes)`",
    note = "`Mr::slice` gives a slice of registered memory"
)]
pub trait IntoPayload<'q>: sealed::AsPayload<'q> {}

impl<'q, S: AsRef<[LocalSlice<'q>]>> IntoPayload<'q> for S {}

impl<'q, S: AsRef<[LocalSlice<'q>]>> sealed::AsPayload<'q> for S {
    #[inline(always)]
    fn as_payload<'a>(&'a self) -> Carried<'a>
    where
        'q: 'a,
    {
        Carried(Payload::Gather(self.as_ref()))
    }
}

/// Bytes that are copied into the request: they may change as soon as it is written. A queue pair takes as
/// many as its [`Caps::max_inline_data`](super::Caps::max_inline_data).
#[derive(Clone, Copy, Debug)]
pub struct Inline<'a>(pub &'a [u8]);

impl IntoPayload<'_> for Inline<'_> {}

impl<'q> sealed::AsPayload<'q> for Inline<'_> {
    #[inline(always)]
    fn as_payload<'a>(&'a self) -> Carried<'a>
    where
        'q: 'a,
    {
        Carried(Payload::Inline(self.0))
    }
}
