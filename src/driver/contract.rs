//! The contract between the objects of this library and a driver.
//!
//! A driver implements [`Driver`] on what a context has of its device, and the traits of the queues that it
//! has. What it leaves out is refused by name before the kernel is asked: methods by their defaults, options
//! and types of queue pairs by [`Driver::OPTIONS`] and [`Driver::has_type`]. For a queue that a driver does
//! not have, `absent.rs` has a type. `sample` is a driver to copy.

use std::fmt::Debug;
#[cfg(feature = "c-abi")]
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use uverbs_queue::handover::Handover;
use uverbs_uapi::enums::{QpState, QpType, WcOpcode, WcStatus};
#[cfg(feature = "c-abi")]
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::flags::{QpAttrMask, WcFlags};
use uverbs_uapi::handle::{AhHandle, CqHandle, DmHandle, MrHandle, PdHandle, QpHandle, SrqHandle};

#[cfg(feature = "c-abi")]
use uverbs_uapi::types::Wc;

use super::options::Options;
use crate::alloc::{Buffers, Dmabuf};
use crate::command::{
    AllocDm, AllocPd, CommandFd, CreateAh, CreateCq, CreateSrq, CreateXrcTarget, DriverData,
    DriverReply, GetContextReply, ModifyQp, ModifySrq, QpSpec, RegMr, RegMrReply, ReqNotifyCq,
    ResizeCq,
};
use crate::device::{DriverClue, DriverId};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::work::{
    CopyError, DataOrder, Ece, Element, Interconnects, LagPort, LocalKey, Operations, PollError,
    PostError, Progress, WallClock, WorkRequest,
};

