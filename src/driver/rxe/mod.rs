//! rxe, the kernel's soft-RoCE driver: objects whose rings are pages of the kernel's, mapped by offset.
//!
//! What is particular to it: every create answers with the offset and size of each ring (`struct mminfo`), the
//! send doorbell is a system call, receives need none, and completions are plain `struct ib_uverbs_wc`.
//! Source: `drivers/infiniband/sw/rxe` of Linux 6.1 to 7.2.

mod cq;
mod doorbell;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod map;
mod recv;
mod ring;
mod send;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::sync::Arc;

use uverbs_uapi::handle::{CqHandle, PdHandle, QpHandle, SrqHandle};
use uverbs_uapi::rxe::{self as abi, Mminfo};
use uverbs_uapi::types::{QpCap, Wc};

pub(crate) use cq::{Completion, Cq};
pub(crate) use recv::RecvQueue;
pub(crate) use send::{SendQueue, SendSlot};

use self::doorbell::Doorbell;
use self::map::{Kind, RingMap};
use self::ring::{Consumer, Producer};
use super::answer;
use crate::alloc::{Buffers, ResourceType};
use crate::command::{
    AllocPd, CommandFd, CreateAh, CreateAhReply, CreateCq, CreateCqReply, CreateQp, CreateQpReply,
    CreateSrq, CreateSrqReply, DriverData, DriverReply, GetContext, GetContextReply, ModifySrq,
    QueryContext, ResizeCq,
};
use crate::error::{Error, Result, Subject, Verb};

/// Versions of the driver's ABI that this module speaks (`RXE_UVERBS_ABI_VERSION`); 1 differs from 2 only
/// for 32-bit processes.
pub(crate) const ABI_VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;

/// Makes the open file a context of the device.
pub(crate) fn get_context(fd: &CommandFd) -> Result<GetContextReply> {
    fd.execute(&GetContext::default())
}

/// Asks a context that somebody else has made for its properties: those that every device has, for this driver tells
/// none.
pub(crate) fn query_context(fd: &CommandFd) -> Result<GetContextReply> {
    let reply = fd.execute(&QueryContext {
        driver_answer: None,
    });
    match reply {
        Err(error) if error.is_unsupported() => Ok(GetContextReply {
            num_comp_vectors: 1,
            core_support: 0,
            async_fd: None,
            driver: DriverReply::default(),
        }),
        reply => reply,
    }
}

/// Allocates a protection domain.
pub(crate) fn alloc_pd(fd: &CommandFd) -> Result<PdHandle> {
    fd.execute(&AllocPd::default()).map(|(handle, _)| handle)
}

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

/// Maps a work queue's ring.
fn producer(
    fd: &CommandFd,
    info: Mminfo,
    element: usize,
    kind: Kind,
    buffers: Option<&Buffers>,
) -> Result<(Producer, RingMap)> {
    let map = RingMap::new(fd.as_fd(), info, kind, buffers)?;
    // SAFETY: the map is new, so this is its only user, and it is stored beside the producer.
    let ring = unsafe { Producer::new(map.base(), map.length(), element) };
    Ok((ring.map_err(|bad| kind.malformed(bad))?, map))
}

/// Creates a completion queue and maps its ring.
pub(crate) fn create_cq(
    fd: &CommandFd,
    mut command: CreateCq,
    buffers: Option<&Buffers>,
) -> Result<(CqHandle, Cq)> {
    command.driver = DriverData::output::<abi::CreateCqResp>();
    let CreateCqReply { handle, driver, .. } = fd.execute(&command)?;
    let cq = map_cq(fd, &driver, buffers).inspect_err(|_| fd.abandon(handle))?;
    Ok((handle, cq))
}

fn map_cq(fd: &CommandFd, reply: &DriverReply, buffers: Option<&Buffers>) -> Result<Cq> {
    let abi::CreateCqResp { mi } = answer(Verb::CreateCq, || Subject::the(COMPLETION.name), reply)?;
    let (ring, map) = consumer(fd, mi, buffers)?;
    Ok(Cq::new(ring, Some(map)))
}

/// Maps a completion queue's ring.
fn consumer(
    fd: &CommandFd,
    info: Mminfo,
    buffers: Option<&Buffers>,
) -> Result<(Consumer, RingMap)> {
    let map = RingMap::new(fd.as_fd(), info, COMPLETION, buffers)?;
    // SAFETY: the map is new, so this is its only user, and it is stored beside the consumer.
    let ring = unsafe { Consumer::new(map.base(), map.length(), size_of::<Wc>()) };
    Ok((ring.map_err(|bad| COMPLETION.malformed(bad))?, map))
}

/// Gives a completion queue a ring of another size. The kernel moves the waiting completions over
/// (`rxe_cq_resize_queue`) and writes to the new ring from then on.
pub(crate) fn resize_cq(
    fd: &CommandFd,
    mut command: ResizeCq,
    cq: &mut Cq,
    buffers: Option<&Buffers>,
) -> Result<()> {
    command.driver = DriverData::output::<abi::ResizeCqResp>();
    let reply = fd.execute(&command)?;
    let abi::ResizeCqResp { mi } =
        answer(Verb::ResizeCq, || Subject::the(COMPLETION.name), &reply)?;
    let (ring, map) = consumer(fd, mi, buffers)?;
    *cq = Cq::new(ring, Some(map));
    Ok(())
}

