//! Posting one request in one call: the fewest instructions.

use std::fmt;
use std::sync::Arc;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::SendFlags;

use super::send::{Fixed, gather, length};
use super::transport::{Connected, NamesSrq, RdmaRead, RdmaWrite, Transport};
use super::{Of, QpShared};
use crate::driver::SendQueue;
use crate::work::{
    Destination, LocalSlice, Operation, Operations, Payload, PostError, Remote, RemoteSlice,
};

/// A request that is about to be posted, alone and signaled: each method posts it and rings the doorbell.
///
/// [`Qp::one`](super::Qp::one) and [`SendHalf::one`](super::SendHalf::one) create it. It takes fewer
/// instructions than a [`Batch`](super::Batch) of one, but has fewer options. The rules for the memory that a
/// request names are the same.
#[must_use = "nothing is posted until a request is named"]
pub struct One<'q, T: Transport> {
    pub(super) queue: &'q mut SendQueue,
    pub(super) fixed: &'q Fixed,
    pub(super) shared: &'q Arc<QpShared>,
    pub(super) wr_id: u64,
    /// As of a batch.
    pub(super) srq: T::Srq,
    pub(super) of: Of<T>,
}

impl<T: NamesSrq> One<'_, T> {
    /// Selects the peer's shared receive queue for the request: see [`Batch::to_srq`](super::Batch::to_srq).
    #[inline(always)]
    pub fn to_srq(mut self, srqn: u32) -> Self {
        self.srq = Some(srqn);
        self
    }
}

impl<T: Transport> One<'_, T> {
    /// Checks what can be checked of the request and posts it.
    #[inline(always)]
    fn push(self, operation: Operation, payload: Payload<'_>) -> Result<(), PostError> {
        let fixed = self.fixed;
        let srqn = T::named(self.srq)?;
        if T::TYPE.is_none() {
            self.check(operation.needs(), srqn)?;
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
        match srqn {
            None => self.queue.post(self.wr_id, operation, payload),
            Some(srqn) => self.post_to(srqn, operation, payload),
        }
    }

    /// Posts the request to a shared receive queue, by a batch: drivers have no shorter way for it.
    fn post_to(
        self,
        srqn: u32,
        operation: Operation,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        let mut batch = self.queue.batch();
        let mut slot = batch.push(operation, Some(Destination::Srq(srqn)), payload)?;
        slot.set_id(self.wr_id);
        slot.add_flags(SendFlags::SIGNALED);
        batch.ring().map(drop).map_err(PostError::Doorbell)
    }

    /// Refuses what the queue pair cannot do.
    #[inline(always)]
    fn check(&self, needed: Operations, srqn: Option<u32>) -> Result<(), PostError> {
        let Fixed {
            transport,
            operations,
            ..
        } = *self.fixed;
        if transport == QpType::UD || srqn.is_some() != (transport == QpType::XRC_SEND) {
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
