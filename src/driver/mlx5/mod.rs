//! mlx5, the driver of NVIDIA's ConnectX: rings in memory of this process, doorbells in registers of the
//! device.
//!
//! What is particular to it: this side allocates rings and doorbell records, and the kernel pins them. The
//! formats of requests and completions are the hardware's, big-endian ([`format`], of the package
//! `uverbs-queue`). A completion names a request by its place in the ring, so ids are kept here ([`ledger`],
//! [`directory`]). Doorbells and arming are stores to mapped registers ([`uar`]), in an order that matters
//! ([`barrier`]). Source: `drivers/infiniband/hw/mlx5` and `include/linux/mlx5` of Linux 6.1 to 7.3.
//!
//! Not there yet, each with its place: queue pairs of type raw packet (a layout in [`qp`], a segment in
//! [`send`], and a ring of its own for receives), compressed completions ([`entries`], [`cq`]). Commands of
//! users to the device are above this module, in `direct`.

mod again;
mod ah;
mod clock;
mod clock_info;
pub(crate) mod command;
mod completion;
mod cq;
mod dc;
mod device_command;
mod directory;
mod dm;
mod ece;
mod entries;
mod handover;
mod inline;
mod page;
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
pub(crate) mod place;
mod qp;
mod recv;
pub(crate) mod refusal;
mod register;
mod reporter;
pub(crate) mod send;
mod srq;
#[cfg(test)]
mod tests;
mod uar;
pub(crate) mod umr;
mod ways;

#[cfg(feature = "c-abi")]
use std::num::NonZeroU8;
use std::ops::RangeInclusive;
#[cfg(feature = "c-abi")]
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use uverbs_queue::mlx5::format;
use uverbs_uapi::attr;
use uverbs_uapi::enums::{self, QpState, QpType};
use uverbs_uapi::flags::CqCreateFlags;
use uverbs_uapi::handle::{AhHandle, CqHandle, DmHandle, PdHandle, QpHandle, SrqHandle};
use uverbs_uapi::mlx5::{
    self as abi, AllocUcontextResp, AllocUcontextRespMask, AllocUctxFlags, CreateCqFlags, LibCaps,
    UarAllocType,
};

use self::ah::{Ah, Ports, create_ah};
use self::clock::Clock;
use self::clock_info::ClockInfo;
use self::cq::{Cq, CqCore};
use self::device_command::Ways;
use self::dm::Dm;
use self::entries::Entries;
use self::format::BLOCK;
use self::page::UarPage;
use self::qp::{QpCore, create_qp, create_xrc_target};
use self::recv::{Drawn, RecvQueue, SharedRecvQueue};
use self::send::SendQueue;
use self::srq::{SrqCore, create_srq, create_xsrq};
use self::uar::{Lease, Registers};
use super::answer;
use super::contract::{self, ContextOptions, CqParts, DcTargetParts, QpName, QpParts, ResetQp};
#[cfg(feature = "mlx5-direct")]
pub(crate) use super::kit::map::Map;
use super::kit::memory::{Memory, Record, Records};
use super::kit::{barrier, copy, ledger, map, memory, turn};
use super::options::Options;
use crate::alloc::{Buffers, ResourceType};
use crate::command::{
    AllocDm, AllocPd, Command, CommandFd, CreateAh, CreateCq, CreateCqReply, CreateSrq,
    CreateXrcTarget, DriverAttr, DriverData, GetContext, GetContextReply, QpSpec, QueryContext,
    QueryDevice, ResizeCq,
};
use crate::device::{DriverClue, DriverId};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::work::{DataOrder, LagPort, Operations, WallClock};

impl DriverId {
    /// NVIDIA ConnectX from Connect-IB on, and BlueField.
    pub const MLX5: Self = Self(enums::DriverId::MLX5.0);
}

