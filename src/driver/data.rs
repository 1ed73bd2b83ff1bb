//! The data path: posting, and taking completions.
//!
//! Each function selects the driver and calls its function.

use std::marker::PhantomData;

use uverbs_uapi::enums::{QpType, WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;

use super::contract::{self, Position, methods::*};
use super::{Ah, Cq, CqBacking, Kind, Listed, OneOf, RecvQueue, SendQueue, SharedRecvQueue};
use crate::error::Errno;
use crate::work::{Destination, LocalSlice, PollError, PostError, WorkRequest};

/// A completion, in its driver's type.
pub(crate) type Completion = OneOf<CompletionKinds>;

#[derive(Debug)]
pub(crate) enum CompletionKinds {}

impl Kind for CompletionKinds {
    type Of<D: contract::Driver> = <D::Cq as contract::Cq>::Completion;
}

/// Completions that are being taken.
pub(crate) type Polled<'q> = OneOf<Polls<'q>>;

#[derive(Debug)]
pub(crate) struct Polls<'q>(PhantomData<&'q ()>);

impl<'q> Kind for Polls<'q> {
    type Of<D: contract::Driver> = <D::Cq as contract::Cq>::Polled<'q>;
}

/// Lets the compiler rule out drivers that lack the transport: where a queue pair of that transport posts,
/// the program then has no code of such a driver.
#[inline(always)]
fn expect_transport<D: contract::Driver>(transport: Option<QpType>) {
    assert!(
        transport.is_none_or(D::has_type),
        "the driver has no such queue pairs"
    );
}

impl SendQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        max_inline() -> u32;
        in_flight() -> u32;
        has_bound_windows() -> bool;
    }

    /// The queue for a batch, with its transport if that is known. From here on the compiler knows the
    /// driver, and the code does not check it again.
    #[inline(always)]
    pub(crate) fn lend(&mut self, transport: Option<QpType>) -> Posting<'_> {
        dispatch!(self, D(queue) => {
            expect_transport::<D>(transport);
            D::wrap(queue)
        })
    }
}

/// A send queue that a thread posts to.
pub(crate) type Posting<'q> = OneOf<Postings<'q>>;

#[derive(Debug)]
pub(crate) struct Postings<'q>(PhantomData<&'q ()>);

impl<'q> Kind for Postings<'q> {
    type Of<D: contract::Driver> = &'q mut D::SendQueue;
}

impl Posting<'_> {
    /// The same queue, for one request of a batch.
    #[inline(always)]
    pub(crate) fn again(&mut self) -> Posting<'_> {
        dispatch!(self, D(queue) => D::wrap(&mut **queue))
    }

    #[inline(always)]
    pub(crate) fn position(&self) -> Position {
        dispatch!(self, D(queue) => queue.position())
    }

    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        at: Position,
        request: WorkRequest<'_, Ah>,
    ) -> Result<Position, PostError> {
        dispatch!(self, D(queue) => queue.write(at, own::<D>(request)?))
    }

    #[inline(always)]
    pub(crate) fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno> {
        dispatch!(self, D(queue) => queue.ring(start, end))
    }

    /// Writes one request and rings.
    #[inline(always)]
    pub(crate) fn post(&mut self, request: WorkRequest<'_, Ah>) -> Result<(), PostError> {
        dispatch!(self, D(queue) => {
            let start = queue.position();
            let end = queue.write(start, own::<D>(request)?)?;
            queue.ring(start, end).map(drop).map_err(PostError::Doorbell)
        })
    }
}