/// A driver: its part of a context.
///
/// A method that fails destroys what it has created in the kernel.
pub(crate) trait Driver: Debug + Send + Sync + Sized + 'static {
    /// The kernel's number of the driver.
    const ID: DriverId;
    /// The versions of the kernel driver's ABI that this driver supports.
    const ABI_VERSIONS: RangeInclusive<u32>;
    /// What the driver supports besides the plain objects.
    const OPTIONS: Options = Options::empty();
    /// Whether the kernel's driver checks that advice is about regions on demand.
    const CHECKS_ADVICE: bool = true;
    /// How C programs are refused, if they know other errnos from libibverbs's provider than the usual ones.
    #[cfg(feature = "c-abi")]
    const REFUSALS: Refusals = Refusals::DEFAULT;

    /// The text for C programs of a firmware version for which the kernel has none.
    #[cfg(feature = "c-abi")]
    fn firmware(version: u64) -> String {
        let [major, minor, sub] = [32, 16, 0].map(|shift| (version >> shift) & 0xffff);
        format!("{major}.{minor}.{sub}")
    }

    type Cq: Cq + 'static;
    type SendQueue: SendQueue<Ah = Self::Ah> + 'static;
    type RecvQueue: RecvQueue + 'static;
    type SharedRecvQueue: RecvQueue + 'static;
    /// An address handle, in the form that requests use.
    type Ah: Debug;
    /// Device memory, as the processor reaches it; without any, [`NoDeviceMemory`].
    type DeviceMemory: DeviceMemory + 'static;
    /// What must stay until the kernel has released a queue pair. A forgotten clone keeps it forever.
    type QpBacking: QpBacking;
    /// As `QpBacking`, of a shared receive queue.
    type SrqBacking: SrqBacking;
    /// What must stay until the kernel has released a target of dynamic connections.
    type DcTargetBacking: DcTargetBacking;
    /// The hardware that a thread domain selects when a queue pair first needs it.
    type ThreadDomain: Debug + Default;

    /// Whether queue pairs of the type have queues of this driver's. [`QpType::DRIVER`] is a type of the
    /// device's own, whose requests name their destination. In line: the compiler then knows the answer where
    /// it knows the type, and a loop over requests has no code of a driver without it.
    fn has_type(transport: QpType) -> bool;

    /// What queue pairs of a transport can do. Of [`Operations::OF_CAPABILITIES`] it has those that the
    /// driver supports, whatever the device.
    fn operations(&self, transport: QpType) -> Operations {
        Operations::of(transport).intersection(Operations::CLASSIC)
    }

    /// A send queue over memory that nobody reads, for 7 requests with 2 slices or 32 inline bytes, if the
    /// driver has send queues. For tests of the layers above drivers.
    #[cfg(test)]
    fn sample_send_queue() -> Option<Self::SendQueue> {
        None
    }

    /// Whether this clue from sysfs stands for this driver; netlink gives its number.
    fn is_behind(clue: &DriverClue) -> bool {
        let _ = clue;
        false
    }

    /// What a buffer with this code is for ([`ResourceType::code`](crate::alloc::ResourceType::code)).
    fn buffer_name(code: u32) -> Option<&'static str> {
        let _ = code;
        None
    }

    /// Makes the open file a context of the device.
    fn get_context(fd: &CommandFd, options: ContextOptions) -> Result<(Self, GetContextReply)>;

    /// Joins the context that another owner of the open file has made of it. Drivers with
    /// [`Options::IMPORT`] have this.
    fn query_context(_fd: &CommandFd) -> Result<(Self, GetContextReply)> {
        Err(Self::lacks(Verb::ImportDevice, OTHERS))
    }

    /// Allocates a protection domain.
    fn alloc_pd(&self, fd: &CommandFd) -> Result<PdHandle> {
        fd.execute(&AllocPd::default()).map(|(handle, _)| handle)
    }

    /// Checks the handle of a protection domain with the kernel's driver. False if that has no query for it.
    fn import_pd(&self, _fd: &CommandFd, _handle: PdHandle) -> Result<bool> {
        Ok(false)
    }

    /// Registers memory of this process. A driver may add its part of the command, read the answer, or refuse
    /// regions that its device cannot have.
    fn reg_mr(&self, fd: &CommandFd, command: RegMr) -> Result<RegMrReply> {
        fd.execute(&command)
    }

    /// Creates a completion queue.
    fn create_cq(
        &self,
        _fd: &Arc<CommandFd>,
        _command: CreateCq,
        _parts: &CqParts<'_>,
    ) -> Result<(CqHandle, Self::Cq)> {
        Err(Self::lacks(Verb::CreateCq, "completion queues"))
    }

    /// Changes the size of a completion queue; the completions that wait stay.
    fn resize_cq(
        &self,
        _fd: &CommandFd,
        _command: ResizeCq,
        _cq: &mut Self::Cq,
        _parts: &CqParts<'_>,
    ) -> Result<()> {
        Err(Self::lacks(
            Verb::ResizeCq,
            "completion queues that change their size",
        ))
    }

    /// Creates a queue pair.
    fn create_qp(
        &self,
        _fd: &Arc<CommandFd>,
        _spec: &QpSpec,
        _parts: &QpParts<'_, <Self::Cq as Cq>::Backing, Self::SrqBacking, Self::ThreadDomain>,
    ) -> Result<NewQp<Self::SendQueue, Self::RecvQueue, Self::QpBacking>> {
        Err(Self::lacks(Verb::CreateQp, "queue pairs"))
    }

    /// Creates a queue pair like another one, which [needs it](QpBacking::needs_replacement) in its place
    /// when it is reset. An allocator may be asked for the rings.
    fn replacement(
        &self,
        _fd: &Arc<CommandFd>,
        _of: &Self::QpBacking,
        _buffers: Option<&Buffers>,
    ) -> Result<NewQp<Self::SendQueue, Self::RecvQueue, Self::QpBacking>> {
        Err(Self::lacks(
            Verb::CreateQp,
            "queue pairs in the place of others",
        ))
    }

    /// Takes a queue pair to the state RESET, in which it is as new.
    fn reset_qp(
        &self,
        fd: &Arc<CommandFd>,
        reset: ResetQp<'_, Self::SendQueue, Self::RecvQueue, Self::QpBacking>,
    ) -> Result<()> {
        fd.execute(reset.command)?;
        Ok(())
    }

    /// Hands a queue pair over: from then on this side neither reads nor writes its rings and records, nor
    /// those of its completion queue.
    fn hand_over(
        &self,
        _leaving: LeavingQp<'_, Self::SendQueue, Self::RecvQueue, Self::QpBacking, Self::Cq>,
    ) -> Result<HandedOver> {
        Err(Self::lacks(Verb::IntoDevice, HANDING_OVER))
    }

    /// Fails if a completion queue that was handed over, with its queue pair, cannot be taken back.
    fn may_take_back(&self, _handle: CqHandle, _cq: &Self::Cq) -> Result<()> {
        Err(Self::lacks(Verb::Reclaim, HANDING_OVER))
    }

    /// Takes a completion queue back that [may be](Self::may_take_back). The queue pair that reports to it
    /// has been reset.
    fn take_back(&self, _fd: &CommandFd, _handle: CqHandle, _cq: &mut Self::Cq) -> Result<()> {
        Err(Self::lacks(Verb::Reclaim, HANDING_OVER))
    }

    /// The attributes that a query of a queue pair may ask for.
    fn query_mask(&self, _transport: QpType) -> QpAttrMask {
        QpAttrMask::all()
    }

    /// The error for queue pairs without options for their connection.
    fn without_ece(&self, verb: Verb) -> Error {
        Self::lacks(verb, ECE)
    }

    /// The most requests of a queue, of which the kernel reports so many.
    fn max_requests(&self, reported: u32) -> u32 {
        reported
    }

    /// Whether a datagram may be as long as the port's longest message, and not as its MTU alone.
    fn has_long_datagrams(&self) -> bool {
        false
    }

    /// Whether queue pairs of the device's own type, [`QpType::DRIVER`], can be told how often to send a
    /// request again if the peer has no receive posted.
    fn sets_rnr_retry(&self) -> bool {
        false
    }

    /// In which order the device writes the bytes of a message to memory, of a queue pair in this state.
    fn data_order(&self, _fd: &CommandFd, _qp: QpName, _state: QpState) -> Result<DataOrder> {
        Ok(DataOrder::Any)
    }

    /// Sets the UDP source port of a connected queue pair in the state RTS.
    fn set_udp_source_port(&self, _fd: &CommandFd, _qp: QpName, _port: u16) -> Result<()> {
        let what = "UDP source ports that change";
        Err(Self::lacks(Verb::ModifyQpUdpSport, what))
    }

    /// Lets a failed stream continue, of an initiator of dynamic connections in the state RTS.
    fn reset_stream(&self, _fd: &CommandFd, _qp: QpName, _stream: u16) -> Result<()> {
        Err(Self::lacks(Verb::DciStreamIdReset, STREAMS))
    }

    /// By which of its connections with the host's memory the device reaches a region.
    fn interconnects(&self, _fd: &CommandFd, _mr: MrHandle) -> Result<Interconnects> {
        Err(Self::lacks(
            Verb::QueryMr,
            "connections with the host's memory that have numbers",
        ))
    }

    /// The physical port of a queue pair on a device whose ports are bonded.
    fn lag_port(&self, _fd: &CommandFd, _qp: QpName) -> Result<LagPort> {
        Err(Self::lacks(Verb::QueryQpLagPort, LAG))
    }

    /// Sets the physical port of a queue pair in the state RTS.
    fn set_lag_port(&self, _fd: &CommandFd, _qp: QpName, _port: u8) -> Result<()> {
        Err(Self::lacks(Verb::ModifyQpLagPort, LAG))
    }

    /// Creates a shared receive queue.
    fn create_srq(
        &self,
        _fd: &CommandFd,
        _command: CreateSrq,
        _buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, Self::SharedRecvQueue, Self::SrqBacking)> {
        Err(Self::lacks(Verb::CreateSrq, "shared receive queues"))
    }

    /// Creates a shared receive queue of the type XRC, which reports to the completion queue;
    /// its number on the wire comes last. None stands for a completion queue of another driver.
    fn create_xsrq(
        &self,
        _fd: &CommandFd,
        _command: CreateSrq,
        _cq: Option<&<Self::Cq as Cq>::Backing>,
        _buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, Self::SharedRecvQueue, Self::SrqBacking, u32)> {
        let what = "shared receive queues for XRC";
        Err(Self::lacks(Verb::CreateSrq, what))
    }

    /// Sets an attribute of a shared receive queue that leaves its ring alone.
    fn modify_srq(&self, fd: &CommandFd, command: ModifySrq) -> Result<()> {
        fd.execute(&command)
    }

    /// Changes the size of a shared receive queue; its waiting requests stay.
    fn resize_srq(
        &self,
        _fd: &CommandFd,
        _command: ModifySrq,
        _queue: &mut Self::SharedRecvQueue,
        _buffers: Option<&Buffers>,
    ) -> Result<()> {
        let what = "shared receive queues that change their size";
        Err(Self::lacks(Verb::ModifySrq, what))
    }

    /// Creates an address handle. The kernel's handle is only there if the kernel has to know of it. It may
    /// be that of an earlier one.
    fn create_ah(
        &self,
        _fd: &CommandFd,
        _command: CreateAh,
    ) -> Result<(Option<AhHandle>, Self::Ah)> {
        Err(Self::lacks(Verb::CreateAh, "address handles"))
    }

    /// Ends one use of an address handle that [`create_ah`](Self::create_ah) returned. If that was the last
    /// one, the kernel's is destroyed, by `destroy`.
    fn destroy_ah(&self, _handle: AhHandle, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        destroy()
    }

    /// An address handle of which the kernel need not know, where libibverbs' provider makes one by itself.
    /// Nothing then checks that the port has the GID. `None` if the kernel has to be asked.
    #[cfg(feature = "c-abi")]
    fn ah_without_kernel(
        &self,
        _fd: &CommandFd,
        _path: &uverbs_uapi::types::AhAttr,
    ) -> Result<Option<Self::Ah>> {
        Ok(None)
    }

    /// Creates a queue pair that is the target of an XRC domain; its number comes second.
    fn create_xrc_target(
        &self,
        _fd: &CommandFd,
        _command: &CreateXrcTarget,
    ) -> Result<(QpHandle, u32)> {
        Err(Self::lacks(Verb::CreateQp, "targets of XRC domains"))
    }

    /// Creates a target of dynamic connections and makes the two changes that take it to the state in which
    /// it receives; its number comes second. The number exists from the second change on.
    fn create_dc_target(
        &self,
        _fd: &CommandFd,
        _spec: &QpSpec,
        _parts: &DcTargetParts<'_, <Self::Cq as Cq>::Backing, Self::SrqBacking>,
    ) -> Result<(QpHandle, u32, Self::DcTargetBacking)> {
        Err(Self::lacks(Verb::CreateQp, DC))
    }

    /// Allocates device memory.
    fn alloc_dm(
        &self,
        _fd: &CommandFd,
        _command: &AllocDm,
    ) -> Result<(DmHandle, Self::DeviceMemory)> {
        Err(Self::lacks(Verb::AllocDm, "device memory"))
    }

    /// Maps device memory that a handle names.
    fn import_dm(&self, _fd: &CommandFd, _handle: DmHandle) -> Result<Self::DeviceMemory> {
        Err(Self::lacks(Verb::ImportDm, "import of device memory"))
    }

    /// The key of the memory region that discards writes and reads as zeros.
    fn null_lkey(&self) -> Result<u32> {
        let what = "a null MR: no key that stands for no memory";
        Err(Self::lacks(Verb::AllocNullMr, what))
    }

    /// The device's clock now, in its own ticks.
    fn raw_clock(&self, _fd: &CommandFd) -> Result<u64> {
        Err(Self::lacks(Verb::QueryRtValues, NO_CLOCK))
    }

    /// What the device's clock means in time of day.
    fn wall_clock(&self, _fd: &CommandFd) -> Result<WallClock> {
        Err(Self::lacks(Verb::GetClockInfo, NO_WALL_CLOCK))
    }

    /// Which atomic operations of the device are atomic on the bus too.
    #[cfg(feature = "c-abi")]
    fn bus_atomics(&self, _fd: &CommandFd) -> BusAtomics {
        BusAtomics::default()
    }

    /// The error for what the driver does not have.
    #[cold]
    fn lacks(verb: Verb, what: &str) -> Error {
        let missing = format!(
            "this library's driver for {} does not have {what}",
            Self::ID
        );
        Error::unsupported(verb, Subject::the("device"), missing)
    }
}