impl ResourceType {
    /// mlx5: the send and receive rings of a queue pair, one buffer (`MLX5DV_RES_TYPE_QP`).
    pub const MLX5_QP: Self = Self::new(DriverId::MLX5, 1);
    /// mlx5: the ring of a receive work queue (`MLX5DV_RES_TYPE_RWQ`).
    pub const MLX5_RWQ: Self = Self::new(DriverId::MLX5, 2);
    /// mlx5: a doorbell record (`MLX5DV_RES_TYPE_DBR`).
    pub const MLX5_DBR: Self = Self::new(DriverId::MLX5, 3);
    /// mlx5: the ring of a shared receive queue (`MLX5DV_RES_TYPE_SRQ`).
    pub const MLX5_SRQ: Self = Self::new(DriverId::MLX5, 4);
    /// mlx5: the ring of a completion queue (`MLX5DV_RES_TYPE_CQ`).
    pub const MLX5_CQ: Self = Self::new(DriverId::MLX5, 5);
}

impl contract::Driver for Device {
    const ID: DriverId = DriverId::MLX5;
    const ABI_VERSIONS: RangeInclusive<u32> = abi::ABI_VERSION..=abi::ABI_VERSION;
    const OPTIONS: Options = Options::all()
        .difference(Options::UNSOLICITED_WRITES)
        .difference(Options::SERVICE_LEVEL);
    #[cfg(feature = "c-abi")]
    const REFUSALS: contract::Refusals = contract::Refusals {
        long_request: Errno::NOMEM,
        poll_attributes: true,
        atomics_of_any_length: true,
        ..contract::Refusals::DEFAULT
    };

    type Cq = Cq;
    type SendQueue = SendQueue;
    type RecvQueue = RecvQueue;
    type SharedRecvQueue = SharedRecvQueue;
    type Ah = Ah;
    type DeviceMemory = Dm;
    type QpBacking = Arc<QpCore>;
    type SrqBacking = SrqCore;
    type DcTargetBacking = dc::TargetCore;
    type ThreadDomain = ThreadDomain;

    #[inline(always)]
    fn has_type(transport: QpType) -> bool {
        matches!(
            transport,
            QpType::RC | QpType::UC | QpType::UD | QpType::XRC_SEND | QpType::DCI
        )
    }

    #[cfg(test)]
    fn sample_send_queue() -> Option<SendQueue> {
        Some(tests::sample_send_queue())
    }

    fn operations(&self, transport: QpType) -> Operations {
        Operations::of(transport).difference(Operations::OF_CAPABILITIES)
    }

    fn is_behind(clue: &DriverClue) -> bool {
        // A scalable function is bound to "mlx5_core.sf".
        matches!(clue, DriverClue::Bus(name) if name.split('.').next() == Some("mlx5_core"))
    }

