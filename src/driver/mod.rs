//! What differs between devices. A driver is a folder here and a line in each list below.
//!
//! The types of this file are enums over the drivers that are built in; with one driver there is one variant
//! and nothing to dispatch. Above this line nothing knows which device it talks to; below it nothing
//! knows reference counts and lifetimes.

#![cfg_attr(
    not(all(feature = "rxe", feature = "mlx5")),
    allow(
        dead_code,
        unused_imports,
        unused_variables,
        reason = "a driver that is not built in may be the only one to use a thing"
    )
)]

#[cfg(not(any(feature = "rxe", feature = "mlx5")))]
compile_error!("a driver is needed: the feature `rxe`, `mlx5`, or both");

mod generic;
#[cfg(feature = "mlx5")]
mod mlx5;
#[cfg(feature = "rxe")]
pub(crate) mod rxe;

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_uapi::enums::{QpType, WcOpcode, WcStatus};
use uverbs_uapi::flags::{SendFlags, WcFlags};
use uverbs_uapi::handle::{AhHandle, CqHandle, PdHandle, QpHandle, SrqHandle};
use zerocopy::FromBytes;

use crate::alloc::Buffers;
use crate::command::{
    CommandFd, CreateAh, CreateCq, CreateQp, CreateSrq, DriverData, DriverReply, GetContextReply,
    ModifySrq, ReqNotifyCq, ResizeCq, driver_reply,
};
use crate::device::DriverId;
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::work::{Destination, Ece, LocalSlice, Operation, Payload, PollError, PostError};

/// Reads a driver's private part of the kernel's answer to a verb.
fn answer<T: FromBytes>(
    verb: Verb,
    subject: impl FnOnce() -> Subject,
    reply: &DriverReply,
) -> Result<T> {
    driver_reply(reply)
        .map_err(|malformed| Error::malformed(verb, subject(), malformed.to_string()))
}

/// The drivers that are built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    #[cfg(feature = "rxe")]
    Rxe,
    #[cfg(feature = "mlx5")]
    Mlx5,
}

impl Driver {
    /// The driver for a device, by the kernel's driver number and the driver's ABI version.
    pub(crate) fn select(id: DriverId, abi_version: u32, device: &str) -> Result<Self> {
        let (driver, versions) = match id {
            #[cfg(feature = "rxe")]
            DriverId::RXE => (Driver::Rxe, rxe::ABI_VERSIONS),
            #[cfg(feature = "mlx5")]
            DriverId::MLX5 => (Driver::Mlx5, mlx5::ABI_VERSIONS),
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
    pub(crate) fn get_context(self, fd: &CommandFd) -> Result<(Device, GetContextReply)> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => rxe::get_context(fd).map(|reply| (Device::Rxe, reply)),
            #[cfg(feature = "mlx5")]
            Driver::Mlx5 => {
                mlx5::get_context(fd).map(|(device, reply)| (Device::Mlx5(Arc::new(device)), reply))
            }
        }
    }

    /// Takes part in a context that somebody else has made of the open file.
    pub(crate) fn query_context(self, fd: &CommandFd) -> Result<(Device, GetContextReply)> {
        match self {
            #[cfg(feature = "rxe")]
            Driver::Rxe => rxe::query_context(fd).map(|reply| (Device::Rxe, reply)),
            #[cfg(feature = "mlx5")]
            Driver::Mlx5 => mlx5::query_context(fd)
                .map(|(device, reply)| (Device::Mlx5(Arc::new(device)), reply)),
        }
    }
}

/// What a context has of its device.
#[derive(Clone, Debug)]
pub(crate) enum Device {
    #[cfg(feature = "rxe")]
    Rxe,
    #[cfg(feature = "mlx5")]
    Mlx5(Arc<mlx5::Device>),
}