/// A request with its destination in the driver's type. A destination of another driver belongs to another
/// PD, which the caller has checked.
#[inline(always)]
fn own<D: Listed>(request: WorkRequest<'_, Ah>) -> Result<WorkRequest<'_, D::Ah>, PostError> {
    let WorkRequest {
        wr_id,
        flags,
        operation,
        to,
        payload,
    } = request;
    let to = match to {
        None => None,
        Some(Destination::Srq(srqn)) => Some(Destination::Srq(srqn)),
        Some(Destination::Datagram(to)) => {
            Some(to.with(D::get(to.ah).ok_or(PostError::ForeignPd)?))
        }
        Some(Destination::Target(to)) => Some(to.with(D::get(to.ah).ok_or(PostError::ForeignPd)?)),
    };
    Ok(WorkRequest {
        wr_id,
        flags,
        operation,
        to,
        payload,
    })
}

/// A receive queue that a thread posts to.
pub(crate) type Receiving<'q> = OneOf<Receivings<'q>>;

#[derive(Debug)]
pub(crate) struct Receivings<'q>(PhantomData<&'q ()>);

impl<'q> Kind for Receivings<'q> {
    type Of<D: contract::Driver> = OwnOrShared<'q, D::RecvQueue, D::SharedRecvQueue>;
}

/// The receive queue of a queue pair, or a shared one.
#[derive(Debug)]
pub(crate) enum OwnOrShared<'q, O, S> {
    Own(&'q mut O),
    Shared(&'q mut S),
}

impl RecvQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        in_flight() -> u32;
    }

    /// The queue for a batch, as [`SendQueue::lend`].
    #[inline(always)]
    pub(crate) fn lend(&mut self, transport: Option<QpType>) -> Receiving<'_> {
        dispatch!(self, D(queue) => {
            expect_transport::<D>(transport);
            D::wrap(OwnOrShared::Own(queue))
        })
    }
}

impl SharedRecvQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        in_flight() -> u32;
    }

    /// The queue for a batch, as [`SendQueue::lend`].
    #[inline(always)]
    pub(crate) fn lend(&mut self) -> Receiving<'_> {
        dispatch!(self, D(queue) => D::wrap(OwnOrShared::Shared(queue)))
    }
}

impl Receiving<'_> {
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        nth: u32,
        wr_id: u64,
        slices: &[LocalSlice<'_>],
    ) -> Result<(), PostError> {
        dispatch!(self, D(queue) => match queue {
            OwnOrShared::Own(queue) => queue.write(nth, wr_id, slices),
            OwnOrShared::Shared(queue) => queue.write(nth, wr_id, slices),
        })
    }

    #[inline(always)]
    pub(crate) fn ring(&mut self, count: u32) {
        dispatch!(self, D(queue) => match queue {
            OwnOrShared::Own(queue) => queue.ring(count),
            OwnOrShared::Shared(queue) => queue.ring(count),
        });
    }
}

impl Cq {
    forward! {
        capacity() -> u32;
    }

    pub(crate) fn backing(&self) -> CqBacking {
        dispatch!(self, D(cq) => D::wrap(cq.backing()))
    }

    pub(crate) fn is_empty(&mut self) -> Result<bool, PollError> {
        dispatch!(self, D(cq) => cq.is_empty())
    }

    /// Gives the places of completions that no poll will tell of back to the device.
    #[cfg(feature = "c-abi")]
    pub(crate) fn clean(&mut self) {
        dispatch!(self, D(cq) => cq.clean());
    }

    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Result<Polled<'_>, PollError> {
        dispatch!(self, D(cq) => Ok(D::wrap(cq.poll()?)))
    }
}

impl Iterator for Polled<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        dispatch!(self, D(polled) => polled.next().map(D::wrap))
    }
}

impl Clone for Completion {
    #[inline(always)]
    fn clone(&self) -> Self {
        dispatch!(self, D(it) => D::wrap(*it))
    }
}

impl Completion {
    forward! {
        wr_id() -> u64;
        status() -> WcStatus;
        opcode() -> WcOpcode;
        vendor_err() -> u32;
        byte_len() -> u32;
        qp_num() -> u32;
        src_qp() -> u32;
        ex() -> u32;
        flags() -> WcFlags;
        timestamp() -> Option<u64>;
        pkey_index() -> u16;
        slid() -> u16;
        sl() -> u8;
        dlid_path_bits() -> u8;
        is_unsolicited() -> bool;
        sender_gid() -> Option<[u8; 16]>;
    }
}
