//! The data path, and what objects ask of their driver's part once they are created.
//!
//! Batches and polled completions are made once for many operations, and held by value: the compiler then
//! keeps the variant in a register, or knows it, where behind a reference to the queue it would look again
//! each time.

use std::fmt;
use std::hint::black_box;
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
use crate::command::{CommandFd, DriverData, DriverReply, Failed};
use crate::error::{Errno, Result};
use crate::work::{
    Bounds, Destination, Ece, LocalKey, LocalSlice, Operation, Payload, PdTag, PollError,
    PostError, Progress,
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
    type Of<D: contract::Driver> = Posting<'q, D::RecvQueue>;
}

#[derive(Debug)]
struct SharedQueues<'q>(PhantomData<&'q ()>);

impl<'q> Kind for SharedQueues<'q> {
    type Of<D: contract::Driver> = Posting<'q, D::SharedRecvQueue>;
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

    /// Posts one signaled request if it is the usual one: see [`contract::SendQueue::post`].
    #[inline(always)]
    pub(crate) fn post(
        &mut self,
        wr_id: u64,
        operation: Operation,
        payload: Payload<'_>,
        bounds: Bounds,
    ) -> Option<Result<(), Failed>> {
        if !bounds.hold_usual(payload) {
            return None;
        }
        dispatch!(self, D(queue) => queue.post(wr_id, operation, payload))
    }

    /// As [`Self::post`], out of line: see [`contract::SendQueue::post_otherwise`].
    pub(crate) fn post_otherwise(&mut self, wr_id: u64, request: &Request<'_>) -> bool {
        let Request {
            operation,
            payload,
            bounds,
            ..
        } = *request;
        bounds.hold_usual(payload)
            && dispatch!(self, D(queue) => queue.post_otherwise(wr_id, operation, payload))
    }

    /// Rings again for what was posted: see [`contract::SendQueue::ring_again`].
    pub(crate) fn ring_again(&mut self, failed: Failed) -> Result<(), Errno> {
        dispatch!(self, D(queue) => queue.ring_again(failed))
    }
}

impl SendBatch<'_> {
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        dispatch!(lent &self.0, D(batch) => batch.len())
    }

    /// Adds a request, which has been checked.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<SendSlot, PostError> {
        dispatch!(lent &mut self.0, D(batch) => {
            batch.push(operation, own::<D>(to)?, payload).map(D::lend)
        })
    }

    /// Adds the request that was opened.
    ///
    /// # Safety
    ///
    /// As of [`contract::SendBatch::close`].
    #[cfg(feature = "c-abi")]
    pub(crate) unsafe fn close(&mut self, opened: contract::Opened, payload: Payload<'_>) -> bool {
        // SAFETY: by this function's contract.
        dispatch!(lent &mut self.0, D(batch) => unsafe { batch.close(opened, payload) })
    }

    /// Adds a request. The queue pair has its operation and takes it there if `is_certain`; if not, or if it
    /// is not the usual one otherwise, it is checked.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        request: Request<'_>,
        is_certain: bool,
        check: impl Check,
    ) -> Result<SendSlot, PostError> {
        let Request {
            operation,
            to,
            payload,
            bounds,
            ..
        } = request;
        // The check is in here so that the compiler has it for each driver, and knows which one it is
        // throughout.
        dispatch!(lent &mut self.0, D(batch) => {
            if !(is_certain && bounds.hold_usual(payload)) {
                check.check(&black_box(request))?;
            }
            batch.push(operation, own::<D>(to)?, payload).map(D::lend)
        })
    }

    /// Adds a request that has been checked and that need not be the usual one.
    pub(crate) fn add_other(&mut self, request: &Request<'_>) -> Result<SendSlot, PostError> {
        let Request {
            operation,
            to,
            payload,
            ..
        } = *request;
        dispatch!(lent &mut self.0, D(batch) => {
            batch.push_other(operation, own::<D>(to)?, payload).map(D::lend)
        })
    }

    /// Whether who rings it need not ask for the queue pair's state: see [`contract::SendBatch::is_usual`].
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        dispatch!(lent &self.0, D(batch) => batch.is_usual())
    }

    #[inline(always)]
    pub(crate) fn ring(self) -> Result<usize, Errno> {
        dispatch!(lent &mut ManuallyDrop::new(self).0, D(batch) => batch.ring())
    }
}

