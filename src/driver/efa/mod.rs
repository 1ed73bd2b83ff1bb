//! EFA, the driver of Amazon's Elastic Fabric Adapter: datagrams, reliable and not, whose requests lie in
//! memory of the device.
//!
//! What is particular to it: the kernel allocates all rings and registers, and they are mapped by offset.
//! Requests are copied to the device in blocks ([`send`]); receives are descriptors in memory ([`recv`]). All
//! requests complete, in any order. A completion names its request by a number that this side chose, and its
//! queue by the queue pair's number ([`reporters`]). A completion queue may have several rings ([`cq`]). The
//! formats are the hardware's ([`format`]).
//!
//! Polling is not inlined, unlike in the other drivers: otherwise a program with all drivers built in would
//! save registers in their loops. Source: `drivers/infiniband/hw/efa` of Linux 6.1 to 7.3.
//!
//! Ids of 64 bits, which the newest devices have, are not asked for: numbers of 16 bits are enough to
//! distinguish all requests of a queue.

mod ah;
mod cq;
mod format;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod interconnects;
mod order;
mod qp;
mod recv;
mod reporters;
mod ring;
mod send;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::mm::ProtFlags;
use rustix::param::page_size;
use uverbs_uapi::attr;
use uverbs_uapi::efa as abi;
use uverbs_uapi::enums::{self, QpState, QpType};
use uverbs_uapi::flags::QpAttrMask;
#[cfg(feature = "c-abi")]
use uverbs_uapi::flags::SendFlags;
use uverbs_uapi::handle::{AhHandle, CqHandle, MrHandle};

use self::ah::AddressHandles;
use self::cq::{Cq, CqCore};
use self::format::Entry;
use self::qp::{NewQp, QpCore};
use self::recv::RecvQueue;
use self::ring::{Register, RingMemory, View};
use self::send::SendQueue;
use super::absent::NoRecvQueue;
use super::answer;
use super::contract::{
    self, ContextOptions, CqParts, NoDeviceMemory, Nothing, QpName, QpParts, ResetQp,
};
#[cfg(feature = "c-abi")]
use super::kit::ledger::NumberedLedger;
use super::kit::map::Map;
use super::options::Options;
use crate::alloc::{Buffers, Grant, Purpose, ResourceType};
use crate::command::{
    Command, CommandFd, CreateAh, CreateCq, CreateCqReply, DriverAttr, DriverData, GetContext,
    GetContextReply, QpSpec, QueryDeviceWith,
};
use crate::device::{DriverClue, DriverId};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::work::{DataOrder, Interconnects, Operations};

impl DriverId {
    /// Amazon's Elastic Fabric Adapter.
    pub const EFA: Self = Self(enums::DriverId::EFA.0);
}

/// This driver's code; libefa calls no allocator.
impl ResourceType {
    /// The rings of a completion queue, in one piece.
    pub const EFA_CQ: Self = Self::new(DriverId::EFA, 1);
}

/// A context's share of the device.
#[derive(Debug)]
pub(crate) struct Efa {
    limits: Limits,
    address_handles: AddressHandles,
}

impl Efa {
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            address_handles: AddressHandles::default(),
        }
    }
}

/// The limits that the device reports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) caps: abi::DeviceCaps,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    /// The most bytes of a READ or WRITE; 0 if the device does not say.
    pub(crate) max_rdma_bytes: u32,
    /// Inline bytes of a request of one block, and of two: 0 if the device has no requests of two.
    pub(crate) inline: u32,
    pub(crate) wide_inline: u32,
    /// Bytes of a send ring.
    max_ring_bytes: u32,
    /// Blocks between two doorbells; 0 for no limit.
    max_batch_blocks: u32,
    /// The fewest requests of a send ring; 0 for no limit.
    min_sq_wr: u32,
    /// Rings of a completion queue.
    sub_cqs: u16,
    /// The bits in which the numbers of queue pairs differ.
    qpn_mask: u32,
}

