//! rxe, the kernel's soft-RoCE driver: objects whose rings are the kernel's pages, mapped by offset.
//!
//! Its peculiarities: every create returns the offset and size of each ring (`struct mminfo`), the send
//! doorbell is a system call, receives need none, and completions are plain `struct ib_uverbs_wc`. Source:
//! `drivers/infiniband/sw/rxe` of Linux 6.1 to 7.3.

mod counts;
mod cq;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod map;
mod qp;
mod recv;
mod ring;
mod send;
mod srq;
mod sync;
#[cfg(test)]
mod tests;
mod watch;

use std::iter;
use std::ops::RangeInclusive;
use std::sync::Arc;

use uverbs_uapi::enums::{self, QpType};
use uverbs_uapi::handle::{AhHandle, CqHandle, SrqHandle};
use uverbs_uapi::rxe::{self as abi, Mminfo};
use uverbs_uapi::types::Wc;

use self::cq::Cq;

use self::map::{Kind, RingMap, RingMaps, RingView, Room};
use self::qp::{NewQp, QpCore};
use self::recv::RecvQueue;
use self::ring::{Consumer, Producer};
use self::send::SendQueue;
use self::srq::{SharedRecvQueue, SrqRing};
use self::watch::Shared;
use super::contract::{
    ContextOptions, CqParts, NoDeviceMemory, Nothing, QpParts, RecvQueue as _, ResetQp,
};
use super::options::Options;
use super::{answer, contract};
use crate::alloc::{Buffers, ResourceType};
use crate::command::{
    Command, CommandFd, CreateAh, CreateAhReply, CreateCq, CreateCqReply, CreateSrq,
    CreateSrqReply, DriverData, DriverReply, GetContext, GetContextReply, ModifySrq, QpSpec,
    QueryContext, ResizeCq, SrqKind,
};
use crate::device::{DriverClue, DriverId};
use crate::error::{Errno, Error, Result, Subject, Verb};
use crate::work::{Operations, PollError};

/// This driver's part of a context: nothing, since the kernel has everything.
#[derive(Debug)]
pub(crate) struct Rxe;

impl DriverId {
    /// Soft-RoCE.
    pub const RXE: Self = Self(enums::DriverId::RXE.0);
}

impl ResourceType {
    /// rxe: the send ring of a queue pair. rdma-core has no codes for rxe; these are this library's, chosen
    /// to match mlx5's where there is a counterpart.
    pub const RXE_SEND: Self = Self::new(DriverId::RXE, 1);
    /// rxe: the receive ring of a queue pair.
    pub const RXE_RECV: Self = Self::new(DriverId::RXE, 2);
    /// rxe: the ring of a shared receive queue.
    pub const RXE_SRQ: Self = Self::new(DriverId::RXE, 4);
    /// rxe: the ring of a completion queue.
    pub const RXE_CQ: Self = Self::new(DriverId::RXE, 5);
}

impl contract::Driver for Rxe {
    const ID: DriverId = DriverId::RXE;
    /// `RXE_UVERBS_ABI_VERSION`; 1 differs from 2 only for 32-bit processes.
    const ABI_VERSIONS: RangeInclusive<u32> = 1..=2;
    const OPTIONS: Options = Options::CQ_FLAGS
        .union(Options::QP_FLAGS)
        .union(Options::BUFFERS)
        .union(Options::CQ_BUFFERS)
        .union(Options::MR_IOVA)
        .union(Options::MR_DMABUF)
        .union(Options::MR_CHANGES)
        .union(Options::IMPORT);
    // `rxe_ib_prefetch_sg_list` in `rxe_odp.c`, up to Linux 7.3: it reads beyond the end of another region's
    // object, and may crash.
    const CHECKS_ADVICE: bool = false;
    #[cfg(feature = "c-abi")]
    const REFUSALS: contract::Refusals = contract::Refusals {
        long_by_functions: Errno::NOSPC,
        full_by_functions: Errno::NOSPC,
        unknown: Errno::OPNOTSUPP,
        bad_atomics: true,
        negative_counts: true,
        flushes_early_sends: true,
        ..contract::Refusals::DEFAULT
    };

