//! Queue pairs: creation, states, destruction. Posting is by [`Batch`] and [`RecvBatch`].
//!
//! A [`Qp`] is made of two halves that share the kernel object: the send half and the receive half. Each is
//! used by exclusive borrow, without locks, and the two can go to different threads ([`Qp::split`]).

mod attr;
mod connect;
mod control;
mod ece;
mod extended;
mod recv;
mod send;
mod transition;
pub mod transport;

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use uverbs_uapi::handle::QpHandle;
use uverbs_uapi::types::QpCap;

pub use crate::work::{Ece, Placement, PostError};
pub use attr::{AltPath, QpAttr, QpInfo};
pub use connect::{ConnectOptions, Endpoint, ParseEndpointError};
pub use control::Control;
pub use recv::{RecvBatch, RecvHalf};
pub use send::{Batch, Posted, SendHalf};
pub use transport::{
    Any, Atomic, AtomicWrite, BindWindow, Connected, Datagram, Rc, RdmaFlush, RdmaRead, RdmaWrite,
    RemoteInvalidate, StaticTransport, Transport, Uc, Ud,
};
pub use uverbs_uapi::enums::{MigState, Mtu, QpState, QpType};
pub use uverbs_uapi::flags::{QpAttrMask, QpCreateFlags};

use self::connect::Local;
use crate::command::{CreateQp, DriverData, ModifyQp, QueryQp};
use crate::context::Context;
use crate::cq::{Cq, CqShared};
use crate::domain::DomainState;
use crate::driver::{NewQp, QpBacking, QpParts};
use crate::error::{DestroyError, Error, Result, Subject, Verb};
use crate::owned::Owned;
use crate::pd::{Pd, PdUse, User};
use crate::srq::{Srq, SrqShared};
use crate::work::{Operations, PdTag};

/// How much a queue pair holds.
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

/// Queues of 64 requests with a slice each, and 64 inline bytes.
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

/// A queue pair to be: what it is to have.
#[derive(Clone, Debug)]
pub struct QpBuilder<'a> {
    pd: &'a Pd,
    send_cq: &'a Cq,
    recv_cq: &'a Cq,
    srq: Option<&'a Srq>,
    caps: Caps,
    signal_all: bool,
    flags: QpCreateFlags,
    inline_scatter: bool,
}

impl Pd {
    /// Creates a queue pair whose sends and receives complete on `cq`.
    ///
    /// The transport is [`Rc`], [`Uc`] or [`Ud`].
    ///
    /// # Errors
    ///
    /// A capacity exceeds the device's, which are then in the text. Manual page: `ibv_create_qp(3)`.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp<T: StaticTransport>(&self, cq: &Cq, caps: Caps) -> Result<Qp<T>> {
        self.qp(cq).caps(caps).create()
    }

    /// Starts the description of a queue pair whose sends and receives complete on `cq`.
    pub fn qp<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a> {
        QpBuilder {
            pd: self,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            caps: Caps::default(),
            signal_all: false,
            flags: QpCreateFlags::empty(),
            inline_scatter: false,
        }
    }
}

impl<'a> QpBuilder<'a> {
    /// Lets receives complete on another queue than sends.
    pub fn recv_cq(mut self, cq: &'a Cq) -> Self {
        self.recv_cq = cq;
        self
    }

    /// Lets the queue pair receive from a shared queue; it has no receive queue of its own then.
    pub fn srq(mut self, srq: &'a Srq) -> Self {
        self.srq = Some(srq);
        self
    }

    /// How much the queues hold; [`Caps::default`] if not said.
    pub fn caps(mut self, caps: Caps) -> Self {
        self.caps = caps;
        self
    }

