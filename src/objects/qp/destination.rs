//! Where a request goes.

use self::sealed::Named;
use super::transport::{Any, Dc, Rc, Srd, Transport, Uc, Ud, Xrc};
use crate::ah::UdPeer;
use crate::dc::DcPeer;
use crate::work::Destination;

pub(crate) mod sealed {
    use crate::driver;
    use crate::work::Destination;

    /// The form that drivers take.
    #[derive(Debug)]
    pub struct Named<'a>(pub(crate) Option<Destination<'a, driver::Ah>>);

    pub trait Names {
        fn destination(&self) -> Named<'_>;
    }
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

/// The peer of the queue pair, to which a request goes that names no destination.
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