    type Cq = Cq;
    type SendQueue = SendQueue;
    type RecvQueue = RecvQueue;
    type SharedRecvQueue = SharedRecvQueue;
    /// The number of the address handle.
    type Ah = u32;
    type DeviceMemory = NoDeviceMemory;
    type QpBacking = QpCore;
    type SrqBacking = Arc<SrqRing>;
    type DcTargetBacking = Nothing;
    type ThreadDomain = Nothing;

    #[inline(always)]
    fn has_type(transport: QpType) -> bool {
        matches!(transport, QpType::RC | QpType::UC | QpType::UD)
    }

    #[cfg(test)]
    fn sample_send_queue() -> Option<SendQueue> {
        Some(tests::sample_send_queue())
    }

    /// Only RC invalidates keys of its own side (`rxe_wr_opcode_info` in `rxe_opcode.c`). The kernel accepts
    /// a bind that counts from 0, but does not look its addresses up like that.
    fn operations(&self, transport: QpType) -> Operations {
        let mut lacking = Operations::BIND_ZERO_BASED;
        lacking.set(Operations::LOCAL_INV, transport != QpType::RC);
        match transport {
            QpType::XRC_SEND => Operations::empty(),
            _ => Operations::of(transport).difference(lacking),
        }
    }

    fn is_behind(clue: &DriverClue) -> bool {
        *clue == DriverClue::Parent
    }

    fn buffer_name(code: u32) -> Option<&'static str> {
        let kinds = [SEND, RECV, SRQ, COMPLETION];
        let kind = kinds.iter().find(|kind| kind.resource.code() == code)?;
        Some(kind.name)
    }

    fn get_context(fd: &CommandFd, _: ContextOptions) -> Result<(Self, GetContextReply)> {
        Ok((Self, fd.execute(&GetContext::default())?))
    }

    /// Queries the properties that every device has: this driver reports none.
    fn query_context(fd: &CommandFd) -> Result<(Self, GetContextReply)> {
        let reply = fd.execute(&QueryContext {
            driver_answer: None,
        });
        let reply = match reply {
            Err(error) if error.is_unsupported() => GetContextReply {
                num_comp_vectors: 1,
                core_support: 0,
                async_fd: None,
                driver: DriverReply::default(),
            },
            reply => reply?,
        };
        Ok((Self, reply))
    }

    fn create_cq(
        &self,
        fd: &Arc<CommandFd>,
        command: CreateCq,
        parts: &CqParts<'_>,
    ) -> Result<(CqHandle, Cq)> {
        create_cq(fd, command, parts)
    }

    fn resize_cq(
        &self,
        fd: &CommandFd,
        command: ResizeCq,
        cq: &mut Cq,
        parts: &CqParts<'_>,
    ) -> Result<()> {
        resize_cq(fd, command, cq, parts)
    }

    fn create_qp(&self, fd: &Arc<CommandFd>, spec: &QpSpec, parts: &Parts<'_>) -> Result<NewQp> {
        qp::create(fd, spec, parts)
    }

    fn replacement(
        &self,
        fd: &Arc<CommandFd>,
        of: &QpCore,
        buffers: Option<&Buffers>,
    ) -> Result<NewQp> {
        qp::replacement(fd, of, buffers)
    }

    fn reset_qp(
        &self,
        fd: &Arc<CommandFd>,
        reset: ResetQp<'_, SendQueue, RecvQueue, QpCore>,
    ) -> Result<()> {
        qp::reset(fd, reset)
    }

    fn create_srq(
        &self,
        fd: &CommandFd,
        command: CreateSrq,
        buffers: Option<&Buffers>,
    ) -> Result<(SrqHandle, SharedRecvQueue, Arc<SrqRing>)> {
        create_srq(fd, command, buffers)
    }

    /// The kernel's driver requires its part of the command anyway, and ignores the address in it
    /// (`rxe_modify_srq` in `rxe_verbs.c`).
    fn modify_srq(&self, fd: &CommandFd, mut command: ModifySrq) -> Result<()> {
        command.driver = DriverData::input(&abi::ModifySrqCmd { mmap_info_addr: 0 });
        fd.execute(&command)
    }

    fn resize_srq(
        &self,
        fd: &CommandFd,
        command: ModifySrq,
        queue: &mut SharedRecvQueue,
        buffers: Option<&Buffers>,
    ) -> Result<()> {
        resize_srq(fd, command, queue, buffers)
    }

    fn create_ah(&self, fd: &CommandFd, command: CreateAh) -> Result<(Option<AhHandle>, u32)> {
        create_ah(fd, command).map(|(handle, number)| (Some(handle), number))
    }
}