    /// Lets every send request complete visibly, whether it asks for it or not (`sq_sig_all`).
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Asks for more than a queue pair has by itself, such as
    /// [`SCATTER_FCS`](QpCreateFlags::SCATTER_FCS) for raw packets. For `SQ_SIG_ALL` there is
    /// [`signal_all`](Self::signal_all).
    pub fn flags(mut self, flags: QpCreateFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Lets small payloads come in completions (inline scatter): the device then writes once and not twice,
    /// and whoever polls copies what came to where it belongs. With completions of 64 bytes that is for up to
    /// 32 bytes, with those of 128 bytes ([`CqBuilder::entry_bytes`](crate::cq::CqBuilder::entry_bytes)) for
    /// up to 64. It is done for received messages, also into a shared receive queue, and with
    /// [`signal_all`](Self::signal_all) for what a READ or an atomic operation brings back. A device that
    /// cannot do it writes to memory as without it.
    ///
    /// A completion that is taken after the queue pair has been destroyed brings no data: its status is
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR).
    ///
    /// Creating fails with [`Cause::Unsupported`](crate::Cause::Unsupported) if the driver has none, as rxe,
    /// or none for the transport: mlx5 has it for RC and UC.
    ///
    /// # Safety
    ///
    /// What the queue pair receives into, or reads into, is written to by this process under the addresses
    /// that the requests name. So of each receive request, READ and atomic operation that is posted to it,
    /// and each receive request of its shared receive queue, the slices must be of memory whose address in
    /// this process is the one that the device knows it by
    /// ([`LocalSlice::address`](crate::LocalSlice::address)), and that may be written to there. That holds
    /// for regions of [`Pd::register`] that are [`Mr::as_ptr`](crate::Mr::as_ptr) at
    /// [`Mr::iova`](crate::Mr::iova) and allow local writing. It does not hold for regions with an address of
    /// their own ([`Pd::register_at`]), of device memory or a DMA-BUF, the null MR, and imported ones.
    ///
    /// What the posting functions ask for lasts until the completion has been taken from its completion
    /// queue, or the queue pair has been reset or destroyed: the memory stays as it is, and nobody else uses
    /// it.
    pub unsafe fn inline_scatter(mut self) -> Self {
        self.inline_scatter = true;
        self
    }

    /// Creates the queue pair, of a transport that is known here.
    ///
    /// # Errors
    ///
    /// As for [`Pd::create_qp`]; besides, a CQ belongs to another context.
    pub fn create<T: StaticTransport>(self) -> Result<Qp<T>> {
        self.create_typed(T::QP_TYPE)
    }

    /// Creates the queue pair, of a transport that is chosen at run time.
    ///
    /// Whether there are queue pairs of the types [`RAW_PACKET`](QpType::RAW_PACKET) and
    /// [`XRC_SEND`](QpType::XRC_SEND) is up to the driver, and rxe has none; there are no send requests for
    /// them yet, so posting refuses with [`PostError::NotInTransport`].
    ///
    /// # Errors
    ///
    /// As for [`QpBuilder::create`]; besides, the driver does not have the transport
    /// ([`Cause::Unsupported`](crate::Cause::Unsupported)), or the process may not see the network's packets
    /// (`EPERM`, for `RAW_PACKET`). XRC targets are created by
    /// [`Xrcd::create_target`](crate::xrcd::Xrcd::create_target).
    pub fn create_any(self, transport: QpType) -> Result<Qp<Any>> {
        match transport {
            QpType::RC | QpType::UC | QpType::UD | QpType::RAW_PACKET | QpType::XRC_SEND => {
                self.create_typed(transport)
            }
            other => Err(Error::unsupported(
                Verb::CreateQp,
                Subject::named("QP", format_args!("in PD {}", self.pd.handle().0)),
                format!("queue pairs of type {other:?} with queues"),
            )),
        }
    }

