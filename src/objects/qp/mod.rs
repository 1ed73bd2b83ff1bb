//! Queue pairs: creation, states, destruction. [`Batch`] and [`RecvBatch`] post.
//!
//! A [`Qp`] has two halves that share the kernel object: the send half and the receive half. Posting borrows
//! a half exclusively and takes no lock. The halves can move to different threads ([`Qp::split`]).

pub(crate) mod attr;
pub(crate) mod connect;
mod control;
mod destination;
mod device;
mod ece;
mod entropy;
mod extended;
mod kernel;
mod membership;
mod multicast;
mod payload;
mod recv;
mod request;
mod send;
mod transition;
pub(crate) mod transport;

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::types::QpCap;
use uverbs_uapi::write as abi;

pub use crate::work::{Ece, LagPort, Placement, PostError};
pub use attr::{AltPath, QpAttr, QpInfo};
pub use connect::{ConnectOptions, Endpoint, LocalEnd};
pub use control::Control;
pub use device::{DeviceQueue, NotHandedOver, NotReclaimed, Reclaimed};
pub use membership::{InDomain, Membership, NoDomain};
pub use multicast::{IpGroup, MULTICAST_QPN};
pub use payload::{Inline, IntoPayload};
pub use recv::{RecvBatch, RecvHalf};
pub use request::Request;
pub use send::{Batch, SendHalf};
pub(crate) use transport::{Any, Peer, Reaches, StaticTransport, Transport};
pub use uverbs_uapi::enums::{MigState, Mtu, QpState, QpType};
pub use uverbs_uapi::flags::{QpAttrMask, QpCreateFlags};

use self::attr::Change;
use self::connect::{Local, Steps};
use self::kernel::KernelQp;
use crate::command::{
    DriverData, DriverReply, ModifyQp, QpSpec, QueryQp, Quiet, WrittenModifyQp, quiet,
};
use crate::context::Context;
use crate::cq::{Cq, CqShared};
use crate::domain::{DomainRef, DomainState, ThreadDomain};
use crate::driver::{NewQp, QpParts, RecvQueue, ResetQp, SendQueue};
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::flight::{Flight, Queues};
use crate::pd::{Pd, PdUse, User};
use crate::probes;
use crate::srq::{Srq, SrqShared};
use crate::work::{Operations, PdTag};

/// The capacities of a queue pair.
///
/// They are minima: drivers round up, and [`Qp::caps`] has what there is.
///
/// ```no_run
/// use uverbs::{Caps, Rc};
/// # fn create(pd: &uverbs::Pd, cq: &uverbs::Cq) -> uverbs::Result<()> {
/// let asked = Caps { max_send_wr: 100, max_inline_data: 64, ..Caps::default() };
/// let qp = pd.create_qp::<Rc>(cq, asked)?;
/// assert!(qp.caps().max_send_wr >= 100);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caps {
    /// Send requests in flight.
    pub max_send_wr: u32,
    /// Receive requests in flight.
    pub max_recv_wr: u32,
    /// Slices of a send request.
    pub max_send_sge: u32,
    /// Slices of a receive request.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
}

/// Queues of 64 requests with one slice each, and 64 inline bytes.
impl Default for Caps {
    fn default() -> Self {
        Self {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        }
    }
}

impl From<Caps> for QpCap {
    fn from(caps: Caps) -> Self {
        Self {
            max_send_wr: caps.max_send_wr,
            max_recv_wr: caps.max_recv_wr,
            max_send_sge: caps.max_send_sge,
            max_recv_sge: caps.max_recv_sge,
            max_inline_data: caps.max_inline_data,
        }
    }
}

/// The description of a queue pair to create.
///
/// ```no_run
/// use uverbs::{Caps, Rc};
/// # fn create(pd: &uverbs::Pd, sends: &uverbs::Cq, receives: &uverbs::Cq) -> uverbs::Result<()> {
/// let caps = Caps { max_send_wr: 256, max_recv_wr: 1, ..Caps::default() };
/// let qp = pd.qp(sends).recv_cq(receives).caps(caps).user_data(7).create::<Rc>()?;
/// assert_eq!(qp.id(), 7);
/// # Ok(()) }
/// ```
#[must_use = "nothing is created before `create`"]
#[derive(Clone, Debug)]
pub struct QpBuilder<'a> {
    pd: &'a Pd,
    send_cq: &'a Arc<CqShared>,
    recv_cq: &'a Arc<CqShared>,
    srq: Option<&'a Srq>,
    caps: Caps,
    signal_all: bool,
    user_data: Option<u64>,
    flags: QpCreateFlags,
    inline_scatter: bool,
    out_of_order: bool,
    unsolicited_writes: bool,
    for_agent: bool,
    service_level: Option<u8>,
}

impl Pd {
    /// Creates a queue pair whose sends and receives complete on `cq`.
    ///
    /// [`transport`](crate::transport) has the transports.
    ///
    /// # Errors
    ///
    /// A capacity exceeds the device's limits; the text then has them. Manual page: `ibv_create_qp(3)`.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp<T: StaticTransport>(&self, cq: &Cq, caps: Caps) -> Result<Qp<T>> {
        self.qp(cq).caps(caps).create()
    }

    /// Starts the description of a queue pair whose sends and receives complete on `cq`.
    pub fn qp<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a> {
        self.qp_on(cq.shared())
    }

    /// As [`Pd::qp`], for who has not the queue itself.
    pub(crate) fn qp_on<'a>(&'a self, cq: &'a Arc<CqShared>) -> QpBuilder<'a> {
        QpBuilder {
            pd: self,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: Caps::default(),
            signal_all: false,
            user_data: None,
            flags: QpCreateFlags::empty(),
            inline_scatter: false,
            out_of_order: false,
            unsolicited_writes: false,
            for_agent: false,
            service_level: None,
        }
    }
}