impl Device {
    /// Allocates a protection domain.
    pub(crate) fn alloc_pd(&self, fd: &CommandFd) -> Result<PdHandle> {
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => rxe::alloc_pd(fd),
            #[cfg(feature = "mlx5")]
            Device::Mlx5(_) => mlx5::alloc_pd(fd),
        }
    }

    /// Checks with the driver what the kernel's list of handles has told.
    pub(crate) fn import_pd(&self, fd: &CommandFd, handle: PdHandle) -> Result<()> {
        match self {
            // The driver has no such question.
            #[cfg(feature = "rxe")]
            Device::Rxe => {
                let _ = (fd, handle);
                Ok(())
            }
            #[cfg(feature = "mlx5")]
            Device::Mlx5(_) => mlx5::import_pd(fd, handle),
        }
    }

    /// Creates a completion queue, with entries of so many bytes if they are told.
    pub(crate) fn create_cq(
        &self,
        fd: &CommandFd,
        command: CreateCq,
        entry_bytes: Option<u32>,
        buffers: Option<&Buffers>,
    ) -> Result<(CqHandle, Cq)> {
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => match entry_bytes {
                None => rxe::create_cq(fd, command, buffers),
                Some(_) => Err(self.lacks(
                    Verb::CreateCq,
                    "completion queues with entries of a chosen size",
                )),
            }
            .map(|(handle, cq)| (handle, Cq::Rxe(cq))),
            #[cfg(feature = "mlx5")]
            Device::Mlx5(device) => mlx5::create_cq(device, fd, command, entry_bytes, buffers)
                .map(|(handle, cq)| (handle, Cq::Mlx5(cq))),
        }
    }

    /// Gives a completion queue another size; the completions that wait stay.
    pub(crate) fn resize_cq(
        &self,
        fd: &CommandFd,
        command: ResizeCq,
        cq: &mut Cq,
        buffers: Option<&Buffers>,
    ) -> Result<()> {
        match (self, cq) {
            #[cfg(feature = "rxe")]
            (Device::Rxe, Cq::Rxe(cq)) => rxe::resize_cq(fd, command, cq, buffers),
            #[cfg(feature = "mlx5")]
            (Device::Mlx5(_), Cq::Mlx5(cq)) => mlx5::resize_cq(fd, command, cq, buffers),
            #[cfg(all(feature = "rxe", feature = "mlx5"))]
            _ => Err(foreign(Verb::ResizeCq)),
        }
    }

    /// Asks for an event when the next completion arrives.
    pub(crate) fn arm_cq(
        &self,
        fd: &CommandFd,
        handle: CqHandle,
        cq: &mut Cq,
        solicited_only: bool,
    ) -> Result<()> {
        match cq {
            #[cfg(feature = "rxe")]
            Cq::Rxe(_) => fd.execute(&ReqNotifyCq {
                cq: handle,
                solicited_only,
            }),
            #[cfg(feature = "mlx5")]
            Cq::Mlx5(cq) => {
                let _ = (fd, handle);
                cq.arm(solicited_only);
                Ok(())
            }
        }
    }

    /// Creates a queue pair.
    pub(crate) fn create_qp(
        &self,
        fd: &Arc<CommandFd>,
        command: CreateQp,
        parts: &QpParts<'_>,
    ) -> Result<NewQp> {
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe if parts.inline_scatter => Err(self.lacks(
                Verb::CreateQp,
                "inline scatter: payloads that come in completions",
            )),
            #[cfg(feature = "rxe")]
            Device::Rxe => rxe::create_qp(fd, command, parts.buffers).map(|qp| NewQp {
                handle: qp.handle,
                qpn: qp.qpn,
                send: SendQueue::Rxe(qp.send),
                recv: qp.recv.map(RecvQueue::Rxe),
                backing: QpBacking::Rxe,
            }),
            #[cfg(feature = "mlx5")]
            Device::Mlx5(device) => {
                if !matches!(command.qp_type, QpType::RC | QpType::UC | QpType::UD) {
                    let what = "queue pairs for raw packets or XRC";
                    return Err(self.without_rings(Verb::CreateQp, what));
                }
                let (Some(send_cq), Some(recv_cq)) = (parts.send_cq.mlx5(), parts.recv_cq.mlx5())
                else {
                    return Err(foreign(Verb::CreateQp));
                };
                let thread_domain = match parts.thread_domain {
                    Some(domain) => Some(domain.mlx5(device, fd)?),
                    None => None,
                };
                let parts = mlx5::Parts {
                    send_cq,
                    recv_cq,
                    srq: parts.srq.and_then(SharedRecvQueue::mlx5),
                    buffers: parts.buffers,
                    thread_domain: thread_domain.as_ref(),
                    inline_scatter: parts.inline_scatter,
                };
                mlx5::create_qp(device, fd, command, &parts).map(|qp| NewQp {
                    handle: qp.handle,
                    qpn: qp.qpn,
                    send: SendQueue::Mlx5(qp.send),
                    recv: qp.recv.map(RecvQueue::Mlx5),
                    backing: QpBacking::Mlx5(qp.core),
                })
            }
        }
    }

    /// Creates a shared receive queue.
    pub(crate) fn create_srq(
        &self,
        fd: &CommandFd,
        command: CreateSrq,
        buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, SharedRecvQueue, SrqBacking)> {
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => rxe::create_srq(fd, command, buffers)
                .map(|(handle, queue)| (handle, SharedRecvQueue::Rxe(queue), SrqBacking::Rxe)),
            #[cfg(feature = "mlx5")]
            Device::Mlx5(device) => {
                mlx5::create_srq(device, fd, command, buffers).map(|(handle, queue, ring)| {
                    (handle, SharedRecvQueue::Mlx5(queue), SrqBacking::Mlx5(ring))
                })
            }
        }
    }

    /// Sets an attribute of a shared receive queue that leaves its ring alone.
    pub(crate) fn modify_srq(&self, fd: &CommandFd, command: ModifySrq) -> Result<()> {
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => rxe::modify_srq(fd, command),
            #[cfg(feature = "mlx5")]
            Device::Mlx5(_) => fd.execute(&command),
        }
    }

    /// Gives a shared receive queue another size; its waiting requests stay.
    pub(crate) fn resize_srq(
        &self,
        fd: &CommandFd,
        command: ModifySrq,
        queue: &mut SharedRecvQueue,
        buffers: Option<&Buffers>,
    ) -> Result<()> {
        match (self, queue) {
            #[cfg(feature = "rxe")]
            (Device::Rxe, SharedRecvQueue::Rxe(queue)) => {
                rxe::resize_srq(fd, command, queue, buffers)
            }
            #[cfg(feature = "mlx5")]
            (Device::Mlx5(_), _) => Err(Error::unsupported(
                Verb::ModifySrq,
                Subject::numbered("SRQ", command.core.srq_handle.into()),
                "shared receive queues that change their size (`mlx5_ib_modify_srq`)",
            )),
            #[cfg(all(feature = "rxe", feature = "mlx5"))]
            _ => Err(foreign(Verb::ModifySrq)),
        }
    }

    /// Creates an address handle.
    pub(crate) fn create_ah(&self, fd: &CommandFd, command: CreateAh) -> Result<(AhHandle, Ah)> {
        match self {
            #[cfg(feature = "rxe")]
            Device::Rxe => {
                rxe::create_ah(fd, command).map(|(handle, number)| (handle, Ah::Rxe(number)))
            }
            #[cfg(feature = "mlx5")]
            Device::Mlx5(_) => {
                mlx5::create_ah(fd, command).map(|(handle, ah)| (handle, Ah::Mlx5(ah)))
            }
        }
    }
}

