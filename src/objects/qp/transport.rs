//! The transports as types, and the destinations of their requests: an operation that a queue pair lacks, or
//! a destination that does not fit, does not compile.

use std::fmt::Debug;

use uverbs_uapi::enums::QpType;

use self::sealed::Named;
use crate::ah::UdPeer;
pub use crate::dc::DcPeer;
use crate::work::Destination;

pub(crate) mod sealed {
    use crate::driver;
    use crate::work::Destination;

    /// The destination in the form that drivers take.
    #[derive(Debug)]
    pub struct Named<'a>(pub(crate) Option<Destination<'a, driver::Ah>>);

    pub trait Names: Copy {
        fn destination(&self) -> Named<'_>;
    }

    pub trait Sealed {}
}

/// A transport service.
///
/// [`Rc`], [`Uc`], [`Ud`], [`Xrc`], [`Dc`] and [`Srd`] are transports known at compile time; [`Any`] is one
/// chosen at run time. What a transport has is a trait for each property, independent of the others: a peer
/// ([`Connected`]) or a destination with each request ([`Reaches`]), WRITE, READ, atomic operations.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transport",
    note = "use one of `Rc`, `Uc`, `Ud`, `Xrc`, `Dc`, `Srd`, or `Any` for a transport that is chosen at run time"
)]
pub trait Transport: sealed::Sealed + Debug + Send + Sync + 'static {
    /// The transport, or `None` if it is known at run time only.
    const TYPE: Option<QpType>;
}

/// A transport between two connected queue pairs.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` queue pair is not connected to a peer",
    label = "this needs a connected queue pair",
    note = "a `Ud`, `Dc` or `Srd` queue pair names a destination with each request"
)]
pub trait Connected: Transport {}

/// A transport of datagrams: its requests name the queue pair to which they go.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` queue pair takes no destination with a request",
    label = "this needs a datagram queue pair",
    note = "a connected queue pair sends to its peer"
)]
pub trait Datagram: for<'a> Reaches<UdPeer<'a>> {}

/// A transport with RDMA WRITE.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no RDMA WRITE",
    label = "only RC, UC, XRC, DC and SRD queue pairs have RDMA WRITE"
)]
pub trait RdmaWrite: Transport {}

/// A transport with RDMA READ.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no RDMA READ",
    label = "only RC, XRC, DC and SRD queue pairs have RDMA READ"
)]
pub trait RdmaRead: Transport {}

/// A transport with atomic operations.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations",
    label = "only RC, XRC and DC queue pairs have atomic operations"
)]
pub trait Atomic: Transport {}

/// A transport whose messages can invalidate a key of the peer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no SEND with invalidation",
    label = "only RC and XRC queue pairs can invalidate a key of the peer"
)]
pub trait RemoteInvalidate: Transport {}

/// A transport on which memory windows are bound and invalidated.
#[diagnostic::on_unimplemented(
    message = "memory windows cannot be bound on a `{Self}` queue pair",
    label = "only RC, UC and XRC queue pairs have memory windows"
)]
pub trait BindWindow: Transport {}

/// A transport with FLUSH.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no FLUSH",
    label = "only RC queue pairs have FLUSH"
)]
pub trait RdmaFlush: Transport {}

/// A transport with ATOMIC WRITE.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no ATOMIC WRITE",
    label = "only RC queue pairs have ATOMIC WRITE"
)]
pub trait AtomicWrite: Transport {}

/// Reliable connection: in order, acknowledged, with every operation.
#[derive(Clone, Copy, Debug)]
pub enum Rc {}

/// Unreliable connection: in order, not acknowledged; SEND and RDMA WRITE.
#[derive(Clone, Copy, Debug)]
pub enum Uc {}

/// Unreliable datagram: each SEND has at most an MTU and its own destination.
#[derive(Clone, Copy, Debug)]
pub enum Ud {}

