//! Queue pairs of identifiers: created in a state in which receives can be posted, and then changed for the
//! connection, with the attributes that the kernel proposes.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::flags::QpAttrMask;

use super::abi::rdma_cm_id;
use super::id::{Ece, IdObject, id};
use super::{device, verbs};
use crate::c::abi::attr::{ibv_ece, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex};
use crate::c::abi::ibv_pd;
use crate::c::abi::queue::{ibv_cq, ibv_qp};
use crate::c::failure::{Failure, Result, minus_one};
use crate::c::marshal::ibv_copy_qp_attr_from_kern;
use crate::cm::command::InitQpAttr;

/// Bits of the mask that exist only in the kernel, for link-layer addresses.
const OF_THE_KERNEL: u32 = 0x01e0_0000;

/// `IBV_TRANSPORT_IB`: InfiniBand and RoCE.
const TRANSPORT_IB: c_int = 0;
/// `IBV_TRANSPORT_IWARP`.
const TRANSPORT_IWARP: c_int = 1;

fn attributes(state: QpState) -> ibv_qp_attr {
    // SAFETY: zeros are valid attributes.
    let mut attr: ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attr.qp_state = state.0;
    attr
}

/// The attributes that the kernel proposes for a transition, and their mask.
fn proposed(id: &IdObject, state: QpState) -> Result<(ibv_qp_attr, c_int)> {
    let mut attr = attributes(state);
    let reply = id.send(&InitQpAttr {
        id: id.handle(),
        qp_state: state.0,
        ..Default::default()
    })?;
    // SAFETY: both are initialised.
    unsafe { ibv_copy_qp_attr_from_kern(&mut attr, &reply) };
    Ok((attr, (reply.qp_attr_mask & !OF_THE_KERNEL) as c_int))
}

/// `rdma_init_qp_attr(3)`.
pub unsafe extern "C" fn rdma_init_qp_attr(
    c: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the caller passes an identifier, attributes with the state to go to, and room for a mask.
    minus_one(unsafe {
        id(c).and_then(|id| {
            let (proposal, bits) = proposed(id, QpState((*attr).qp_state))?;
            let rate_limit = (*attr).rate_limit;
            attr.write(ibv_qp_attr {
                rate_limit,
                ..proposal
            });
            mask.write(bits);
            Ok(())
        })
    })
}

/// Changes a queue pair with the kernel's proposal, after `adjust`.
fn change(
    id: &IdObject,
    qp: *mut ibv_qp,
    state: QpState,
    adjust: impl FnOnce(&mut ibv_qp_attr),
) -> Result<()> {
    let (mut attr, mask) = proposed(id, state)?;
    adjust(&mut attr);
    // SAFETY: the program keeps the queue pair while it is on the identifier.
    unsafe { verbs::modify_qp(qp, &mut attr, mask) }
}

/// Makes the identifier's queue pair, if there is one, ready to receive. The peer's access is known only now,
/// so the queue pair is initialised again first.
pub(super) fn to_rtr(id: &IdObject, responder_resources: Option<u8>) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    change(id, qp, QpState::INIT, |_| {})?;
    change(id, qp, QpState::RTR, |attr| {
        attr.max_dest_rd_atomic = responder_resources.unwrap_or(attr.max_dest_rd_atomic);
    })
}

/// Makes the identifier's queue pair, if there is one, ready to send.
pub(super) fn to_rts(id: &IdObject, initiator_depth: Option<u8>) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    change(id, qp, QpState::RTS, |attr| {
        attr.max_rd_atomic = initiator_depth.unwrap_or(attr.max_rd_atomic);
    })
}

/// Takes the identifier's queue pair, if there is one, to ERR: its requests are flushed.
pub(super) fn to_error(id: &IdObject) -> Result<()> {
    to_state(id, QpState::ERR)
}