/// An object of another driver's. The nouns compare contexts before they come here, so it is not seen.
#[cfg(feature = "mlx5")]
#[cold]
fn foreign(verb: Verb) -> Error {
    Error::invalid(
        verb,
        Subject::the("object"),
        "it belongs to a device of another driver",
    )
}

/// What a queue pair is made of besides its command.
pub(crate) struct QpParts<'a> {
    pub(crate) send_cq: &'a Cq,
    pub(crate) recv_cq: &'a Cq,
    pub(crate) srq: Option<&'a SharedRecvQueue>,
    pub(crate) buffers: Option<&'a Buffers>,
    pub(crate) thread_domain: Option<&'a ThreadDomain>,
    pub(crate) inline_scatter: bool,
}

/// A queue pair that a driver has created.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) send: SendQueue,
    /// None if the QP receives from an SRQ.
    pub(crate) recv: Option<RecvQueue>,
    pub(crate) backing: QpBacking,
}

/// What of a completion queue must stay until the kernel has let go of it. A clone that is forgotten keeps it for good.
#[derive(Clone, Debug)]
pub(crate) enum CqBacking {
    #[cfg(feature = "rxe")]
    Rxe,
    #[cfg(feature = "mlx5")]
    Mlx5(Arc<mlx5::CqCore>),
}