type Parts<'a> = QpParts<'a, Arc<Shared>, Arc<SrqRing>, Nothing>;

/// The kinds of ring.
const SEND: Kind = Kind {
    name: "send ring",
    resource: ResourceType::RXE_SEND,
};
const RECV: Kind = Kind {
    name: "receive ring",
    resource: ResourceType::RXE_RECV,
};
const SRQ: Kind = Kind {
    name: "shared receive ring",
    resource: ResourceType::RXE_SRQ,
};
const COMPLETION: Kind = Kind {
    name: "completion ring",
    resource: ResourceType::RXE_CQ,
};

/// Maps a work queue's ring. The caller stores the map beside the producer.
fn producer(
    fd: &CommandFd,
    info: Mminfo,
    element: usize,
    kind: Kind,
    buffers: Option<&Buffers>,
) -> Result<(Producer, RingMap)> {
    let map = RingMap::new(fd, info, kind, buffers)?;
    producer_in(map, element, kind)
}

/// The producer of a ring that was mapped. The caller stores the map beside it.
fn producer_in(map: RingMap, element: usize, kind: Kind) -> Result<(Producer, RingMap)> {
    // SAFETY: the map is new, so this is its only user, and it is stored beside the producer.
    let ring = unsafe { Producer::new(map.base(), map.length(), element) };
    Ok((ring.map_err(|bad| kind.malformed(bad))?, map))
}

/// The map of an object with one ring.
fn alone(map: RingMap) -> RingMaps {
    Arc::new(iter::once(map).collect())
}

/// Creates a completion queue and maps its ring.
///
/// If completions that nobody has taken count, the ring has twice the room that is reported. Each queue that
/// reports here, and each queue pair that receives from a shared queue, may have one completion more under
/// way than is counted (see [`watch`]), and there are at most as many of them as the ring should hold
/// requests. If the kernel cannot make so large a ring, the ring has the size that was asked for.
#[inline]
fn create_cq(fd: &CommandFd, mut command: CreateCq, parts: &CqParts<'_>) -> Result<(CqHandle, Cq)> {
    command.driver = DriverData::output::<abi::CreateCqResp>();
    let (reply, is_roomy) = with_room(command.cqe, parts, |cqe| {
        command.cqe = cqe;
        fd.execute(&command)
    })?;
    let CreateCqReply { handle, driver, .. } = reply;
    let mapped = map_cq(Verb::CreateCq, &driver, is_roomy, |info| {
        RingMap::new(fd, info, COMPLETION, parts.buffers)
    });
    let (ring, capacity, map) = mapped.inspect_err(|_| fd.abandon(handle))?;
    Ok((handle, Cq::new(ring, capacity, Some(map))))
}

/// Asks for a ring for `asked` completions, with twice the room if that is needed and possible. Returns the
/// answer, and whether the ring has twice the room.
fn with_room<T>(
    asked: u32,
    parts: &CqParts<'_>,
    mut ask: impl FnMut(u32) -> Result<T>,
) -> Result<(T, bool)> {
    if parts.follows_requests
        && let Ok(reply) = ask(asked.saturating_mul(2))
    {
        return Ok((reply, true));
    }
    Ok((ask(asked)?, false))
}

