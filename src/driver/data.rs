//! The data path, and what objects ask of their driver's part once they are created.
//!
//! Batches and polled completions are made once for many operations, and held by value: the compiler then
//! keeps the variant in a register, or knows it, where behind a reference to the queue it would look again
//! each time.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::{SendFlags, WcFlags};
use uverbs_uapi::handle::CqHandle;

use super::contract::{self, Each, Formed, methods::*};
use super::{
    Ah, Cq, CqBacking, Kind, Lent, Listed, QpBacking, RecvQueue, SendQueue, SharedRecvQueue,
    SrqBacking,
};
use crate::command::{CommandFd, DriverData, DriverReply};
use crate::error::{Errno, Result};
use crate::work::{
    Destination, Ece, Element, LocalKey, Operation, Payload, PollError, PostError, Progress,
};

/// Requests that are being written into a send queue.
#[derive(Debug)]
pub(crate) struct SendBatch<'q>(pub(super) Lent<SendBatches<'q>>);

#[derive(Debug)]
pub(crate) struct SendBatches<'q>(PhantomData<&'q ()>);

impl<'q> Kind for SendBatches<'q> {
    type Of<D: contract::Driver> = <D::SendQueue as contract::SendQueue>::Batch<'q>;
}

/// A request in a send queue whose id and flags can still change.
pub(crate) type SendSlot = Lent<SendSlots>;

#[derive(Debug)]
pub(crate) enum SendSlots {}

impl Kind for SendSlots {
    type Of<D: contract::Driver> = <D::SendQueue as contract::SendQueue>::Slot;
}

/// A completion, as its driver has it.
pub(crate) type Completion = Lent<CompletionKinds>;

#[derive(Debug)]
pub(crate) enum CompletionKinds {}

impl Kind for CompletionKinds {
    type Of<D: contract::Driver> = <D::Cq as contract::Cq>::Completion;
}

#[derive(Debug)]
pub(crate) struct Polls<'q>(PhantomData<&'q ()>);

impl<'q> Kind for Polls<'q> {
    type Of<D: contract::Driver> = <D::Cq as contract::Cq>::Polled<'q>;
}

#[derive(Debug)]
struct OwnQueues<'q>(PhantomData<&'q ()>);

impl<'q> Kind for OwnQueues<'q> {
    type Of<D: contract::Driver> = &'q mut D::RecvQueue;
}

#[derive(Debug)]
struct SharedQueues<'q>(PhantomData<&'q ()>);

impl<'q> Kind for SharedQueues<'q> {
    type Of<D: contract::Driver> = &'q mut D::SharedRecvQueue;
}

impl SendQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        max_inline() -> u32;
        in_flight() -> u32;
    }

    #[inline(always)]
    pub(crate) fn batch(&mut self) -> SendBatch<'_> {
        SendBatch(dispatch!(self, D(queue) => D::lend(queue.batch())))
    }

    /// Posts one signaled request, as a batch of it would.
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        wr_id: u64,
        operation: Operation,
        payload: Payload<'_>,
    ) -> Result<(), PostError> {
        dispatch!(self, D(queue) => queue.post(wr_id, operation, payload))
    }
}

impl SendBatch<'_> {
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        dispatch!(lent &self.0, D(batch) => batch.len())
    }

    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<SendSlot, PostError> {
        dispatch!(lent &mut self.0, D(batch) => {
            let to = match to {
                None => None,
                Some(Destination::Srq(srqn)) => Some(Destination::Srq(srqn)),
                // Another driver's is of another PD, which the caller has noticed.
                Some(Destination::Datagram(to)) => match D::get(to.ah) {
                    Some(ah) => Some(to.with(ah)),
                    None => return Err(PostError::ForeignPd),
                },
            };
            batch.push(operation, to, payload).map(D::lend)
        })
    }

    #[inline(always)]
    pub(crate) fn ring(self) -> Result<usize, Errno> {
        dispatch!(lent &mut ManuallyDrop::new(self).0, D(batch) => batch.ring())
    }
}

#[cfg(debug_assertions)]
impl Drop for SendBatch<'_> {
    fn drop(&mut self) {
        tell_lost(self.len());
    }
}

/// Warns about requests that were added to a batch and will never be posted. In debug builds only: what is to
/// be done when a batch goes, and be it nothing, costs posts the registers that it would need after a panic.
#[cfg(debug_assertions)]
#[cold]
fn tell_lost(requests: u32) {
    if requests > 0 {
        tracing::warn!(target: "uverbs", requests, "a batch was dropped and not rung: nothing of it is posted");
    }
}

