//! What differs between devices. A driver is a folder here and a line in each list below.
//!
//! The types of this file are enums over the drivers that are built in; with one driver there is one variant
//! and nothing to dispatch. Above this line nothing knows which device it talks to; below it nothing
//! knows reference counts and lifetimes.

mod generic;
#[cfg(feature = "rxe")]
mod rxe;

use std::sync::Arc;

use uverbs_uapi::enums::{QpType, WcOpcode, WcStatus};
use uverbs_uapi::flags::{SendFlags, WcFlags};
use uverbs_uapi::handle::{AhHandle, CqHandle, QpHandle, SrqHandle};

use crate::alloc::Buffers;
use crate::command::{
    CommandFd, CreateAh, CreateCq, CreateQp, CreateSrq, GetContext, GetContextReply, ModifySrq,
    ResizeCq,
};
use crate::cq::PollError;
use crate::device::DriverId;
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::key::LocalSlice;
use crate::wr::{Destination, Operation, Payload, PostError};

/// The drivers that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    #[cfg(feature = "rxe")]
    Rxe,
}

impl Driver {
    /// The driver for a device, by the kernel's driver number and the driver's ABI version.
    pub(crate) fn select(id: DriverId, abi_version: u32, device: &str) -> Result<Self> {
        let (driver, versions) = match id {
            #[cfg(feature = "rxe")]
            DriverId::RXE => (Driver::Rxe, rxe::ABI_VERSIONS),
            _ => {
                let missing = format!("a driver for {id} devices in this build");
                return Err(Error::unsupported(
                    Verb::OpenDevice,
                    Subject::named("device", device),
                    missing,
                ));
            }
        };
        if !versions.contains(&abi_version) {
            let missing = format!(
                "version {abi_version} of the ABI of the kernel's driver {id}; this build speaks {} to {}",
                versions.start(),
                versions.end()
            );
            return Err(Error::unsupported(
                Verb::OpenDevice,
                Subject::named("device", device),
                missing,
            ));
        }
        Ok(driver)
    }

    /// Makes the open file a context of the device.
    pub(crate) fn get_context(self, fd: &CommandFd) -> Result<GetContextReply> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => fd.execute(&GetContext),
        }
    }

    /// Creates a completion queue.
    pub(crate) fn create_cq(
        self,
        fd: &CommandFd,
        command: CreateCq,
        buffers: Option<&Buffers>,
    ) -> Result<(CqHandle, Cq)> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => {
                rxe::create_cq(fd, command, buffers).map(|(handle, cq)| (handle, Cq::Rxe(cq)))
            }
        }
    }

    /// Gives a completion queue another size; the completions that wait stay.
    pub(crate) fn resize_cq(
        self,
        fd: &CommandFd,
        command: ResizeCq,
        cq: &mut Cq,
        buffers: Option<&Buffers>,
    ) -> Result<()> {
        match (self, cq) {
            #[cfg(feature = "rxe")]
            (Driver::Rxe, Cq::Rxe(cq)) => rxe::resize_cq(fd, command, cq, buffers),
        }
    }

    /// Creates a queue pair.
    pub(crate) fn create_qp(
        self,
        fd: &Arc<CommandFd>,
        command: CreateQp,
        buffers: Option<&Buffers>,
    ) -> Result<NewQp> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => rxe::create_qp(fd, command, buffers).map(|qp| NewQp {
                handle: qp.handle,
                qpn: qp.qpn,
                send: SendQueue::Rxe(qp.send),
                recv: qp.recv.map(RecvQueue::Rxe),
            }),
        }
    }

    /// Creates a shared receive queue.
    pub(crate) fn create_srq(
        self,
        fd: &CommandFd,
        command: CreateSrq,
        buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, RecvQueue)> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => rxe::create_srq(fd, command, buffers)
                .map(|(handle, queue)| (handle, RecvQueue::Rxe(queue))),
        }
    }

    /// Sets an attribute of a shared receive queue that leaves its ring alone.
    pub(crate) fn modify_srq(self, fd: &CommandFd, command: ModifySrq) -> Result<()> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => rxe::modify_srq(fd, command),
        }
    }

    /// Gives a shared receive queue another size; its waiting requests stay.
    pub(crate) fn resize_srq(
        self,
        fd: &CommandFd,
        command: ModifySrq,
        queue: &mut RecvQueue,
        buffers: Option<&Buffers>,
    ) -> Result<()> {
        match (self, queue) {
            #[cfg(feature = "rxe")]
            (Driver::Rxe, RecvQueue::Rxe(queue)) => rxe::resize_srq(fd, command, queue, buffers),
        }
    }

    /// Creates an address handle and returns it with the number by which work requests name it.
    pub(crate) fn create_ah(self, fd: &CommandFd, command: CreateAh) -> Result<(AhHandle, u32)> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => rxe::create_ah(fd, command),
        }
    }
}

/// A queue pair that a driver has created.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) send: SendQueue,
    /// None if the QP receives from an SRQ.
    pub(crate) recv: Option<RecvQueue>,
}

/// A send queue.
#[derive(Debug)]
pub(crate) enum SendQueue {
    #[cfg(feature = "rxe")]
    Rxe(rxe::SendQueue),
}

/// A request in a send queue whose id and flags can still change.
#[derive(Debug)]
pub(crate) enum SendSlot {
    #[cfg(feature = "rxe")]
    Rxe(rxe::SendSlot),
}