/// Memory of a queue, for programs that use it by themselves.
#[cfg(feature = "c-abi")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueMemory {
    pub(crate) first: *mut u8,
    pub(crate) entry_bytes: u32,
    pub(crate) entries: u32,
    /// Null if the queue has none.
    pub(crate) doorbell: *mut u32,
    /// The most entries between two doorbells.
    pub(crate) max_batch: u32,
}

#[cfg(feature = "c-abi")]
impl Efa {
    /// The limits that the device reports.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }
}

type Parts<'a> = QpParts<'a, Arc<CqCore>, Nothing, Nothing>;

impl contract::Driver for Efa {
    const ID: DriverId = DriverId::EFA;
    const ABI_VERSIONS: RangeInclusive<u32> = abi::ABI_VERSION..=abi::ABI_VERSION;
    const OPTIONS: Options = Options::MR_IOVA
        .union(Options::MR_DMABUF)
        .union(Options::CQ_BUFFERS)
        .union(Options::DMABUFS)
        .union(Options::UNSOLICITED_WRITES)
        .union(Options::SERVICE_LEVEL);
    #[cfg(feature = "c-abi")]
    const REFUSALS: contract::Refusals = contract::Refusals {
        long_by_functions: Errno::INVAL,
        inline_of_any_count: true,
        flags: SendFlags::from_bits_retain(!SendFlags::INLINE.bits()),
        in_error: true,
        poll_attributes: true,
        ..contract::Refusals::DEFAULT
    };

    #[cfg(feature = "c-abi")]
    fn firmware(version: u64) -> String {
        let [first, second, third, fourth, ..] = version.to_le_bytes();
        format!("{first}.{second}.{third}.{fourth}")
    }

    type Cq = Cq;
    type SendQueue = SendQueue;
    type RecvQueue = RecvQueue;
    type SharedRecvQueue = NoRecvQueue;
    /// The device's number of the address handle.
    type Ah = u16;
    type DeviceMemory = NoDeviceMemory;
    type QpBacking = Arc<QpCore>;
    type SrqBacking = Nothing;
    type DcTargetBacking = Nothing;
    type ThreadDomain = Nothing;

    #[inline(always)]
    fn has_type(transport: QpType) -> bool {
        matches!(transport, QpType::UD | QpType::DRIVER)
    }

    fn operations(&self, transport: QpType) -> Operations {
        self.limits.operations(transport)
    }

    fn is_behind(clue: &DriverClue) -> bool {
        matches!(clue, DriverClue::Bus(name) if name == "efa")
    }

    fn get_context(fd: &CommandFd, _: ContextOptions) -> Result<(Self, GetContextReply)> {
        get_context(fd)
    }

    fn create_cq(
        &self,
        fd: &Arc<CommandFd>,
        command: CreateCq,
        parts: &CqParts<'_>,
    ) -> Result<(CqHandle, Cq)> {
        create_cq(&self.limits, fd, command, parts.buffers)
    }

