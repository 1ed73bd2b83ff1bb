//! Queue pairs: the layout of their rings, and their creation.
//!
//! A queue pair has one buffer: the receive ring first, then the send ring (`mlx5_ib_create_qp` in
//! `drivers/infiniband/hw/mlx5/qp.c`).

use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use uverbs_uapi::attr;
use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::mlx5::{self as abi, ModifyQpMask, QpFlags};
use uverbs_uapi::types::QpCap;

use super::directory::Registration;
use super::ece::{self, Ece};
use super::format::{
    AtomicOperands, BLOCK, Control, Data, Datagram, INLINE_HEAD, MOST_UNITS, NUMBER,
    RECORD_RECEIVE, RemoteAddress, UNIT, XrcQueue,
};
use super::handover::{Part, QpParts};
use super::inline::Landing;
use super::ledger::SendLedger;
use super::memory::{Memory, RECORD as RECORD_BYTES, Record, Records};
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use super::place::{QpPlace, RegisterPlace, RingPlace};
use super::recv::{Drawn, RecvLayout, RecvQueue, recv_bytes};
use super::reporter::{Receiver, Reporter};
use super::send::{SendLayout, SendQueue};
use super::uar::Lease;
use super::{Device, Limits, NewQp, Parts, answer, for_agent, in_dmabufs, umr, without_dmabufs};
use crate::alloc::ResourceType;
use crate::command::{
    Command, CommandFd, CreateQp, CreateQpReply, CreateXrcTarget, DriverData, DriverReply, QpSpec,
};
use crate::driver::contract::{self, DcStreams};
use crate::error::{Errno, Error, Result, Verb};
use crate::memory::has_word;
use crate::work::{self, LocalKey, Progress};

/// The rings and the doorbell record of a queue pair.
#[derive(Debug)]
pub(super) struct Rings {
    memory: Memory,
    pub(super) record: Record,
}

impl Rings {
    /// Whether this process maps the rings and the record.
    fn are_mapped(&self) -> bool {
        self.memory.is_mapped() && self.record.is_mapped()
    }

    /// The first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }
}

/// What must stay until the kernel has released a queue pair.
#[derive(Debug)]
pub(crate) struct QpCore {
    rings: Arc<Rings>,
    registration: Registration,
    pub(super) lease: Arc<Lease>,
    srq: Option<Drawn>,
    /// The layout of the rings.
    pub(super) send: SendLayout,
    pub(super) recv: RecvLayout,
    /// The ledgers of the queues since the last reset.
    ledgers: Mutex<(Arc<SendLedger>, Receiver)>,
    /// Where data that come in completions are copied to, if the user has asked for that.
    landing: Option<Mutex<Arc<Landing>>>,
    /// The options for its connection, if the device has any.
    ece: Option<Ece>,
    /// What each change of its state asks for.
    asks: ModifyQpMask,
}