    fn buffer_name(code: u32) -> Option<&'static str> {
        Some(match ResourceType::new(Self::ID, code) {
            ResourceType::MLX5_QP => "QP rings",
            ResourceType::MLX5_RWQ => "RWQ ring",
            ResourceType::MLX5_DBR => "doorbell record",
            ResourceType::MLX5_SRQ => "SRQ ring",
            ResourceType::MLX5_CQ => "CQ ring",
            _ => return None,
        })
    }

    fn get_context(fd: &CommandFd, options: ContextOptions) -> Result<(Self, GetContextReply)> {
        get_context(fd, options.write_combining)
    }

    fn query_context(fd: &CommandFd) -> Result<(Self, GetContextReply)> {
        query_context(fd)
    }

    fn alloc_pd(&self, fd: &CommandFd) -> Result<PdHandle> {
        let driver = DriverData::output::<abi::AllocPdResp>();
        fd.execute(&AllocPd { driver }).map(|(handle, _)| handle)
    }

    fn import_pd(&self, fd: &CommandFd, handle: PdHandle) -> Result<bool> {
        fd.execute(&command::QueryPd(handle)).map(|_| true)
    }

    fn create_cq(
        &self,
        fd: &Arc<CommandFd>,
        command: CreateCq,
        parts: &CqParts<'_>,
    ) -> Result<(CqHandle, Cq)> {
        create_cq(self, fd, command, parts)
    }

    fn resize_cq(
        &self,
        fd: &CommandFd,
        command: ResizeCq,
        cq: &mut Cq,
        parts: &CqParts<'_>,
    ) -> Result<()> {
        resize_cq(self, fd, command, cq, parts.buffers)
    }

    fn create_qp(
        &self,
        fd: &Arc<CommandFd>,
        spec: &QpSpec,
        parts: &QpParts<'_, Arc<CqCore>, SrqCore, ThreadDomain>,
    ) -> Result<NewQp> {
        let thread_domain = match parts.thread_domain {
            Some(domain) => Some(domain.lease(self, fd)?),
            None => None,
        };
        let srq = parts.srq.map(SrqCore::drawn);
        let parts = Parts {
            send_cq: parts.send_cq,
            recv_cq: parts.recv_cq,
            srq: srq.as_ref(),
            buffers: parts.buffers,
            thread_domain: thread_domain.as_ref(),
            inline_scatter: parts.inline_scatter,
            out_of_order: parts.out_of_order,
            unsolicited_writes: parts.unsolicited_writes,
            streams: parts.streams,
            for_agent: parts.for_agent,
            service_level: parts.service_level,
            follows_requests: parts.follows_requests,
        };
        create_qp(self, fd, spec, &parts)
    }

    fn reset_qp(
        &self,
        fd: &Arc<CommandFd>,
        reset: ResetQp<'_, SendQueue, RecvQueue, Arc<QpCore>>,
    ) -> Result<()> {
        fd.execute(reset.command)?;
        reset.backing.reset(reset.send, reset.recv);
        Ok(())
    }

    fn hand_over(
        &self,
        leaving: contract::LeavingQp<'_, SendQueue, RecvQueue, Arc<QpCore>, Cq>,
    ) -> Result<contract::HandedOver> {
        handover::hand_over(leaving)
    }

    fn may_take_back(&self, handle: CqHandle, cq: &Cq) -> Result<()> {
        handover::may_take_back(handle, cq)
    }

    fn take_back(&self, fd: &CommandFd, handle: CqHandle, cq: &mut Cq) -> Result<()> {
        handover::take_back(fd, handle, cq)
    }

    fn without_ece(&self, verb: Verb) -> Error {
        let missing = format!(
            "{}, which Linux 5.8 and newer firmware brought",
            contract::ECE
        );
        Error::unsupported(verb, Subject::the("device"), missing)
    }

    fn data_order(&self, fd: &CommandFd, qp: QpName, state: QpState) -> Result<DataOrder> {
        Ok(
            match state == QpState::RTS && self.is_data_in_order(fd, qp)? {
                true => DataOrder::Whole,
                false => DataOrder::Any,
            },
        )
    }

    fn set_udp_source_port(&self, fd: &CommandFd, qp: QpName, port: u16) -> Result<()> {
        self.change_udp_source_port(fd, qp, port)
    }

    fn reset_stream(&self, fd: &CommandFd, qp: QpName, stream: u16) -> Result<()> {
        self.change_stream(fd, qp, stream)
    }

    fn lag_port(&self, fd: &CommandFd, qp: QpName) -> Result<LagPort> {
        self.query_lag_port(fd, qp)
    }

    fn set_lag_port(&self, fd: &CommandFd, qp: QpName, port: u8) -> Result<()> {
        self.change_lag_port(fd, qp, port)
    }

    fn create_srq(
        &self,
        fd: &CommandFd,
        command: CreateSrq,
        buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, SharedRecvQueue, SrqCore)> {
        create_srq(self, fd, command, buffers)
    }

    fn create_xsrq(
        &self,
        fd: &CommandFd,
        command: CreateSrq,
        cq: Option<&Arc<CqCore>>,
        buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, SharedRecvQueue, SrqCore, u32)> {
        create_xsrq(self, fd, command, cq, buffers)
    }

    fn create_xrc_target(
        &self,
        fd: &CommandFd,
        command: &CreateXrcTarget,
    ) -> Result<(QpHandle, u32)> {
        create_xrc_target(fd, command)
    }

    fn create_dc_target(
        &self,
        fd: &CommandFd,
        spec: &QpSpec,
        parts: &DcTargetParts<'_, Arc<CqCore>, SrqCore>,
    ) -> Result<(QpHandle, u32, dc::TargetCore)> {
        dc::create_target(fd, spec, parts)
    }

    fn create_ah(&self, fd: &CommandFd, command: CreateAh) -> Result<(Option<AhHandle>, Ah)> {
        create_ah(&self.ports, fd, command)
    }

    #[cfg(feature = "c-abi")]
    fn ah_without_kernel(
        &self,
        fd: &CommandFd,
        path: &uverbs_uapi::types::AhAttr,
    ) -> Result<Option<Ah>> {
        ah::ah_without_kernel(&self.ports, fd, path)
    }

    fn alloc_dm(&self, fd: &CommandFd, command: &AllocDm) -> Result<(DmHandle, Dm)> {
        dm::alloc(fd, command)
    }

    fn import_dm(&self, fd: &CommandFd, handle: DmHandle) -> Result<Dm> {
        dm::import(fd, handle)
    }

    /// Linux queries the key from the device and returns it with the context.
    fn null_lkey(&self) -> Result<u32> {
        let lacks = || Self::lacks(Verb::AllocNullMr, "a key that stands for no memory");
        self.null_lkey.ok_or_else(lacks)
    }

    /// A device that takes no commands of its own promises nothing.
    #[cfg(feature = "c-abi")]
    fn bus_atomics(&self, fd: &CommandFd) -> contract::BusAtomics {
        device_command::ask(fd, &device_command::QueryAtomics).unwrap_or_default()
    }

    fn raw_clock(&self, fd: &CommandFd) -> Result<u64> {
        let lacks = || Self::lacks(Verb::QueryRtValues, contract::NO_CLOCK);
        Ok(self.clock(fd)?.ok_or_else(lacks)?.read())
    }

    fn wall_clock(&self, fd: &CommandFd) -> Result<WallClock> {
        self.clock_info(fd)?.read()
    }
}