impl<'a> QpBuilder<'a> {
    /// Reports receives to a completion queue of their own.
    pub fn recv_cq(mut self, cq: &'a Cq) -> Self {
        self.recv_cq = cq.shared();
        self
    }

    /// Makes the queue pair receive from a shared queue; it then has no receive queue of its own.
    pub fn srq(mut self, srq: &'a Srq) -> Self {
        self.srq = Some(srq);
        self
    }

    /// The capacities of the queues; [`Caps::default`] by default.
    pub fn caps(mut self, caps: Caps) -> Self {
        self.caps = caps;
        self
    }

    /// Makes every send request signaled (`sq_sig_all`).
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Sets the number by which events name the queue pair
    /// ([`EventSource::Qp`](crate::event::EventSource::Qp)) and which [`Qp::id`] returns, such as an index
    /// into a table of connections. By default the library picks a number that is unique in the context. If
    /// two queue pairs have the same number, their events cannot be told apart. Completions and errors use
    /// [`Qp::qpn`].
    #[doc(alias = "qp_context")]
    pub fn user_data(mut self, number: u64) -> Self {
        self.user_data = Some(number);
        self
    }

    /// Sets creation flags, such as [`SCATTER_FCS`](QpCreateFlags::SCATTER_FCS) for raw packets. For
    /// `SQ_SIG_ALL` use [`signal_all`](Self::signal_all).
    pub fn flags(mut self, flags: QpCreateFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Lets the device put small payloads into completions (inline scatter): it then writes once instead of
    /// twice, and polling copies the payload to the memory of the request. Small means up to 32 bytes with
    /// completions of 64 bytes, and up to 64 with those of 128 bytes
    /// ([`CqBuilder::entry_bytes`](crate::cq::CqBuilder::entry_bytes)). It applies to received messages, also
    /// those of a shared receive queue, and with [`signal_all`](Self::signal_all) to the results of READs and
    /// atomic operations. A device that lacks the feature writes to memory as usual.
    ///
    /// A completion polled after the queue pair has been destroyed has no data; its status is
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver lacks it, like
    /// rxe, or lacks it for the transport: mlx5 has it for RC and UC.
    ///
    /// # Safety
    ///
    /// This process itself writes to the memory that the queue pair receives or reads into, at the addresses
    /// that the requests name. So the slices of each receive request, READ and atomic operation posted to it,
    /// and of each receive request of its shared receive queue, must name memory whose address in this
    /// process is the one that the device knows it by ([`LocalSlice::address`](crate::LocalSlice::address)),
    /// and that may be written to there. That holds for regions of [`Pd::register`] whose
    /// [`Mr::as_ptr`](crate::Mr::as_ptr) equals [`Mr::iova`](crate::Mr::iova) and that allow local writing.
    /// It does not hold for regions with an I/O virtual address of their own ([`Pd::register_at`]), of device
    /// memory or a DMA-BUF, for the null MR, and for imported regions.
    ///
    /// The requirements of the posting functions extend until the completion has been polled, or the queue
    /// pair has been reset or destroyed: the memory stays in place, and nobody else uses it.
    pub unsafe fn inline_scatter(mut self) -> Self {
        self.inline_scatter = true;
        self
    }

    /// Lets the device process packets in the order of their arrival, whatever that is. Data of SENDs and
    /// WRITEs may be placed before data of messages that were posted earlier, and receive requests may be
    /// used in another order than they were posted. So the id of a completion is not always that of the
    /// oldest request. Completions still come in the order of the messages, and READs and atomic operations
    /// are executed in order. Both ends of a connection must use this option.
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver, the device or the
    /// kernel lacks it: mlx5 has it since Linux 6.13, with newer firmware, and not with inline scatter or
    /// XRC. Manual page: `mlx5dv_create_qp(3)`, `MLX5DV_QP_CREATE_OOO_DP`.
    pub fn out_of_order(mut self) -> Self {
        self.out_of_order = true;
        self
    }

    /// Lets WRITEs with immediate data come in that consume no receives
    /// (`EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV`). Their completions are
    /// [unsolicited](crate::Completion::is_unsolicited) and have the id 0.
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device
    /// lacks it: EFA has it for SRD, since Linux 6.12. Manual page: `efadv_create_qp_ex(3)`.
    ///
    /// # Safety
    ///
    /// Nothing on this side bounds how many such completions come. Their peers must leave room for them in
    /// the completion queue: at no time may more completions wait in it than its capacity, those of the
    /// requests that were posted here included. Otherwise the device writes to entries that are being read.
    pub unsafe fn unsolicited_writes(mut self) -> Self {
        self.unsolicited_writes = true;
        self
    }

    /// Gives the queue pair a page of the device's registers that no other queue pair rings on, so that it
    /// can be handed over to an agent ([`Qp::into_device`]). The page belongs to the context until that is
    /// closed, so this is for queue pairs that live long.
    ///
    /// An allocator may put its rings and its record where this process does not reach them
    /// ([`Allocation::Unmapped`](crate::alloc::Allocation::Unmapped)). Then it has no room for requests of
    /// this side: posting fails with [`PostError::QueueFull`] and a capacity of 0.
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver does not hand
    /// queue pairs over: mlx5 does.
    pub fn for_agent(mut self) -> Self {
        self.for_agent = true;
        self
    }

    /// The class that the network handles the queue pair's messages in. Elsewhere than on EFA it belongs to
    /// the path ([`AddressVector::sl`](crate::AddressVector::sl)).
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver lacks it, and
    /// with an error of the kernel's if that does not know it: EFA has it on Linux 7.3. Manual page:
    /// `efadv_create_qp_ex(3)`.
    pub fn service_level(mut self, level: u8) -> Self {
        self.service_level = Some(level);
        self
    }

    /// Creates the queue pair, with a transport that is known at compile time.
    ///
    /// # Errors
    ///
    /// As for [`Pd::create_qp`], and a CQ or the SRQ belongs to another context.
    pub fn create<T: StaticTransport>(self) -> Result<Qp<T>> {
        self.create_typed(T::QP_TYPE, None)
    }

    /// Creates the queue pair in the thread domain of its parent domain: it uses the domain's doorbell
    /// register, and posting takes the domain. A queue pair on the parent domain that is created otherwise
    /// does not use the thread domain.
    ///
    /// # Errors
    ///
    /// As for [`QpBuilder::create`]; also if the protection domain is not a parent domain with a thread
    /// domain.
    pub fn create_in_domain<T: StaticTransport>(self) -> Result<Qp<T, InDomain>> {
        match self.pd.domain().and_then(DomainState::thread_domain) {
            Some(domain) => self.create_typed(T::QP_TYPE, Some(domain)),
            None => Err(Error::invalid(
                Verb::CreateQp,
                Subject::named("QP", format_args!("in PD {}", self.pd.handle().0)),
                "the protection domain has no thread domain: build a parent domain with one",
            )),
        }
    }

    /// Creates the queue pair, with a transport that is chosen at run time.
    ///
    /// The types [`RAW_PACKET`](QpType::RAW_PACKET), [`XRC_SEND`](QpType::XRC_SEND), [`DCI`](QpType::DCI) and
    /// [`DRIVER`](QpType::DRIVER), a device's own, depend on the driver; rxe has none of them. There are no
    /// send requests for raw packets yet: posting fails with [`PostError::NotInTransport`].
    ///
    /// # Errors
    ///
    /// As for [`QpBuilder::create`]. Also, the driver does not have the transport
    /// ([`Cause::Unsupported`](crate::Cause::Unsupported)), or the process may not see the network's packets
    /// (`EPERM`, for `RAW_PACKET`). XRC targets are created by
    /// [`Xrcd::create_target`](crate::xrcd::Xrcd::create_target).
    pub fn create_any(self, transport: QpType) -> Result<Qp<Any>> {
        match transport {
            QpType::RC
            | QpType::UC
            | QpType::UD
            | QpType::RAW_PACKET
            | QpType::XRC_SEND
            | QpType::DCI
            | QpType::DRIVER => self.create_typed(transport, None),
            other => Err(Error::unsupported(
                Verb::CreateQp,
                Subject::named("QP", format_args!("in PD {}", self.pd.handle().0)),
                format!("queue pairs of type {other:?} with queues"),
            )),
        }
    }

    fn create_typed<T: Transport, M: Membership>(
        self,
        transport: QpType,
        domain: Option<DomainRef<'_>>,
    ) -> Result<Qp<T, M>> {
        let context = self.pd.context();
        let subject = || Subject::named("QP", format_args!("in PD {}", self.pd.handle().0));
        let parts = [
            ("the CQ of sends", Some(self.send_cq.context())),
            ("the CQ of receives", Some(self.recv_cq.context())),
            ("the SRQ", self.srq.map(Srq::context)),
        ];
        context.check_parts(Verb::CreateQp, subject, parts)?;
        let receives = !matches!(transport, QpType::XRC_SEND | QpType::DCI);
        if !receives && self.srq.is_some() {
            let why = "an initiator receives nothing, and is to have a shared receive queue";
            return Err(Error::invalid(Verb::CreateQp, subject(), why));
        }
        let caps = match receives {
            true => self.caps,
            false => Caps {
                max_recv_wr: 0,
                max_recv_sge: 0,
                ..self.caps
            },
        };
        let operations = context.operations(transport)?;
        let id = self.user_data.unwrap_or_else(|| context.new_id());
        let spec = QpSpec {
            pd: self.pd.handle(),
            send_cq: self.send_cq.handle(),
            recv_cq: self.recv_cq.handle(),
            srq: self.srq.map(Srq::handle),
            qp_type: transport,
            cap: caps.into(),
            sq_sig_all: self.signal_all,
            flags: self.flags.difference(QpCreateFlags::SQ_SIG_ALL),
            user_handle: id,
            event_fd: context.event_fd()?,
        };
        let parts = QpParts {
            send_cq: self.send_cq.backing(),
            recv_cq: self.recv_cq.backing(),
            srq: self.srq.map(Srq::backing),
            buffers: self.pd.buffers(),
            // SAFETY: the type of the queue pair has the domain checked with each post.
            thread_domain: domain.map(|domain| unsafe { domain.hardware() }),
            inline_scatter: self.inline_scatter,
            out_of_order: self.out_of_order,
            unsolicited_writes: self.unsolicited_writes,
            for_agent: self.for_agent,
            service_level: self.service_level,
            follows_requests: true,
        };
        // No `map_err`: it would move what has been created.
        let NewQp {
            handle,
            qpn,
            send,
            recv,
            backing,
        } = match context.driver().create_qp(context.fd(), &spec, &parts) {
            Ok(created) => created,
            Err(error) => return Err(not_created(context, transport, error)),
        };
        let pd = self.pd.user(User::Qp);
        let subject = Subject::on_the_wire("QP", qpn);
        let flight = pd.flights().begin(subject, Queues::Qp(backing.clone()));
        let shared = Arc::new(QpShared {
            kernel: RwLock::new(KernelQp::new(context, handle, qpn, backing)),
            id,
            transport,
            operations,
            state: AtomicU8::new(QpState::RESET.0 as u8),
            psn: AtomicU32::new(NO_PSN),
            connected: AtomicBool::new(false),
            fetches: AtomicBool::new(true),
            max_datagram: AtomicU32::new(u32::MAX),
            told: Mutex::new(None),
            pd,
            flight,
            cqs: [Arc::clone(self.send_cq), Arc::clone(self.recv_cq)],
            _srq: self.srq.map(|srq| Arc::clone(srq.shared())),
        });
        Ok(Qp {
            send: SendHalf::new(send, &shared, domain.map(|domain| domain.key())),
            recv: RecvHalf::new(recv, &shared),
            shared,
        })
    }
}

/// Says which type of queue pair is missing, or which limits may have been exceeded.
#[cold]
fn not_created(context: &Context, transport: QpType, error: Error) -> Error {
    let error = match error.is_unsupported() {
        true => error.with_detail(format!("a QP of type {transport:?}")),
        false => error,
    };
    context.with_limits(error, |device| {
        format!(
            "the device's limits: max_qp_wr {}, max_sge {}",
            device.max_qp_wr, device.max_sge
        )
    })
}

/// No packet sequence number has been drawn yet. A real one has 24 bits.
const NO_PSN: u32 = u32::MAX;

/// How far the packet sequence numbers of a connection start ahead of those of the previous one. Numbers are
/// compared modulo 2^24, so up to half of that counts as ahead; this is half of that half.
const PSN_AHEAD: u32 = 1 << 22;

/// What the two halves of a queue pair share.
pub(crate) struct QpShared {
    /// Held for reading during calls to the kernel about it, and for writing only to replace it.
    kernel: RwLock<KernelQp>,
    id: u64,
    transport: QpType,
    operations: Operations,
    /// The state that this side set last, a `QpState`. The kernel may have moved the QP on to SQE or ERR.
    /// Both allow posting, so this never refuses what the kernel would accept.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    state: AtomicU8,
    /// The packet sequence number that the next connection starts with, once it is drawn.
    ///
    /// Relaxed throughout: only the number matters.
    psn: AtomicU32,
    /// Packets may have been sent with numbers from here on.
    ///
    /// Relaxed throughout: as for `psn`.
    connected: AtomicBool,
    /// It may have READs and atomics in flight, as far as is known.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    fetches: AtomicBool,
    /// The most bytes of a datagram, once the port's MTU is known.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    max_datagram: AtomicU32,
    /// This side's end of the path, as [`Qp::endpoint`] last returned it.
    told: Mutex<Option<Local>>,
    pd: PdUse,
    /// What regions ask that go.
    flight: Arc<Flight>,
    cqs: [Arc<CqShared>; 2],
    _srq: Option<Arc<SrqShared>>,
}

impl QpShared {
    fn kernel(&self) -> Quiet<RwLockReadGuard<'_, KernelQp>> {
        quiet(|| self.kernel.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn kernel_alone(&self) -> Quiet<RwLockWriteGuard<'_, KernelQp>> {
        quiet(|| self.kernel.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn handle(&self) -> QpHandle {
        self.kernel().handle()
    }

    fn qpn(&self) -> u32 {
        self.kernel().qpn()
    }

    pub(crate) fn subject(&self) -> Subject {
        self.kernel().subject()
    }

    pub(crate) fn context(&self) -> &Context {
        self.pd.context()
    }

    #[inline(always)]
    fn state(&self) -> QpState {
        QpState(self.state.load(Ordering::Relaxed).into())
    }

    /// Refuses states in which a queue pair does not send.
    #[cold]
    fn check_sends(&self) -> std::result::Result<(), PostError> {
        match self.state() {
            state @ (QpState::RESET | QpState::INIT | QpState::RTR) => {
                Err(PostError::WrongState { state })
            }
            _ => Ok(()),
        }
    }

    fn tag(&self) -> PdTag {
        self.pd.tag()
    }

    fn fetches(&self) -> bool {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Makes the next connection start its packet sequence numbers well ahead of those that this one is
    /// likely to have reached.
    ///
    /// Late packets of this connection are then behind and ignored. A packet that is ahead could count as an
    /// acknowledgement of requests in flight, and soft-RoCE would complete these (`check_psn` in
    /// `drivers/infiniband/sw/rxe/rxe_comp.c`).
    fn start_ahead(&self) {
        let psn = self.psn.load(Ordering::Relaxed);
        // A number that only a peer was told has no packets.
        if psn != NO_PSN && self.connected.swap(false, Ordering::Relaxed) {
            let ahead = psn.wrapping_add(PSN_AHEAD) & 0x00ff_ffff;
            self.psn.store(ahead, Ordering::Relaxed);
        }
    }

    /// Makes posts refuse longer datagrams: devices drop them silently, or complete them as if they were
    /// sent.
    pub(crate) fn limit_datagrams(&self, mtu: Mtu) {
        self.limit_messages(mtu.bytes().unwrap_or(u32::MAX));
    }

    /// As [`Self::limit_datagrams`], to so many bytes.
    fn limit_messages(&self, bytes: u32) {
        self.max_datagram.store(bytes, Ordering::Relaxed);
    }

    #[inline(always)]
    fn max_datagram(&self) -> u64 {
        self.max_datagram.load(Ordering::Relaxed).into()
    }

    fn remember(&self, told: Local) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(told);
    }

    fn recall(&self) -> Option<Local> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.take()
    }

    /// Changes attributes; not for the state RESET.
    fn modify(&self, attr: &QpAttr) -> Result<()> {
        let mut change = WrittenModifyQp::from(attr.to_abi());
        // Until the state is stored, so that a reset is before all this or behind it.
        let kernel = self.kernel();
        let from = self.check(&kernel, &change.core)?;
        self.change(&kernel, &mut change, from)
    }

    /// Takes it from RESET to RTS by these changes, all under the lock that [`Self::modify`] takes for each.
    fn connect(&self, steps: Steps) -> Result<()> {
        let kernel = self.kernel();
        // From RESET on they are what the transitions take: a test holds that for each transport.
        let is_usual = self.state() == QpState::RESET && steps.are_usual();
        steps.each(|step| {
            let from = match is_usual {
                true => self.state(),
                false => self.check(&kernel, &step.core)?,
            };
            self.change(&kernel, step, from)
        })
    }

    /// Makes a change that has been checked, from a state to another than RESET.
    fn change(&self, kernel: &KernelQp, change: &mut WrittenModifyQp, from: QpState) -> Result<()> {
        change.core.qp_handle = kernel.handle().0;
        let raw = &change.core;
        let to = raw.state();
        let connects = matches!(to, None | Some(QpState::INIT | QpState::RTR | QpState::RTS));
        let driver = match connects {
            true => kernel.backing().modify_data(),
            false => DriverData::default(),
        };
        let changed = match driver.is_empty() {
            true => kernel.modify(change).map(|()| DriverReply::new()),
            false => kernel.execute(&ModifyQp { base: *raw, driver }),
        };
        let reply = match changed {
            Ok(reply) => reply,
            Err(error) => return Err(self.explained(error, raw, from)),
        };
        if connects {
            kernel.backing().modified(&reply);
        }
        if change.core.mask().contains(QpAttrMask::MAX_QP_RD_ATOMIC) {
            let fetches = change.core.max_rd_atomic > 0;
            self.fetches.store(fetches, Ordering::Relaxed);
        }
        if let Some(state) = to {
            self.store(state);
        }
        if to == Some(QpState::RTS) {
            self.connected.store(true, Ordering::Relaxed);
            probes::connected(kernel.qpn());
        }
        Ok(())
    }

    /// Takes it to the state RESET, with the queues of both halves.
    fn reset(
        &self,
        attr: &QpAttr,
        send: &mut SendQueue,
        recv: Option<&mut RecvQueue>,
    ) -> Result<()> {
        // For all of it: who fails the queue pair from another thread does so before or behind.
        let mut kernel = self.kernel_alone();
        let command = attr.command(kernel.handle(), DriverData::default());
        let from = self.check(&kernel, &command.base)?;
        let reset = ResetQp {
            command: &command,
            backing: kernel.backing(),
            send,
            recv,
            buffers: self.pd.buffers(),
            in_place: false,
        };
        let context = self.context();
        let reset = context.driver().reset_qp(context.fd(), reset);
        let replacement = reset
            .map_err(|error| self.explained(error.about(kernel.subject()), &command.base, from))?;
        let old = replacement.and_then(|by| kernel.replace(by));
        self.flight.renew(Queues::Qp(kernel.backing().clone()));
        self.store(QpState::RESET);
        self.start_ahead();
        drop(kernel);
        // Destroyed while others may ask for the new one. What the kernel keeps goes with that one.
        if let Some(mut old) = old
            && old.destroy().is_err()
        {
            self.kernel_alone().keep(old);
        }
        self.pd.reap();
        Ok(())
    }

    /// Refuses a change that there is not, and tells from which state it is.
    fn check(&self, kernel: &KernelQp, raw: &abi::ModifyQp) -> Result<QpState> {
        let from = raw.cur_state().unwrap_or_else(|| self.state());
        raw.check(|| kernel.subject(), self.transport, from)?;
        Ok(from)
    }

    fn store(&self, state: QpState) {
        self.state.store(state.0 as u8, Ordering::Relaxed);
    }

    /// Says which step failed, and what its path was.
    #[cold]
    fn explained(&self, error: Error, raw: &abi::ModifyQp, from: QpState) -> Error {
        let error = match raw.state() {
            Some(to) => error.with_detail(format!("from {from:?} to {to:?}")),
            None => error,
        };
        match raw.path() {
            Some(path) => path.explain(self.context(), error),
            None => error,
        }
    }

    fn query(&self) -> Result<QpInfo> {
        let kernel = self.kernel();
        let mask = self.context().driver().query_mask(self.transport);
        let command = QueryQp {
            qp: kernel.handle(),
            attr_mask: mask.bits(),
        };
        let info = QpInfo::from(kernel.execute(&command)?);
        self.store(info.state);
        Ok(info)
    }
}

impl Drop for QpShared {
    fn drop(&mut self) {
        let kernel = self.kernel.get_mut();
        let forgotten = kernel.unwrap_or_else(PoisonError::into_inner).end();
        // Regions wait for good for what a queue pair goes on with.
        if forgotten {
            self.pd.flights().end(&self.flight);
        }
    }
}

/// A queue pair of the transport `T`.
///
/// Posting borrows it exclusively and takes no lock. It keeps its PD and its completion queues alive.
///
/// Dropping it, or both of its halves, destroys it. If the kernel refuses, for example while the queue pair
/// is attached to a multicast group, the drop resets it instead: its requests are discarded, it receives
/// nothing more, and closing the context destroys it. Only [`Qp::destroy`] and [`Qp::reset`] report errors.
/// If a drop cannot even reset it, the memory that its requests name stays in use until the context is
/// closed.
///
/// ```no_run
/// use uverbs::{Caps, Endpoint, Inline, Rc};
/// # use uverbs::{Cq, Pd};
/// # fn connect(pd: &Pd, cq: &Cq, exchange: impl Fn(Endpoint) -> Endpoint) -> uverbs::Result<()> {
/// let mut qp = pd.create_qp::<Rc>(cq, Caps::default())?;
/// let peer = exchange(qp.endpoint()?);            // over any other connection
/// qp.connect(&peer)?;
///
/// let mut receives = qp.recv_batch();
/// receives.post_empty(1)?;
/// receives.ring();
/// qp.post(|batch| {
///     batch.signaled(2).send(Inline(b"hello"))?;
///     Ok(())
/// })?;
/// # Ok(()) }
/// ```
///
/// A queue pair of a thread domain has the type `Qp<T, InDomain>`, and each post takes the domain: see
/// [`ThreadDomain`].
pub struct Qp<T: Transport, M: Membership = NoDomain> {
    // Before `shared`: the rings are unmapped while the kernel object still is.
    send: SendHalf<T, M>,
    recv: RecvHalf<T>,
    shared: Arc<QpShared>,
}

impl<T: Transport, M: Membership> Qp<T, M> {
    /// The kernel's handle. A reset may change it, see [`Qp::reset`].
    pub fn handle(&self) -> QpHandle {
        self.shared.handle()
    }