/// Creates a queue pair.
pub(crate) fn create_qp(
    device: &Device,
    fd: &Arc<CommandFd>,
    spec: &QpSpec,
    parts: &Parts<'_>,
) -> Result<NewQp> {
    let transport = spec.qp_type;
    if parts.out_of_order {
        device.needs_out_of_order(fd, spec, parts.inline_scatter)?;
    }
    if let Some(streams) = parts.streams {
        device.needs_streams(fd, spec, streams)?;
    }
    if parts.inline_scatter && !matches!(transport, QpType::RC | QpType::UC) {
        let missing = "inline scatter for datagrams, XRC and DC (`create_user_qp` of mlx5_ib)";
        return Err(Error::unsupported(Verb::CreateQp, spec.subject(), missing));
    }
    let register = match parts.for_agent {
        true => device.page(fd)?,
        false => device.lease(fd, parts.thread_domain)?,
    };
    let draft = Draft::new(spec, &device.limits, &device.records, register, parts)?;
    let (told, kind) = as_told(spec);
    let data = draft.driver_data();
    let (dci_streams, streams_flag) = match parts.streams {
        Some(streams) => (as_streams(streams), QpFlags::DCI_STREAM),
        None => Default::default(),
    };
    let driver = abi::CreateQp {
        ece_options: if device.ece { ece::VERSION } else { 0 },
        flags: data.flags | kind.bits() | streams_flag.bits(),
        dci_streams,
        ..data
    };
    let command = CreateQp {
        spec: told,
        driver: draft.told(DriverData::exchange::<_, abi::CreateQpResp>(&driver)),
    };
    let in_dmabufs = in_dmabufs(&draft.rings.memory, &draft.rings.record);
    // Whatever fails from here on, what the draft has is given back once the kernel has no queue pair.
    let (reply, draft) = match fd.execute_with(&command, draft) {
        Err(error) if in_dmabufs => return Err(without_dmabufs(error, "7.2")),
        reply => reply?,
    };
    let offered = match checked(spec, &reply) {
        Ok(answer) => device.ece.then_some(answer.ece_options),
        Err(error) => {
            fd.abandon_with(reply.handle, draft);
            return Err(error);
        }
    };
    let CreateQpReply { handle, qpn, .. } = reply;
    let (send, recv, core) = draft.finish(qpn, spec.sq_sig_all, offered);
    Ok(NewQp {
        handle,
        qpn,
        send,
        recv,
        backing: core,
    })
}

/// The queue pair as the kernel is to see it: an initiator of dynamic connections has the type of the
/// driver's own, and the driver's flags say which.
fn as_told(spec: &QpSpec) -> (QpSpec, QpFlags) {
    let of_driver = QpSpec {
        qp_type: QpType::DRIVER,
        ..*spec
    };
    match spec.qp_type {
        QpType::DCI => (of_driver, QpFlags::TYPE_DCI),
        _ => (*spec, QpFlags::empty()),
    }
}

fn as_streams(streams: DcStreams) -> abi::CreateQpDciStreams {
    abi::CreateQpDciStreams {
        log_num_concurent: streams.log_count,
        log_num_errored: streams.log_failures,
    }
}

/// Creates a queue pair without rings, to which XRC initiators connect.
pub(crate) fn create_xrc_target(
    fd: &CommandFd,
    command: &CreateXrcTarget,
) -> Result<(QpHandle, u32)> {
    let command = CreateXrcTarget {
        // Its completions have the numbers of shared receive queues.
        driver: DriverData::exchange::<_, abi::CreateQpResp>(&abi::CreateQp::default()),
        ..command.clone()
    };
    let (handle, qpn) = fd.execute(&command)?;
    if qpn > NUMBER {
        fd.abandon(handle);
        let what = format!("a queue pair's number of {qpn:#x}");
        return Err(Error::malformed(Verb::CreateQp, command.subject(), what));
    }
    Ok((handle, qpn))
}

/// The driver's part of the answer, if all of it makes sense.
fn checked(spec: &QpSpec, reply: &CreateQpReply) -> Result<abi::CreateQpResp> {
    let qpn = reply.qpn;
    if qpn > NUMBER {
        let what = format!("a queue pair's number of {qpn:#x}");
        return Err(Error::malformed(Verb::CreateQp, spec.subject(), what));
    }
    answer(Verb::CreateQp, || spec.subject(), &reply.driver)
}

/// A queue pair before the kernel knows it.
pub(super) struct Draft {
    rings: Arc<Rings>,
    send: SendLayout,
    recv: RecvLayout,
    send_ledger: Arc<SendLedger>,
    receiver: Receiver,
    srq: Option<Drawn>,
    registration: Registration,
    lease: Arc<Lease>,
    landing: Option<Arc<Landing>>,
    asks: ModifyQpMask,
}