impl SendSlot {
    #[inline(always)]
    pub(crate) fn set_id(&mut self, wr_id: u64) {
        dispatch!(lent self, D(slot) => slot.set_id(wr_id))
    }

    #[inline(always)]
    pub(crate) fn add_flags(&mut self, flags: SendFlags) {
        dispatch!(lent self, D(slot) => slot.add_flags(flags))
    }
}

impl RecvQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        in_flight() -> u32;
    }

    #[inline(always)]
    pub(crate) fn batch(&mut self) -> RecvBatch<'_> {
        let (queue, at) = dispatch!(self, D(queue) => {
            let at = queue.begin();
            (D::lend(queue), at)
        });
        let queue = Receiver::Own(queue);
        RecvBatch { queue, at }
    }
}

impl SharedRecvQueue {
    forward! {
        capacity() -> u32;
        max_sge() -> u32;
        in_flight() -> u32;
    }

    #[inline(always)]
    pub(crate) fn batch(&mut self) -> RecvBatch<'_> {
        let (queue, at) = dispatch!(self, D(queue) => {
            let at = queue.begin();
            (D::lend(queue), at)
        });
        let queue = Receiver::Shared(queue);
        RecvBatch { queue, at }
    }
}

/// Requests that are being written into a receive queue.
#[derive(Debug)]
pub(crate) struct RecvBatch<'q> {
    queue: Receiver<'q>,
    /// How far it is, as the driver counts.
    at: u64,
}

#[derive(Debug)]
enum Receiver<'q> {
    Own(Lent<OwnQueues<'q>>),
    Shared(Lent<SharedQueues<'q>>),
}

/// As `dispatch!`, of a queue of either kind.
macro_rules! receive {
    ($batch:expr, $queue:ident => $then:expr) => {
        match $batch {
            Receiver::Own(queue) => dispatch!(lent queue, D($queue) => $then),
            Receiver::Shared(queue) => dispatch!(lent queue, D($queue) => $then),
        }
    };
}

impl RecvBatch<'_> {
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        receive!(&self.queue, queue => queue.pending(self.at))
    }

    #[inline(always)]
    pub(crate) fn push<E: Element>(&mut self, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        receive!(&mut self.queue, queue => queue.push(&mut self.at, wr_id, slices))
    }

    #[inline(always)]
    pub(crate) fn ring(self) {
        let mut batch = ManuallyDrop::new(self);
        let at = batch.at;
        receive!(&mut batch.queue, queue => queue.ring(at));
    }
}

#[cfg(debug_assertions)]
impl Drop for RecvBatch<'_> {
    fn drop(&mut self) {
        tell_lost(self.len());
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
    pub(crate) fn poll(&mut self) -> Result<Completions<'_>, PollError> {
        Ok(Completions {
            queue: dispatch!(self, D(cq) => D::lend(cq.poll()?)),
        })
    }

    /// As [`poll`](Self::poll), and does something with each completion.
    #[inline(always)]
    pub(crate) fn take_each(&mut self, each: &mut impl Each<Completion>) -> Result<(), PollError> {
        dispatch!(self, D(cq) => {
            let mut polled = cq.poll()?;
            let mut each = Formed(each, D::lend);
            while polled.take_by(&mut each) == Some(true) {}
        });
        Ok(())
    }
}

/// Completions that are being taken.
#[derive(Debug)]
pub(crate) struct Completions<'q> {
    pub(super) queue: Lent<Polls<'q>>,
}

impl Completions<'_> {
    /// The next completion.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Completion> {
        dispatch!(lent &mut self.queue, D(queue) => queue.take().map(D::lend))
    }
}

impl Clone for Completion {
    #[inline(always)]
    fn clone(&self) -> Self {
        dispatch!(lent self, D(it) => D::lend(*it))
    }
}

impl Completion {
    forward! { lent
        wr_id -> u64;
        status -> WcStatus;
        opcode -> WcOpcode;
        vendor_err -> u32;
        byte_len -> u32;
        qp_num -> u32;
        src_qp -> u32;
        ex -> u32;
        flags -> WcFlags;
        timestamp -> Option<u64>;
        pkey_index -> u16;
        slid -> u16;
        sl -> u8;
        dlid_path_bits -> u8;
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