    /// The queue pair's number on the wire; 24 bits. Completions and errors name the queue pair by it. A
    /// reset may change it, see [`Qp::reset`].
    pub fn qpn(&self) -> u32 {
        self.shared.qpn()
    }

    /// The number by which events name it: that of [`QpBuilder::user_data`], or otherwise one that is unique
    /// in its context. It never changes.
    pub fn id(&self) -> u64 {
        self.shared.id
    }

    /// The transport.
    pub fn transport(&self) -> QpType {
        self.shared.transport
    }

    /// The context that it was created in.
    pub fn context(&self) -> &Context {
        self.shared.context()
    }

    /// The state that was last set or queried through this handle. A failed request moves the queue pair to
    /// the error state without updating it; [`Qp::query`] returns the current state.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// The capacities of its queues; at least those that were requested.
    pub fn caps(&self) -> Caps {
        let (max_recv_wr, max_recv_sge) = self.recv.limits();
        Caps {
            max_send_wr: self.send.queue().capacity(),
            max_recv_wr,
            max_send_sge: self.send.queue().max_sge(),
            max_recv_sge,
            max_inline_data: self.send.queue().max_inline(),
        }
    }

    /// Changes attributes, most often the state.
    ///
    /// # Errors
    ///
    /// The transition does not exist, or attributes are missing or not allowed: the library refuses this
    /// before it asks the kernel, and names them. Or the kernel refuses a value, or has no route to the peer.
    /// Manual page: `ibv_modify_qp(3)`.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        if attr.state == Some(QpState::RESET) {
            let (send, recv) = (self.send.queue_to_reset(), self.recv.queue_to_reset());
            return self.shared.reset(attr, send, recv);
        }
        self.shared.modify(attr)
    }