type NewQp = contract::NewQp<SendQueue, RecvQueue, Arc<QpCore>>;

/// The parts of a queue pair besides its command.
type Parts<'a> = QpParts<'a, CqCore, Drawn, Arc<Lease>>;

/// The doorbell register of a thread domain, once a queue pair needs it.
#[derive(Debug, Default)]
pub(crate) struct ThreadDomain(OnceLock<Arc<Lease>>);

impl ThreadDomain {
    fn lease(&self, device: &Device, fd: &Arc<CommandFd>) -> Result<Arc<Lease>> {
        if let Some(lease) = self.0.get() {
            return Ok(Arc::clone(lease));
        }
        let lease = device.alloc_td(fd)?;
        // Two threads may come here at once: the first register stays, the other goes back unused.
        Ok(Arc::clone(self.0.get_or_init(|| lease)))
    }
}

/// A context's share of the device.
#[derive(Debug)]
pub(crate) struct Device {
    limits: Limits,
    /// Where completion queues are armed, and where queue pairs without a better register ring; created when
    /// one of them needs it.
    common: OnceLock<Arc<Lease>>,
    /// The completions that the largest ring has room for, once it was asked for.
    most_cqe: OnceLock<u32>,
    registers: Arc<Registers>,
    records: Records,
    /// Bytes of a completion, if the user does not choose.
    cqe_size: usize,
    /// Where the clock lies in its page, if the device has one.
    clock_offset: Option<u64>,
    clock: OnceLock<Clock>,
    /// The kernel relates the clock to time of day in a page.
    has_clock_info: bool,
    clock_info: OnceLock<ClockInfo>,
    /// Queue pairs have options for their connection.
    ece: bool,
    /// The key that stands for no memory, if the device has one.
    null_lkey: Option<u32>,
    /// What the device can do about the paths of packets, once it was queried.
    ways: OnceLock<Ways>,
    ports: Ports,
    /// It takes commands of the device itself, as far as is known.
    #[cfg(feature = "mlx5-direct")]
    takes_commands: bool,
}

/// The limits of rings that the device reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    max_sq_desc_sz: u16,
    max_rq_desc_sz: u16,
    max_send_wqebb: u32,
    max_recv_wr: u32,
    max_srq_recv_wr: u32,
}

/// The form of completions that this module reads: they name queues by numbers that this side chose.
const CQE_VERSION: u8 = 1;
/// Doorbell registers to ask for, as libmlx5 does, from a kernel without dynamic UARs.
const TOTAL_BFREGS: u32 = 16;
const LOW_LATENCY_BFREGS: u32 = 4;