/// Maps the ring of an answer, and returns how many completions it holds.
#[inline]
fn map_cq(
    verb: Verb,
    reply: &DriverReply,
    is_roomy: bool,
    map: impl FnOnce(Mminfo) -> Result<RingMap>,
) -> Result<(Consumer, u32, RingMap)> {
    // The answer to either verb.
    let abi::CreateCqResp { mi } = answer(verb, || Subject::the(COMPLETION.name), reply)?;
    let map = map(mi)?;
    // SAFETY: the map is new, so this is its only user, and it is stored beside the consumer.
    let ring = unsafe { Consumer::new(map.base(), map.length(), size_of::<Wc>()) };
    let ring = ring.map_err(|bad| COMPLETION.malformed(bad))?;
    let capacity = match is_roomy {
        true => ring.capacity() / 2,
        false => ring.capacity(),
    };
    Ok((ring, capacity, map))
}

/// Changes the size of a completion queue's ring. The kernel moves the waiting completions
/// (`rxe_cq_resize_queue`) and from then on writes to the new ring, whether or not it can be mapped. So room
/// for the mapping is made first; if the ring cannot be mapped all the same, the queue is lost. The ring has
/// twice the room as in [`create_cq`].
fn resize_cq(
    fd: &CommandFd,
    mut command: ResizeCq,
    cq: &mut Cq,
    parts: &CqParts<'_>,
) -> Result<()> {
    let (asked, waiting) = (command.cqe, cq.count()?);
    if asked > 0 && rounded(asked) < u64::from(waiting) {
        // As the kernel refuses a size that is too small.
        let refusal = Error::os(Verb::ResizeCq, command.subject(), Errno::INVAL);
        let detail =
            format!("{waiting} completions wait, which do not fit into a queue for {asked}");
        return Err(refusal.with_detail(detail));
    }
    command.driver = DriverData::output::<abi::ResizeCqResp>();
    let slot_size = cq.slot_size();
    let resize = || {
        with_room(asked, parts, |cqe| {
            command.cqe = cqe;
            let room = Room::new(slots(cqe), slot_size, COMPLETION, parts.buffers)?;
            Ok((fd.execute(&command)?, room))
        })
    };
    cq.replace(resize, |((reply, room), is_roomy)| {
        let (ring, capacity, map) = map_cq(Verb::ResizeCq, &reply, is_roomy, |info| {
            RingMap::in_room(fd, info, COMPLETION, room, parts.buffers)
        })
        .map_err(|error| error.with_detail(PollError::QueueLost.to_string()))?;
        Ok((ring, capacity, Some(map)))
    })
}

/// Creates a shared receive queue and maps its ring.
fn create_srq(
    fd: &CommandFd,
    mut command: CreateSrq,
    buffers: Option<&Buffers>,
) -> Result<(SrqHandle, SharedRecvQueue, Arc<SrqRing>)> {
    command.driver = DriverData::output::<abi::CreateSrqResp>();
    let CreateSrqReply {
        handle,
        max_sge,
        driver,
        ..
    } = fd.execute(&command)?;
    let map = || {
        let abi::CreateSrqResp { mi, .. } =
            answer(Verb::CreateSrq, || Subject::the(SRQ.name), &driver)?;
        producer(fd, mi, size_of::<abi::RecvWqe>(), SRQ, buffers)
    };
    let (ring, map) = map().inspect_err(|_| fd.abandon(handle))?;
    let maps = alone(map);
    let view = RingView::new(&ring, Some(&maps));
    let queue = RecvQueue::new(ring, max_sge, Some(maps));
    let queue = SharedRecvQueue::new(queue, view, command.pd);
    let backing = Arc::clone(queue.ring());
    Ok((handle, queue, backing))
}

