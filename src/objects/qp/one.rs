//! Posting one request in one call.

use std::fmt;
use std::marker::PhantomData;

use super::Of;
use super::send::{ANY, Sender};
use super::transport::{Connected, NamesSrq, RdmaRead, RdmaWrite, Transport};
use crate::work::{Destination, LocalSlice, Operation, Payload, PostError, Remote, RemoteSlice};

/// A request that is about to be posted, alone and signaled: each method posts it and rings the doorbell.
///
/// [`Qp::one`](super::Qp::one) and [`SendHalf::one`](super::SendHalf::one) create it. It takes fewer
/// instructions than a [`Batch`](super::Batch) of one, but has fewer options. The rules for the memory that a
/// request names are the same.
#[must_use = "nothing is posted until a request is named"]
pub struct One<'q, T: Transport> {
    sender: &'q mut Sender,
    wr_id: u64,
    /// As of a batch.
    srq: T::Srq,
    of: Of<T>,
}

impl<T: NamesSrq> One<'_, T> {
    /// Selects the peer's shared receive queue for the request: see [`Batch::to_srq`](super::Batch::to_srq).
    #[inline(always)]
    pub fn to_srq(mut self, srqn: u32) -> Self {
        self.srq = Some(srqn);
        self
    }
}

impl<'q, T: Transport> One<'q, T> {
    #[inline(always)]
    pub(super) fn new(sender: &'q mut Sender, wr_id: u64) -> Self {
        Self {
            sender,
            wr_id,
            srq: T::NO_SRQ,
            of: PhantomData,
        }
    }

    /// Checks what can be checked of the request and posts it. The peer has room for so many bytes, as far as
    /// is known.
    #[inline(always)]
    fn push(self, operation: Operation, payload: Payload<'_>, room: u64) -> Result<(), PostError> {
        let to = T::named(self.srq)?.map(Destination::Srq);
        self.sender
            .post::<T>(self.wr_id, operation, to, payload, room)
    }

    /// As `push`, for a payload that goes to or comes from `remote`.
    #[inline(always)]
    fn push_remote(
        self,
        operation: impl FnOnce(Remote) -> Operation,
        remote: RemoteSlice,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        let RemoteSlice {
            address,
            rkey,
            length,
        } = remote;
        self.push(operation(Remote { address, rkey }), payload, length)
    }

    /// Posts a SEND of registered memory to the peer.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send<'r>(self, from: impl AsRef<[LocalSlice<'r>]>) -> Result<(), PostError>
    where
        T: Connected,
    {
        self.push(Operation::Send, Payload::Gather(from.as_ref()), ANY)
    }

    /// Posts a SEND of bytes that are copied into the request.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn send_inline(self, bytes: &[u8]) -> Result<(), PostError>
    where
        T: Connected,
    {
        self.push(Operation::Send, Payload::Inline(bytes), ANY)
    }

    /// Posts an RDMA WRITE of registered memory to the peer's memory.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write<'r>(
        self,
        from: impl AsRef<[LocalSlice<'r>]>,
        to: RemoteSlice,
    ) -> Result<(), PostError>
    where
        T: Connected + RdmaWrite,
    {
        let payload = Payload::Gather(from.as_ref());
        self.push_remote(|remote| Operation::Write { remote }, to, payload)
    }

    /// Posts an RDMA WRITE of bytes that are copied into the request.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn write_inline(self, bytes: &[u8], to: RemoteSlice) -> Result<(), PostError>
    where
        T: Connected + RdmaWrite,
    {
        let payload = Payload::Inline(bytes);
        self.push_remote(|remote| Operation::Write { remote }, to, payload)
    }

    /// Posts an RDMA READ of the peer's memory into registered memory.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    #[inline(always)]
    pub fn read<'r>(
        self,
        into: impl AsRef<[LocalSlice<'r>]>,
        from: RemoteSlice,
    ) -> Result<(), PostError>
    where
        T: Connected + RdmaRead,
    {
        let payload = Payload::Gather(into.as_ref());
        self.push_remote(|remote| Operation::Read { remote }, from, payload)
    }
}

impl<T: Transport> fmt::Debug for One<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One").field("wr_id", &self.wr_id).finish()
    }
}