    fn create_typed<T: Transport>(self, transport: QpType) -> Result<Qp<T>> {
        let context = self.pd.context();
        let subject = || Subject::named("QP", format_args!("in PD {}", self.pd.handle().0));
        let parts = [
            ("the CQ of sends", Some(self.send_cq.context())),
            ("the CQ of receives", Some(self.recv_cq.context())),
            ("the SRQ", self.srq.map(Srq::context)),
        ];
        context.check_parts(Verb::CreateQp, subject, parts)?;
        let operations = context.operations(transport)?;
        let id = context.new_id();
        let command = CreateQp {
            pd: self.pd.handle(),
            send_cq: self.send_cq.handle(),
            recv_cq: self.recv_cq.handle(),
            srq: self.srq.map(Srq::handle),
            qp_type: transport,
            cap: self.caps.into(),
            sq_sig_all: self.signal_all,
            flags: self.flags.difference(QpCreateFlags::SQ_SIG_ALL),
            user_handle: id,
            event_fd: context.event_fd()?,
            driver: DriverData::default(),
        };
        let parts = QpParts {
            send_cq: self.send_cq.ring(),
            recv_cq: self.recv_cq.ring(),
            srq: self.srq.map(Srq::queue),
            buffers: self.pd.buffers(),
            thread_domain: self.pd.domain().and_then(DomainState::thread_domain),
            inline_scatter: self.inline_scatter,
        };
        let created = context.driver().create_qp(context.fd(), command, &parts);
        let NewQp {
            handle,
            qpn,
            send,
            recv,
            backing,
        } = created.map_err(|error| {
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
        })?;
        let shared = Arc::new(QpShared {
            object: Owned::backed(context, handle, backing),
            qpn,
            id,
            transport,
            operations,
            state: AtomicU8::new(QpState::RESET.0 as u8),
            psn: AtomicU32::new(NO_PSN),
            connected: AtomicBool::new(false),
            max_datagram: AtomicU32::new(u32::MAX),
            told: Mutex::new(None),
            pd: self.pd.user(User::Qp),
            _cqs: [
                Arc::clone(self.send_cq.shared()),
                Arc::clone(self.recv_cq.shared()),
            ],
            _srq: self.srq.map(|srq| Arc::clone(srq.shared())),
        });
        Ok(Qp {
            send: SendHalf::new(send, &shared),
            recv: RecvHalf::new(recv, &shared),
            shared,
        })
    }
}

/// Stands for a packet sequence number that has not been drawn yet; a real one has 24 bits.
const NO_PSN: u32 = u32::MAX;

/// How far ahead of a connection's the packet sequence numbers of the next one begin. Numbers are compared
/// modulo 2^24, so that up to half of that is ahead; this is half of that half.
const PSN_AHEAD: u32 = 1 << 22;

/// What the two halves of a queue pair share.
pub(crate) struct QpShared {
    object: Owned<QpHandle, QpBacking>,
    qpn: u32,
    id: u64,
    transport: QpType,
    operations: Operations,
    /// The state as this side set it last, a `QpState`. The kernel may have moved the QP on to SQE or ERR
    /// by itself, in which posting is allowed, so this never forbids what the kernel would take.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    state: AtomicU8,
    /// The packet sequence number that connecting starts with, once it is drawn.
    ///
    /// Relaxed throughout: only the number counts.
    psn: AtomicU32,
    /// Packets may have been sent that count from there.
    ///
    /// Relaxed throughout: as for `psn`.
    connected: AtomicBool,
    /// The most bytes of a datagram, once the port's MTU is known.
    ///
    /// Relaxed throughout: it decides between an error and a post, and guards no memory.
    max_datagram: AtomicU32,
    /// This side's end of the path as the peer was told it last.
    told: Mutex<Option<Local>>,
    pd: PdUse,
    _cqs: [Arc<CqShared>; 2],
    _srq: Option<Arc<SrqShared>>,
}