/// Atomic operations that are atomic on the bus, and so to the processor as well: for each a set of lengths,
/// where bit n stands for 2^(n + 2) bytes.
#[cfg(feature = "c-abi")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BusAtomics {
    pub(crate) fetch_add: u16,
    pub(crate) swap: u16,
    pub(crate) compare_swap: u16,
}

#[cfg(feature = "c-abi")]
impl BusAtomics {
    /// Whether both operations on 8 bytes that verbs have are among them.
    pub(crate) fn has_both_of_verbs(self) -> bool {
        self.fetch_add & self.compare_swap & 1 << 1 != 0
    }
}

/// Options of a new context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContextOptions {
    /// Requests may be copied into the device's write-combining memory, if it has some for them.
    #[allow(dead_code, reason = "not every driver's device has such memory")]
    pub(crate) write_combining: bool,
}

/// What a driver lacks without streams.
pub(crate) const STREAMS: &str = "streams of DC initiators";

pub(crate) const ECE: &str = "enhanced connection establishment (ECE)";
pub(crate) const DC: &str = "dynamic connections (DC)";
pub(crate) const HANDING_OVER: &str = "queue pairs for agents, which post without this library";
pub(crate) const OTHERS: &str = "contexts of others";
pub(crate) const LAG: &str = "physical ports of queue pairs (LAG)";
pub(crate) const NO_WALL_CLOCK: &str = "a clock whose time of day the kernel tells";
pub(crate) const NO_CLOCK: &str = "a clock that programs can read";