/// Changes the size of a shared receive queue's ring. The kernel moves the waiting requests. It writes where
/// the new ring is to an address in the command, not to its answer (`rxe_srq_from_attr`). Room for the ring
/// is made first, as for a completion queue.
///
/// A size into which the waiting requests do not fit is refused here. The kernel would refuse it too, but on
/// Linux 6.1 it frees the old ring when it cannot make the new one (`rxe_srq_from_attr`; 6.12.95 and 7.3 keep
/// it). The next message, limit or query then dereferences NULL in the kernel. So [`try_out`] asks for the
/// memory first, and where the kernel lacks it all the same, the queue is taken for lost.
fn resize_srq(
    fd: &CommandFd,
    mut command: ModifySrq,
    queue: &mut SharedRecvQueue,
    buffers: Option<&Buffers>,
) -> Result<()> {
    let (asked, waiting) = (command.core.max_wr, queue.in_flight());
    if rounded(asked) < u64::from(waiting) {
        return Err(Error::invalid(
            Verb::ModifySrq,
            Subject::numbered("SRQ", command.core.srq_handle.into()),
            format!("{waiting} requests wait, which do not fit into a queue for {asked}"),
        ));
    }
    let mut info = Box::new(Mminfo::default());
    let mmap_info_addr = (&raw mut *info).expose_provenance() as u64;
    command.driver = DriverData::input(&abi::ModifySrqCmd { mmap_info_addr });
    let room = Room::new(slots(asked), queue.slot_size(), SRQ, buffers)?;
    try_out(fd, &command, queue)?;
    let resize = || {
        fd.execute(&command)?;
        // SAFETY: the box is alive and nobody else uses it. Volatile, because the kernel wrote it through the
        // address in the command.
        Ok(unsafe { (&raw const *info).read_volatile() })
    };
    let resized = queue.replace(resize, |info, old| {
        let map = RingMap::in_room(fd, info, SRQ, room, buffers)?;
        let (ring, map) = producer_in(map, size_of::<abi::RecvWqe>(), SRQ)?;
        let maps = alone(map);
        let view = RingView::new(&ring, Some(&maps));
        Ok((RecvQueue::new(ring, old.max_sge(), Some(maps)), view))
    });
    resized.map_err(|error: Error| {
        if may_lose_ring(&error) {
            queue.lose();
        }
        match contract::SrqBacking::is_lost(SharedRecvQueue::ring(queue)) {
            true => error.with_detail("the queue is lost: destroy its queue pairs, and it"),
            false => error,
        }
    })
}

/// Whether the kernel may refuse a new size by this error after it has let go of the ring.
fn may_lose_ring(error: &Error) -> bool {
    matches!(error.errno(), Some(Errno::NOMEM | Errno::FAULT))
}

/// Fails if the kernel has no memory for a ring of the new size: makes a queue of that size for a moment.
fn try_out(fd: &CommandFd, resize: &ModifySrq, queue: &SharedRecvQueue) -> Result<()> {
    let trial = CreateSrq {
        kind: SrqKind::Basic,
        pd: SharedRecvQueue::ring(queue).pd(),
        max_wr: resize.core.max_wr,
        max_sge: queue.max_sge(),
        limit: 0,
        user_handle: 0,
        event_fd: None,
        driver: DriverData::output::<abi::CreateSrqResp>(),
    };
    match fd.execute(&trial) {
        Ok(CreateSrqReply { handle, .. }) => fd.destroy_patiently(handle),
        Err(error) if error.errno() == Some(Errno::NOMEM) => {
            let srq = Subject::numbered("SRQ", resize.core.srq_handle.into());
            Err(Error::os(Verb::ModifySrq, srq, Errno::NOMEM).with_detail("the queue is as it was"))
        }
        // The kernel may have another reason not to make one more queue.
        Err(_) => Ok(()),
    }
}

/// The slots of a ring for a requested number of elements: a power of two (`rxe_queue_init`).
fn slots(asked: u32) -> u64 {
    (u64::from(asked) + 1).next_power_of_two()
}

/// The capacity of such a ring: one less than it has slots.
fn rounded(asked: u32) -> u64 {
    slots(asked) - 1
}

/// Creates an address handle and returns it with its number, which work requests use.
fn create_ah(fd: &CommandFd, mut command: CreateAh) -> Result<(AhHandle, u32)> {
    command.driver = DriverData::output::<abi::CreateAhResp>();
    let CreateAhReply { handle, driver } = fd.execute(&command)?;
    let answer = answer(Verb::CreateAh, || Subject::the("AH"), &driver);
    let abi::CreateAhResp { ah_num, .. } = answer.inspect_err(|_| fd.abandon(handle))?;
    if ah_num == 0 {
        fd.abandon(handle);
        return Err(Error::unsupported(
            Verb::CreateAh,
            Subject::the("AH"),
            "this kernel's rxe does not number its address handles (Linux 5.15 does)",
        ));
    }
    Ok((handle, ah_num))
}
