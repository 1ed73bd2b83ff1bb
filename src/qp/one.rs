//! Posting one request in one call: the shortest way there is.

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::enums::QpState;

use super::send::{Fixed, gather, length};
use super::transport::{Connected, RdmaRead, RdmaWrite, Transport};
use super::{Of, QpShared};
use crate::driver::SendQueue;
use crate::work::{LocalSlice, Operation, Operations, Payload, PostError, Remote, RemoteSlice};

/// A request that is about to be posted, alone and signaled: each method posts it and rings the doorbell.
///
/// [`Qp::one`](super::Qp::one) and [`SendHalf::one`](super::SendHalf::one) start it. It takes fewer
/// instructions than a [`Batch`](super::Batch) of one, which has more to say about a request. What is said
/// there of the memory that a request names holds here too.
#[must_use = "nothing is posted until a request is named"]
pub struct One<'q, T: Transport> {
    pub(super) queue: &'q mut SendQueue,
    pub(super) fixed: &'q Fixed,
    pub(super) shared: &'q Arc<QpShared>,
    pub(super) wr_id: u64,
    pub(super) of: Of<T>,
}

impl<T: Transport> One<'_, T> {
    /// Checks what can be checked of the request and posts it.
    #[inline(always)]
    fn push(self, operation: Operation, payload: Payload<'_>) -> Result<(), PostError> {
        let fixed = self.fixed;
        if T::TYPE.is_none() {
            self.check(operation.needs())?;
        }
        if let Payload::Gather(slices) = payload
            && slices.iter().any(|slice| slice.pd != fixed.pd)
        {
            return Err(PostError::ForeignPd);
        }
        let state = self.shared.state();
        if matches!(state, QpState::RESET | QpState::INIT | QpState::RTR) {
            return Err(PostError::WrongState { state });
        }
        self.queue.post(self.wr_id, operation, payload)
    }

    /// Refuses what the queue pair cannot do.
    #[inline(always)]
    fn check(&self, needed: Operations) -> Result<(), PostError> {
        let Fixed {
            transport,
            operations,
            ..
        } = *self.fixed;
        if transport == uverbs_uapi::enums::QpType::UD {
            return Err(PostError::Destination);
        }
        match operations.contains(needed) {
            true => Ok(()),
            false => Err(operations.refusal(needed, transport)),
        }
    }

    /// As `push`, for a payload that goes to or comes from `remote`.
    #[inline(always)]
    fn push_remote(
        self,
        operation: impl FnOnce(Remote) -> Operation,
        remote: RemoteSlice,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        let local = length(payload);
        if local > remote.length {
            return Err(PostError::BeyondRemote {
                local,
                remote: remote.length,
            });
        }
        let RemoteSlice { address, rkey, .. } = remote;
        self.push(operation(Remote { address, rkey }), payload)
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
        self.push(Operation::Send, gather(from.as_ref())?)
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
        self.push(Operation::Send, Payload::Inline(bytes))
    }

    /// Posts an RDMA WRITE of registered memory to the peer's.
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
        T: RdmaWrite,
    {
        let payload = gather(from.as_ref())?;
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
        T: RdmaWrite,
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
        T: RdmaRead,
    {
        let payload = gather(into.as_ref())?;
        self.push_remote(|remote| Operation::Read { remote }, from, payload)
    }
}

impl<T: Transport> fmt::Debug for One<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("One").field("wr_id", &self.wr_id).finish()
    }
}