impl CqBacking {
    /// The count of the queue's events that were read, if arming depends on it.
    pub(crate) fn events(&self) -> Option<&Arc<AtomicU32>> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe => None,
            #[cfg(feature = "mlx5")]
            Self::Mlx5(core) => Some(core.events()),
        }
    }
}

/// As [`CqBacking`], of a queue pair.
#[derive(Clone, Debug)]
pub(crate) enum QpBacking {
    #[cfg(feature = "rxe")]
    Rxe,
    #[cfg(feature = "mlx5")]
    Mlx5(Arc<mlx5::QpCore>),
}

impl QpBacking {
    /// Whether the kernel knows how much the send queue holds; where the ring is this side's it is told of blocks only.
    pub(crate) fn kernel_knows_caps(&self) -> bool {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe => true,
            #[cfg(feature = "mlx5")]
            Self::Mlx5(_) => false,
        }
    }

    /// The options for its connection, with their vendor; none if it has no such.
    pub(crate) fn query_ece(&self) -> Option<Ece> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe => None,
            #[cfg(feature = "mlx5")]
            Self::Mlx5(core) => core.query_ece().map(|options| Ece {
                vendor_id: mlx5::ECE_VENDOR,
                options,
            }),
        }
    }

    /// Asks for options of its connection with the next change of its state, if it has such.
    pub(crate) fn set_ece(&self, options: u32) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe => {}
            #[cfg(feature = "mlx5")]
            Self::Mlx5(core) => core.set_ece(options),
        }
    }

    /// What the kernel's driver is told with a change of the state.
    pub(crate) fn modify_data(&self) -> DriverData {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe => DriverData::default(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(core) => core.modify_data(),
        }
    }

    /// Takes over what the kernel's driver has answered to [`Self::modify_data`].
    pub(crate) fn modified(&self, reply: &DriverReply) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe => {}
            #[cfg(feature = "mlx5")]
            Self::Mlx5(core) => core.modified(reply),
        }
    }

    /// Ends the loan of the memory that requests name, as far as this side would still write to it.
    pub(crate) fn close(&self) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe => {}
            #[cfg(feature = "mlx5")]
            Self::Mlx5(core) => core.close(),
        }
    }

    /// Follows the kernel, which has taken the queue pair to the state RESET.
    pub(crate) fn reset(&self, send: &mut SendQueue, recv: Option<&mut RecvQueue>) {
        match (self, send) {
            // The kernel keeps the rings of these and goes on where they are.
            #[cfg(feature = "rxe")]
            (Self::Rxe, SendQueue::Rxe(_)) => {
                let _ = recv;
            }
            #[cfg(feature = "mlx5")]
            (Self::Mlx5(core), SendQueue::Mlx5(send)) => {
                let recv = match recv {
                    Some(RecvQueue::Mlx5(recv)) => Some(recv),
                    _ => None,
                };
                core.reset(send, recv);
            }
            #[cfg(all(feature = "rxe", feature = "mlx5"))]
            _ => {}
        }
    }
}

/// As [`CqBacking`], of a shared receive queue.
#[derive(Clone, Debug)]
pub(crate) enum SrqBacking {
    #[cfg(feature = "rxe")]
    Rxe,
    #[cfg(feature = "mlx5")]
    Mlx5(#[expect(dead_code, reason = "held until the kernel has let go")] Arc<mlx5::SrqRing>),
}

/// The hardware that a thread domain picks, once a queue pair needs it.
#[derive(Debug, Default)]
pub(crate) struct ThreadDomain {
    #[cfg(feature = "mlx5")]
    register: std::sync::OnceLock<Arc<mlx5::Lease>>,
}

#[cfg(feature = "mlx5")]
impl ThreadDomain {
    fn mlx5(&self, device: &mlx5::Device, fd: &CommandFd) -> Result<Arc<mlx5::Lease>> {
        if let Some(lease) = self.register.get() {
            return Ok(Arc::clone(lease));
        }
        let lease = device.alloc_td(fd)?;
        // Two threads may come here at once: the first register stays, the other goes back unused.
        Ok(Arc::clone(self.register.get_or_init(|| lease)))
    }
}

/// An address handle, as work requests name it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ah {
    /// Its number.
    #[cfg(feature = "rxe")]
    Rxe(u32),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::Ah),
}