impl QpShared {
    pub(crate) fn handle(&self) -> QpHandle {
        self.object.handle()
    }

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.handle().0.into())
    }

    pub(crate) fn context(&self) -> &Context {
        self.object.context()
    }

    fn backing(&self) -> &QpBacking {
        self.object.backing()
    }

    #[inline(always)]
    fn state(&self) -> QpState {
        QpState(self.state.load(Ordering::Relaxed).into())
    }

    fn tag(&self) -> PdTag {
        self.pd.tag()
    }

    /// Has the next connection count its packets from further on than this one is likely to have come.
    ///
    /// Late packets of this connection are then behind, and passed over. One that were ahead could pass for
    /// an acknowledgement of what is under way: soft-RoCE lets it complete that (`check_psn` in
    /// `drivers/infiniband/sw/rxe/rxe_comp.c`).
    fn start_ahead(&self) {
        let psn = self.psn.load(Ordering::Relaxed);
        // One that was only told to a peer has no packets.
        if psn != NO_PSN && self.connected.swap(false, Ordering::Relaxed) {
            let ahead = psn.wrapping_add(PSN_AHEAD) & 0x00ff_ffff;
            self.psn.store(ahead, Ordering::Relaxed);
        }
    }

    /// Has longer datagrams refused: a device drops them in silence, or completes them as if it had sent
    /// them.
    pub(crate) fn limit_datagrams(&self, mtu: Mtu) {
        let bytes = mtu.bytes().unwrap_or(u32::MAX);
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

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        let from = match attr.cur_state {
            Some(state) => state,
            None => self.state(),
        };
        attr.check(&self.subject(), self.transport, from)?;
        if attr.rate_limit.is_some() {
            self.context().driver().paces()?;
        }
        let base = attr.to_abi(self.handle().0);
        let connects = matches!(
            attr.state,
            None | Some(QpState::INIT | QpState::RTR | QpState::RTS)
        );
        let command = ModifyQp {
            base,
            rate_limit: attr.rate_limit,
            driver: match connects {
                true => self.backing().modify_data(),
                false => DriverData::default(),
            },
        };
        let reply = self.context().fd().execute(&command)?;
        if connects {
            self.backing().modified(&reply);
        }
        if let Some(state) = attr.state {
            self.state.store(state.0 as u8, Ordering::Relaxed);
        }
        Ok(())
    }

    fn query(&self) -> Result<QpInfo> {
        let command = QueryQp {
            qp: self.handle(),
            attr_mask: QpAttrMask::all().bits(),
        };
        let info = QpInfo::from(self.context().fd().execute(&command)?);
        self.state.store(info.state.0 as u8, Ordering::Relaxed);
        Ok(info)
    }

    /// Has the kernel forget all requests of a queue pair that it keeps.
    fn reset_kept(object: &Owned<QpHandle, QpBacking>) {
        let reset = QpAttr {
            state: Some(QpState::RESET),
            ..QpAttr::default()
        };
        let command = ModifyQp {
            base: reset.to_abi(object.handle().0),
            rate_limit: None,
            driver: DriverData::default(),
        };
        if let Err(error) = object.context().fd().execute(&command) {
            tracing::warn!(target: "uverbs", %error, "a QP that the kernel keeps could not be reset");
        }
    }
}

impl Drop for QpShared {
    fn drop(&mut self) {
        // Whatever becomes of it, its requests are forgotten.
        self.backing().close();
        self.object.end(Self::reset_kept);
    }
}

/// A queue pair of a transport.
///
/// Posting borrows it exclusively and takes no lock. It keeps its PD and its completion queues alive.
///
/// Dropping it, or both of its halves, destroys it. Should the kernel refuse, as while the queue pair is
/// attached to a multicast group, the drop resets it instead: its requests are forgotten, it receives nothing
/// more, and the rest of it goes with the context. Only [`Qp::destroy`] and [`Qp::reset`] tell whether the
/// kernel has done it: should it refuse a drop even the reset, what the requests name stays in use until the
/// context is closed.
pub struct Qp<T: Transport> {
    // Before `shared`: the rings are unmapped while the kernel object still is.
    send: SendHalf<T>,
    recv: RecvHalf<T>,
    shared: Arc<QpShared>,
}