impl Draft {
    /// Chooses the layout of the rings, and finds memory and a number.
    pub(super) fn new(
        spec: &QpSpec,
        limits: &Limits,
        records: &Records,
        lease: Arc<Lease>,
        parts: &Parts<'_>,
    ) -> Result<Self> {
        let refuse = || Error::os(Verb::CreateQp, spec.subject(), Errno::INVAL);
        let send = send_layout(spec.qp_type, &spec.cap, limits).ok_or_else(refuse)?;
        let recv = match parts.srq {
            Some(_) => NO_RECEIVES,
            None => recv_layout(&spec.cap, parts.out_of_order, limits).ok_or_else(refuse)?,
        };
        let bytes = recv.bytes() + send.blocks as usize * BLOCK;
        let buffers = for_agent(parts.buffers, parts.for_agent, 0);
        let memory = Memory::new(
            bytes,
            alignment(bytes, recv.stride),
            ResourceType::MLX5_QP,
            buffers.as_ref(),
        )?;
        let record = Record::new(records, buffers.as_ref())?;
        let send_ledger = Arc::new(SendLedger::new(send.blocks));
        let srq = parts.srq.cloned();
        let rings = Arc::new(Rings { memory, record });
        let landing = parts.inline_scatter.then(|| {
            let elements = parts.srq.and_then(|srq| srq.ring.upgrade());
            let landing = Landing::new(Arc::clone(&rings), recv, send.blocks, elements);
            Arc::new(landing)
        });
        let reporter = Reporter {
            landing: landing.clone(),
            ..reporter(&send_ledger, &recv, srq.as_ref())
        };
        let receiver = reporter.recv.clone();
        let (send_cq, recv_cq) = (&parts.send_cq.directory, &parts.recv_cq.directory);
        let registration = Registration::new(send_cq, recv_cq, reporter).ok_or_else(|| {
            let missing = "another of the 16,777,216 numbers that a CQ has for its queue pairs";
            Error::unsupported(Verb::CreateQp, spec.subject(), missing)
        })?;
        Ok(Self {
            rings,
            send,
            recv,
            send_ledger,
            receiver,
            srq,
            registration,
            lease,
            landing,
            asks: match parts.out_of_order {
                true => ModifyQpMask::OOO_DP,
                false => ModifyQpMask::empty(),
            },
        })
    }

    /// The data for the kernel's driver.
    pub(super) fn driver_data(&self) -> abi::CreateQp {
        let mut flags = QpFlags::UAR_PAGE_INDEX;
        flags.set(QpFlags::SCATTER_CQE, self.landing.is_some());
        abi::CreateQp {
            buf_addr: self.rings.memory.address(),
            db_addr: self.rings.record.address(),
            sq_wqe_count: self.send.blocks,
            rq_wqe_count: self.recv.count,
            // Without a receive queue the kernel has 0 here, and compares.
            rq_wqe_shift: match self.recv.count {
                0 => 0,
                _ => self.recv.stride.ilog2(),
            },
            flags: flags.bits(),
            uidx: self.registration.number(),
            bfreg_index: self.lease.register().page_id(),
            ..Default::default()
        }
    }

    /// The driver's part of the command, with the dma-bufs in which the rings and the record lie.
    fn told(&self, driver: DriverData) -> DriverData {
        let Rings { memory, record } = &*self.rings;
        // Without rings the kernel expects no memory for them.
        let has_rings = self.send.blocks > 0 || self.recv.count > 0;
        driver
            .with_struct(
                attr::create_qp::BUF_UMEM,
                memory.dmabuf().filter(|_| has_rings),
            )
            .with_struct(abi::attr::create_qp::DBR_BUF_UMEM, record.dmabuf())
    }