/// A request of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    pub(crate) to: Option<Destination<'a, Ah>>,
    pub(crate) payload: Payload<'a>,
    pub(crate) bounds: Bounds,
    /// The type of the queue pair tells where its requests go.
    pub(crate) is_certain: bool,
}

/// What is checked of a request that is not the usual one.
pub(crate) trait Check: Copy {
    fn check(self, request: &Request<'_>) -> Result<(), PostError>;
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
        RecvBatch(dispatch!(self, D(queue) => Receiver::Own(D::lend(Posting::new(queue)))))
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
        RecvBatch(dispatch!(self, D(queue) => Receiver::Shared(D::lend(Posting::new(queue)))))
    }
}

/// Requests that are being written into a receive queue.
#[derive(Debug)]
pub(crate) struct RecvBatch<'q>(Receiver<'q>);

#[derive(Debug)]
enum Receiver<'q> {
    Own(Lent<OwnQueues<'q>>),
    Shared(Lent<SharedQueues<'q>>),
}

/// A batch, as a driver has it.
struct Posting<'q, Q: contract::RecvQueue> {
    queue: &'q mut Q,
    /// How far it is.
    at: Q::At,
    /// Not 0 if one of its requests was not a usual one. (A number, since two values that share a word are
    /// taken out of it and put back.)
    unusual: u64,
}

impl<'q, Q: contract::RecvQueue> Posting<'q, Q> {
    #[inline(always)]
    fn new(queue: &'q mut Q) -> Self {
        Self {
            at: queue.begin(),
            queue,
            unusual: 0,
        }
    }

    #[inline(always)]
    fn push(&mut self, wr_id: u64, slices: &[LocalSlice<'_>]) -> Result<(), PostError> {
        if !self.queue.push_usual(&mut self.at, wr_id, slices) {
            self.at = self.queue.push(black_box(self.at), wr_id, slices)?;
            self.unusual = 1;
        }
        Ok(())
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        self.queue.pending(self.at)
    }

    #[inline(always)]
    fn is_usual(&self) -> bool {
        self.unusual == 0
    }

    #[inline(always)]
    fn ring(&mut self) {
        match self.is_usual() {
            true => self.queue.ring_usual(self.at),
            false => self.queue.ring(self.at),
        }
    }
}

impl<Q: contract::RecvQueue> fmt::Debug for Posting<'_, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Posting").field(&self.queue).finish()
    }
}

/// As `dispatch!`, of a queue of either kind.
macro_rules! receive {
    ($batch:expr, $posting:ident => $then:expr) => {
        match $batch {
            Receiver::Own(posting) => dispatch!(lent posting, D($posting) => $then),
            Receiver::Shared(posting) => dispatch!(lent posting, D($posting) => $then),
        }
    };
}

impl RecvBatch<'_> {
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        receive!(&self.0, posting => posting.len())
    }

    /// Adds a request with slices of this protection domain. They are checked in here for the same reason as
    /// in [`SendBatch::add`].
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        wr_id: u64,
        slices: &[LocalSlice<'_>],
        pd: PdTag,
    ) -> Result<(), PostError> {
        receive!(&mut self.0, posting => {
            match slices.iter().all(|slice| slice.pd == pd) {
                true => posting.push(wr_id, slices),
                false => Err(PostError::ForeignPd),
            }
        })
    }

    /// Whether all its requests were usual ones: then something was rung since the queue was reset, or there
    /// are none, and who rings need not ask for the queue pair's state.
    #[inline(always)]
    pub(crate) fn is_usual(&self) -> bool {
        receive!(&self.0, posting => posting.is_usual())
    }

    #[inline(always)]
    pub(crate) fn ring(self) {
        let mut batch = ManuallyDrop::new(self);
        receive!(&mut batch.0, posting => posting.ring());
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