impl<T: Transport> Qp<T> {
    /// The kernel's handle.
    pub fn handle(&self) -> QpHandle {
        self.shared.handle()
    }

    /// The queue pair's number on the wire; 24 bits.
    pub fn qpn(&self) -> u32 {
        self.shared.qpn
    }

    /// The number by which events name it; unique in its context.
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

    /// The state as it was last set or queried through this handle. A failed request moves the queue pair to
    /// the error state without notice; [`Qp::query`] tells.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// What its queues really hold; at least what was asked for.
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
    /// The transition does not exist, lacks attributes or does not take them: refused with their names before
    /// the kernel is asked. The kernel finds a value wrong, or no route to the peer. Manual page:
    /// `ibv_modify_qp(3)`.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.shared.modify(attr)?;
        if attr.state == Some(QpState::RTS) {
            self.shared.connected.store(true, Ordering::Relaxed);
        }
        if attr.state == Some(QpState::RESET) {
            let (send, recv) = (self.send.queue_mut(), self.recv.queue_mut());
            self.shared.backing().reset(send, recv);
            self.shared.start_ahead();
        }
        Ok(())
    }

    /// Takes the queue pair to the state RESET: requests in flight are forgotten without completion.
    ///
    /// Its next connection starts with another packet sequence number: the peer has to be told the new
    /// [`Qp::endpoint`].
    ///
    /// # Errors
    ///
    /// The device has been removed.
    pub fn reset(&mut self) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::RESET),
            ..QpAttr::default()
        })
    }

    /// Takes the queue pair to the state ERR: requests in flight complete as flushed.
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

    /// Sets the pace of a queue pair that is ready to send, in kilobits per second; 0 for none.
    ///
    /// # Errors
    ///
    /// The driver does not pace queue pairs of this transport
    /// ([`Cause::Unsupported`](crate::Cause::Unsupported)): rxe paces none, mlx5 raw packets. Manual page:
    /// `ibv_modify_qp_rate_limit(3)`.
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn set_rate_limit(&mut self, kilobits: u32) -> Result<()> {
        self.modify(&QpAttr {
            state: Some(QpState::RTS),
            rate_limit: Some(kilobits),
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
        Ok(match self.shared.backing().kernel_knows_caps() {
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

    /// Starts a batch of send requests.
    #[inline(always)]
    pub fn send(&mut self) -> Batch<'_, T> {
        self.send.batch()
    }

    /// Starts a batch of receive requests.
    #[inline(always)]
    pub fn recv(&mut self) -> RecvBatch<'_> {
        self.recv.batch()
    }

    /// Both halves at once, to post to one while the other is borrowed.
    pub fn halves(&mut self) -> (&mut SendHalf<T>, &mut RecvHalf<T>) {
        (&mut self.send, &mut self.recv)
    }

    /// Takes the queue pair apart, for two threads. It lives until both halves are gone.
    pub fn split(self) -> (SendHalf<T>, RecvHalf<T>) {
        (self.send, self.recv)
    }

    /// What stays of the queue pair's control when its halves go to two threads: clones of it tell its state
    /// and fail it.
    pub fn control(&self) -> Control {
        Control::new(&self.shared)
    }

    /// Posts send requests: `fill` adds them to a batch, which is rung behind it. Gives how many there were.
    ///
    /// If `fill` fails nothing is posted.
    ///
    /// ```no_run
    /// # fn post(qp: &mut uverbs::Qp<uverbs::Rc>) -> Result<(), uverbs::PostError> {
    /// qp.post(|batch| {
    ///     batch.send_inline(b"one")?;
    ///     batch.send_inline(b"two")?.signaled(2);
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// What `fill` fails with, and as for [`Batch::ring`].
    #[inline(always)]
    pub fn post(
        &mut self,
        fill: impl FnOnce(&mut Batch<'_, T>) -> Result<(), PostError>,
    ) -> Result<usize, PostError> {
        self.send.post(fill)
    }

    /// Puts two halves together again.
    ///
    /// # Errors
    ///
    /// They are of two queue pairs, and are given back.
    pub fn join(send: SendHalf<T>, recv: RecvHalf<T>) -> Result<Self, (SendHalf<T>, RecvHalf<T>)> {
        if !Arc::ptr_eq(send.shared(), recv.shared()) {
            return Err((send, recv));
        }
        let shared = Arc::clone(send.shared());
        Ok(Self { send, recv, shared })
    }

    /// The same queue pair, with its transport known at run time only.
    pub fn into_any(self) -> Qp<Any> {
        let Qp { send, recv, shared } = self;
        Qp {
            send: SendHalf::new(send.into_queue(), &shared),
            recv: RecvHalf::new(recv.into_queue(), &shared),
            shared,
        }
    }

    /// Destroys the queue pair. Requests in flight are forgotten without completion. Memory windows of type 2
    /// that are bound on it should go first: soft-RoCE waits for them, see [`Mw`](crate::mw::Mw).
    ///
    /// # Errors
    ///
    /// The kernel refuses, such as while it is attached to a multicast group; the error gives the queue pair
    /// back. Manual page: `ibv_destroy_qp(3)`.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(self) -> Result<(), DestroyError<Qp<T>>> {
        let Qp { send, recv, shared } = self;
        // Both halves come apart so that the shared part is unique; nobody else has a share in it.
        let (send, recv) = (send.into_queue(), recv.into_queue());
        let (shared, error) = match Arc::try_unwrap(shared) {
            Ok(mut shared) => match shared.object.destroy() {
                Ok(()) => return Ok(()),
                Err(error) => (Arc::new(shared), error),
            },
            Err(shared) => {
                let error = Error::invalid(
                    Verb::DestroyQp,
                    shared.subject(),
                    "a half of it is elsewhere, or flow rules lead to it",
                );
                (shared, error)
            }
        };
        let object = Qp {
            send: SendHalf::new(send, &shared),
            recv: RecvHalf::new(recv, &shared),
            shared,
        };
        Err(DestroyError { object, error })
    }
}

impl<T: Transport> fmt::Debug for Qp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QpShared {
            object,
            qpn,
            id,
            transport,
            ..
        } = &*self.shared;
        f.debug_struct("Qp")
            .field("transport", transport)
            .field("handle", &object.handle().0)
            .field("qpn", &format_args!("{qpn:#x}"))
            .field("id", id)
            .field("state", &self.state())
            .finish()
    }
}

/// A type parameter that decides about methods only.
type Of<T> = PhantomData<fn() -> T>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::tests::Listener;

    /// A queue pair of the sample driver, without its halves.
    fn shared(context: &Context) -> QpShared {
        let pd = context.alloc_pd().unwrap();
        QpShared {
            object: Owned::backed(context, QpHandle(9), crate::driver::samples::qp_backing()),
            qpn: 17,
            id: 1,
            transport: QpType::UD,
            operations: Operations::of(QpType::UD),
            state: AtomicU8::new(QpState::RTS.0 as u8),
            psn: AtomicU32::new(NO_PSN),
            connected: AtomicBool::new(false),
            max_datagram: AtomicU32::new(u32::MAX),
            told: Mutex::new(None),
            pd: pd.user(User::Qp),
            _cqs: [CqShared::sample(context), CqShared::sample(context)],
            _srq: None,
        }
    }

    /// The commands that dropping a queue pair takes, by the names of their verbs.
    fn dropping(kernel_refuses: bool) -> Vec<String> {
        let (kernel, file) = rustix::pipe::pipe().unwrap();
        let context = Context::over(file);
        let qp = shared(&context);
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
}
