//! What differs between devices. A driver is a folder here and a line in the list below.
//!
//! [`contract`] says what a driver does. Above this module nothing knows which device it talks to; below it
//! nothing knows reference counts and lifetimes. A driver's part of an object is held as [`OneOf`] the
//! drivers' own types. That is an `enum`, so no call is indirect, and with one driver built in there is one
//! variant and nothing to dispatch.
//!
//! `CONTRIBUTING.md` has the steps to a new driver; [`sample`] is there to be copied.

/// The list of drivers: the condition under which one is built in, its variant of [`OneOf`], and its type.
/// Passes the list to another macro, before the arguments.
macro_rules! drivers {
    ($then:ident $($arguments:tt)*) => {
        $then! {
            {
                (feature = "rxe") Rxe crate::driver::rxe::Rxe,
                (feature = "mlx5") Mlx5 crate::driver::mlx5::Device,
                (feature = "efa") Efa crate::driver::efa::Efa,
                (test) Sample crate::driver::sample::Sample,
            }
            $($arguments)*
        }
    };
}

/// `dispatch!(one_of, D(it) => expression)`: evaluates the expression for the driver of the value, as `D`.
macro_rules! dispatch {
    ($one_of:expr, $driver:ident($it:pat) => $then:expr) => {
        drivers!(arms $one_of, $driver($it) => $then)
    };
}

macro_rules! arms {
    (
        { $(($($built_in:tt)*) $Variant:ident $Driver:ty,)* }
        $one_of:expr, $driver:ident($it:pat) => $then:expr
    ) => {
        match $one_of {
            $(
                #[cfg($($built_in)*)]
                #[allow(unreachable_code, reason = "a driver may not have the queue")]
                $crate::driver::OneOf::$Variant($it) => {
                    #[allow(dead_code, reason = "not every expression names the driver")]
                    type $driver = $Driver;
                    $then
                }
            )*
        }
    };
}

/// Methods that call those of the driver's part.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            #[inline(always)]
            pub(crate) fn $name(&self, $($argument: $type),*) -> $result {
                dispatch!(self, D(it) => it.$name($($argument),*))
            }
        )*
    };
}

#[allow(dead_code, reason = "no driver that is built in may lack anything")]
mod absent;
mod backings;
pub(crate) mod contract;
mod data;
#[cfg(feature = "efa")]
pub(crate) mod efa;
#[cfg(any(test, feature = "efa", feature = "mlx5"))]
#[allow(
    dead_code,
    reason = "not every driver that is built in needs all of it"
)]
mod kit;
#[cfg(feature = "mlx5")]
pub(crate) mod mlx5;
mod options;
#[cfg(feature = "rxe")]
mod rxe;
#[cfg(test)]
mod sample;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(feature = "c-abi")]
pub(crate) mod typed;

/// Ways into the drivers' rings, for the fuzz targets.
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz {
    #[cfg(feature = "efa")]
    pub use crate::driver::efa::fuzz::efa_poll;
    #[cfg(feature = "rxe")]
    pub use crate::driver::rxe::fuzz::{rxe_poll, rxe_post};
}

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpAttrMask;
use uverbs_uapi::handle::{AhHandle, CqHandle, DmHandle, MrHandle, PdHandle, QpHandle, SrqHandle};
use uverbs_uapi::write::ReregMrResp;
use zerocopy::FromBytes;

use self::contract::methods::*;
#[cfg(feature = "c-abi")]
pub(crate) use self::contract::{BusAtomics, Refusals};
pub(crate) use self::contract::{ContextOptions, CqParts, DcStreams, HandedOver, Position, QpName};
pub(crate) use self::data::{Completion, Polled, Posting, Receiving};
use self::options::Options;
use crate::alloc::{Buffers, Dmabufs, ResourceType};
use crate::command::{
    AllocDm, CommandFd, CreateAh, CreateCq, CreateSrq, CreateXrcTarget, DriverReply,
    GetContextReply, ModifySrq, QpSpec, RegDmabufMr, RegMr, RegMrReply, ReregMr, ResizeCq, SrqKind,
    driver_reply,
};
use crate::device::{self, DriverClue, DriverId};
use crate::error::{Error, Result, Subject, Verb};
use crate::work::{CopyError, DataOrder, Interconnects, LagPort, Operations, WallClock};