/// A queue pair with its rings.
#[derive(Debug)]
pub(crate) struct NewQp {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) send: SendQueue,
    /// None if the QP receives from an SRQ.
    pub(crate) recv: Option<RecvQueue>,
}

/// Creates a queue pair and maps its rings.
pub(crate) fn create_qp(
    fd: &Arc<CommandFd>,
    mut command: CreateQp,
    buffers: Option<&Buffers>,
) -> Result<NewQp> {
    command.driver = DriverData::output::<abi::CreateQpResp>();
    command.cap.max_send_sge = asked_slices(&command.cap);
    let reply = fd.execute(&command)?;
    let handle = reply.handle;
    map_qp(fd, command.srq.is_some(), reply, buffers).inspect_err(|_| fd.abandon(handle))
}

fn map_qp(
    fd: &Arc<CommandFd>,
    has_srq: bool,
    reply: CreateQpReply,
    buffers: Option<&Buffers>,
) -> Result<NewQp> {
    let CreateQpReply {
        handle,
        qpn,
        cap,
        driver,
    } = reply;
    let abi::CreateQpResp { rq_mi, sq_mi } =
        answer(Verb::CreateQp, || Subject::the(SEND.name), &driver)?;
    let (max_sge, max_inline) = granted_send(&cap);
    let (ring, map) = producer(fd, sq_mi, size_of::<abi::SendWqe>(), SEND, buffers)?;
    let doorbell = Doorbell::new(Arc::clone(fd), handle);
    let send = SendQueue::new(ring, doorbell, max_sge, max_inline, Some(map));
    let recv = match has_srq {
        true => None,
        false => {
            let (ring, map) = producer(fd, rq_mi, size_of::<abi::RecvWqe>(), RECV, buffers)?;
            Some(RecvQueue::new(ring, cap.max_recv_sge, Some(map)))
        }
    };
    Ok(NewQp {
        handle,
        qpn,
        send,
        recv,
    })
}

/// Creates a shared receive queue and maps its ring.
pub(crate) fn create_srq(
    fd: &CommandFd,
    mut command: CreateSrq,
    buffers: Option<&Buffers>,
) -> Result<(SrqHandle, RecvQueue)> {
    command.driver = srq_data();
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
    Ok((handle, RecvQueue::new(ring, max_sge, Some(map))))
}

/// The driver's part of a command that creates a shared receive queue. The kernel's driver looks at its size before it
/// looks at the queue's type.
pub(crate) fn srq_data() -> DriverData {
    DriverData::output::<abi::CreateSrqResp>()
}

/// Sets an attribute of a shared receive queue that leaves its ring alone. The driver wants its part of the command
/// all the same, and does not look at the address in it (`rxe_modify_srq` in `rxe_verbs.c`).
pub(crate) fn modify_srq(fd: &CommandFd, mut command: ModifySrq) -> Result<()> {
    command.driver = DriverData::input(&abi::ModifySrqCmd { mmap_info_addr: 0 });
    fd.execute(&command)
}

/// Gives a shared receive queue a ring of another size. The kernel moves the waiting requests over, and says
/// where the new ring is at an address that it is told, not in its answer (`rxe_srq_from_attr`).
///
/// A size that the waiting requests do not fit into is refused here: the kernel would free the old ring with its
/// refusal, and find none when the next message arrives.
pub(crate) fn resize_srq(
    fd: &CommandFd,
    mut command: ModifySrq,
    queue: &mut RecvQueue,
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
    fd.execute(&command)?;
    // SAFETY: the box is alive and nobody else uses it; volatile, because the kernel wrote it by its number.
    let info = unsafe { (&raw const *info).read_volatile() };
    let (ring, map) = producer(fd, info, size_of::<abi::RecvWqe>(), SRQ, buffers)?;
    let max_sge = queue.max_sge();
    *queue = RecvQueue::new(ring, max_sge, Some(map));
    Ok(())
}

/// How many elements a ring holds that was asked to hold so many: one less than a power of two.
fn rounded(asked: u32) -> u64 {
    (u64::from(asked) + 1).next_power_of_two() - 1
}

/// The slices of a send request to ask for: at least one. The kernel compares the count of slices that it has
/// passed even where the bytes are inline, and without any it ends such a request with an error
/// (`rxe_requester` in `rxe_req.c`, `copy_data`).
fn asked_slices(cap: &QpCap) -> u32 {
    cap.max_send_sge.max(1)
}

/// The slices and the inline bytes that a send request can really have.
///
/// The driver makes slots that hold either, whichever needs more, and since 6.2 says so; 6.1 echoes what
/// was asked for (`rxe_qp_init_req` in `rxe_qp.c`).
fn granted_send(cap: &QpCap) -> (u32, u32) {
    let sge = size_of::<abi::Sge>() as u32;
    let bytes = cap
        .max_inline_data
        .max(cap.max_send_sge.saturating_mul(sge));
    (bytes / sge, bytes)
}

/// Creates an address handle and returns it with its number, by which work requests name it.
pub(crate) fn create_ah(
    fd: &CommandFd,
    mut command: CreateAh,
) -> Result<(uverbs_uapi::handle::AhHandle, u32)> {
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