/// Device memory, as the processor reaches it. It may be dropped before the kernel's object is destroyed, or
/// after.
pub(crate) trait DeviceMemory: Debug + Send + Sync {
    /// Bytes.
    fn length(&self) -> u64;

    /// Where mmap(2) of the command file finds the pages that it lies in, in bytes.
    fn file_offset(&self) -> u64;

    /// Where it begins in these pages, in bytes.
    fn start(&self) -> u64;

    /// Copies bytes from it, after all earlier completions and accesses have taken effect.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), CopyError>;

    /// Copies bytes to it, before all requests that are posted afterwards.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), CopyError>;
}

/// Device memory of a driver that has none.
#[allow(dead_code, reason = "not every driver has none")]
#[derive(Debug)]
pub(crate) enum NoDeviceMemory {}

impl DeviceMemory for NoDeviceMemory {
    fn length(&self) -> u64 {
        match *self {}
    }

    fn file_offset(&self) -> u64 {
        match *self {}
    }

    fn start(&self) -> u64 {
        match *self {}
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), CopyError> {
        match *self {}
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), CopyError> {
        match *self {}
    }
}

/// A queue pair as the kernel and the device name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpName {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
}

/// The errnos by which libibverbs' provider for the device refuses, where providers differ. C programs that
/// look at errno expect these.
#[cfg(feature = "c-abi")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusals {
    /// A request in a list with more slices or inline bytes than the queue pair has.
    pub(crate) long_request: Errno,
    /// The same by the functions `ibv_wr_*`.
    pub(crate) long_by_functions: Errno,
    /// A request by these functions for which there is no room.
    pub(crate) full_by_functions: Errno,
    /// Unknown attributes and flags of an object to create.
    pub(crate) unknown: Errno,
    /// Atomic operations of fewer than 8 bytes, or at an address that is not a multiple of 8, are refused in
    /// a list, before they put the queue pair into the error state.
    pub(crate) bad_atomics: bool,
    /// The slices of an atomic operation in a list are 8 bytes, whatever length the program says.
    pub(crate) atomics_of_any_length: bool,
    /// The slices of an inline request in a list are not counted.
    pub(crate) inline_of_any_count: bool,
    /// The flags of a request, besides that for inline bytes, that its driver sees. The provider ignores the
    /// others.
    pub(crate) flags: SendFlags,
    /// A request in a list with a negative number of slices is refused. Without this, it counts as one with
    /// none.
    pub(crate) negative_counts: bool,
    /// Posts are refused in the error states. Without this, the device flushes them.
    pub(crate) in_error: bool,
    /// In the state ERR sends are flushed also if the queue pair was never ready to send. Without this, they
    /// stay refused.
    pub(crate) flushes_early_sends: bool,
    /// `ibv_start_poll` refuses unknown attributes. Without this, it looks at none.
    pub(crate) poll_attributes: bool,
}

