//! The transitions of a queue pair on its way to a connection.

use uverbs_uapi::enums::QpState;
use uverbs_uapi::rdma_cm as abi;

use super::id::{self, Id};
use super::params::{Depths, Params};
use crate::error::{Error, Result, Verb};
use crate::qp::transport::{Transport, Ud};
use crate::qp::{Qp, QpAttr};
use crate::work::Ece;

/// Takes a queue pair to INIT, where it is not yet.
pub(super) fn init<T: Transport>(id: &Id, verb: Verb, qp: &mut Qp<T>, device: u32) -> Result<()> {
    id::check_device(verb, id.subject(), qp.context(), device)?;
    match qp.state() {
        QpState::RESET => qp.modify(&id.attributes(QpState::INIT)?),
        QpState::INIT => Ok(()),
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
    qp: &mut Qp<Ud>,
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

/// Takes a queue pair from INIT to RTS. If that fails it is in the state ERR.
pub(super) fn connect<T: Transport>(
    id: &Id,
    qp: &mut Qp<T>,
    params: &Params,
    depths: Depths,
) -> Result<()> {
    let done = transitions(id, qp, params, depths);
    if done.is_err() {
        // The first error is the one to tell.
        let _ = qp.fail();
    }
    done
}

fn transitions<T: Transport>(
    id: &Id,
    qp: &mut Qp<T>,
    params: &Params,
    depths: Depths,
) -> Result<()> {
    let proposed = id.attributes(QpState::RTR)?;
    qp.modify(&params.to_receive(proposed, depths))?;
    let proposed = id.attributes(QpState::RTS)?;
    qp.modify(&params.to_send(proposed, depths))
}

/// The options that a queue pair offers a peer; none where the device has none.
pub(super) fn offered_ece<T: Transport>(qp: &Qp<T>) -> abi::Ece {
    qp.query_ece().map_or_else(|_| abi::Ece::default(), wire)
}

/// Has a queue pair use the options that a peer has sent, if they are its vendor's. It is told with the next
/// change of the state.
pub(super) fn use_ece<T: Transport>(qp: &mut Qp<T>, peer: abi::Ece) -> Result<()> {
    match qp.query_ece() {
        Ok(own) if own.vendor_id == peer.vendor_id => qp.set_ece(Ece {
            vendor_id: peer.vendor_id,
            options: peer.attr_mod,
        }),
        _ => Ok(()),
    }
}

/// What the side that was asked answers: the options that its queue pair uses of the peer's.
pub(super) fn answered_ece<T: Transport>(qp: &Qp<T>, peer: abi::Ece) -> abi::Ece {
    let options = match qp.query_ece() {
        Ok(own) if own.vendor_id == peer.vendor_id => own.options,
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
