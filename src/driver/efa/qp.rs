//! Queue pairs: the layout of their rings, their creation, and reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::mm::ProtFlags;
use rustix::param::page_size;
use uverbs_uapi::efa as abi;
use uverbs_uapi::enums::QpType;
use uverbs_uapi::types::QpCap;

use super::cq::CqCore;
use super::format::{BLOCK, Descriptor, WIDE};
use super::recv::{RecvLayout, RecvQueue};
use super::reporters::{Name, Registration};
use super::ring::Register;
use super::send::{DeviceRing, RdmaLimits, SendLayout, SendQueue};
use super::{Limits, Parts};
use crate::command::{CommandFd, CreateQp, CreateQpReply, DriverData, QpSpec};
use crate::driver::answer;
use crate::driver::contract::{self, Driver as _};
use crate::driver::kit::ledger::NumberedLedger;
use crate::driver::kit::map::Map;
use crate::error::{Errno, Error, Result, Verb};
use crate::work::{LocalKey, Progress};

pub(super) type NewQp = contract::NewQp<SendQueue, RecvQueue, Arc<QpCore>>;

/// The ledgers of a queue pair's two queues, of these capacities. What the device still reports of a queue
/// that is gone, or of before a reset, has another generation than the queue that has its number now.
pub(super) fn ledgers(sends: u32, receives: u32) -> [Arc<NumberedLedger>; 2] {
    static GENERATIONS: AtomicU16 = AtomicU16::new(0);
    // One for both: queues of the most requests have one bit of it, which then differs from one queue pair to
    // the next. Relaxed: nothing else goes with it.
    let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
    [sends, receives].map(|capacity| Arc::new(NumberedLedger::new(capacity, generation)))
}

/// What must stay until the kernel has released a queue pair.
#[derive(Debug)]
pub(crate) struct QpCore {
    sends: Registration,
    receives: Registration,
    /// Keeps the receive ring mapped, which is the kernel's memory.
    _ring: Arc<Map>,
}

impl QpCore {
    /// Call after the kernel has taken the queue pair to the state RESET: the device starts both rings anew,
    /// and completions from before are passed over.
    pub(super) fn reset(&self, send: &mut SendQueue, recv: Option<&mut RecvQueue>) {
        let capacity = recv.as_ref().map_or(0, |recv| recv.layout().capacity);
        let [sends, receives] = ledgers(send.layout().depth, capacity);
        self.sends.replace(Arc::clone(&sends));
        send.reset(sends);
        if let Some(recv) = recv {
            self.receives.replace(Arc::clone(&receives));
            recv.reset(receives);
        }
    }
}

impl contract::QpBacking for Arc<QpCore> {
    fn sends(&self) -> Progress {
        self.sends.ledger().progress()
    }

    fn receives(&self) -> Option<Progress> {
        Some(self.receives.ledger().progress())
    }

    fn sends_name(&self, in_flight: Progress, LocalKey(key): LocalKey) -> bool {
        self.sends.ledger().names(in_flight, key)
    }

    fn receives_name(&self, in_flight: Progress, LocalKey(key): LocalKey) -> bool {
        self.receives.ledger().names(in_flight, key)
    }

    #[cfg(feature = "c-abi")]
    fn forget_unread(&self) {
        self.sends.forget();
        self.receives.forget();
    }
}

/// Creates a queue pair and maps its rings and registers.
pub(super) fn create(
    limits: &Limits,
    fd: &CommandFd,
    spec: &QpSpec,
    parts: &Parts<'_>,
) -> Result<NewQp> {
    let refuse =
        || Error::os(Verb::CreateQp, spec.subject(), Errno::INVAL).with_detail(limits.of_queues());
    let send = send_layout(spec.qp_type, spec.sq_sig_all, &spec.cap, limits).ok_or_else(refuse)?;
    let recv = recv_layout(&spec.cap, limits).ok_or_else(refuse)?;
    let unsolicited = abi::DeviceCaps::UNSOLICITED_WRITE_RECV;
    let has_unsolicited = spec.qp_type == QpType::DRIVER && limits.caps.contains(unsolicited);
    if parts.unsolicited_writes && !has_unsolicited {
        let what = "WRITEs with immediate data that consume no receives, here";
        return Err(super::Efa::lacks(Verb::CreateQp, what));
    }
    let mut flags = abi::CreateQpFlags::empty();
    flags.set(
        abi::CreateQpFlags::UNSOLICITED_WRITE_RECV,
        parts.unsolicited_writes,
    );
    let driver = abi::CreateQp {
        flags: flags.bits(),
        sl: parts.service_level.unwrap_or_default(),
        rq_ring_size: recv.bytes() as u32,
        sq_ring_size: send.depth * send.blocks * BLOCK as u32,
        driver_qp_type: abi::QP_DRIVER_TYPE_SRD,
        ..Default::default()
    };
    let mut command = CreateQp {
        spec: *spec,
        driver: DriverData::exchange::<_, abi::CreateQpResp>(&driver),
    };
    command.spec.cap = QpCap {
        max_send_wr: send.depth,
        max_recv_wr: recv.capacity,
        max_recv_sge: recv.max_sge,
        ..spec.cap
    };
    let reply = fd.execute(&command)?;
    let handle = reply.handle;
    map(fd, spec, &reply, (send, recv), parts).inspect_err(|_| fd.abandon(handle))
}