#[cfg(feature = "c-abi")]
impl Refusals {
    /// The errnos of most providers.
    pub(crate) const DEFAULT: Self = Self {
        long_request: Errno::INVAL,
        long_by_functions: Errno::NOMEM,
        full_by_functions: Errno::NOMEM,
        unknown: Errno::INVAL,
        bad_atomics: false,
        atomics_of_any_length: false,
        inline_of_any_count: false,
        flags: SendFlags::FENCE
            .union(SendFlags::SIGNALED)
            .union(SendFlags::SOLICITED),
        negative_counts: false,
        in_error: false,
        flushes_early_sends: false,
        poll_attributes: false,
    };
}

/// The parts of a completion queue besides its command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqParts<'a> {
    /// Bytes of an entry, if the user names them. A resize of the queue leaves them as they are.
    pub(crate) entry_bytes: Option<u32>,
    pub(crate) buffers: Option<&'a Buffers>,
    /// It will be handed over with a queue pair.
    #[allow(dead_code, reason = "not every driver hands queues over")]
    pub(crate) for_agent: bool,
    /// As in [`QpParts`], for the queue pairs that report here.
    #[allow(dead_code, reason = "not every driver's rings depend on it")]
    pub(crate) follows_requests: bool,
}

/// The parts of a queue pair besides its command, in the driver's types or in those of [`super`]. For queues
/// that other threads poll or post to, these are the parts that they share with the queue pair.
pub(crate) struct QpParts<'a, C, S, T> {
    pub(crate) send_cq: &'a C,
    pub(crate) recv_cq: &'a C,
    pub(crate) srq: Option<&'a S>,
    pub(crate) buffers: Option<&'a Buffers>,
    /// The thread that posts to the queue pair has the domain to itself.
    pub(crate) thread_domain: Option<&'a T>,
    /// Small payloads may arrive in completions.
    pub(crate) inline_scatter: bool,
    /// Messages may be placed, and receives finish, out of order.
    pub(crate) out_of_order: bool,
    /// WRITEs with immediate data consume no receives.
    pub(crate) unsolicited_writes: bool,
    /// It is an initiator of dynamic connections whose requests are in streams.
    pub(crate) streams: Option<DcStreams>,
    /// It has its doorbell to itself, so that it can be handed over.
    pub(crate) for_agent: bool,
    /// The class in which the network handles its messages, if it is chosen here and not with the path.
    pub(crate) service_level: Option<u8>,
    /// Requests are followed to their ends: a request keeps its slot until its completion has been taken, so
    /// that completion queues never overrun, and regions wait for the requests that name them. Without this,
    /// the queue pair behaves as in libibverbs, which may free slots earlier, and nothing asks how far
    /// requests are.
    pub(crate) follows_requests: bool,
}

/// The streams of an initiator of dynamic connections, as powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DcStreams {
    pub(crate) log_count: u8,
    /// The queue pair fails when so many streams have failed.
    pub(crate) log_failures: u8,
}

/// The parts of a target of dynamic connections besides its command.
pub(crate) struct DcTargetParts<'a, C, S> {
    /// The completion queue of its receives.
    pub(crate) cq: &'a C,
    pub(crate) srq: &'a S,
    /// The key that a request must name to reach it.
    pub(crate) access_key: u64,
    /// The two changes that make it receive, in order. The queue pair in them is filled in once it is known.
    pub(crate) changes: [uverbs_uapi::write::ModifyQp; 2],
}

/// A queue pair that was created.
#[derive(Debug)]
pub(crate) struct NewQp<S, R, B> {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) send: S,
    /// None if the queue pair receives from an SRQ.
    pub(crate) recv: Option<R>,
    pub(crate) backing: B,
}