impl SendQueue {
    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.capacity(),
        }
    }

    /// The most slices of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.max_sge(),
        }
    }

    /// The most inline bytes of a request.
    pub(crate) fn max_inline(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.max_inline(),
        }
    }

    /// Whether queue pairs of this transport can invalidate a key of their own side.
    #[inline(always)]
    pub(crate) fn invalidates(&self, transport: QpType) -> bool {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.invalidates(transport),
        }
    }

    /// Whether memory windows can have addresses that count from 0.
    #[inline(always)]
    pub(crate) fn binds_zero_based(&self) -> bool {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.binds_zero_based(),
        }
    }

    /// Requests that the device has not finished.
    pub(crate) fn in_flight(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.in_flight(),
        }
    }

    /// Requests in the batch that has not been rung yet.
    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.pending(),
        }
    }

    /// Adds a request to the batch.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination>,
        payload: Payload<'_>,
    ) -> Result<SendSlot, PostError> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.push(operation, to, payload).map(SendSlot::Rxe),
        }
    }

    /// Hands the batch to the device with one doorbell.
    #[inline(always)]
    pub(crate) fn ring(&mut self) -> Result<(), Errno> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.ring(),
        }
    }

    /// Forgets the batch.
    #[inline(always)]
    pub(crate) fn abandon(&mut self) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.abandon(),
        }
    }
}

impl SendSlot {
    /// Sets the id that the completion carries.
    #[inline(always)]
    pub(crate) fn set_id(&mut self, wr_id: u64) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(slot) => slot.set_id(wr_id),
        }
    }

    /// Sets flags on top of those that are set.
    #[inline(always)]
    pub(crate) fn add_flags(&mut self, flags: SendFlags) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(slot) => slot.add_flags(flags),
        }
    }
}

/// A receive queue.
#[derive(Debug)]
pub(crate) enum RecvQueue {
    #[cfg(feature = "rxe")]
    Rxe(rxe::RecvQueue),
}

impl RecvQueue {
    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.capacity(),
        }
    }

    /// The most slices of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.max_sge(),
        }
    }

    /// Requests that no message has been received into.
    pub(crate) fn in_flight(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.in_flight(),
        }
    }

    /// Requests in the batch that has not been rung yet.
    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.pending(),
        }
    }

    /// Adds a request to the batch.
    #[inline(always)]
    pub(crate) fn push(&mut self, wr_id: u64, slices: &[LocalSlice]) -> Result<(), PostError> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.push(wr_id, slices),
        }
    }

    /// Hands the batch to the device.
    #[inline(always)]
    pub(crate) fn ring(&mut self) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.ring(),
        }
    }

    /// Forgets the batch.
    #[inline(always)]
    pub(crate) fn abandon(&mut self) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.abandon(),
        }
    }
}

/// How far the completions of a queue can be taken: an index of its ring.
pub(crate) type Mark = u32;

/// A completion queue.
#[derive(Debug)]
pub(crate) enum Cq {
    #[cfg(feature = "rxe")]
    Rxe(rxe::Cq),
}

impl Cq {
    /// The most completions that wait at a time.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => cq.capacity(),
        }
    }

    /// A mark of how far completions can be taken now.
    #[inline(always)]
    pub(crate) fn filled(&self) -> Result<Mark, PollError> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => cq.filled(),
        }
    }

    /// True if nothing is left to take before the mark.
    pub(crate) fn is_at(&self, filled: Mark) -> bool {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => cq.is_at(filled),
        }
    }

    /// The next completion before the mark. It is not to be used after [`Self::release`].
    #[inline(always)]
    pub(crate) fn take(&mut self, filled: Mark) -> Option<Completion> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => cq.take(filled).map(Completion::Rxe),
        }
    }

    /// Gives all completions that have been taken back to the device.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => cq.release(),
        }
    }
}

/// A completion that lies in a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Completion {
    #[cfg(feature = "rxe")]
    Rxe(rxe::Completion),
}

/// The fields of a completion, each read only when asked for; their meaning is told in `crate::wc`.
impl Completion {
    #[inline(always)]
    pub(crate) fn wr_id(&self) -> u64 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.wr_id(),
        }
    }

    #[inline(always)]
    pub(crate) fn status(&self) -> WcStatus {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.status(),
        }
    }

    #[inline(always)]
    pub(crate) fn opcode(&self) -> WcOpcode {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.opcode(),
        }
    }

    #[inline(always)]
    pub(crate) fn vendor_err(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.vendor_err(),
        }
    }

    #[inline(always)]
    pub(crate) fn byte_len(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.byte_len(),
        }
    }

    #[inline(always)]
    pub(crate) fn qp_num(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.qp_num(),
        }
    }

    #[inline(always)]
    pub(crate) fn src_qp(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.src_qp(),
        }
    }

    #[inline(always)]
    pub(crate) fn ex(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.ex(),
        }
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> WcFlags {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.flags(),
        }
    }

    #[inline(always)]
    pub(crate) fn timestamp(&self) -> Option<u64> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.timestamp(),
        }
    }

    #[inline(always)]
    pub(crate) fn pkey_index(&self) -> u16 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.pkey_index(),
        }
    }

    #[inline(always)]
    pub(crate) fn slid(&self) -> u16 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.slid(),
        }
    }

    #[inline(always)]
    pub(crate) fn sl(&self) -> u8 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.sl(),
        }
    }

    #[inline(always)]
    pub(crate) fn dlid_path_bits(&self) -> u8 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.dlid_path_bits(),
        }
    }
}