/// Makes the open file a context of the device.
fn get_context(fd: &CommandFd, blue_flame: bool) -> Result<(Device, GetContextReply)> {
    // With DEVX first: the device then also takes commands of the user. Not every kernel or function has it.
    let with = fd.execute(&context_command(AllocUctxFlags::DEVX));
    #[cfg(feature = "mlx5-direct")]
    let takes_commands = with.is_ok();
    let reply = match with {
        Err(error) if error.errno().is_some() => {
            fd.execute(&context_command(AllocUctxFlags::empty()))
        }
        reply => reply,
    }?;
    let answer = answer(Verb::GetContext, || Subject::the("device"), &reply.driver)?;
    let device = Device::new(Verb::GetContext, &answer, blue_flame)?;
    #[cfg(feature = "mlx5-direct")]
    let device = Device {
        takes_commands,
        ..device
    };
    Ok((device, reply))
}

fn context_command(flags: AllocUctxFlags) -> GetContext {
    let request = abi::AllocUcontextReqV2 {
        total_num_bfregs: TOTAL_BFREGS,
        num_low_latency_bfregs: LOW_LATENCY_BFREGS,
        flags: flags.bits(),
        max_cqe_version: CQE_VERSION,
        lib_caps: (LibCaps::UAR_4K | LibCaps::DYN_UAR).bits(),
        ..Default::default()
    };
    GetContext {
        driver: DriverData::exchange::<_, AllocUcontextResp>(&request),
    }
}

/// Whether the environment forbids copying requests to a register, by libmlx5's variable.
fn is_told_not_to_copy() -> bool {
    std::env::var_os("MLX5_SHUT_UP_BF").is_some_and(|value| value != "0")
}

/// Queries an imported context for the answer that its creator got.
fn query_context(fd: &CommandFd) -> Result<(Device, GetContextReply)> {
    let answer_id = abi::attr::query_context::RESP_UCTX;
    let reply = fd.execute(&QueryContext {
        driver_answer: Some((answer_id, size_of::<AllocUcontextResp>())),
    })?;
    let answer = answer(
        Verb::QueryContext,
        || Subject::the("context"),
        &reply.driver,
    )?;
    let device = Device::new(Verb::ImportDevice, &answer, true)?;
    Ok((device, reply))
}

impl Device {
    fn new(verb: Verb, answer: &AllocUcontextResp, blue_flame: bool) -> Result<Self> {
        let lacks =
            |missing: &'static str| Err(Error::unsupported(verb, Subject::the("device"), missing));
        if cfg!(target_pointer_width = "32") {
            return lacks("a CPU of 64 bits, whose stores to doorbell registers are whole");
        }
        if answer.cqe_version != CQE_VERSION {
            return lacks("completions that name queues by this side's numbers (CQE version 1)");
        }
        if answer.tot_bfregs != 0 {
            return lacks("a context with dynamic UARs (Linux 5.8)");
        }
        let copies = blue_flame && !is_told_not_to_copy();
        let bytes = if copies { answer.bf_reg_size } else { 0 };
        let has = AllocUcontextRespMask::from_bits_retain(answer.comp_mask);
        Ok(Self {
            limits: Limits {
                max_sq_desc_sz: answer.max_sq_desc_sz,
                max_rq_desc_sz: answer.max_rq_desc_sz,
                max_send_wqebb: answer.max_send_wqebb,
                max_recv_wr: answer.max_recv_wr,
                max_srq_recv_wr: answer.max_srq_recv_wr,
            },
            common: OnceLock::new(),
            most_cqe: OnceLock::new(),
            registers: Arc::new(Registers::new(bytes, answer.num_uars_per_page)),
            records: Records::new(ResourceType::MLX5_DBR),
            clock_offset: has
                .contains(AllocUcontextRespMask::CORE_CLOCK_OFFSET)
                .then_some(answer.hca_core_clock_offset),
            ece: has.contains(AllocUcontextRespMask::ECE),
            null_lkey: has
                .contains(AllocUcontextRespMask::DUMP_FILL_MKEY)
                .then_some(answer.dump_fill_mkey),
            clock: OnceLock::new(),
            // Version 1 of the page's form.
            has_clock_info: answer.clock_info_versions & 1 != 0,
            clock_info: OnceLock::new(),
            ways: OnceLock::new(),
            ports: Ports::default(),
            // For an imported context the kernel decides.
            #[cfg(feature = "mlx5-direct")]
            takes_commands: true,
            // One completion in a cache line: the device writes whole lines.
            cqe_size: if answer.cache_line_size == 128 {
                2 * BLOCK
            } else {
                BLOCK
            },
        })
    }