/// A queue pair that is about to be taken to the state RESET. Nobody posts to it meanwhile.
pub(crate) struct ResetQp<'a, S, R, B> {
    /// The command for the kernel.
    pub(crate) command: &'a ModifyQp,
    pub(crate) backing: &'a B,
    pub(crate) send: &'a mut S,
    /// None if the queue pair receives from an SRQ.
    pub(crate) recv: Option<&'a mut R>,
    /// Its [replacement](Driver::replacement) takes its place, and it is not used any more.
    pub(crate) is_replaced: bool,
}

/// A queue pair that leaves this side, with the completion queue to which it alone reports. Nothing is in
/// flight, and no completion waits.
pub(crate) struct LeavingQp<'a, S, R, B, C> {
    pub(crate) qpn: u32,
    pub(crate) transport: QpType,
    pub(crate) backing: &'a B,
    pub(crate) send: &'a S,
    /// None if the queue pair receives from an SRQ.
    pub(crate) recv: Option<&'a R>,
    pub(crate) cq: &'a mut C,
}

/// What an agent needs to know of a queue pair that was handed over.
#[derive(Debug)]
pub(crate) struct HandedOver {
    /// It lists no regions yet.
    pub(crate) value: Handover,
    /// The dma-bufs that it names, by their indices.
    pub(crate) dmabufs: Vec<Dmabuf>,
    /// Where the register is mapped in this process.
    pub(crate) register: NonNull<u8>,
}

/// What must stay of a queue pair, and what it can be asked.
pub(crate) trait QpBacking: Debug + Clone {
    /// Whether the kernel knows the capacity of the send queue; if the ring is this side's, it knows only
    /// blocks.
    fn kernel_knows_caps(&self) -> bool {
        true
    }

    /// The options of its connection, with their vendor; `None` without options.
    fn query_ece(&self) -> Option<Ece> {
        None
    }

    /// Requests options of its connection with the next change of its state, if it has any.
    fn set_ece(&self, _options: u32) {}

    /// Whether the kernel may keep something of it that a reset does not clear, so that another one has to
    /// take its place. Once it does, it always does.
    fn needs_replacement(&self) -> bool {
        false
    }

    /// The driver-specific data of a change of the state.
    fn modify_data(&self) -> DriverData {
        DriverData::default()
    }

    /// Takes the kernel driver's answer to [`Self::modify_data`].
    fn modified(&self, _reply: &DriverReply) {}

    /// The kernel takes it to RTR or RTS, in which packets come in, or tries to.
    fn begins(&self) {}

    /// The kernel has taken it to RTR or RTS.
    fn has_begun(&self) {}

    /// Stops this side from writing to the memory that requests name.
    fn close(&self) {}

    /// Drops unread completions together with the queue pair, if libibverbs's provider does so. Without this
    /// they stay, as the kernel's do.
    #[cfg(feature = "c-abi")]
    fn forget_unread(&self) {}

    /// How far the send queue is, for threads that neither post nor poll.
    fn sends(&self) -> Progress;

    /// As [`sends`](Self::sends), for the receive queue if there is one.
    fn receives(&self) -> Option<Progress>;

    /// Whether one of the send requests in flight may contain this key. False only if none does.
    fn sends_name(&self, _in_flight: Progress, _key: LocalKey) -> bool {
        true
    }

    /// As [`sends_name`](Self::sends_name), for the receive queue.
    fn receives_name(&self, _in_flight: Progress, _key: LocalKey) -> bool {
        true
    }
}

/// What must stay of a shared receive queue, and what it can be asked.
pub(crate) trait SrqBacking: Debug + Clone {
    /// How far it is, for threads that neither post nor poll. A request is finished when its message has been
    /// received, not already when the device has taken it out of the ring.
    fn progress(&self) -> Progress;

    /// Whether one of the requests in flight may contain this key. False only if none does.
    fn names(&self, _in_flight: Progress, _key: LocalKey) -> bool {
        true
    }

    /// Whether the kernel may have lost the queue, and must not be asked about it.
    fn is_lost(&self) -> bool {
        false
    }

    /// As [`QpBacking::forget_unread`], for completions that the queue reports itself.
    #[cfg(feature = "c-abi")]
    fn forget_received(&self) {}

    /// Its number on the wire, if the driver knows it.
    #[cfg(feature = "c-abi")]
    fn number(&self) -> Option<u32> {
        None
    }
}

/// What must stay of a target of dynamic connections until the kernel has released it.
pub(crate) trait DcTargetBacking: Debug {
    /// The driver-specific data of a change of the state.
    #[cfg(feature = "c-abi")]
    fn modify_data(&self) -> DriverData {
        DriverData::default()
    }

    /// The target's number, if the kernel driver's answer to [`Self::modify_data`] has brought it.
    #[cfg(feature = "c-abi")]
    fn told_number(&self, _reply: &DriverReply) -> Option<u32> {
        None
    }
}

impl DcTargetBacking for Nothing {}

/// Nothing to keep or to select.
#[derive(Clone, Debug, Default)]
#[allow(dead_code, reason = "not every driver has nothing to keep")]
pub(crate) struct Nothing;