impl Ah {
    /// Its number; one that no address handle has if it is another driver's.
    #[cfg(feature = "rxe")]
    #[inline(always)]
    pub(crate) fn rxe(&self) -> u32 {
        match self {
            Self::Rxe(number) => *number,
            #[cfg(feature = "mlx5")]
            Self::Mlx5(_) => 0,
        }
    }

    /// Its address vector; one that leads nowhere if it is another driver's.
    #[cfg(feature = "mlx5")]
    #[inline(always)]
    pub(crate) fn mlx5(&self) -> mlx5::Datagram {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(_) => mlx5::NOWHERE,
            Self::Mlx5(ah) => ah.datagram(),
        }
    }
}

/// A send queue.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum SendQueue {
    #[cfg(feature = "rxe")]
    Rxe(rxe::SendQueue),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::SendQueue),
}

/// A request in a send queue whose id and flags can still change.
#[derive(Debug)]
pub(crate) enum SendSlot {
    #[cfg(feature = "rxe")]
    Rxe(rxe::SendSlot),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::SendSlot),
}

impl SendQueue {
    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.capacity(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.capacity(),
        }
    }

    /// The most slices of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.max_sge(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.max_sge(),
        }
    }

    /// The most inline bytes of a request.
    pub(crate) fn max_inline(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.max_inline(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.max_inline(),
        }
    }

    /// Requests that the device has not finished.
    pub(crate) fn in_flight(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.in_flight(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.in_flight(),
        }
    }

    /// Starts a batch.
    #[inline(always)]
    pub(crate) fn batch(&mut self) -> SendBatch<'_> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => SendBatch::Rxe(queue),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => SendBatch::Mlx5(queue.batch()),
        }
    }
}

/// Requests that are being written into a send queue. Dropped without having been rung, it leaves nothing; forgotten
/// (`mem::forget`), some drivers take what it has to be of the next batch.
///
/// Like [`RecvBatch`] and [`Completions`] it is made once for many operations, and held by value: the compiler then keeps
/// the variant in a register, or knows it, where behind a reference to the queue it would look again each time.
#[derive(Debug)]
pub(crate) enum SendBatch<'q> {
    #[cfg(feature = "rxe")]
    Rxe(&'q mut rxe::SendQueue),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::SendBatch<'q>),
}

impl SendBatch<'_> {
    /// Requests in it.
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.pending(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(batch) => batch.len(),
        }
    }

    /// Whether queue pairs of this transport can invalidate a key of their own side.
    #[inline(always)]
    pub(crate) fn invalidates(&self, transport: QpType) -> bool {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.invalidates(transport),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(_) => transport != QpType::UD,
        }
    }

    /// Whether memory windows can have addresses that count from 0.
    #[inline(always)]
    pub(crate) fn binds_zero_based(&self) -> bool {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.binds_zero_based(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(_) => true,
        }
    }

    /// Adds a request.
    #[inline(always)]
    pub(crate) fn push(
        &mut self,
        operation: Operation,
        to: Option<Destination<'_, Ah>>,
        payload: Payload<'_>,
    ) -> Result<SendSlot, PostError> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.push(operation, to, payload).map(SendSlot::Rxe),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(batch) => batch.push(operation, to, payload).map(SendSlot::Mlx5),
        }
    }

    /// Hands it to the device with one doorbell, and gives how many requests it had. Without any, nothing is done.
    #[inline(always)]
    pub(crate) fn ring(self) -> Result<usize, Errno> {
        match &mut *ManuallyDrop::new(self) {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => match queue.pending() {
                0 => Ok(0),
                count => queue.ring().map(|()| count as usize),
            },
            #[cfg(feature = "mlx5")]
            Self::Mlx5(batch) => Ok(batch.ring() as usize),
        }
    }
}

impl Drop for SendBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.abandon(),
            // The queue knows nothing of it.
            #[cfg(feature = "mlx5")]
            Self::Mlx5(_) => {}
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
            #[cfg(feature = "mlx5")]
            Self::Mlx5(slot) => slot.set_id(wr_id),
        }
    }

    /// Sets flags on top of those that are set.
    #[inline(always)]
    pub(crate) fn add_flags(&mut self, flags: SendFlags) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(slot) => slot.add_flags(flags),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(slot) => slot.add_flags(flags),
        }
    }
}