fn to_state(id: &IdObject, state: QpState) -> Result<()> {
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    let mut attr = attributes(state);
    // SAFETY: the program keeps the queue pair while it is on the identifier.
    unsafe { verbs::modify_qp(qp, &mut attr, QpAttrMask::STATE.bits() as c_int) }
}

/// Ends the requests of the identifier's queue pair, if there is one, before the connection ends. On iWARP
/// the kernel itself takes it to ERR once the peer has heard of the end; until then the requests under way go
/// on.
pub(super) fn shut_down(id: &IdObject) -> Result<()> {
    let context = id.verbs();
    if context.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: the identifier is bound to the device, which is open.
    match unsafe { (*(*context).device).transport_type } {
        TRANSPORT_IB => to_error(id),
        TRANSPORT_IWARP => to_state(id, QpState::SQD),
        _ => Err(Failure::INVALID),
    }
}

/// Takes a new queue pair to a state in which receives can be posted; a queue pair for datagrams to RTS.
fn initialise(id: &IdObject, qp: *mut ibv_qp) -> Result<()> {
    change(id, qp, QpState::INIT, |_| {})?;
    if !id.is_ud() {
        return Ok(());
    }
    let state = QpAttrMask::STATE.bits();
    let mut attr = attributes(QpState::RTR);
    // SAFETY: the queue pair is new.
    unsafe { verbs::modify_qp(qp, &mut attr, state as c_int) }?;
    let mut attr = attributes(QpState::RTS);
    let mask = (state | QpAttrMask::SQ_PSN.bits()) as c_int;
    // SAFETY: as above.
    unsafe { verbs::modify_qp(qp, &mut attr, mask) }
}

/// Sets the options of a new queue pair: its own, and those of a peer that has requested the connection.
///
/// # Safety
/// The queue pair exists.
unsafe fn offer_ece(id: &IdObject, qp: *mut ibv_qp) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let own = unsafe { verbs::query_ece(qp) }?;
    let remote = {
        let mut state = id.state();
        state.local_ece = Ece {
            vendor_id: own.vendor_id,
            options: own.options,
        };
        state.remote_ece
    };
    if remote.vendor_id == 0 {
        return Ok(());
    }
    // Another vendor's options are not used.
    let options = match remote.vendor_id == own.vendor_id {
        true => remote.options,
        false => 0,
    };
    // SAFETY: the caller vouches for it.
    unsafe { verbs::set_ece(qp, ibv_ece { options, ..own }) }
}

/// Keeps what a queue pair has made of the options of the peer that has requested the connection.
///
/// # Safety
/// The queue pair exists.
unsafe fn take_ece(id: &IdObject, qp: *mut ibv_qp) -> Result<()> {
    if id.state().remote_ece.vendor_id != 0 {
        // SAFETY: the caller vouches for it.
        id.state().local_ece.options = unsafe { verbs::query_ece(qp) }?.options;
    }
    Ok(())
}

/// Sets the queue pair's options to those in the peer's answer.
pub(super) fn agree(id: &IdObject, told: Ece) -> Result<()> {
    let own = id.state().local_ece;
    let agreed = match told.vendor_id {
        // The peer or the kernel has no options.
        0 => Ece { options: 0, ..own },
        vendor if vendor == own.vendor_id => told,
        _ => return Err(Failure::INVALID),
    };
    id.state().remote_ece.vendor_id = told.vendor_id;
    // SAFETY: the program keeps the queue pair while it is on the identifier.
    unsafe { verbs::set_ece(id.qp(), agreed.into()) }
}

/// Keeps what the queue pair has made of these options.
pub(super) fn keep_agreed(id: &IdObject) -> Result<()> {
    // SAFETY: the program keeps the queue pair while it is on the identifier.
    let agreed = unsafe { verbs::query_ece(id.qp()) }?;
    id.state().local_ece.options = agreed.options;
    Ok(())
}