    /// The device's clock; `None` if it has none.
    fn clock(&self, fd: &CommandFd) -> Result<Option<&Clock>> {
        let Some(offset) = self.clock_offset else {
            return Ok(None);
        };
        if let Some(clock) = self.clock.get() {
            return Ok(Some(clock));
        }
        let mapped = Clock::map(fd, offset)?;
        // Two threads may come here at once: the first mapping stays.
        Ok(Some(self.clock.get_or_init(|| mapped)))
    }

    /// The page that relates the clock to time of day.
    fn clock_info(&self, fd: &CommandFd) -> Result<&ClockInfo> {
        if !self.has_clock_info {
            let what = contract::NO_WALL_CLOCK;
            return Err(<Self as contract::Driver>::lacks(Verb::GetClockInfo, what));
        }
        if let Some(page) = self.clock_info.get() {
            return Ok(page);
        }
        let mapped = ClockInfo::map(fd)?;
        // Two threads may come here at once: the first mapping stays.
        Ok(self.clock_info.get_or_init(|| mapped))
    }

    /// The common register, and with it the page where completion queues are armed.
    ///
    /// The page need not be uncached: what is stored there is flushed. But where the kernel has found that
    /// write combining does not work, an uncached page does, so that is asked for first.
    fn common(&self, fd: &Arc<CommandFd>) -> Result<&Arc<Lease>> {
        if let Some(common) = self.common.get() {
            return Ok(common);
        }
        let lease = Arc::new(Lease::common(&Arc::new(uncached(fd)?)));
        // Two threads may come here at once: the first page stays.
        Ok(self.common.get_or_init(|| lease))
    }

    /// The completions that the largest ring of a completion queue has room for.
    fn most_cqe(&self, fd: &CommandFd) -> Result<u32> {
        if let Some(most) = self.most_cqe.get() {
            return Ok(*most);
        }
        let most = fd.execute(&QueryDevice)?.base.max_cqe;
        // Two threads may come here at once, with the same answer.
        Ok(*self.most_cqe.get_or_init(|| most))
    }

    /// The register for a queue pair.
    fn lease(&self, fd: &Arc<CommandFd>, thread_domain: Option<&Arc<Lease>>) -> Result<Arc<Lease>> {
        Ok(match thread_domain {
            Some(lease) => Arc::clone(lease),
            None => match self.registers.for_queue_pair(fd) {
                Some(lease) => lease,
                None => Arc::clone(self.common(fd)?),
            },
        })
    }

    /// A page of registers for a queue pair that may be handed over. It is uncached where the kernel has such
    /// pages: an agent's processor or device need not know how to flush.
    fn page(&self, fd: &Arc<CommandFd>) -> Result<Arc<Lease>> {
        Ok(Arc::new(Lease::of_page(uncached(fd)?)))
    }

    /// The register of a thread domain: one of its own if the device has BlueFlame, otherwise the common one.
    pub(crate) fn alloc_td(&self, fd: &Arc<CommandFd>) -> Result<Arc<Lease>> {
        Ok(match self.registers.for_thread_domain(fd)? {
            Some(lease) => Arc::new(lease),
            None => Arc::clone(self.common(fd)?),
        })
    }
}

/// A register page whose stores need not be combined, if the kernel has such.
fn uncached(fd: &Arc<CommandFd>) -> Result<UarPage> {
    UarPage::new(fd, UarAllocType::NC)
        .or_else(|error| UarPage::new(fd, UarAllocType::BF).map_err(|_| error))
}

#[cfg(feature = "mlx5-direct")]
impl Device {
    /// Whether it takes commands of the device itself. True for an imported context, of which it is not
    /// known.
    pub(crate) fn takes_commands(&self) -> bool {
        self.takes_commands
    }
}