/// A receive queue of a queue pair or a work queue.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum RecvQueue {
    #[cfg(feature = "rxe")]
    Rxe(rxe::RecvQueue),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::RecvQueue),
}

impl RecvQueue {
    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.capacity(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.capacity(),
        }
    }

    /// The most slices of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.max_sge(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.max_sge(),
        }
    }

    /// Requests that no message has been received into.
    pub(crate) fn in_flight(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.in_flight(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.in_flight(),
        }
    }

    /// Starts a batch.
    #[inline(always)]
    pub(crate) fn batch(&mut self) -> RecvBatch<'_> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => RecvBatch::Rxe(queue),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => RecvBatch::Mlx5(queue),
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum SharedRecvQueue {
    #[cfg(feature = "rxe")]
    Rxe(rxe::RecvQueue),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::SharedRecvQueue),
}

impl SharedRecvQueue {
    #[cfg(feature = "mlx5")]
    fn mlx5(&self) -> Option<&mlx5::SharedRecvQueue> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(_) => None,
            Self::Mlx5(queue) => Some(queue),
        }
    }

    /// The most requests in flight.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.capacity(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.capacity(),
        }
    }

    /// The most slices of a request.
    pub(crate) fn max_sge(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.max_sge(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.max_sge(),
        }
    }

    /// Requests that no message has been received into.
    pub(crate) fn in_flight(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.in_flight(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.in_flight(),
        }
    }

    /// Starts a batch.
    #[inline(always)]
    pub(crate) fn batch(&mut self) -> RecvBatch<'_> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => RecvBatch::Rxe(queue),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => RecvBatch::Mlx5Shared(queue),
        }
    }
}

/// Requests that are being written into a receive queue.
#[derive(Debug)]
pub(crate) enum RecvBatch<'q> {
    #[cfg(feature = "rxe")]
    Rxe(&'q mut rxe::RecvQueue),
    #[cfg(feature = "mlx5")]
    Mlx5(&'q mut mlx5::RecvQueue),
    #[cfg(feature = "mlx5")]
    Mlx5Shared(&'q mut mlx5::SharedRecvQueue),
}

impl RecvBatch<'_> {
    /// Requests in it.
    #[inline(always)]
    pub(crate) fn len(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.pending(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.pending(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5Shared(queue) => queue.pending(),
        }
    }

    /// Adds a request.
    #[inline(always)]
    pub(crate) fn push(&mut self, wr_id: u64, slices: &[LocalSlice]) -> Result<(), PostError> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.push(wr_id, slices),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.push(wr_id, slices),
            #[cfg(feature = "mlx5")]
            Self::Mlx5Shared(queue) => queue.push(wr_id, slices),
        }
    }

    /// Hands it to the device.
    #[inline(always)]
    pub(crate) fn ring(self) {
        match &mut *ManuallyDrop::new(self) {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.ring(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.ring(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5Shared(queue) => queue.ring(),
        }
    }
}

impl Drop for RecvBatch<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(queue) => queue.abandon(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(queue) => queue.abandon(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5Shared(queue) => queue.abandon(),
        }
    }
}

/// A completion queue.
#[derive(Debug)]
#[repr(u8)]
pub(crate) enum Cq {
    #[cfg(feature = "rxe")]
    Rxe(rxe::Cq),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::Cq),
}

impl Cq {
    /// What must outlive it.
    pub(crate) fn backing(&self) -> CqBacking {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(_) => CqBacking::Rxe,
            #[cfg(feature = "mlx5")]
            Self::Mlx5(cq) => CqBacking::Mlx5(Arc::clone(cq.core())),
        }
    }

    #[cfg(feature = "mlx5")]
    fn mlx5(&self) -> Option<&mlx5::CqCore> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(_) => None,
            Self::Mlx5(cq) => Some(cq.core()),
        }
    }

    /// The most completions that wait at a time.
    pub(crate) fn capacity(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => cq.capacity(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(cq) => cq.capacity(),
        }
    }

    /// True if no completion is there.
    pub(crate) fn is_empty(&mut self) -> Result<bool, PollError> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => Ok(cq.is_at(cq.filled()?)),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(cq) => {
                cq.check()?;
                Ok(cq.is_empty())
            }
        }
    }

    /// The completions that have arrived.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Result<Completions<'_>, PollError> {
        let queue = match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(cq) => {
                let filled = cq.filled()?;
                Polled::Rxe(cq, filled)
            }
            #[cfg(feature = "mlx5")]
            Self::Mlx5(cq) => {
                cq.check()?;
                Polled::Mlx5(cq)
            }
        };
        Ok(Completions {
            queue,
            moved: false,
        })
    }
}