    /// The queues, now that the queue pair's number on the wire is known, and the options that the device
    /// offers for its connection.
    pub(super) fn finish(
        self,
        qpn: u32,
        signal_all: bool,
        offered: Option<u32>,
    ) -> (SendQueue, Option<RecvQueue>, Arc<QpCore>) {
        let rings = self.rings;
        let base = rings.base();
        // SAFETY: the send ring follows the receive ring, in the same memory.
        let send_ring = unsafe { base.add(self.recv.bytes()) };
        let ledgers = (Arc::clone(&self.send_ledger), self.receiver.clone());
        // No request is ever written to rings that this process does not map.
        let room = |capacity| if rings.are_mapped() { capacity } else { 0 };
        let of_sends = SendLayout {
            capacity: room(self.send.capacity),
            ..self.send
        };
        let of_receives = RecvLayout {
            capacity: room(self.recv.capacity),
            ..self.recv
        };
        let send = SendQueue::new(
            Arc::clone(&rings),
            send_ring,
            of_sends,
            self.send_ledger,
            Arc::clone(&self.lease),
            (qpn, signal_all),
        );
        let notes = self.receiver.notes().cloned();
        let recv = notes.map(|notes| RecvQueue::new(Arc::clone(&rings), base, of_receives, notes));
        let core = Arc::new(QpCore {
            rings,
            registration: self.registration,
            lease: self.lease,
            srq: self.srq,
            send: self.send,
            recv: self.recv,
            ledgers: Mutex::new(ledgers),
            landing: self.landing.map(Mutex::new),
            ece: offered.map(Ece::new),
            asks: self.asks,
        });
        (send, recv, core)
    }
}

fn reporter(send: &Arc<SendLedger>, recv: &RecvLayout, srq: Option<&Drawn>) -> Reporter {
    let (recv, shared_ring) = match srq {
        Some(Drawn { ledger, ring }) => (Receiver::Shared(Arc::clone(ledger)), ring.clone()),
        None => (recv.receiver(), Weak::new()),
    };
    Reporter {
        send: Some(Arc::clone(send)),
        recv,
        landing: None,
        shared_ring,
    }
}

impl QpCore {
    /// Call after the kernel has taken the queue pair to the state RESET: the device starts both rings anew,
    /// and completions from before are passed over.
    pub(crate) fn reset(&self, send: &mut SendQueue, recv: Option<&mut RecvQueue>) {
        let send_ledger = Arc::new(SendLedger::new(send.layout().blocks));
        let reporter = Reporter {
            landing: self.land_anew(),
            ..reporter(&send_ledger, &self.recv, self.srq.as_ref())
        };
        let receiver = reporter.recv.clone();
        self.registration.replace(reporter);
        *self.ledgers() = (Arc::clone(&send_ledger), receiver.clone());
        self.rings.record.clear_counters();
        if let Some(ece) = &self.ece {
            ece.reset();
        }
        send.reset(send_ledger);
        if let (Some(recv), Some(notes)) = (recv, receiver.notes()) {
            recv.reset(Arc::clone(notes));
        }
    }

    /// Whether this process maps the rings and the record.
    pub(super) fn is_mapped(&self) -> bool {
        self.rings.are_mapped()
    }

    /// The dma-bufs in which the rings and the record lie, if both do.
    pub(super) fn parts(&self) -> Option<QpParts> {
        let Rings { memory, record } = &*self.rings;
        let (recv, send) = (self.recv.bytes(), self.send.blocks as usize * BLOCK);
        let of = |length| Part::of(memory.place(), length);
        // The send ring follows the receive ring.
        let mut behind = of(send)?;
        behind.offset += recv as u64;
        Some(QpParts {
            recv: of(recv)?,
            send: behind,
            record: Part::of(record.place(), RECORD_BYTES)?,
        })
    }