/// What direct verbs of C programs ask of the device.
#[cfg(feature = "c-abi")]
impl Device {
    /// Creates a target of dynamic connections that takes requests with this key; its state has yet to be
    /// changed.
    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    pub(crate) fn new_dc_target(
        &self,
        fd: &CommandFd,
        spec: &QpSpec,
        (cq, srq): (&Arc<CqCore>, &SrqCore),
        access_key: u64,
    ) -> Result<(QpHandle, dc::TargetCore)> {
        let (handle, core) = dc::new_target(fd, spec, (cq, srq), access_key)?;
        // From the start, for it is forgotten with the target only.
        core.forget_unread();
        Ok((handle, core))
    }

    /// Where the clock's counter is mapped, as long as the context is open; `None` if the device has none.
    pub(crate) fn clock_address(&self, fd: &CommandFd) -> Result<Option<NonNull<u8>>> {
        Ok(self.clock(fd)?.map(Clock::address))
    }

    /// Nanoseconds within which a program must read the relation to time of day again.
    pub(crate) fn clock_info_period(&self, fd: &CommandFd) -> Result<u64> {
        Ok(self.clock_info(fd)?.period())
    }

    /// The ports that may be bonded; `None` if there are none, or the device cannot be queried.
    pub(crate) fn lag_ports(&self, fd: &CommandFd) -> Option<NonZeroU8> {
        NonZeroU8::new(self.ways(fd).ok()??.lag_ports)
    }

    /// Whether there are registers to which requests are copied.
    pub(crate) fn copies_requests(&self) -> bool {
        self.registers.copy()
    }
}

/// Entries of a ring for `cqe` completions, of which the device has so many at most: one stays free. `None`
/// for more, and for 0, for which the kernel would make a ring of one entry.
fn entries(cqe: u32, most: u32) -> Option<u32> {
    match cqe {
        0 => None,
        cqe if cqe > most => None,
        cqe => cqe.checked_add(1)?.checked_next_power_of_two(),
    }
}

/// The allocator of a queue's memory. If the queue is for an agent, this process need not map the memory; all
/// its bytes must then be `bytes`.
fn for_agent(buffers: Option<&Buffers>, is_for_agent: bool, bytes: u8) -> Option<Buffers> {
    buffers.map(|buffers| buffers.unmapped(is_for_agent.then_some(bytes)))
}

/// Memory for `count` entries of a completion queue, of `size` bytes each.
fn ring(count: u32, size: usize, buffers: Option<&Buffers>) -> Result<Entries> {
    let page = rustix::param::page_size();
    let bytes = Entries::bytes(count, size).next_multiple_of(page);
    let memory = Memory::new(bytes, page, ResourceType::MLX5_CQ, buffers)?;
    Ok(Entries::new(memory, count, size))
}