    /// Moves the queue pair to the state RESET. Requests in flight are dropped without a completion.
    ///
    /// Its next connection starts with another packet sequence number: tell the peer the new
    /// [`Qp::endpoint`].
    ///
    /// On soft-RoCE, a reliable queue pair that has left the state RESET also gets a new [`Qp::qpn`] and a
    /// new [`Qp::handle`]. The kernel's reset keeps the remains of an interrupted READ, and the next READ or
    /// atomic would complete without data. So the library replaces the kernel's queue pair with a new one, of
    /// the same capacities, with the same [`Qp::id`], queues and domain. Its allocator, if any, is asked for
    /// new rings before it gets the old ones back. Completions from before the reset that are still in the
    /// completion queue carry the old number; on mlx5 they are skipped. Memory windows of type 2 that are
    /// bound on it grant no access until they have been invalidated and bound again; if there are any, the
    /// old queue pair stays in the kernel until this one is destroyed.
    ///
    /// # Errors
    ///
    /// The device has been removed. On soft-RoCE also as for [`Pd::create_qp`]; the queue pair is then
    /// unchanged.
    pub fn reset(&mut self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::RESET),
            ..QpAttr::default()
        })
    }

    /// Moves the queue pair to the state ERR: requests in flight complete as flushed.
    ///
    /// On soft-RoCE from Linux 6.4 on, a message that completes at that moment may be delivered again into
    /// each remaining receive, with success (`do_complete` in `drivers/infiniband/sw/rxe/rxe_resp.c`). So
    /// receives that complete after this call are not necessarily new messages.
    ///
    /// # Errors
    ///
    /// The device has been removed.
    pub fn fail(&mut self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::ERR),
            ..QpAttr::default()
        })
    }

    /// Asks the kernel for all attributes.
    ///
    /// # Errors
    ///
    /// The device has been removed. Manual page: `ibv_query_qp(3)`.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpInfo> {
        let info = self.shared.query()?;
        Ok(match self.shared.kernel().backing().kernel_knows_caps() {
            true => info,
            false => QpInfo {
                caps: self.caps(),
                ..info
            },
        })
    }

    pub(crate) fn shared(&self) -> &Arc<QpShared> {
        &self.shared
    }

    /// Tells, once the queue pair is gone, whether the device has released its requests.
    pub(crate) fn flight(&self) -> &Arc<Flight> {
        &self.shared.flight
    }

    /// Starts a batch of receive requests.
    #[inline(always)]
    pub fn recv_batch(&mut self) -> RecvBatch<'_> {
        self.recv.batch()
    }

    /// Both halves at the same time, to post to one while the other is borrowed.
    pub fn halves(&mut self) -> (&mut SendHalf<T, M>, &mut RecvHalf<T>) {
        (&mut self.send, &mut self.recv)
    }

    /// Splits the queue pair for two threads. It lives until both halves are dropped.
    pub fn split(self) -> (SendHalf<T, M>, RecvHalf<T>) {
        (self.send, self.recv)
    }

    /// A handle that queries, changes and fails the queue pair while its halves are on two threads. It can be
    /// cloned.
    pub fn control(&self) -> Control {
        Control::new(&self.shared)
    }

    /// Joins two halves.
    ///
    /// # Errors
    ///
    /// The halves belong to different queue pairs. They are returned.
    pub fn join(
        send: SendHalf<T, M>,
        recv: RecvHalf<T>,
    ) -> Result<Self, (SendHalf<T, M>, RecvHalf<T>)> {
        if !Arc::ptr_eq(send.shared(), recv.shared()) {
            return Err((send, recv));
        }
        let shared = Arc::clone(send.shared());
        Ok(Self { send, recv, shared })
    }

    /// The same queue pair, with its transport known only at run time.
    pub fn into_any(self) -> Qp<Any, M> {
        let Qp { send, recv, shared } = self;
        let domain = send.domain();
        Qp {
            send: SendHalf::new(send.into_queue(), &shared, domain),
            recv: RecvHalf::new(recv.into_queue(), &shared),
            shared,
        }
    }

    /// Destroys the queue pair. Requests in flight are dropped without a completion. Free memory windows of
    /// type 2 that are bound on it first: soft-RoCE waits for them, see [`Mw`](crate::mw::Mw).
    ///
    /// # Errors
    ///
    /// The kernel refuses, for example while it is attached to a multicast group; the error returns the queue
    /// pair. Manual page: `ibv_destroy_qp(3)`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<(), DestroyError<Self>> {
        match self.destroy_in_place() {
            Ok(()) => Ok(()),
            Err(error) => Err(DestroyError {
                object: self,
                error,
            }),
        }
    }

    // In place: a queue pair is large.
    fn destroy_in_place(&self) -> Result<()> {
        // That of the queue pair and those of its halves. Another that a `Control` has for a moment counts as
        // one that stays; one that comes later finds that the object is gone, under the lock.
        const OWN: usize = 3;
        let shared = &self.shared;
        if Arc::strong_count(shared) > OWN {
            return Err(Error::invalid(
                Verb::DestroyQp,
                shared.subject(),
                "a half of it is elsewhere",
            ));
        }
        shared.kernel_alone().destroy()
    }
}