    /// Where it lies, for a program that posts by itself.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(crate) fn place(&self) -> QpPlace {
        let base = self.rings.base();
        let register = self.lease.register().place();
        QpPlace {
            receive: RingPlace {
                first: base,
                entries: self.recv.count,
                entry_bytes: self.recv.stride,
            },
            send: RingPlace {
                // SAFETY: the send ring follows the receive ring, in the same memory.
                first: unsafe { base.add(self.recv.bytes()) },
                entries: self.send.blocks,
                entry_bytes: BLOCK as u32,
            },
            record: self.rings.record.first(),
            register: match self.lease.is_shared() {
                false => register,
                // Copies would need the turn that other queue pairs take.
                true => RegisterPlace {
                    half: 0,
                    ..register
                },
            },
        }
    }

    /// Whether its receives finish in any order.
    pub(super) fn is_out_of_order(&self) -> bool {
        self.asks.contains(ModifyQpMask::OOO_DP)
    }

    /// Whether its completions may have data in them.
    pub(super) fn lands(&self) -> bool {
        self.landing.is_some()
    }

    fn ledgers(&self) -> MutexGuard<'_, (Arc<SendLedger>, Receiver)> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the copying of data for the requests so far; returns where data of later requests are copied to.
    fn land_anew(&self) -> Option<Arc<Landing>> {
        let landing = self.landing.as_ref()?;
        let mut landing = landing.lock().unwrap_or_else(PoisonError::into_inner);
        *landing = Arc::new(landing.renew());
        Some(Arc::clone(&landing))
    }
}

impl contract::QpBacking for Arc<QpCore> {
    fn kernel_knows_caps(&self) -> bool {
        false
    }

    fn query_ece(&self) -> Option<work::Ece> {
        self.ece.as_ref().map(|ece| work::Ece {
            vendor_id: ece::VENDOR,
            options: ece.query(),
        })
    }

    fn set_ece(&self, options: u32) {
        if let Some(ece) = &self.ece {
            ece.set(options);
        }
    }

    fn modify_data(&self) -> DriverData {
        let options = self.ece.as_ref().map_or(0, Ece::asked);
        ece::request(options, self.asks)
    }

    fn modified(&self, reply: &DriverReply) {
        if let Some(ece) = &self.ece {
            ece.answered(reply);
        }
    }

    fn sends(&self) -> Progress {
        let (posted, finished) = self.ledgers().0.progress();
        Progress::new(posted, finished, u32::MAX)
    }

    fn receives(&self) -> Option<Progress> {
        let counter = self.rings.record.counter(RECORD_RECEIVE);
        // Acquire: the finished count is loaded after this. The record has the low half of the count.
        let told = || u16::from_be(counter.load(Ordering::Acquire)).into();
        self.ledgers().1.progress(told)
    }

    /// The whole ring is searched: a finished request there may pass for one in flight.
    fn sends_name(&self, _: Progress, LocalKey(key): LocalKey) -> bool {
        let bytes = self.send.blocks as usize * BLOCK;
        // SAFETY: the send ring follows the receive ring, in the same memory, and has `bytes` bytes; both are
        // aligned to more than 4.
        unsafe { has_word(self.rings.base().add(self.recv.bytes()), bytes, key.to_be()) }
    }

    fn receives_name(&self, in_flight: Progress, LocalKey(key): LocalKey) -> bool {
        let RecvLayout { count, stride, .. } = self.recv;
        let receiver = self.ledgers().1.clone();
        let is_finished =
            |at: u32| matches!(&receiver, Receiver::Loose(ledger) if ledger.is_finished(at));
        in_flight.places().any(|at| {
            let index = (at & count.wrapping_sub(1)) as usize;
            // SAFETY: if there are requests there are elements, a power of two of them, so the masked index
            // is below their count; each has `stride` bytes and is aligned to more than 4.
            let element = unsafe { self.rings.base().add(index * stride as usize) };
            // SAFETY: as above.
            let has = || unsafe { has_word(element, stride as usize, key.to_be()) };
            count > 0 && !is_finished(at) && has()
        })
    }

    #[cfg(feature = "c-abi")]
    fn forget_unread(&self) {
        self.registration.forget();
    }

    fn close(&self) {
        if let Some(landing) = &self.landing {
            let landing = landing.lock().unwrap_or_else(PoisonError::into_inner);
            landing.close();
        }
    }
}

/// The alignment to ask an allocator for: the kernel gives the device the offset of a buffer in a large page
/// in 64ths of the page.
fn alignment(bytes: usize, stride: u32) -> usize {
    let whole = bytes.next_multiple_of(rustix::param::page_size());
    let part = whole.next_power_of_two() / 64;
    part.max(stride as usize).max(BLOCK)
}