    fn create_qp(&self, fd: &Arc<CommandFd>, spec: &QpSpec, parts: &Parts<'_>) -> Result<NewQp> {
        qp::create(&self.limits, fd, spec, parts)
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

    /// The kernel's driver refuses to query other attributes.
    fn query_mask(&self, _: QpType) -> QpAttrMask {
        QpAttrMask::STATE
            | QpAttrMask::PKEY_INDEX
            | QpAttrMask::PORT
            | QpAttrMask::QKEY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::CAP
            | QpAttrMask::RNR_RETRY
    }

    fn max_requests(&self, reported: u32) -> u32 {
        reported.min(self.limits.max_ring_bytes / format::BLOCK as u32)
    }

    /// For its MTU there may be no number.
    fn has_long_datagrams(&self) -> bool {
        true
    }

    fn sets_rnr_retry(&self) -> bool {
        self.limits.caps.contains(abi::DeviceCaps::RNR_RETRY)
    }

    fn data_order(&self, _: &CommandFd, _: QpName, _: QpState) -> Result<DataOrder> {
        Ok(match self.limits.caps {
            caps if caps.contains(abi::DeviceCaps::DATA_POLLING_128) => DataOrder::Aligned128,
            _ => DataOrder::Any,
        })
    }

    fn interconnects(&self, fd: &CommandFd, mr: MrHandle) -> Result<Interconnects> {
        fd.execute(&interconnects::Query(mr))
    }

    fn create_ah(&self, fd: &CommandFd, command: CreateAh) -> Result<(Option<AhHandle>, u16)> {
        let (handle, number) = self.address_handles.create(fd, command)?;
        Ok((Some(handle), number))
    }

    fn destroy_ah(&self, handle: AhHandle, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        self.address_handles.destroy(handle, destroy)
    }
}

/// The largest power of two up to `most`; 0 if there is none.
#[cfg(feature = "c-abi")]
fn power_of_two_within(most: u32) -> u32 {
    most.checked_ilog2().map_or(0, |bits| 1 << bits)
}

impl Limits {
    /// So many slices has the format of a READ or WRITE, whatever the device says.
    pub(crate) const RDMA_SGES: u32 = 1;

    /// From the kernel's answers, and the most queue pairs that there may be.
    fn of(context: &abi::AllocUcontextResp, device: &abi::QueryDeviceResp, max_qp: u32) -> Self {
        let caps = abi::DeviceCaps::from_bits_retain(device.device_caps);
        // The formats have room for so many bytes.
        let inline = context.inline_buf_size.min(32);
        let wide_inline = context
            .inline_buf_size_ex
            .max(context.inline_buf_size)
            .min(80);
        Self {
            caps,
            max_send_wr: device.max_sq_wr,
            max_recv_wr: device.max_rq_wr,
            // So many slices has a message's format.
            max_send_sge: device.max_sq_sge.min(2).into(),
            max_recv_sge: device.max_rq_sge.into(),
            max_rdma_bytes: device.max_rdma_size,
            inline: inline.into(),
            wide_inline: match wide_inline > inline {
                true => wide_inline.into(),
                // Devices without wide requests have the other number there as well.
                false => 0,
            },
            max_ring_bytes: context.max_llq_size,
            max_batch_blocks: context.max_tx_batch.into(),
            min_sq_wr: context.min_sq_wr.into(),
            sub_cqs: context.sub_cqs_per_cq,
            // Numbers have 16 bits.
            qpn_mask: max_qp.clamp(1, 1 << 16).next_power_of_two() - 1,
        }
    }

    /// Each READ and WRITE is a capability of the device.
    fn operations(&self, transport: QpType) -> Operations {
        let mut has = Operations::of(QpType::UD);
        match transport {
            QpType::UD => has,
            QpType::DRIVER => {
                let writes = Operations::WRITE | Operations::WRITE_IMM;
                has.set(
                    Operations::READ,
                    self.caps.contains(abi::DeviceCaps::RDMA_READ),
                );
                has.set(writes, self.caps.contains(abi::DeviceCaps::RDMA_WRITE));
                has
            }
            _ => Operations::empty(),
        }
    }

    /// The most requests of a send ring, of one block or of two.
    #[cfg(feature = "c-abi")]
    pub(crate) fn most_sends(&self, is_wide: bool) -> u32 {
        let blocks = if is_wide { format::WIDE } else { 1 };
        let most = self.max_ring_bytes / (blocks * format::BLOCK as u32);
        power_of_two_within(most.min(self.max_send_wr).min(NumberedLedger::MOST))
    }

    /// The most receives, each with so many slices.
    #[cfg(feature = "c-abi")]
    pub(crate) fn most_receives(&self, slices: u32) -> u32 {
        power_of_two_within(self.max_recv_wr.min(NumberedLedger::MOST)) / slices
    }