/// Creates a completion queue.
fn create_cq(
    device: &Device,
    fd: &Arc<CommandFd>,
    mut command: CreateCq,
    parts: &CqParts<'_>,
) -> Result<(CqHandle, Cq)> {
    let refuse = || Error::os(Verb::CreateCq, command.subject(), Errno::INVAL);
    let size = match parts.entry_bytes {
        None => device.cqe_size,
        Some(64) => BLOCK,
        Some(128) => 2 * BLOCK,
        Some(other) => {
            let what = format!("entries of {other} bytes: they have 64 or 128");
            return Err(Error::invalid(Verb::CreateCq, command.subject(), what));
        }
    };
    // The ring is filled before the kernel sees its size, so its limit is asked for first.
    let most = device.most_cqe(fd)?;
    let count = entries(command.cqe, most).ok_or_else(refuse)?;
    let buffers = |bytes| for_agent(parts.buffers, parts.for_agent, bytes);
    // Entries that are not the device's yet are marked so in the ring, if this side reaches it; before it has
    // the ring, since whether it looks at them is left open.
    let entries = ring(count, size, buffers(0xff).as_ref())?;
    entries.invalidate(0);
    let record = Record::new(&device.records, buffers(0).as_ref())?;
    let uar = device.common(fd)?.register().page();
    let driver = abi::CreateCq {
        buf_addr: entries.memory().address(),
        db_addr: record.address(),
        cqe_size: size as u32,
        flags: CreateCqFlags::UAR_PAGE_INDEX.bits(),
        uar_page_index: uar.page_id() as u16,
        ..Default::default()
    };
    command.driver = match u16::try_from(uar.page_id()) {
        Ok(_) => DriverData::exchange::<_, abi::CreateCqResp>(&driver),
        // The field has 16 bits. Linux 6.11 brought an attribute that has more.
        Err(_) => {
            let driver = abi::CreateCq {
                flags: 0,
                uar_page_index: 0,
                ..driver
            };
            DriverData::exchange::<_, abi::CreateCqResp>(&driver).with(
                abi::attr::create_cq::UAR_INDEX,
                DriverAttr::U32(uar.page_id()),
            )
        }
    };
    command.driver = command
        .driver
        .with_struct(attr::create_cq::BUF_UMEM, entries.memory().dmabuf())
        .with_struct(abi::attr::create_cq::DBR_BUF_UMEM, record.dmabuf());
    command.cqe = count - 1;
    let in_dmabufs = in_dmabufs(entries.memory(), &record);
    let reply = fd.execute_with(&command, (entries, record));
    let (CreateCqReply { handle, driver, .. }, (entries, record)) = match in_dmabufs {
        true => reply.map_err(|error| without_dmabufs(error, "7.2"))?,
        false => reply?,
    };
    let abi::CreateCqResp { cqn, .. } = match answer(Verb::CreateCq, || command.subject(), &driver)
    {
        Ok(answer) => answer,
        Err(error) => {
            fd.abandon_with(handle, (entries, record));
            return Err(error);
        }
    };
    let ignores_overrun = command.flags & CqCreateFlags::IGNORE_OVERRUN.bits() != 0;
    let core = CqCore::new(entries, record, cqn, Arc::clone(uar));
    let core = core.ignoring_overrun(ignores_overrun);
    Ok((handle, Cq::new(Arc::new(core))))
}

/// What is missing in Linux 7.3 for a new ring of a completion queue.
const NO_RESIZE: &str = "a way to tell the kernel of a new ring in a dma-buf";

/// Whether the kernel is given a dma-buf.
fn in_dmabufs(memory: &Memory, record: &Record) -> bool {
    memory.dmabuf().is_some() || record.dmabuf().is_some()
}

/// The error of a command that gave the kernel dma-bufs, with what may be missing for them. Kernels support
/// them `since` a version.
#[cold]
fn without_dmabufs(error: Error, since: &str) -> Error {
    let Some(errno) = error.errno() else {
        return error;
    };
    let missing = match errno {
        Errno::PROTONOSUPPORT => format!("rings in dma-bufs, which Linux {since} brought"),
        Errno::OPNOTSUPP => "an exporter that keeps the dma-buf's pages in their place".into(),
        _ => return error,
    };
    Error::unsupported_by_kernel(error.verb(), error.subject().clone(), errno, missing)
}

/// Gives a completion queue a ring of another size.
fn resize_cq(
    device: &Device,
    fd: &CommandFd,
    mut command: ResizeCq,
    cq: &mut Cq,
    buffers: Option<&Buffers>,
) -> Result<()> {
    let refuse = || Error::os(Verb::ResizeCq, command.subject(), Errno::INVAL);
    // As for a new queue.
    let most = device.most_cqe(fd)?;
    let count = entries(command.cqe, most).ok_or_else(refuse)?;
    // The kernel does nothing then, and says that it has (`mlx5_ib_resize_cq`): the device would stay with
    // the old ring.
    if count == cq.count() {
        return Ok(());
    }
    if cq.is_in_dmabuf() {
        // The kernel takes only an address, and the queue would leave the dma-buf silently.
        return Err(Error::unsupported(
            Verb::ResizeCq,
            command.subject(),
            NO_RESIZE,
        ));
    }
    let size = cq.entry_bytes();
    let buffers = buffers.map(|buffers| buffers.without_dmabufs(NO_RESIZE));
    let new = ring(count, size, buffers.as_ref())?;
    command.cqe = count - 1;
    cq.resize(new, |new| {
        let driver = abi::ResizeCq {
            buf_addr: new.memory().address(),
            cqe_size: size as u16,
            ..Default::default()
        };
        command.driver = DriverData::input(&driver);
        fd.execute_with(&command, new).map(|(_, new)| new)
    })
}