/// Creates the missing completion queues, each with a channel. For a size of 0 none is created.
///
/// # Safety
/// The identifier's objects exist.
pub(super) unsafe fn create_cqs(c: *mut rdma_cm_id, send: u32, recv: u32) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let (context, sides) = unsafe {
        let recv_side = (&raw mut (*c).recv_cq, &raw mut (*c).recv_cq_channel);
        let send_side = (&raw mut (*c).send_cq, &raw mut (*c).send_cq_channel);
        ((*c).verbs, [(recv, recv_side), (send, send_side)])
    };
    for (size, (cq, channel)) in sides {
        if size == 0 {
            continue;
        }
        let size = c_int::try_from(size).map_err(|_| Failure::INVALID)?;
        // SAFETY: the identifier is bound to the device, and these are fields of it.
        unsafe {
            *channel = verbs::made(verbs::ibv_create_comp_channel(context))?;
            *cq = verbs::made(verbs::ibv_create_cq(context, size, c.cast(), *channel, 0))?;
        }
    }
    Ok(())
}

/// Destroys them, unless an XRC shared receive queue remains, which itself reports to one of them.
///
/// # Safety
/// The identifier's objects exist, and no other queue uses them any more.
pub(super) unsafe fn destroy_cqs(c: *mut rdma_cm_id) {
    // SAFETY: the caller vouches for it.
    unsafe {
        if is_target(c) && !(*c).srq.is_null() {
            return;
        }
        verbs::destroy_cqs(
            [&mut (*c).recv_cq, &mut (*c).send_cq],
            [&mut (*c).recv_cq_channel, &mut (*c).send_cq_channel],
        );
    }
}

/// Whether XRC initiators connect to it: its queue pair is then a target, in an XRC domain.
///
/// # Safety
/// The identifier exists.
pub(super) unsafe fn is_target(c: *const rdma_cm_id) -> bool {
    // SAFETY: the caller vouches for it.
    unsafe { (*c).qp_type == QpType::XRC_RECV.0 }
}

/// `rdma_create_qp_ex(3)`.
pub unsafe extern "C" fn rdma_create_qp_ex(
    c: *mut rdma_cm_id,
    attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    // SAFETY: the caller passes an identifier and attributes.
    minus_one(unsafe { id(c).and_then(|id| create_qp(id, attr)) })
}

/// Creates a queue pair on an identifier, with completion queues if it has none.
///
/// # Safety
/// The attributes are as their mask says, and their objects exist.
unsafe fn create_qp(id: &IdObject, attr: *mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: the struct is the object's. The attributes are the caller's, and are written up to the domain,
    // for which they have room in each version.
    unsafe {
        let c = id.c();
        let differs = |own: *mut ibv_cq, asked: *mut ibv_cq| {
            !own.is_null() && !asked.is_null() && own != asked
        };
        if attr.is_null()
            || (*c).verbs.is_null()
            || !(*c).qp.is_null()
            || differs((*c).send_cq, (*attr).send_cq)
            || differs((*c).recv_cq, (*attr).recv_cq)
        {
            return Err(Failure::INVALID);
        }
        if (*attr).comp_mask & verbs::QP_INIT_ATTR_PD == 0 || (*attr).pd.is_null() {
            (*attr).comp_mask |= verbs::QP_INIT_ATTR_PD;
            (*attr).pd = (*c).pd;
        } else if (*(*attr).pd).context != (*c).verbs {
            return Err(Failure::INVALID);
        }
        if is_target(c)
            && ((*attr).comp_mask & verbs::QP_INIT_ATTR_XRCD == 0 || (*attr).xrcd.is_null())
        {
            (*attr).xrcd = device::xrcd((*c).verbs)?;
            (*attr).comp_mask |= verbs::QP_INIT_ATTR_XRCD;
        }
        let lacking = |cq: bool, size: u32| if cq { size } else { 0 };
        let send = lacking(
            (*attr).send_cq.is_null() && (*c).send_cq.is_null(),
            (*attr).cap.max_send_wr,
        );
        let recv = lacking(
            (*attr).recv_cq.is_null() && (*c).recv_cq.is_null(),
            (*attr).cap.max_recv_wr,
        );
        let asked = ((*attr).send_cq, (*attr).recv_cq);
        let made = create_cqs(c, send, recv).and_then(|()| create_between(id, attr));
        if made.is_err() {
            destroy_cqs(c);
            ((*attr).send_cq, (*attr).recv_cq) = asked;
        }
        made
    }
}