impl<T: Transport> Qp<T> {
    /// Starts a batch of send requests.
    #[inline(always)]
    pub fn batch(&mut self) -> Batch<'_, T> {
        self.send.batch()
    }

    /// Starts a signaled request that is posted alone, with a doorbell of its own: fewer instructions than a
    /// batch of one.
    ///
    /// ```no_run
    /// # fn post(qp: &mut uverbs::Qp<uverbs::Rc>, from: uverbs::LocalSlice<'_>, to: uverbs::RemoteSlice)
    /// #     -> Result<(), uverbs::PostError> {
    /// qp.one(7).write(from, to)?;
    /// # Ok(()) }
    /// ```
    #[inline(always)]
    pub fn one(&mut self, wr_id: u64) -> Request<'_, '_, T> {
        self.send.one(wr_id)
    }

    /// Posts send requests: `fill` adds them to a batch, which is then rung. Returns their number.
    ///
    /// If `fill` fails, nothing is posted.
    ///
    /// ```no_run
    /// # use uverbs::{Inline, Qp, Rc};
    /// # fn post(qp: &mut Qp<Rc>) -> Result<(), uverbs::PostError> {
    /// qp.post(|batch| {
    ///     batch.unsignaled(1).send(Inline(b"one"))?;
    ///     batch.signaled(2).send(Inline(b"two"))
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `fill`, and as for [`Batch::ring`].
    #[inline(always)]
    pub fn post<'q>(
        &'q mut self,
        fill: impl FnOnce(&mut Batch<'q, T>) -> Result<(), PostError>,
    ) -> Result<usize, PostError> {
        self.send.post(fill)
    }
}