/// Extended reliable connection, the sending end: like [`Rc`], but each message names a shared receive queue
/// of the peer ([`PeerSrq`](crate::PeerSrq)). See [`xrcd`](crate::xrcd).
#[derive(Clone, Copy, Debug)]
pub enum Xrc {}

/// Dynamically connected, the sending end: like [`Rc`], but each request names the target that it goes to
/// ([`DcPeer`]), so one queue pair reaches any number of peers. It receives nothing. See [`dc`](crate::dc).
#[derive(Clone, Copy, Debug)]
pub enum Dc {}

/// Scalable reliable datagram, a device's own transport ([`QpType::DRIVER`]): each request has its
/// destination, as for [`Ud`], and is acknowledged, but requests arrive and complete in any order. SENDs have
/// at most the port's longest message; WRITEs and READs are not limited by that.
#[derive(Clone, Copy, Debug)]
pub enum Srd {}

/// A transport chosen at run time. It has all methods; one that the actual transport lacks fails with
/// [`PostError::NotInTransport`](crate::PostError::NotInTransport) or
/// [`PostError::Destination`](crate::PostError::Destination).
#[derive(Clone, Copy, Debug)]
pub enum Any {}

impl sealed::Sealed for Rc {}
impl sealed::Sealed for Uc {}
impl sealed::Sealed for Ud {}
impl sealed::Sealed for Xrc {}
impl sealed::Sealed for Dc {}
impl sealed::Sealed for Srd {}
impl sealed::Sealed for Any {}

impl Transport for Rc {
    const TYPE: Option<QpType> = Some(QpType::RC);
}
impl Transport for Uc {
    const TYPE: Option<QpType> = Some(QpType::UC);
}
impl Transport for Ud {
    const TYPE: Option<QpType> = Some(QpType::UD);
}
impl Transport for Xrc {
    const TYPE: Option<QpType> = Some(QpType::XRC_SEND);
}
impl Transport for Dc {
    const TYPE: Option<QpType> = Some(QpType::DCI);
}
impl Transport for Srd {
    const TYPE: Option<QpType> = Some(QpType::DRIVER);
}
impl Transport for Any {
    const TYPE: Option<QpType> = None;
}

impl Connected for Rc {}
impl Connected for Uc {}
impl Connected for Xrc {}
impl Connected for Any {}

impl Datagram for Ud {}
impl Datagram for Srd {}
impl Datagram for Any {}

impl RdmaWrite for Rc {}
impl RdmaWrite for Uc {}
impl RdmaWrite for Xrc {}
impl RdmaWrite for Dc {}
impl RdmaWrite for Srd {}
impl RdmaWrite for Any {}

impl RdmaRead for Rc {}
impl RdmaRead for Xrc {}
impl RdmaRead for Dc {}
impl RdmaRead for Srd {}
impl RdmaRead for Any {}

impl Atomic for Rc {}
impl Atomic for Xrc {}
impl Atomic for Dc {}
impl Atomic for Any {}

impl RemoteInvalidate for Rc {}
impl RemoteInvalidate for Xrc {}
impl RemoteInvalidate for Any {}

impl BindWindow for Rc {}
impl BindWindow for Uc {}
impl BindWindow for Xrc {}
impl BindWindow for Any {}

impl RdmaFlush for Rc {}
impl RdmaFlush for Any {}

impl AtomicWrite for Rc {}
impl AtomicWrite for Any {}

/// A transport that is known at compile time: all but [`Any`].
#[diagnostic::on_unimplemented(
    message = "the transport of a new queue pair must be known here, and `{Self}` does not tell it",
    note = "name `Rc`, `Uc`, `Ud`, `Xrc`, `Dc` or `Srd`; for one chosen at run time use `QpBuilder::create_any(transport)`"
)]
pub trait StaticTransport: Transport {
    /// The transport.
    const QP_TYPE: QpType;
}

