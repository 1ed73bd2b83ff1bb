//! Creating queue pairs.

use std::sync::Arc;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::types::QpCap;

use super::kernel::KernelQp;
use super::shared::QpShared;
use super::transport::{Any, StaticTransport, Transport};
use super::{InDomain, Membership, Qp, RecvHalf, SendHalf};
use crate::command::QpSpec;
use crate::context::Context;
use crate::cq::{Cq, CqShared};
use crate::domain::{DomainRef, DomainState};
use crate::driver::{DcStreams, NewQp, QpParts};
use crate::error::{Error, Result, Subject, Verb};
use crate::pd::{Pd, User};
use crate::srq::Srq;

/// The capacities of a queue pair.
///
/// They are minima: drivers round up, and [`Qp::caps`] returns the actual capacities.
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
    streams: Option<DcStreams>,
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

    /// As [`Pd::qp`], for a caller that does not have the queue itself.
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
            streams: None,
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
    ///
    /// The memory of the queue's requests is that of the queue's protection domain. mlx5 looks for it there,
    /// so the queue pair may be in another one. Soft-RoCE looks in the queue pair's, so creating fails.
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
    /// two queue pairs have the same number, their events cannot be distinguished. Completions and errors use
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
    /// process is the one by which the device knows it ([`LocalSlice::address`](crate::LocalSlice::address)),
    /// and that may be written to there. That holds for regions of [`Pd::register`] whose
    /// [`Mr::as_ptr`](crate::Mr::as_ptr) equals [`Mr::iova`](crate::Mr::iova) and that allow local writing.
    /// It does not hold for regions with an I/O virtual address of their own ([`Pd::register_at`]), of device
    /// memory or a dma-buf, for the null MR, and for imported regions.
    ///
    /// The requirements of the posting functions extend until the completion has been polled, or the queue
    /// pair has been reset or destroyed: the memory stays in place, and nobody else uses it.
    pub unsafe fn inline_scatter(mut self) -> Self {
        self.inline_scatter = true;
        self
    }

    /// Lets the device process packets in the order of their arrival. Data of SENDs and WRITEs may be placed
    /// before data of messages that were posted earlier, and receive requests may be used in another order
    /// than they were posted. So the id of a completion is not always that of the oldest request. Completions
    /// still come in the order of the messages, and READs and atomic operations are executed in order. Both
    /// ends of a connection must use this option.
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver, the device or the
    /// kernel lacks it: mlx5 has it since Linux 6.13, with newer firmware, and not with inline scatter or
    /// XRC. Manual page: `mlx5dv_create_qp(3)`, `MLX5DV_QP_CREATE_OOO_DP`.
    pub fn out_of_order(mut self) -> Self {
        self.out_of_order = true;
        self
    }

    /// Gives an initiator of dynamic connections ([`Dc`](crate::transport::Dc)) `count` streams. It fails
    /// when `failures` of them have failed. Both are rounded up to powers of two. A request is in the stream
    /// that its destination names ([`DcPeer::on_stream`](crate::DcPeer::on_stream)). A request that fails
    /// stops only its stream: later requests of that stream are flushed, until
    /// [`reset_stream`](Qp::reset_stream), and those of others are carried out.
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver or the device
    /// lacks it, or if the queue pair is no initiator. mlx5 has it with newer firmware, and not every device
    /// survives a failed stream. Manual page: `mlx5dv_create_qp(3)`, `MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS`.
    pub fn dc_streams(mut self, count: u16, failures: u16) -> Self {
        let log = |number: u16| u32::from(number).next_power_of_two().ilog2() as u8;
        self.streams = Some(DcStreams {
            log_count: log(count),
            log_failures: log(failures),
        });
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
    /// Nothing on this side bounds how many such completions come. The peers must leave room for them in the
    /// completion queue: at no time may more completions wait in it than its capacity, including those of
    /// requests that were posted here. Otherwise the device writes to entries that are being read.
    pub unsafe fn unsolicited_writes(mut self) -> Self {
        self.unsolicited_writes = true;
        self
    }

    /// Gives the queue pair a page of the device's registers on which no other queue pair rings, so that it
    /// can be handed over to an agent ([`Qp::into_device`]). The page is freed with the queue pair. A device
    /// has few of them.
    ///
    /// An allocator may put its rings and its record where this process does not reach them
    /// ([`Allocation::Unmapped`](crate::alloc::Allocation::Unmapped)). Then the queue pair has no room for
    /// requests of this side: posting fails with [`PostError::QueueFull`](crate::PostError::QueueFull) and a
    /// capacity of 0.
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver does not hand
    /// queue pairs over: mlx5 does.
    pub fn for_agent(mut self) -> Self {
        self.for_agent = true;
        self
    }

    /// The class in which the network handles the queue pair's messages. On devices other than EFA it belongs
    /// to the path ([`AddressVector::sl`](crate::AddressVector::sl)).
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver lacks it, and with
    /// an error of the kernel if the kernel does not know it: EFA has it on Linux 7.3. Manual page:
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
    /// send requests for raw packets yet: posting fails with
    /// [`PostError::NotInTransport`](crate::PostError::NotInTransport).
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
            // SAFETY: the queue pair's type requires that each post checks the domain.
            thread_domain: domain.map(|domain| unsafe { domain.hardware() }),
            inline_scatter: self.inline_scatter,
            out_of_order: self.out_of_order,
            unsolicited_writes: self.unsolicited_writes,
            streams: self.streams,
            for_agent: self.for_agent,
            service_level: self.service_level,
            follows_requests: true,
        };
        // No `map_err`: it would move the created values.
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
        let shared = Arc::new(QpShared::new(
            KernelQp::new(context, handle, qpn, backing),
            id,
            (transport, operations),
            self.pd.user(User::Qp),
            [Arc::clone(self.send_cq), Arc::clone(self.recv_cq)],
            self.srq.map(|srq| Arc::clone(srq.shared())),
        ));
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