impl<T: Transport> Qp<T, InDomain> {
    /// Starts a batch of send requests. Until it is rung or dropped, nobody else can post in the domain.
    ///
    /// # Errors
    ///
    /// [`PostError::ForeignDomain`] if the queue pair belongs to another thread domain.
    #[inline(always)]
    pub fn batch<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
    ) -> Result<Batch<'q, T>, PostError> {
        self.send.batch(domain)
    }

    /// Starts a signaled request that is posted alone. It never takes a lock, however many queue pairs the
    /// context has.
    ///
    /// ```no_run
    /// # use uverbs::{InDomain, LocalSlice, Qp, Rc, RemoteSlice, ThreadDomain};
    /// # fn post(qp: &mut Qp<Rc, InDomain>, domain: &mut ThreadDomain, from: LocalSlice<'_>, to: RemoteSlice)
    /// #     -> Result<(), uverbs::PostError> {
    /// qp.one(domain, 7)?.write(from, to)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Qp::batch`].
    #[inline(always)]
    pub fn one<'q>(
        &'q mut self,
        domain: &'q mut ThreadDomain,
        wr_id: u64,
    ) -> Result<Request<'q, 'q, T>, PostError> {
        self.send.one(domain, wr_id)
    }
}

impl<T: Transport, M: Membership> fmt::Debug for Qp<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("transport", &self.transport())
            .field("handle", &self.handle().0)
            .field("qpn", &format_args!("{:#x}", self.qpn()))
            .field("id", &self.id())
            .field("state", &self.state())
            .finish()
    }
}