macro_rules! one_of {
    ({ $(($($built_in:tt)*) $Variant:ident $Driver:ty,)* }) => {
        /// One driver's type of a kind.
        #[repr(u8)]
        pub(crate) enum OneOf<K: Kind> {
            $(#[cfg($($built_in)*)] $Variant(K::Of<$Driver>),)*
        }

        $(
            #[cfg($($built_in)*)]
            impl Listed for $Driver {
                #[inline(always)]
                fn wrap<K: Kind>(it: K::Of<Self>) -> OneOf<K> {
                    OneOf::$Variant(it)
                }

                #[inline(always)]
                fn get<K: Kind>(one_of: &OneOf<K>) -> Option<&K::Of<Self>> {
                    match one_of {
                        OneOf::$Variant(it) => Some(it),
                        #[allow(unreachable_patterns, reason = "there may be no other driver")]
                        _ => None,
                    }
                }

                #[inline(always)]
                fn get_mut<K: Kind>(one_of: &mut OneOf<K>) -> Option<&mut K::Of<Self>> {
                    match one_of {
                        OneOf::$Variant(it) => Some(it),
                        #[allow(unreachable_patterns, reason = "there may be no other driver")]
                        _ => None,
                    }
                }
            }
        )*

        #[cfg(not(any($($($built_in)*),*)))]
        compile_error!("a driver is needed: the feature `rxe`, `mlx5` or `efa`, or several");

        /// The drivers that are built in.
        fn built_in() -> impl Iterator<Item = Driver> {
            [$(#[cfg($($built_in)*)] OneOf::$Variant(PhantomData),)*].into_iter()
        }
    };
}

drivers!(one_of);

/// A kind of thing that each driver has its own type for.
pub(crate) trait Kind {
    type Of<D: contract::Driver>: fmt::Debug;
}

/// A driver in the list.
pub(crate) trait Listed: contract::Driver {
    fn wrap<K: Kind>(it: K::Of<Self>) -> OneOf<K>;
    fn get<K: Kind>(one_of: &OneOf<K>) -> Option<&K::Of<Self>>;
    fn get_mut<K: Kind>(one_of: &mut OneOf<K>) -> Option<&mut K::Of<Self>>;
}

impl<K: Kind> fmt::Debug for OneOf<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        dispatch!(self, D(it) => it.fmt(f))
    }
}

macro_rules! kinds {
    ($($(#[$meta:meta])* $name:ident $kind:ident = $of:ty;)*) => {
        $(
            #[derive(Debug)]
            pub(crate) enum $kind {}

            impl Kind for $kind {
                type Of<D: contract::Driver> = $of;
            }

            $(#[$meta])*
            pub(crate) type $name = OneOf<$kind>;
        )*
    };
}

kinds! {
    /// A driver that is built in.
    Driver Drivers = PhantomData<D>;
    /// A context's part of the device.
    Device Devices = Arc<D>;
    /// A completion queue.
    Cq Cqs = D::Cq;
    /// What must stay of a completion queue until the kernel has released it.
    CqBacking CqBackings = <D::Cq as contract::Cq>::Backing;
    /// A send queue.
    SendQueue SendQueues = D::SendQueue;
    /// A receive queue of a queue pair.
    RecvQueue RecvQueues = D::RecvQueue;
    /// A shared receive queue.
    SharedRecvQueue SharedRecvQueues = D::SharedRecvQueue;
    /// An address handle, as work requests name it.
    Ah Ahs = D::Ah;
    /// Device memory, as the processor reaches it.
    DeviceMemory DeviceMemories = D::DeviceMemory;
    /// What must stay of a queue pair until the kernel has released it.
    QpBacking QpBackings = D::QpBacking;
    /// As [`QpBacking`], for a shared receive queue.
    SrqBacking SrqBackings = D::SrqBacking;
    /// As [`QpBacking`], for a target of dynamic connections.
    DcTargetBacking DcTargetBackings = D::DcTargetBacking;
    /// The hardware that a thread domain selects once a queue pair needs it.
    ThreadDomain ThreadDomains = D::ThreadDomain;
}

/// The parts of a queue pair besides its command.
pub(crate) type QpParts<'a> = contract::QpParts<'a, CqBacking, SrqBacking, ThreadDomain>;

/// The parts of a target of dynamic connections besides its command.
pub(crate) type DcTargetParts<'a> = contract::DcTargetParts<'a, CqBacking, SrqBacking>;

/// A queue pair that a driver has created.
pub(crate) type NewQp = contract::NewQp<SendQueue, RecvQueue, QpBacking>;

/// A queue pair that is about to be taken to the state RESET.
pub(crate) type ResetQp<'a> = contract::ResetQp<'a, SendQueue, RecvQueue, QpBacking>;

/// A queue pair that leaves this side.
pub(crate) type LeavingQp<'a> = contract::LeavingQp<'a, SendQueue, RecvQueue, QpBacking, Cq>;

/// Reads a driver's private part of the kernel's answer to a verb.
fn answer<T: FromBytes>(
    verb: Verb,
    subject: impl FnOnce() -> Subject,
    reply: &DriverReply,
) -> Result<T> {
    driver_reply(reply)
        .map_err(|malformed| Error::malformed(verb, subject(), malformed.to_string()))
}

/// Refuses by name an option that is asked for and that the driver does not have.
fn has<D: contract::Driver>(verb: Verb, asked: Options) -> Result<()> {
    match asked.difference(D::OPTIONS).what() {
        None => Ok(()),
        Some(what) => Err(D::lacks(verb, what)),
    }
}

/// Refuses a type or an option of a queue pair that the driver does not have.
fn has_qp<D: contract::Driver>(
    spec: &QpSpec,
    parts: &contract::QpParts<'_, impl Sized, impl Sized, impl Sized>,
) -> Result<()> {
    if !D::has_type(spec.qp_type) {
        let what = format!("queue pairs of type {:?}", spec.qp_type);
        return Err(D::lacks(Verb::CreateQp, &what));
    }
    has::<D>(Verb::CreateQp, Options::of_qp(spec, parts))
}

/// An object of another driver. The callers compare contexts first, so users never see this error.
#[cold]
fn foreign(verb: Verb) -> Error {
    let why = "it belongs to a device of another driver";
    Error::invalid(verb, Subject::the("object"), why)
}

impl device::Device {
    /// The device's driver. By sysfs, only drivers that are built in are recognised.
    pub fn driver(&self) -> Option<DriverId> {
        match self.driver_clue()? {
            DriverClue::Number(id) => Some(*id),
            clue => built_in()
                .find_map(|driver| dispatch!(driver, D(_) => D::is_behind(clue).then_some(D::ID))),
        }
    }
}

impl fmt::Debug for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, code) = (self.driver(), self.code());
        let name = built_in().find_map(|driver| {
            dispatch!(driver, D(_) => if D::ID == id { D::buffer_name(code) } else { None })
        });
        match name {
            Some(name) => write!(f, "{id} {name}"),
            None => write!(f, "{id} resource {code}"),
        }
    }
}

impl Driver {
    /// The driver for a device, by the kernel's driver number and the driver's ABI version.
    pub(crate) fn select(id: DriverId, abi_version: u32, device: &str) -> Result<Self> {
        let unsupported = |missing| {
            let subject = Subject::named("device", device);
            Err(Error::unsupported(Verb::OpenDevice, subject, missing))
        };
        let Some(driver) = built_in().find(|driver| dispatch!(driver, D(_) => D::ID == id)) else {
            return unsupported(format!("a driver for {id} devices in this build"));
        };
        let versions = dispatch!(&driver, D(_) => D::ABI_VERSIONS);
        if !versions.contains(&abi_version) {
            return unsupported(format!(
                "version {abi_version} of the ABI of the kernel's driver {id}; this build speaks {} to {}",
                versions.start(),
                versions.end()
            ));
        }
        Ok(driver)
    }

    /// Makes the open file a context of the device.
    pub(crate) fn get_context(
        self,
        fd: &CommandFd,
        options: ContextOptions,
    ) -> Result<(Device, GetContextReply)> {
        dispatch!(self, D(_) => {
            let (device, reply) = D::get_context(fd, options)?;
            Ok((D::wrap(Arc::new(device)), reply))
        })
    }

    /// Joins the context that another owner of the open file has made of it.
    pub(crate) fn query_context(self, fd: &CommandFd) -> Result<(Device, GetContextReply)> {
        dispatch!(self, D(_) => {
            has::<D>(Verb::ImportDevice, Options::IMPORT)?;
            let (device, reply) = D::query_context(fd)?;
            Ok((D::wrap(Arc::new(device)), reply))
        })
    }
}

/// The methods of [`contract::Driver`], for whichever driver it is.
impl Device {
    /// Whether the driver has queue pairs of the type.
    #[cfg(feature = "c-abi")]
    pub(crate) fn has_type(&self, transport: QpType) -> bool {
        dispatch!(self, D(_) => D::has_type(transport))
    }

    /// How C programs are refused.
    #[cfg(feature = "c-abi")]
    pub(crate) fn refusals(&self) -> contract::Refusals {
        dispatch!(self, D(_) => D::REFUSALS)
    }

    /// Which atomic operations of the device are atomic on the bus too.
    #[cfg(feature = "c-abi")]
    pub(crate) fn bus_atomics(&self, fd: &CommandFd) -> BusAtomics {
        dispatch!(self, D(device) => device.bus_atomics(fd))
    }

    /// The text for C programs of a firmware version for which the kernel has none.
    #[cfg(feature = "c-abi")]
    pub(crate) fn firmware(&self, version: u64) -> String {
        dispatch!(self, D(_) => D::firmware(version))
    }

    forward! {
        operations(transport: QpType) -> Operations;
        query_mask(transport: QpType) -> QpAttrMask;
        alloc_pd(fd: &CommandFd) -> Result<PdHandle>;
        import_pd(fd: &CommandFd, handle: PdHandle) -> Result<bool>;
        without_ece(verb: Verb) -> Error;
        max_requests(reported: u32) -> u32;
        has_long_datagrams() -> bool;
        sets_rnr_retry() -> bool;
        data_order(fd: &CommandFd, qp: QpName, state: QpState) -> Result<DataOrder>;
        set_udp_source_port(fd: &CommandFd, qp: QpName, port: u16) -> Result<()>;
        reset_stream(fd: &CommandFd, qp: QpName, stream: u16) -> Result<()>;
        interconnects(fd: &CommandFd, mr: MrHandle) -> Result<Interconnects>;
        lag_port(fd: &CommandFd, qp: QpName) -> Result<LagPort>;
        set_lag_port(fd: &CommandFd, qp: QpName, port: u8) -> Result<()>;
        modify_srq(fd: &CommandFd, command: ModifySrq) -> Result<()>;
        create_xrc_target(fd: &CommandFd, command: &CreateXrcTarget) -> Result<(QpHandle, u32)>;
        null_lkey() -> Result<u32>;
        raw_clock(fd: &CommandFd) -> Result<u64>;
        wall_clock(fd: &CommandFd) -> Result<WallClock>;
    }

    /// Whether the kernel's driver checks that advice is about regions on demand.
    pub(crate) fn kernel_checks_advice(&self) -> bool {
        dispatch!(self, D(_device) => D::CHECKS_ADVICE)
    }

    /// Fails if other holders of the file cannot join the context.
    #[cfg(feature = "share")]
    pub(crate) fn check_joinable(&self, verb: Verb) -> Result<()> {
        dispatch!(self, D(_device) => has::<D>(verb, Options::IMPORT))
    }

    /// Whether rings may lie in dma-bufs. Which ones do is up to the allocator, so [`Buffers`] refuses them.
    pub(crate) fn dmabufs(&self) -> Dmabufs {
        dispatch!(self, D(_device) => match D::OPTIONS.contains(Options::DMABUFS) {
            true => Dmabufs::Taken,
            false => Dmabufs::Refused(
                "rings in dma-bufs, which this library's driver for the device does not take",
            ),
        })
    }

    #[inline(always)]
    pub(crate) fn create_cq(
        &self,
        fd: &Arc<CommandFd>,
        command: CreateCq,
        parts: &CqParts<'_>,
    ) -> Result<(CqHandle, Cq)> {
        dispatch!(self, D(device) => {
            has::<D>(Verb::CreateCq, Options::of_cq(&command, parts))?;
            let (handle, cq) = device.create_cq(fd, command, parts)?;
            Ok((handle, D::wrap(cq)))
        })
    }

    pub(crate) fn resize_cq(
        &self,
        fd: &CommandFd,
        command: ResizeCq,
        cq: &mut Cq,
        parts: &CqParts<'_>,
    ) -> Result<()> {
        dispatch!(self, D(device) => match D::get_mut(cq) {
            Some(cq) => device.resize_cq(fd, command, cq, parts),
            None => Err(foreign(Verb::ResizeCq)),
        })
    }

    pub(crate) fn create_qp(
        &self,
        fd: &Arc<CommandFd>,
        spec: &QpSpec,
        parts: &QpParts<'_>,
    ) -> Result<NewQp> {
        dispatch!(self, D(device) => {
            let parts = own_parts::<D>(parts).ok_or_else(|| foreign(Verb::CreateQp))?;
            has_qp::<D>(spec, &parts)?;
            Ok(wrap_qp::<D>(device.create_qp(fd, spec, &parts)?))
        })
    }

    pub(crate) fn replacement(
        &self,
        fd: &Arc<CommandFd>,
        of: &QpBacking,
        buffers: Option<&Buffers>,
    ) -> Result<NewQp> {
        dispatch!(self, D(device) => {
            let of = D::get(of).ok_or_else(|| foreign(Verb::CreateQp))?;
            Ok(wrap_qp::<D>(device.replacement(fd, of, buffers)?))
        })
    }

    pub(crate) fn reset_qp(&self, fd: &Arc<CommandFd>, reset: ResetQp<'_>) -> Result<()> {
        dispatch!(self, D(device) => {
            let reset = own_reset::<D>(reset).ok_or_else(|| foreign(Verb::ModifyQp))?;
            device.reset_qp(fd, reset)
        })
    }

    pub(crate) fn hand_over(&self, leaving: LeavingQp<'_>) -> Result<HandedOver> {
        dispatch!(self, D(device) => {
            let leaving = own_leaving::<D>(leaving).ok_or_else(|| foreign(Verb::IntoDevice))?;
            device.hand_over(leaving)
        })
    }

    pub(crate) fn may_take_back(&self, handle: CqHandle, cq: &mut Cq) -> Result<()> {
        dispatch!(self, D(device) => match D::get_mut(cq) {
            Some(cq) => device.may_take_back(handle, cq),
            None => Err(foreign(Verb::Reclaim)),
        })
    }

    pub(crate) fn take_back(&self, fd: &CommandFd, handle: CqHandle, cq: &mut Cq) -> Result<()> {
        dispatch!(self, D(device) => match D::get_mut(cq) {
            Some(cq) => device.take_back(fd, handle, cq),
            None => Err(foreign(Verb::Reclaim)),
        })
    }

    /// Creates a shared receive queue of any type; its number on the wire, if it has one, comes last. Types
    /// other than the basic one report to a completion queue themselves.
    pub(crate) fn create_srq(
        &self,
        fd: &CommandFd,
        command: CreateSrq,
        cq: Option<&CqBacking>,
        buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, SharedRecvQueue, SrqBacking, Option<u32>)> {
        dispatch!(self, D(device) => {
            let created = match command.kind {
                SrqKind::Basic => {
                    let (handle, queue, backing) = device.create_srq(fd, command, buffers)?;
                    (handle, queue, backing, None)
                }
                SrqKind::Xrc { .. } => {
                    let cq = cq.and_then(D::get);
                    let (handle, queue, backing, number) =
                        device.create_xsrq(fd, command, cq, buffers)?;
                    (handle, queue, backing, Some(number))
                }
            };
            // In one expression: for a driver without such a queue the types have no values, and the code
            // after this is not compiled.
            Ok((created.0, D::wrap(created.1), D::wrap(created.2), created.3))
        })
    }

    pub(crate) fn resize_srq(
        &self,
        fd: &CommandFd,
        command: ModifySrq,
        queue: &mut SharedRecvQueue,
        buffers: Option<&Buffers>,
    ) -> Result<()> {
        dispatch!(self, D(device) => match D::get_mut(queue) {
            Some(queue) => device.resize_srq(fd, command, queue, buffers),
            None => Err(foreign(Verb::ModifySrq)),
        })
    }

    /// As [`contract::Driver::ah_without_kernel`].
    #[cfg(feature = "c-abi")]
    pub(crate) fn ah_without_kernel(
        &self,
        fd: &CommandFd,
        path: &uverbs_uapi::types::AhAttr,
    ) -> Result<Option<Ah>> {
        dispatch!(self, D(device) => Ok(device.ah_without_kernel(fd, path)?.map(D::wrap)))
    }

    /// The kernel's handle comes first, if the kernel knows of the address handle.
    pub(crate) fn create_ah(
        &self,
        fd: &CommandFd,
        command: CreateAh,
    ) -> Result<(Option<AhHandle>, Ah)> {
        dispatch!(self, D(device) => device.create_ah(fd, command).map(|(handle, ah)| (handle, D::wrap(ah))))
    }

    /// As [`contract::Driver::destroy_ah`].
    pub(crate) fn destroy_ah(
        &self,
        handle: AhHandle,
        destroy: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        dispatch!(self, D(device) => device.destroy_ah(handle, destroy))
    }

    /// The target's number comes second.
    pub(crate) fn create_dc_target(
        &self,
        fd: &CommandFd,
        spec: &QpSpec,
        parts: &DcTargetParts<'_>,
    ) -> Result<(QpHandle, u32, DcTargetBacking)> {
        dispatch!(self, D(device) => {
            let (Some(cq), Some(srq)) = (D::get(parts.cq), D::get(parts.srq)) else {
                return Err(foreign(Verb::CreateQp));
            };
            let parts = contract::DcTargetParts {
                cq,
                srq,
                access_key: parts.access_key,
                changes: parts.changes,
            };
            let (handle, number, backing) = device.create_dc_target(fd, spec, &parts)?;
            Ok((handle, number, D::wrap(backing)))
        })
    }

    /// Registers memory of this process.
    pub(crate) fn reg_mr(&self, fd: &CommandFd, command: RegMr) -> Result<RegMrReply> {
        dispatch!(self, D(device) => {
            has::<D>(Verb::RegMr, Options::of_mr(&command))?;
            device.reg_mr(fd, command)
        })
    }

    pub(crate) fn reg_dmabuf_mr(
        &self,
        fd: &CommandFd,
        command: &RegDmabufMr,
    ) -> Result<RegMrReply> {
        dispatch!(self, D(_) => {
            has::<D>(Verb::RegDmabufMr, Options::MR_DMABUF)?;
            fd.execute(command)
        })
    }

    /// Changes a memory region, and returns its keys from then on.
    pub(crate) fn rereg_mr(&self, fd: &CommandFd, command: &ReregMr) -> Result<ReregMrResp> {
        dispatch!(self, D(_) => {
            has::<D>(Verb::ReregMr, Options::MR_CHANGES)?;
            fd.execute(command)
        })
    }

    pub(crate) fn alloc_dm(
        &self,
        fd: &CommandFd,
        command: &AllocDm,
    ) -> Result<(DmHandle, DeviceMemory)> {
        dispatch!(self, D(device) => device.alloc_dm(fd, command).map(|(handle, dm)| (handle, D::wrap(dm))))
    }

    pub(crate) fn import_dm(&self, fd: &CommandFd, handle: DmHandle) -> Result<DeviceMemory> {
        dispatch!(self, D(device) => device.import_dm(fd, handle).map(D::wrap))
    }

    /// A thread domain that has selected no hardware yet.
    pub(crate) fn thread_domain(&self) -> ThreadDomain {
        dispatch!(self, D(_) => D::wrap(Default::default()))
    }
}

/// The methods of [`contract::DeviceMemory`], for whichever driver it is.
impl DeviceMemory {
    forward! {
        length() -> u64;
        file_offset() -> u64;
        start() -> u64;
        read(offset: u64, into: &mut [u8]) -> Result<(), CopyError>;
        write(offset: u64, bytes: &[u8]) -> Result<(), CopyError>;
    }
}

/// What must stay of a driver's completion queue.
type BackingOf<D> = <<D as contract::Driver>::Cq as contract::Cq>::Backing;

/// The parts in the driver's types, if all of them are.
fn own_parts<'a, D: Listed>(
    parts: &QpParts<'a>,
) -> Option<contract::QpParts<'a, BackingOf<D>, D::SrqBacking, D::ThreadDomain>> {
    let srq = match parts.srq {
        Some(srq) => Some(D::get(srq)?),
        None => None,
    };
    let thread_domain = match parts.thread_domain {
        Some(thread_domain) => Some(D::get(thread_domain)?),
        None => None,
    };
    Some(contract::QpParts {
        send_cq: D::get(parts.send_cq)?,
        recv_cq: D::get(parts.recv_cq)?,
        srq,
        buffers: parts.buffers,
        thread_domain,
        inline_scatter: parts.inline_scatter,
        out_of_order: parts.out_of_order,
        unsolicited_writes: parts.unsolicited_writes,
        streams: parts.streams,
        for_agent: parts.for_agent,
        service_level: parts.service_level,
        follows_requests: parts.follows_requests,
    })
}