/// A queue pair without a receive queue of its own.
const NO_RECEIVES: RecvLayout = RecvLayout {
    count: 0,
    capacity: 0,
    stride: UNIT as u32,
    max_sge: 0,
};

/// The layout of a send queue, or `None` if the device has none like that.
pub(super) fn send_layout(qp_type: QpType, cap: &QpCap, limits: &Limits) -> Option<SendLayout> {
    // There is always room for one slice: posting relies on it.
    let sge = u64::from(cap.max_send_sge.max(1));
    let inline = u64::from(cap.max_inline_data);
    let slices = sge * size_of::<Data>() as u64;
    let inlined = match inline {
        0 => 0,
        bytes => (bytes + INLINE_HEAD as u64).next_multiple_of(UNIT as u64),
    };
    // The bytes before the payload, and the largest request of another form.
    let (before, other) = match qp_type {
        QpType::UD => (size_of::<Control>() + size_of::<Datagram>(), 0),
        QpType::DCI => {
            let to = size_of::<Control>() + size_of::<Datagram>();
            let head = to + size_of::<RemoteAddress>();
            (head, head + size_of::<AtomicOperands>() + size_of::<Data>())
        }
        _ => {
            let queue = match qp_type {
                QpType::XRC_SEND => size_of::<XrcQueue>(),
                _ => 0,
            };
            let head = size_of::<Control>() + queue + size_of::<RemoteAddress>();
            let atomic = head + size_of::<AtomicOperands>() + size_of::<Data>();
            (head, atomic.max(size_of::<Control>() + umr::MOST_BYTES))
        }
    };
    let bytes = (before as u64 + slices.max(inlined)).max(other as u64);
    let request = bytes.next_multiple_of(BLOCK as u64);
    // Blocks only concern the ring. The field that counts a request's units limits its length.
    let most = (MOST_UNITS * UNIT) as u64;
    if bytes > most || request > limits.max_sq_desc_sz.into() {
        return None;
    }
    if cap.max_send_wr == 0 {
        return Some(SendLayout {
            blocks: 0,
            request_blocks: (request / BLOCK as u64) as u32,
            capacity: 0,
            max_sge: 0,
            max_inline: 0,
        });
    }
    let ring = (u64::from(cap.max_send_wr) * request).next_power_of_two();
    let blocks = ring / BLOCK as u64;
    // The record counts modulo 2^16: a full ring has to look different from an empty one.
    if blocks > limits.max_send_wqebb.min(1 << 15).into() {
        return None;
    }
    let room = request.min(most) - before as u64;
    Some(SendLayout {
        blocks: blocks as u32,
        request_blocks: (request / BLOCK as u64) as u32,
        capacity: (ring / request) as u32,
        max_sge: (room / size_of::<Data>() as u64) as u32,
        max_inline: room.saturating_sub(INLINE_HEAD as u64) as u32,
    })
}

/// The layout of a receive queue, or `None` if the device has none like that. A loose one has twice the
/// elements.
pub(super) fn recv_layout(cap: &QpCap, loose: bool, limits: &Limits) -> Option<RecvLayout> {
    if cap.max_recv_wr == 0 {
        return Some(NO_RECEIVES);
    }
    let stride = recv_bytes(cap.max_recv_sge).next_power_of_two();
    if stride > limits.max_rq_desc_sz.into() {
        return None;
    }
    let capacity = u64::from(cap.max_recv_wr).next_power_of_two();
    let capacity = (capacity * stride).max(BLOCK as u64) / stride;
    let count = capacity << u32::from(loose);
    // The record counts modulo 2^16: a full ring has to look different from an empty one.
    if count > limits.max_recv_wr.min(1 << 15).into() {
        return None;
    }
    Some(RecvLayout {
        count: count as u32,
        capacity: capacity as u32,
        stride: stride as u32,
        max_sge: (stride / size_of::<Data>() as u64) as u32,
    })
}