/// Creates the queue pair, with the completion queues that exist now.
///
/// # Safety
/// The contract of [`create_qp`].
unsafe fn create_between(id: &IdObject, attr: *mut ibv_qp_init_attr_ex) -> Result<()> {
    // SAFETY: the caller vouches for it; the struct is the object's.
    unsafe {
        let c = id.c();
        if (*attr).send_cq.is_null() {
            (*attr).send_cq = (*c).send_cq;
        }
        if (*attr).recv_cq.is_null() {
            (*attr).recv_cq = (*c).recv_cq;
        }
        if (*attr).srq.is_null() {
            (*attr).srq = (*c).srq;
        }
        let qp = verbs::create_qp_ex((*c).verbs, attr)?;
        let ready = offer_ece(id, qp)
            .and_then(|()| initialise(id, qp))
            .and_then(|()| take_ece(id, qp));
        if ready.is_err() {
            verbs::ibv_destroy_qp(qp);
            return ready;
        }
        ((*c).pd, (*c).qp) = ((*qp).pd, qp);
    }
    Ok(())
}

/// `rdma_create_qp(3)`.
pub unsafe extern "C" fn rdma_create_qp(
    c: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes an identifier, a domain or NULL, and attributes.
    minus_one(unsafe {
        match attr.as_mut() {
            Some(attr) => id(c).and_then(|id| create_plain(id, pd, attr)),
            None => Err(Failure::INVALID),
        }
    })
}

/// Creates a queue pair with plain attributes, to which the actual capacities are written.
///
/// # Safety
/// The objects in the attributes exist.
pub(super) unsafe fn create_plain(
    id: &IdObject,
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
) -> Result<()> {
    let mut long = ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: verbs::QP_INIT_ATTR_PD,
        pd,
        xrcd: null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: 0,
    };
    // SAFETY: the caller vouches for it.
    let made = unsafe { create_qp(id, &mut long) };
    (attr.send_cq, attr.recv_cq, attr.srq, attr.cap) =
        (long.send_cq, long.recv_cq, long.srq, long.cap);
    made
}

/// `rdma_destroy_qp(3)`.
pub unsafe extern "C" fn rdma_destroy_qp(c: *mut rdma_cm_id) {
    // SAFETY: the caller passes an identifier, and does not use its queue pair any more.
    unsafe {
        if c.is_null() {
            return;
        }
        if !(*c).qp.is_null() {
            verbs::ibv_destroy_qp((*c).qp);
            (*c).qp = null_mut();
        }
        destroy_cqs(c);
    }
}

/// `rdma_set_local_ece(3)`.
pub unsafe extern "C" fn rdma_set_local_ece(c: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes an identifier and options.
    minus_one(unsafe {
        id(c).and_then(|id| match ece.as_ref() {
            Some(ece) if id.qp().is_null() && ece.vendor_id != 0 && ece.comp_mask == 0 => {
                id.state().local_ece = Ece {
                    vendor_id: ece.vendor_id,
                    options: ece.options,
                };
                Ok(())
            }
            _ => Err(Failure::INVALID),
        })
    })
}

/// `rdma_get_remote_ece(3)`.
pub unsafe extern "C" fn rdma_get_remote_ece(c: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    // SAFETY: the caller passes an identifier, and room for options.
    minus_one(unsafe {
        id(c).and_then(|id| {
            if !id.qp().is_null() || ece.is_null() {
                return Err(Failure::INVALID);
            }
            ece.write(id.state().remote_ece.into());
            Ok(())
        })
    })
}