impl SrqBacking for Nothing {
    fn progress(&self) -> Progress {
        Progress::UNKNOWN
    }
}

/// A position in a send queue: where the next request goes.
///
/// A batch has its own: it starts as [the queue's](SendQueue::position), each request that is written moves
/// it on, and [`SendQueue::ring`] makes it the queue's. If it is dropped instead, nothing was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Requests before it, counted from the start, modulo 2^32.
    pub(crate) count: u32,
    /// How much of the ring the requests before it take, in the driver's unit, counted from the start.
    pub(crate) at: u64,
    /// Where the request before it begins, in the same unit.
    pub(crate) last: u64,
    /// The flags, in the device's format, that the next request has in any case.
    pub(crate) flags: u64,
}

impl Position {
    /// In a queue whose requests take one place each.
    #[inline(always)]
    pub(crate) const fn counted(count: u32) -> Self {
        Self {
            count,
            at: 0,
            last: 0,
            flags: 0,
        }
    }
}

/// A send queue: a ring in which requests are written, and a doorbell.
///
/// Checks that hold for every request on every device, and whether the queue pair may send, were made by the
/// caller. The driver checks what depends on it: the size of a request, and room in the ring.
pub(crate) trait SendQueue: Debug {
    /// An address handle, as its requests name it.
    type Ah;

    /// The most requests in flight.
    fn capacity(&self) -> u32;

    /// The most slices of a request.
    fn max_sge(&self) -> u32;

    /// The most inline bytes of a request.
    fn max_inline(&self) -> u32;

    /// Requests that have been rung and are not known to be finished.
    fn in_flight(&self) -> u32;

    /// Whether memory windows may belong to its queue pair in the kernel, which cannot be destroyed before
    /// these.
    fn has_bound_windows(&self) -> bool {
        false
    }

    /// The position after all requests that were rung.
    fn position(&self) -> Position;

    /// Writes a request at a position that [`position`](Self::position) or an earlier `write` has returned
    /// since the last doorbell. Returns the position after it.
    fn write(
        &mut self,
        at: Position,
        request: WorkRequest<'_, Self::Ah>,
    ) -> Result<Position, PostError>;

    /// Publishes the requests from [`position`](Self::position), which is `start`, up to `end` with one
    /// doorbell; returns how many they are. If there are none, it does nothing.
    fn ring(&mut self, start: Position, end: Position) -> Result<usize, Errno>;
}

/// A receive queue: a queue pair's own or a shared one. Its methods are as those of a [`SendQueue`].
pub(crate) trait RecvQueue: Debug {
    /// The most requests in flight.
    fn capacity(&self) -> u32;

    /// The most slices of a request.
    fn max_sge(&self) -> u32;

    /// Requests that have been rung and are not known to have received a message.
    fn in_flight(&self) -> u32;

    /// Writes request number `nth` of a batch, counted from 0. The caller writes them in order.
    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError>;

    /// Publishes the first `count` requests of a batch, at least one.
    fn ring(&mut self, count: u32);
}

/// A completion queue.
pub(crate) trait Cq: Debug {
    /// What must stay until the kernel has released it. A forgotten clone keeps it forever.
    type Backing: Debug + Clone;
    type Completion: Completion;
    /// The completions that have arrived, at most as many as the queue holds. The entry of each goes back to
    /// the device when it is taken, and before anything that it frees in a queue may be used again. So the
    /// device never writes more completions than there is room for. Completions that are not taken stay.
    type Polled<'q>: Iterator<Item = Self::Completion> + Debug
    where
        Self: 'q;

    /// What must outlive it.
    fn backing(&self) -> Self::Backing;

    /// The count of the queue's events that were read, if arming depends on it.
    fn events(_backing: &Self::Backing) -> Option<&Arc<AtomicU32>> {
        None
    }

    /// Makes the next poll report that the queue had no room for a completion.
    fn overran(_backing: &Self::Backing) {}

    /// Asks for an event when the next completion arrives. Other threads may poll meanwhile.
    fn arm(
        _backing: &Self::Backing,
        fd: &CommandFd,
        cq: CqHandle,
        solicited_only: bool,
    ) -> Result<()> {
        fd.execute(&ReqNotifyCq { cq, solicited_only })
    }

    /// The most completions that can wait at a time.
    fn capacity(&self) -> u32;

    /// Gives the places of completions that no poll will tell of back to the device. Without this, polls do
    /// that.
    #[cfg(feature = "c-abi")]
    fn clean(&mut self) {}

    /// True if no completion waits.
    fn is_empty(&mut self) -> Result<bool, PollError>;

    /// Takes completions. Fails if something is wrong with the queue: one error of those that have come since
    /// the last call is reported, once. The loss of the queue is reported each time.
    fn poll(&mut self) -> Result<Self::Polled<'_>, PollError>;

