//! The data path, and what objects ask of their driver's part once they are created.
//!
//! Each function selects the driver and calls its function.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::{SendFlags, WcFlags};
use uverbs_uapi::handle::CqHandle;

use super::contract::{self, methods::*};
use super::{
    Ah, Cq, CqBacking, Kind, Listed, OneOf, QpBacking, RecvQueue, SendQueue, SharedRecvQueue,
    SrqBacking,
};
use crate::command::{CommandFd, DriverData, DriverReply};
use crate::error::{Errno, Result};
use crate::work::{
    Destination, Ece, LocalKey, LocalSlice, Operation, Payload, PollError, PostError, Progress,
};

/// A completion, as its driver has it.
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

impl SendQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        max_inline() -> u32;
        in_flight() -> u32;
        pending() -> u32;
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        dispatch!(self, D(queue) => queue.begin())
    }

    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        dispatch!(self, D(queue) => queue.write(wr_id, flags, operation, own::<D>(to)?, payload))
    }

    /// Posts one request: begins, writes it and rings.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        dispatch!(self, D(queue) => {
            queue.begin();
            queue.write(wr_id, flags, operation, own::<D>(to)?, payload)?;
            queue.ring().map(drop).map_err(PostError::Doorbell)
        })
    }

    #[inline(always)]
    pub(crate) fn amend(&mut self, wr_id: Option<u64>, flags: SendFlags) {
        dispatch!(self, D(queue) => queue.amend(wr_id, flags))
    }

    #[inline(always)]
    pub(crate) fn ring(&mut self) -> Result<usize, Errno> {
        dispatch!(self, D(queue) => queue.ring())
    }
}

/// A destination as a driver knows it. Another driver's is of another PD, which the caller has noticed.
#[inline(always)]
fn own<'a, D: Listed>(
    to: Option<Destination<'a, Ah>>,
) -> Result<Option<Destination<'a, D::Ah>>, PostError> {
    match to {
        None => Ok(None),
        Some(Destination::Srq(srqn)) => Ok(Some(Destination::Srq(srqn))),
        Some(Destination::Datagram(to)) => match D::get(to.ah) {
            Some(ah) => Ok(Some(to.with(ah))),
            None => Err(PostError::ForeignPd),
        },
    }
}

/// The receive queue of a queue pair, or a shared one, by which requests are posted.
#[derive(Debug)]
pub(crate) enum Receiving<'q> {
    Own(&'q mut RecvQueue),
    Shared(&'q mut SharedRecvQueue),
}

/// `on!(receiving, queue => expression)`: the expression for the queue of a driver, of either kind.
macro_rules! on {
    ($receiving:expr, $queue:ident => $then:expr) => {
        match $receiving {
            Receiving::Own(queue) => dispatch!(queue, D($queue) => $then),
            Receiving::Shared(queue) => dispatch!(queue, D($queue) => $then),
        }
    };
}

impl RecvQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        in_flight() -> u32;
    }
}

impl SharedRecvQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        in_flight() -> u32;
    }
}

impl Receiving<'_> {
    #[inline(always)]
    pub(crate) fn begin(&mut self) {
        on!(self, queue => queue.begin())
    }

    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        on!(self, queue => queue.pending())
    }

    #[inline(always)]
    pub(crate) fn write(&mut self, wr_id: u64, slices: &[LocalSlice<'_>]) -> Result<(), PostError> {
        on!(self, queue => queue.write(wr_id, slices))
    }

    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        on!(self, queue => queue.ring())
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
    }
}

impl CqBacking {
    pub(crate) fn events(&self) -> Option<&Arc<AtomicU32>> {
        dispatch!(self, D(backing) => <D as contract::Driver>::Cq::events(backing))
    }

    /// Has the next poll say that the queue had no room for a completion.
    pub(crate) fn overran(&self) {
        dispatch!(self, D(backing) => <D as contract::Driver>::Cq::overran(backing));
    }

    /// Asks for an event when the next completion arrives.
    pub(crate) fn arm(&self, fd: &CommandFd, cq: CqHandle, solicited_only: bool) -> Result<()> {
        dispatch!(self, D(backing) => {
            <D as contract::Driver>::Cq::arm(backing, fd, cq, solicited_only)
        })
    }
}

impl QpBacking {
    forward! {
        kernel_knows_caps() -> bool;
        query_ece() -> Option<Ece>;
        set_ece(options: u32) -> ();
        modify_data() -> DriverData;
        modified(reply: &DriverReply) -> ();
        close() -> ();
        sends() -> Progress;
        receives() -> Option<Progress>;
        sends_name(in_flight: Progress, key: LocalKey) -> bool;
        receives_name(in_flight: Progress, key: LocalKey) -> bool;
    }

    #[cfg(feature = "c-abi")]
    forward! {
        forget_unread() -> ();
    }
}

impl SrqBacking {
    forward! {
        progress() -> Progress;
        names(in_flight: Progress, key: LocalKey) -> bool;
    }

    #[cfg(feature = "c-abi")]
    forward! {
        forget_received() -> ();
    }
}

// A clone that is forgotten keeps for good what the kernel has not let go of.

impl Clone for CqBacking {
    fn clone(&self) -> Self {
        dispatch!(self, D(backing) => D::wrap(backing.clone()))
    }
}

impl Clone for QpBacking {
    fn clone(&self) -> Self {
        dispatch!(self, D(backing) => D::wrap(backing.clone()))
    }
}

impl Clone for SrqBacking {
    fn clone(&self) -> Self {
        dispatch!(self, D(backing) => D::wrap(backing.clone()))
    }
}
