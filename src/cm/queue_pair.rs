//! The transitions of a queue pair on its way to a connection.

use std::fmt::Debug;

use uverbs_uapi::enums::QpState;
use uverbs_uapi::rdma_cm as abi;

use super::id::{self, Id};
use super::params::{Depths, Params};
use super::space::Space;
use crate::context::Context;
use crate::error::{Error, Result, Verb};
use crate::qp::transport::{Transport, Ud};
use crate::qp::{Membership, Qp, QpAttr};
use crate::work::Ece;
use crate::xrcd::XrcTarget;

mod sealed {
    pub trait Sealed {}
}

impl<T: Transport, M: Membership> sealed::Sealed for Qp<T, M> {}
impl sealed::Sealed for XrcTarget {}

/// What can be connected: a [`Qp`], in a thread domain or not, or an XRC target.
pub trait QueuePair: sealed::Sealed + Debug + Send + Sync + Unpin + 'static {
    /// The transport, or the target itself.
    type Kind: Space;

    #[doc(hidden)]
    fn context(&self) -> &Context;
    #[doc(hidden)]
    fn qpn(&self) -> u32;
    #[doc(hidden)]
    fn state(&self) -> QpState;
    #[doc(hidden)]
    fn modify(&mut self, attr: &QpAttr) -> Result<()>;
    #[doc(hidden)]
    fn fail(&mut self) -> Result<()>;
    /// Its vendor options; `None` if it has none.
    #[doc(hidden)]
    fn ece(&self) -> Option<Ece>;
    /// Makes it use these options of its vendor.
    #[doc(hidden)]
    fn use_ece(&mut self, ece: Ece) -> Result<()>;
}

impl<T: Transport + Space, M: Membership> QueuePair for Qp<T, M> {
    type Kind = T;

    fn context(&self) -> &Context {
        self.context()
    }

    fn qpn(&self) -> u32 {
        self.qpn()
    }

    fn state(&self) -> QpState {
        self.state()
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.modify(attr)
    }

    fn fail(&mut self) -> Result<()> {
        self.fail()
    }

    fn ece(&self) -> Option<Ece> {
        self.ece_if_any()
    }

    fn use_ece(&mut self, ece: Ece) -> Result<()> {
        self.set_ece(ece)
    }
}

/// A target has no vendor options: it neither offers nor uses any.
impl QueuePair for XrcTarget {
    type Kind = Self;

    fn context(&self) -> &Context {
        self.context()
    }

    fn qpn(&self) -> u32 {
        self.qpn()
    }

    fn state(&self) -> QpState {
        self.state()
    }

    fn modify(&mut self, attr: &QpAttr) -> Result<()> {
        self.modify(attr)
    }

    fn fail(&mut self) -> Result<()> {
        self.fail()
    }

    fn ece(&self) -> Option<Ece> {
        None
    }

    fn use_ece(&mut self, _: Ece) -> Result<()> {
        Ok(())
    }
}

/// Takes a queue pair to INIT. One that is there already, perhaps for another peer, gets the port, the
/// partition and the Q_Key of this one.
pub(super) fn init(id: &Id, verb: Verb, qp: &mut impl QueuePair, device: u32) -> Result<()> {
    check(id, verb, qp, device)?;
    qp.modify(&id.attributes(QpState::INIT)?)
}

/// As [`init`], for the request of a peer that has sent these options.
pub(super) fn init_for(
    id: &Id,
    qp: &mut impl QueuePair,
    device: u32,
    peer: abi::Ece,
) -> Result<()> {
    check(id, Verb::Accept, qp, device)?;
    // First: if the peer has given up, its options are not on the queue pair for the next one.
    let init = id.attributes(QpState::INIT)?;
    // The device gets them with the change of the state, also with the one from INIT to INIT.
    use_ece(qp, peer)?;
    qp.modify(&init)
}

/// Refuses a queue pair of another device, or in a state that it cannot be connected from.
fn check(id: &Id, verb: Verb, qp: &impl QueuePair, device: u32) -> Result<()> {
    id::check_device(verb, id.subject(), qp.context(), device)?;
    match qp.state() {
        QpState::RESET | QpState::INIT => Ok(()),
        other => {
            let why = format!("the queue pair is in the state {other:?}, not in RESET or INIT");
            Err(Error::invalid(verb, id.subject().clone(), why))
        }
    }
}

/// Takes a queue pair for datagrams to RTS.
pub(super) fn activate(
    id: &Id,
    verb: Verb,
    qp: &mut Qp<Ud, impl Membership>,
    (device, port): (u32, u8),
) -> Result<()> {
    init(id, verb, qp, device)?;
    let mtu = qp.context().query_port(port)?.active_mtu;
    qp.modify(&QpAttr {
        state: Some(QpState::RTR),
        ..QpAttr::default()
    })?;
    qp.modify(&QpAttr {
        state: Some(QpState::RTS),
        sq_psn: Some(0),
        ..QpAttr::default()
    })?;
    qp.shared().limit_datagrams(mtu);
    Ok(())
}

/// Takes a queue pair from INIT to RTS. If that fails, it takes it to ERR.
pub(super) fn connect(
    id: &Id,
    qp: &mut impl QueuePair,
    params: &Params,
    depths: Depths,
) -> Result<()> {
    let done = transitions(id, qp, params, depths);
    if done.is_err() {
        // The first error is the one to report.
        let _ = qp.fail();
    }
    done
}

fn transitions(id: &Id, qp: &mut impl QueuePair, params: &Params, depths: Depths) -> Result<()> {
    let proposed = id.attributes(QpState::RTR)?;
    qp.modify(&params.to_receive(proposed, depths))?;
    let proposed = id.attributes(QpState::RTS)?;
    qp.modify(&params.to_send(proposed, depths))
}

/// The options that a queue pair offers a peer; zeros if the device has none.
pub(super) fn offered_ece(qp: &impl QueuePair) -> abi::Ece {
    qp.ece().map_or_else(abi::Ece::default, wire)
}

/// Makes a queue pair use the options that a peer has sent, if they are of the same vendor. The device gets
/// them with the next change of the state.
pub(super) fn use_ece(qp: &mut impl QueuePair, peer: abi::Ece) -> Result<()> {
    match qp.ece() {
        Some(own) if own.vendor_id == peer.vendor_id => qp.use_ece(Ece {
            vendor_id: peer.vendor_id,
            options: peer.attr_mod,
        }),
        _ => Ok(()),
    }
}

/// The answer of the accepting side: those of the peer's options that its queue pair uses.
pub(super) fn answered_ece(qp: &impl QueuePair, peer: abi::Ece) -> abi::Ece {
    let options = match qp.ece() {
        Some(own) if own.vendor_id == peer.vendor_id => own.options,
        _ => 0,
    };
    abi::Ece {
        vendor_id: peer.vendor_id,
        attr_mod: options,
    }
}

fn wire(ece: Ece) -> abi::Ece {
    abi::Ece {
        vendor_id: ece.vendor_id,
        attr_mod: ece.options,
    }
}