/// A queue pair of a driver in the types of all drivers.
fn wrap_qp<D: Listed>(qp: contract::NewQp<D::SendQueue, D::RecvQueue, D::QpBacking>) -> NewQp {
    NewQp {
        handle: qp.handle,
        qpn: qp.qpn,
        send: D::wrap(qp.send),
        recv: qp.recv.map(D::wrap),
        backing: D::wrap(qp.backing),
    }
}

/// The queue pair in the driver's types, if all its parts are.
fn own_reset<D: Listed>(
    reset: ResetQp<'_>,
) -> Option<contract::ResetQp<'_, D::SendQueue, D::RecvQueue, D::QpBacking>> {
    let recv = match reset.recv {
        Some(recv) => Some(D::get_mut(recv)?),
        None => None,
    };
    Some(contract::ResetQp {
        command: reset.command,
        backing: D::get(reset.backing)?,
        send: D::get_mut(reset.send)?,
        recv,
        is_replaced: reset.is_replaced,
    })
}

/// A queue pair, in a driver's types, that leaves this side.
type Leaving<'a, D> = contract::LeavingQp<
    'a,
    <D as contract::Driver>::SendQueue,
    <D as contract::Driver>::RecvQueue,
    <D as contract::Driver>::QpBacking,
    <D as contract::Driver>::Cq,
>;

/// The queue pair in the driver's types, if all its parts are.
fn own_leaving<D: Listed>(leaving: LeavingQp<'_>) -> Option<Leaving<'_, D>> {
    let recv = match leaving.recv {
        Some(recv) => Some(D::get(recv)?),
        None => None,
    };
    Some(contract::LeavingQp {
        qpn: leaving.qpn,
        transport: leaving.transport,
        backing: D::get(leaving.backing)?,
        send: D::get(leaving.send)?,
        recv,
        cq: D::get_mut(leaving.cq)?,
    })
}