    /// The limits of a queue pair, for errors.
    fn of_queues(&self) -> String {
        format!(
            "an EFA like this has at most {} sends of {} slices and {} inline bytes, and {} receives of {} slices",
            self.max_send_wr,
            self.max_send_sge,
            self.inline.max(self.wide_inline),
            self.max_recv_wr,
            self.max_recv_sge
        )
    }
}

/// Makes the open file a context of the device, and asks for its limits.
fn get_context(fd: &CommandFd) -> Result<(Efa, GetContextReply)> {
    let respected = abi::UcontextCaps::TX_BATCH | abi::UcontextCaps::MIN_SQ_WR;
    let request = abi::AllocUcontextCmd {
        supported_caps: respected.bits(),
        ..Default::default()
    };
    let reply = fd.execute(&GetContext {
        driver: DriverData::exchange::<_, abi::AllocUcontextResp>(&request),
    })?;
    let subject = || Subject::the("device");
    let context: abi::AllocUcontextResp = answer(Verb::GetContext, subject, &reply.driver)?;
    let (core, driver) = fd.execute(&QueryDeviceWith {
        driver: DriverData::output::<abi::QueryDeviceResp>(),
    })?;
    let device: abi::QueryDeviceResp = answer(Verb::QueryDevice, subject, &driver)?;
    if context.sub_cqs_per_cq == 0 {
        let what = "completion queues without rings".to_owned();
        return Err(Error::malformed(Verb::GetContext, subject(), what));
    }
    let limits = Limits::of(&context, &device, core.base.max_qp);
    Ok((Efa::new(limits), reply))
}

/// Memory of the rings of a completion queue, if the allocator gives some.
fn given(
    limits: &Limits,
    command: &CreateCq,
    buffers: Option<&Buffers>,
) -> Result<Option<RingMemory>> {
    let Some(buffers) = buffers else {
        return Ok(None);
    };
    if !limits.caps.contains(abi::DeviceCaps::CQ_WITH_EXT_MEM) {
        let missing =
            "completion rings in given memory, which Linux 6.17 and newer devices brought";
        return Err(Error::unsupported(
            Verb::CreateCq,
            command.subject(),
            missing,
        ));
    }
    let entries = command.cqe as usize * Entry::BYTES;
    // The kernel needs whole pages.
    let rings = entries.checked_mul(limits.sub_cqs.into());
    let pages = rings.and_then(|rings| rings.checked_next_multiple_of(page_size()));
    let Some(length) = pages else {
        return Err(Error::os(Verb::CreateCq, command.subject(), Errno::INVAL));
    };
    let resource = ResourceType::EFA_CQ;
    let grant = buffers.allocate(length, page_size(), resource, Purpose::Memory)?;
    Ok(grant.map(|grant| RingMemory::Given(grant, length)))
}

/// The driver's part of the command, with the memory for the rings, as it has been since Linux 6.17.
fn with_memory(data: DriverData, grant: &Grant, length: usize) -> DriverData {
    let data = data.with(
        attr::create_cq::BUFFER_LENGTH,
        DriverAttr::U64(length as u64),
    );
    match grant.dmabuf() {
        Some((file, offset, _)) => data
            .with(attr::create_cq::BUFFER_FD, DriverAttr::Fd(file.as_raw_fd()))
            .with(attr::create_cq::BUFFER_OFFSET, DriverAttr::U64(offset)),
        None => {
            let address = grant.address().as_ptr().expose_provenance() as u64;
            data.with(attr::create_cq::BUFFER_VA, DriverAttr::U64(address))
        }
    }
}

/// The error of a command that gave the kernel memory for the rings.
#[cold]
fn not_taken(error: Error) -> Error {
    match error.errno() {
        Some(Errno::INVAL) => error.with_detail(
            "an EFA takes memory whose pages lie one behind the other for the device: a huge page's, a heap's, or one page",
        ),
        _ => error,
    }
}

/// Creates a completion queue and maps its rings, if they are not in given memory.
fn create_cq(
    limits: &Limits,
    fd: &CommandFd,
    mut command: CreateCq,
    buffers: Option<&Buffers>,
) -> Result<(CqHandle, Cq)> {
    // The kernel's driver would look for an event queue, of which such a device has none.
    if command.channel.is_some() && !limits.caps.contains(abi::DeviceCaps::CQ_NOTIFICATIONS) {
        let missing = "events of completion queues, which this device does not have";
        return Err(Error::unsupported(
            Verb::CreateCq,
            command.subject(),
            missing,
        ));
    }
    let mut flags = abi::CreateCqFlags::empty();
    flags.set(
        abi::CreateCqFlags::COMPLETION_CHANNEL,
        command.channel.is_some(),
    );
    let tells_senders = limits.caps.contains(abi::DeviceCaps::CQ_WITH_SGID);
    flags.set(abi::CreateCqFlags::SGID, tells_senders);
    let driver = abi::CreateCq {
        cq_entry_size: Entry::BYTES as u32,
        num_sub_cqs: limits.sub_cqs,
        flags: flags.bits(),
        ..Default::default()
    };
    command.driver = DriverData::exchange::<_, abi::CreateCqResp>(&driver);
    // The kernel refuses 0, and what is too large.
    let asked = command.cqe;
    command.cqe = asked
        .checked_next_power_of_two()
        .filter(|_| asked > 0)
        .unwrap_or(asked);
    let memory = given(limits, &command, buffers)?;
    if let Some(RingMemory::Given(grant, length)) = &memory {
        command.driver = with_memory(command.driver, grant, *length);
    }
    let is_given = memory.is_some();
    let (reply, mut memory) = match fd.execute_with(&command, memory) {
        Err(error) if is_given => return Err(not_taken(error)),
        reply => reply?,
    };
    match map_cq(limits, fd, &command, &reply, &mut memory) {
        Ok(core) => Ok((reply.handle, Cq::new(core, limits.qpn_mask, tells_senders))),
        Err(error) => {
            fd.abandon_with(reply.handle, memory);
            Err(error)
        }
    }
}

fn map_cq(
    limits: &Limits,
    fd: &CommandFd,
    command: &CreateCq,
    reply: &CreateCqReply,
    memory: &mut Option<RingMemory>,
) -> Result<CqCore> {
    let malformed =
        |what: &str| Error::malformed(Verb::CreateCq, command.subject(), what.to_owned());
    let answer: abi::CreateCqResp = answer(Verb::CreateCq, || command.subject(), &reply.driver)?;
    if memory.is_none() {
        let (what, length) = ("completion ring", answer.q_mmap_size as usize);
        let map = Map::new(fd, what, answer.q_mmap_key, length, ProtFlags::READ)?;
        *memory = Some(RingMemory::Mapped(map));
    }
    let rings = memory
        .as_ref()
        .and_then(|memory| View::of(memory, limits.sub_cqs.into(), reply.cqe));
    let beyond = || malformed("rings beyond their memory");
    let rings = rings.ok_or_else(beyond)?;
    let has = abi::CreateCqRespMask::from_bits_retain(answer.comp_mask);
    let doorbell = match has.contains(abi::CreateCqRespMask::DB_OFF) {
        false => None,
        true => {
            let (what, key) = ("completion queue's doorbell", answer.db_mmap_key);
            let page = Map::new(fd, what, key, page_size(), ProtFlags::WRITE)?;
            let register = Register::new(Arc::new(page), answer.db_off);
            Some(register.ok_or_else(|| malformed("a doorbell beyond its page"))?)
        }
    };
    let has_events = command.channel.is_some();
    if has_events && doorbell.is_none() {
        return Err(match memory {
            // Up to Linux 7.3 the kernel gives such a queue none.
            Some(RingMemory::Given(..)) => {
                let missing =
                    "a doorbell for a completion queue in given memory, which its events take";
                Error::unsupported(Verb::CreateCq, command.subject(), missing)
            }
            _ => malformed("no doorbell for a queue with events"),
        });
    }
    let memory = memory.take().ok_or_else(beyond)?;
    Ok(CqCore::new(rings, memory, doorbell, has_events))
}