fn map(
    fd: &CommandFd,
    spec: &QpSpec,
    reply: &CreateQpReply,
    (send, recv): (SendLayout, RecvLayout),
    parts: &Parts<'_>,
) -> Result<NewQp> {
    let malformed = |what: &str| Error::malformed(Verb::CreateQp, spec.subject(), what.to_owned());
    let answer: abi::CreateQpResp = answer(Verb::CreateQp, || spec.subject(), &reply.driver)?;
    if reply.qpn > u16::MAX.into() {
        return Err(malformed("a queue pair's number of more than 16 bits"));
    }
    let write = ProtFlags::WRITE;
    let at = answer.llq_desc_offset as usize;
    if !at.is_multiple_of(BLOCK) || at >= page_size() {
        return Err(malformed("a send ring that begins within a block"));
    }
    let bytes = (send.depth * send.blocks) as usize * BLOCK;
    let llq = Map::new(fd, "send ring", answer.llq_desc_mmap_key, at + bytes, write)?;
    let register = |what, key, offset| {
        let map = Map::new(fd, what, key, page_size(), write)?;
        Register::new(Arc::new(map), offset).ok_or_else(|| malformed("a doorbell beyond its page"))
    };
    let send_doorbell = register("send doorbell", answer.sq_db_mmap_key, answer.sq_db_offset)?;
    let recv_doorbell = register(
        "receive doorbell",
        answer.rq_db_mmap_key,
        answer.rq_db_offset,
    )?;
    if (answer.rq_mmap_size as usize) < recv.bytes() {
        return Err(malformed(
            "a receive ring that is smaller than it was asked for",
        ));
    }
    let length = answer.rq_mmap_size as usize;
    let ring = Map::new(fd, "receive ring", answer.rq_mmap_key, length, write)?;
    let ring = Arc::new(ring);

    let [send_ledger, recv_ledger] = ledgers(send.depth, recv.capacity);
    let name = |is_receive| Name {
        qpn: reply.qpn,
        is_receive,
        takes_unsolicited: is_receive && parts.unsolicited_writes,
    };
    let registered = |cq: &Arc<CqCore>, ring: u16, name, ledger: &Arc<_>| {
        Registration::new(&cq.directory, ring.into(), name, Arc::clone(ledger))
            .ok_or_else(|| malformed("a ring that its completion queue does not have"))
    };
    let core = Arc::new(QpCore {
        sends: registered(
            parts.send_cq,
            answer.send_sub_cq_idx,
            name(false),
            &send_ledger,
        )?,
        receives: registered(
            parts.recv_cq,
            answer.recv_sub_cq_idx,
            name(true),
            &recv_ledger,
        )?,
        _ring: Arc::clone(&ring),
    });
    let device_ring = DeviceRing {
        // SAFETY: the ring begins there in the map, which was made for its bytes.
        first: unsafe { llq.base().add(at) },
        _map: Arc::new(llq),
        doorbell: send_doorbell,
    };
    Ok(NewQp {
        handle: reply.handle,
        qpn: reply.qpn,
        send: SendQueue::new(send, send_ledger, device_ring),
        recv: Some(RecvQueue::new(recv, recv_ledger, ring, recv_doorbell)),
        backing: core,
    })
}

/// The layout of a send queue, or `None` if the device has none like that.
pub(super) fn send_layout(
    transport: QpType,
    signal_all: bool,
    cap: &QpCap,
    limits: &Limits,
) -> Option<SendLayout> {
    let least = cap.max_send_wr.max(limits.min_sq_wr).max(1);
    let depth = least.checked_next_power_of_two()?;
    let is_wide = cap.max_inline_data > limits.inline;
    let (blocks, max_inline) = match is_wide {
        false => (1, limits.inline),
        true => (WIDE, limits.wide_inline),
    };
    let bytes = u64::from(depth) * u64::from(blocks) * BLOCK as u64;
    let fits = cap.max_inline_data <= max_inline
        && cap.max_send_sge <= limits.max_send_sge
        && depth <= limits.max_send_wr.min(NumberedLedger::MOST)
        && bytes <= limits.max_ring_bytes.into();
    if !fits {
        return None;
    }
    let max_batch = match limits.max_batch_blocks {
        0 => depth,
        most => (most / blocks).max(1),
    };
    Some(SendLayout {
        transport,
        depth,
        blocks,
        max_sge: cap.max_send_sge.max(1).min(limits.max_send_sge),
        max_inline,
        rdma: RdmaLimits {
            max_inline: if is_wide { limits.wide_inline } else { 0 },
            max_bytes: match limits.max_rdma_bytes {
                0 => u32::MAX,
                most => most,
            },
        },
        // A device with a minimum depth does not take a whole ring at once.
        max_batch: match limits.min_sq_wr {
            0 => max_batch.min(depth),
            _ => max_batch.min(depth - 1).max(1),
        },
        signal_all,
    })
}

/// The layout of a receive queue, or `None` if the device has none like that.
pub(super) fn recv_layout(cap: &QpCap, limits: &Limits) -> Option<RecvLayout> {
    let max_sge = cap.max_recv_sge.max(1);
    let least = cap.max_recv_wr.max(1).checked_mul(max_sge)?;
    let descriptors = least.checked_next_power_of_two()?;
    let capacity = descriptors / max_sge;
    let bytes = descriptors.checked_mul(size_of::<Descriptor>() as u32);
    // The device counts descriptors.
    let fits = max_sge <= limits.max_recv_sge
        && descriptors <= limits.max_recv_wr.min(NumberedLedger::MOST)
        && bytes.is_some();
    fits.then_some(RecvLayout {
        descriptors,
        capacity,
        max_sge,
    })
}