impl StaticTransport for Rc {
    const QP_TYPE: QpType = QpType::RC;
}
impl StaticTransport for Uc {
    const QP_TYPE: QpType = QpType::UC;
}
impl StaticTransport for Ud {
    const QP_TYPE: QpType = QpType::UD;
}
impl StaticTransport for Xrc {
    const QP_TYPE: QpType = QpType::XRC_SEND;
}
impl StaticTransport for Dc {
    const QP_TYPE: QpType = QpType::DCI;
}
impl StaticTransport for Srd {
    const QP_TYPE: QpType = QpType::DRIVER;
}

/// How the requests of a type of queue pair find their peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// The queue pair has one peer.
    Connection,
    /// Each request names its destination by an address handle.
    EachRequest,
    /// The queue pair has one peer, and each request names a shared receive queue there.
    PeersSrq,
    /// Each request names a target of dynamic connections.
    EachTarget,
}

impl Addressing {
    /// The addressing of a type. A device's own type names the destination with each request.
    pub(crate) const fn of(transport: QpType) -> Self {
        match transport {
            QpType::UD | QpType::DRIVER => Self::EachRequest,
            QpType::XRC_SEND => Self::PeersSrq,
            QpType::DCI => Self::EachTarget,
            _ => Self::Connection,
        }
    }
}

/// Whether messages consume receives in the order in which these were posted.
pub(crate) const fn receives_in_order(transport: QpType) -> bool {
    !matches!(transport, QpType::DRIVER)
}

/// A transport whose requests go to such a destination: [`Peer`], [`PeerSrq`], [`DcPeer`] or [`UdPeer`].
#[diagnostic::on_unimplemented(
    message = "a request of a `{Self}` queue pair does not go to `{D}`",
    label = "the destination does not fit the transport",
    note = "`Rc` and `Uc` send to the peer of the connection: no `to`",
    note = "`Ud` and `Srd` need a destination with each request: `.to(ah.to(qpn, qkey))`",
    note = "`Dc` needs a target with each request: `.to(ah.to_target(number, key))`",
    note = "`Xrc` needs a shared receive queue of the peer with each request: `.to(PeerSrq(number))`"
)]
pub trait Reaches<D>: Transport {}

/// The peer of the queue pair: the destination of a request that names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer;

/// A shared receive queue of the peer, by its number ([`Srq::srqn`](crate::Srq::srqn)): where the requests of
/// an [`Xrc`] queue pair go.
///
/// Their receives complete on that queue's completion queue. READs, WRITEs and atomic operations name a queue
/// too: the memory must be in its protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSrq(pub u32);

impl sealed::Names for Peer {
    #[inline(always)]
    fn destination(&self) -> Named<'_> {
        Named(None)
    }
}

impl sealed::Names for PeerSrq {
    #[inline(always)]
    fn destination(&self) -> Named<'_> {
        Named(Some(Destination::Srq(self.0)))
    }
}

impl sealed::Names for UdPeer<'_> {
    #[inline(always)]
    fn destination(&self) -> Named<'_> {
        Named(Some(UdPeer::destination(self)))
    }
}

impl sealed::Names for DcPeer<'_> {
    #[inline(always)]
    fn destination(&self) -> Named<'_> {
        Named(Some(DcPeer::destination(self)))
    }
}

// A queue pair whose transport is chosen at run time refuses a destination that does not fit
// ([`PostError::Destination`](crate::PostError::Destination)).
impl Reaches<Peer> for Rc {}
impl Reaches<Peer> for Uc {}
impl Reaches<Peer> for Any {}

impl Reaches<PeerSrq> for Xrc {}
impl Reaches<PeerSrq> for Any {}

impl Reaches<UdPeer<'_>> for Ud {}
impl Reaches<UdPeer<'_>> for Srd {}
impl Reaches<UdPeer<'_>> for Any {}

impl Reaches<DcPeer<'_>> for Dc {}
impl Reaches<DcPeer<'_>> for Any {}