/// Completions that are being taken; the queue's entries go back to the device when this is dropped.
#[derive(Debug)]
pub(crate) struct Completions<'q> {
    queue: Polled<'q>,
    /// Whether any was taken or passed over.
    moved: bool,
}

#[derive(Debug)]
enum Polled<'q> {
    /// With the index of the ring up to which completions can be taken.
    #[cfg(feature = "rxe")]
    Rxe(&'q mut rxe::Cq, u32),
    /// Each entry says itself whether it is there.
    #[cfg(feature = "mlx5")]
    Mlx5(&'q mut mlx5::Cq),
}

impl Completions<'_> {
    /// The next completion. It is not to be used after this value is dropped.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<Completion> {
        match &mut self.queue {
            #[cfg(feature = "rxe")]
            Polled::Rxe(cq, filled) => {
                let taken = cq.take(*filled)?;
                self.moved = true;
                Some(Completion::Rxe(taken))
            }
            #[cfg(feature = "mlx5")]
            Polled::Mlx5(cq) => cq.take(&mut self.moved).map(Completion::Mlx5),
        }
    }
}

impl Drop for Completions<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.moved {
            return;
        }
        match &mut self.queue {
            #[cfg(feature = "rxe")]
            Polled::Rxe(cq, _) => cq.release(),
            #[cfg(feature = "mlx5")]
            Polled::Mlx5(cq) => cq.release(),
        }
    }
}

/// A completion that lies in a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Completion {
    #[cfg(feature = "rxe")]
    Rxe(rxe::Completion),
    #[cfg(feature = "mlx5")]
    Mlx5(mlx5::Completion),
}

/// The fields of a completion, each read only when asked for; their meaning is told in `crate::wc`.
impl Completion {
    #[inline(always)]
    pub(crate) fn wr_id(&self) -> u64 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.wr_id(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.wr_id(),
        }
    }

    #[inline(always)]
    pub(crate) fn status(&self) -> WcStatus {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.status(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.status(),
        }
    }

    #[inline(always)]
    pub(crate) fn opcode(&self) -> WcOpcode {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.opcode(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.opcode(),
        }
    }

    #[inline(always)]
    pub(crate) fn vendor_err(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.vendor_err(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.vendor_err(),
        }
    }

    #[inline(always)]
    pub(crate) fn byte_len(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.byte_len(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.byte_len(),
        }
    }

    #[inline(always)]
    pub(crate) fn qp_num(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.qp_num(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.qp_num(),
        }
    }

    #[inline(always)]
    pub(crate) fn src_qp(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.src_qp(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.src_qp(),
        }
    }

    #[inline(always)]
    pub(crate) fn ex(&self) -> u32 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.ex(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.ex(),
        }
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> WcFlags {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.flags(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.flags(),
        }
    }

    #[inline(always)]
    pub(crate) fn timestamp(&self) -> Option<u64> {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.timestamp(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.timestamp(),
        }
    }

    #[inline(always)]
    pub(crate) fn pkey_index(&self) -> u16 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.pkey_index(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.pkey_index(),
        }
    }

    #[inline(always)]
    pub(crate) fn slid(&self) -> u16 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.slid(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.slid(),
        }
    }

    #[inline(always)]
    pub(crate) fn sl(&self) -> u8 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.sl(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.sl(),
        }
    }

    #[inline(always)]
    pub(crate) fn dlid_path_bits(&self) -> u8 {
        match self {
            #[cfg(feature = "rxe")]
            Self::Rxe(completion) => completion.dlid_path_bits(),
            #[cfg(feature = "mlx5")]
            Self::Mlx5(completion) => completion.dlid_path_bits(),
        }
    }
}