/// A type parameter that only selects methods.
type Of<T> = PhantomData<fn() -> T>;

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::owned::tests::Listener;

    /// A queue pair of the sample driver, without its halves.
    pub(super) fn shared(context: &Context, transport: QpType) -> QpShared {
        let pd = context.alloc_pd().unwrap().user(User::Qp);
        let backing = crate::driver::samples::qp_backing();
        let queues = Queues::Qp(backing.clone());
        let flight = pd.flights().begin(Subject::the("QP"), queues);
        QpShared {
            kernel: RwLock::new(KernelQp::new(context, QpHandle(9), 17, backing)),
            id: 1,
            transport,
            operations: Operations::of(transport),
            state: AtomicU8::new(QpState::RTS.0 as u8),
            psn: AtomicU32::new(NO_PSN),
            connected: AtomicBool::new(false),
            fetches: AtomicBool::new(true),
            max_datagram: AtomicU32::new(u32::MAX),
            told: Mutex::new(None),
            pd,
            flight,
            cqs: [CqShared::sample(context), CqShared::sample(context)],
            _srq: None,
        }
    }

    /// The commands that dropping a queue pair takes, by the names of their verbs.
    fn dropping(kernel_refuses: bool) -> Vec<String> {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let qp = shared(&context, QpType::UD);
        let _kernel = Some(kernel).filter(|_| !kernel_refuses);
        let told = Arc::new(Mutex::new(Vec::new()));
        let commands = Arc::clone(&told);
        let listener = Listener("uverbs::command", move |text: String| {
            let verb = text.split([' ', ':']).find(|word| word.ends_with("_qp"));
            commands.lock().unwrap().extend(verb.map(String::from));
        });
        tracing::subscriber::with_default(listener, || drop(qp));
        std::mem::take(&mut *told.lock().unwrap())
    }

    /// Otherwise it would go on receiving into memory that is the user's again.
    #[test]
    fn a_drop_that_the_kernel_refuses_resets() {
        assert_eq!(dropping(false), ["destroy_qp"]);
        assert_eq!(dropping(true), ["destroy_qp", "modify_qp"]);
    }

    /// Would catch a subscriber that is told of a command under the queue pair's lock: one that asks for the
    /// queue pair would wait for good.
    #[test]
    fn a_subscriber_may_ask_for_the_queue_pair() {
        let (_kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let qp = Arc::new(shared(&context, QpType::UD));
        let (asked, told) = (Arc::clone(&qp), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&told);
        let listener = Listener("uverbs::command", move |_| {
            assert!(asked.kernel.try_write().is_ok());
            counted.fetch_add(1, Ordering::Relaxed);
        });
        tracing::subscriber::with_default(listener, || {
            let error = QpAttr {
                state: Some(QpState::ERR),
                ..QpAttr::default()
            };
            qp.modify(&error).unwrap();
            assert_eq!(told.load(Ordering::Relaxed), 1);
            qp.kernel_alone().destroy().unwrap();
            assert_eq!(told.load(Ordering::Relaxed), 2);
        });
    }

    /// Would catch regions that go under a queue pair which may live on: nobody knows, for who was told of
    /// its destruction panicked.
    #[test]
    fn a_panic_behind_the_destruction_forgets_nothing() {
        for refuses in [false, true] {
            let (kernel, file) = rustix::pipe::pipe().unwrap();
            let context = Context::over(file);
            let qp = shared(&context, QpType::RC);
            let _kernel = Some(kernel).filter(|_| !refuses);
            let mut of_kernel = qp.kernel.write().unwrap();
            let panics = Listener("uverbs::command", |text| panic!("told of {text}"));
            let destroyed = tracing::subscriber::with_default(panics, || {
                catch_unwind(AssertUnwindSafe(|| of_kernel.destroy()))
            });
            assert!(destroyed.is_err(), "the subscriber was not asked");
            assert!(!of_kernel.end());
        }
    }
}