    /// Takes completions in the kernel's form, which C programs have too, at most as many as there are
    /// places; returns how many. `None` if the caller has to use [`Self::poll`]: by default, and if something
    /// has come up.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn take_into(&mut self, _places: &mut [MaybeUninit<Wc>]) -> Option<usize> {
        None
    }

    /// Shows the next completion, if there is one, instead of the one that is shown, whose entry goes back to
    /// the device now at the latest. Fails as [`Self::poll`] does. After a failure, or without a completion,
    /// none is shown. Nobody polls until [`Self::hide`].
    #[cfg(feature = "c-abi")]
    fn show_next(&mut self) -> Result<Option<Self::Completion>, PollError>;

    /// The completion that is shown.
    #[cfg(feature = "c-abi")]
    fn shown(&self) -> Option<Self::Completion>;

    /// Ends showing. The entry of the completion that is shown goes back to the device now at the latest.
    #[cfg(feature = "c-abi")]
    fn hide(&mut self);
}

/// A completion, as the device wrote it. Its fields are interpreted only when asked for; `crate::wc`
/// documents them. Fields that a device does not report have a default.
pub(crate) trait Completion: Debug + Copy {
    fn wr_id(&self) -> u64;
    fn status(&self) -> WcStatus;
    fn opcode(&self) -> WcOpcode;
    fn byte_len(&self) -> u32;
    fn qp_num(&self) -> u32;
    fn src_qp(&self) -> u32;
    /// The immediate data in network byte order, or the rkey in the host's.
    fn ex(&self) -> u32;
    fn flags(&self) -> WcFlags;

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        None
    }

    #[inline(always)]
    fn pkey_index(&self) -> u16 {
        0
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        0
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        0
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        0
    }

    /// Whether it belongs to a WRITE with immediate data that has consumed no receive.
    #[inline(always)]
    fn is_unsolicited(&self) -> bool {
        false
    }

    /// The sender's GID, if the completion has it.
    #[inline(always)]
    fn sender_gid(&self) -> Option<[u8; 16]> {
        None
    }

    /// The whole completion in the kernel's form, which C programs have too.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn to_wc(self) -> Wc {
        Wc {
            wr_id: self.wr_id(),
            status: self.status().0,
            opcode: self.opcode().0,
            vendor_err: self.vendor_err(),
            byte_len: self.byte_len(),
            ex: self.ex(),
            qp_num: self.qp_num(),
            src_qp: self.src_qp(),
            wc_flags: self.flags().bits(),
            pkey_index: self.pkey_index(),
            slid: self.slid(),
            sl: self.sl(),
            dlid_path_bits: self.dlid_path_bits(),
            ..Wc::default()
        }
    }
}

/// All traits, for code that calls their methods.
pub(crate) mod methods {
    pub(crate) use super::{
        Completion as _, Cq as _, DeviceMemory as _, Driver as _, QpBacking as _, RecvQueue as _,
        SendQueue as _, SrqBacking as _,
    };
}

/// A batch of send requests, for tests of drivers.
#[cfg(test)]
pub(crate) fn sending<Q: SendQueue>(queue: &mut Q) -> Sending<'_, Q> {
    let at = queue.position();
    Sending { queue, at }
}

#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Sending<'q, Q> {
    queue: &'q mut Q,
    at: Position,
}

#[cfg(test)]
impl<Q: SendQueue> Sending<'_, Q> {
    pub(crate) fn write(
        &mut self,
        wr_id: u64,
        flags: uverbs_uapi::flags::SendFlags,
        operation: crate::work::Operation,
        to: Option<crate::work::Destination<'_, Q::Ah>>,
        payload: crate::work::Payload<'_>,
    ) -> Result<(), PostError> {
        let request = WorkRequest {
            wr_id,
            flags,
            operation,
            to,
            payload,
        };
        self.at = self.queue.write(self.at, request)?;
        Ok(())
    }

    pub(crate) fn pending(&self) -> u32 {
        self.at.count.wrapping_sub(self.queue.position().count)
    }

    pub(crate) fn ring(&mut self) -> Result<usize, Errno> {
        let start = self.queue.position();
        self.queue.ring(start, self.at)
    }
}

/// As [`sending`], for a receive queue, to which slices are posted.
#[cfg(test)]
pub(crate) fn receiving<Q: RecvQueue>(queue: &mut Q) -> Receiving<'_, Q> {
    Receiving { queue, written: 0 }
}

#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Receiving<'q, Q> {
    queue: &'q mut Q,
    written: u32,
}

#[cfg(test)]
impl<Q: RecvQueue> Receiving<'_, Q> {
    pub(crate) fn write(
        &mut self,
        wr_id: u64,
        slices: &[crate::work::LocalSlice<'_>],
    ) -> Result<(), PostError> {
        self.queue.write(self.written, wr_id, slices)?;
        self.written += 1;
        Ok(())
    }

    pub(crate) fn pending(&self) -> u32 {
        self.written
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    /// Starts again after the requests that were rung.
    pub(crate) fn begin(&mut self) {
        self.written = 0;
    }

    pub(crate) fn ring(&mut self) {
        self.queue.ring(self.written);
        self.begin();
    }
}
