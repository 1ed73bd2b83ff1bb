//! Connections: waiting for requests, requesting, accepting, refusing, ending.

use std::ffi::{c_int, c_void};
use std::slice;

use uverbs_uapi::rdma_cm::{self, ConnParam, PrivateData, RejectReason};

use super::abi::{rdma_cm_id, rdma_conn_param};
use super::device::Limits;
use super::event::{complete, confirm};
use super::id::{IdObject, State, id};
use super::qp;
use super::resolve::query_addr;
use crate::c::failure::{Failure, Result, minus_one};
use crate::cm::command::{Accept, Connect, Disconnect, Listen, Notify, Reject};

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: the most that the device has, or that the peer requests.
const MOST: u8 = 0xff;

/// `rdma_listen(3)`.
pub unsafe extern "C" fn rdma_listen(c: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| {
        id.send(&Listen {
            id: id.handle(),
            backlog: backlog as u32,
        })?;
        query_addr(id)
    }))
}

/// Checks the numbers that a program requests for a connection, and replaces a request for the most by the
/// device's numbers.
fn depths(
    id: &IdObject,
    param: Option<&rdma_conn_param>,
    most: impl FnOnce(&State, Limits) -> Limits,
) -> Result<()> {
    let mut state = id.state();
    let limits = state.device.as_ref().ok_or(Failure::INVALID)?.limits;
    let asked = |number: Option<u8>| number.filter(|number| *number != MOST);
    let depth = asked(param.map(|param| param.initiator_depth));
    let resources = asked(param.map(|param| param.responder_resources));
    if id.is_of_tcp() {
        let too_many = resources.is_some_and(|number| number > limits.responder_resources)
            || depth.is_some_and(|number| number > limits.initiator_depth);
        if too_many || (param.is_none() && id.qp().is_null()) {
            return Err(Failure::INVALID);
        }
    }
    let most = most(&state, limits);
    state.initiator_depth = depth.unwrap_or(most.initiator_depth);
    state.responder_resources = resources.unwrap_or(most.responder_resources);
    Ok(())
}

/// This side of a connection, in the kernel's form.
///
/// # Safety
/// The private data have the length in the parameters, and the identifier's queue pair exists.
unsafe fn side(id: &IdObject, param: Option<&rdma_conn_param>) -> Result<ConnParam> {
    let state = id.state();
    // SAFETY: the caller vouches for it.
    let (qp_num, srq) = match unsafe { id.qp().as_ref() } {
        Some(qp) => (qp.qp_num, (!qp.srq.is_null()).into()),
        None => param.map_or((0, 0), |param| (param.qp_num, param.srq)),
    };
    let mut side = ConnParam {
        qp_num,
        srq,
        responder_resources: state.responder_resources,
        initiator_depth: state.initiator_depth,
        flow_control: param.map_or(0, |param| param.flow_control),
        retry_count: param.map_or(7, |param| param.retry_count),
        rnr_retry_count: param.map_or(7, |param| param.rnr_retry_count),
        valid: 1,
        ..ConnParam::default()
    };
    let mut data = state.connect_data.clone();
    if let Some(param) = param {
        // SAFETY: the caller vouches for it.
        data.extend_from_slice(unsafe { bytes(param.private_data, param.private_data_len) });
    }
    side.private_data_len = u8::try_from(data.len()).map_err(|_| Failure::INVALID)?;
    side.private_data.0[..data.len()].copy_from_slice(&data);
    Ok(side)
}

/// Private data of a program.
///
/// # Safety
/// The data have this length.
unsafe fn bytes<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { slice::from_raw_parts(data.cast(), length.into()) }
}

/// `rdma_connect(3)`.
pub unsafe extern "C" fn rdma_connect(c: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller passes an identifier, and parameters or NULL.
    minus_one(unsafe { id(c).and_then(|id| connect(id, param.as_ref())) })
}

/// Requests a connection from the peer.
///
/// # Safety
/// The contract of [`side`].
unsafe fn connect(id: &IdObject, param: Option<&rdma_conn_param>) -> Result<()> {
    depths(id, param, |_, limits| limits)?;
    let ece = id.state().local_ece;
    let command = Connect {
        id: id.handle(),
        // SAFETY: the caller vouches for it.
        conn_param: unsafe { side(id, param) }?,
        ece: rdma_cm::Ece {
            vendor_id: ece.vendor_id,
            attr_mod: ece.options,
        },
        ..Default::default()
    };
    id.send(&command)?;
    id.state().connect_data.clear();
    complete(id)
}

/// `rdma_accept(3)`.
pub unsafe extern "C" fn rdma_accept(c: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: the caller passes an identifier, and parameters or NULL.
    minus_one(unsafe { id(c).and_then(|id| accept(id, param.as_ref())) })
}

/// Accepts a request.
///
/// # Safety
/// The contract of [`side`].
unsafe fn accept(id: &IdObject, param: Option<&rdma_conn_param>) -> Result<()> {
    if param.is_none() && id.qp().is_null() {
        return Err(Failure::INVALID);
    }
    depths(id, param, |state, limits| Limits {
        initiator_depth: state.initiator_depth.min(limits.initiator_depth),
        responder_resources: state.responder_resources.min(limits.responder_resources),
    })?;
    // SAFETY: the caller vouches for it.
    let param = unsafe { side(id, param) }?;
    if !id.is_ud() {
        qp::to_rtr(id, Some(param.responder_resources))?;
        qp::to_rts(id, Some(param.initiator_depth))?;
    }
    let ece = {
        let state = id.state();
        rdma_cm::Ece {
            vendor_id: state.remote_ece.vendor_id,
            attr_mod: state.local_ece.options,
        }
    };
    let accepted = id.send(&Accept {
        id: id.handle(),
        uid: id.uid(),
        conn_param: param,
        ece,
        ..Default::default()
    });
    if accepted.is_err() {
        let _ = qp::to_error(id);
    }
    accepted?;
    if !id.is_ud() {
        return complete(id);
    }
    if id.state().sync {
        id.drop_event();
    }
    Ok(())
}

/// `rdma_establish(3)`.
pub unsafe extern "C" fn rdma_establish(c: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| match id.qp().is_null() {
        true => confirm(id),
        false => Err(Failure::INVALID),
    }))
}

/// `rdma_reject(3)`.
pub unsafe extern "C" fn rdma_reject(c: *mut rdma_cm_id, data: *const c_void, length: u8) -> c_int {
    // SAFETY: the caller passes an identifier and data.
    minus_one(unsafe { reject(c, data, length, RejectReason(0)) })
}

/// `rdma_reject_ece(3)`.
pub unsafe extern "C" fn rdma_reject_ece(
    c: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> c_int {
    let reason = RejectReason::VENDOR_OPTION_NOT_SUPPORTED;
    // SAFETY: the caller passes an identifier and data.
    minus_one(unsafe { reject(c, data, length, reason) })
}

/// Refuses a request.
///
/// # Safety
/// The identifier exists, and the data have this length.
unsafe fn reject(
    c: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
    reason: RejectReason,
) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let (id, bytes) = unsafe { (id(c)?, bytes(data, length)) };
    let mut data = PrivateData::default();
    data.0[..bytes.len()].copy_from_slice(bytes);
    id.send(&Reject {
        id: id.handle(),
        private_data_len: bytes.len() as u8,
        reason: reason.0 as u8,
        private_data: data,
        ..Default::default()
    })
}

/// `rdma_notify(3)`.
pub unsafe extern "C" fn rdma_notify(c: *mut rdma_cm_id, event: u32) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| {
        id.send(&Notify {
            id: id.handle(),
            event,
        })
    }))
}

/// `rdma_disconnect(3)`.
pub unsafe extern "C" fn rdma_disconnect(c: *mut rdma_cm_id) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| {
        qp::shut_down(id)?;
        id.send(&Disconnect { id: id.handle() })?;
        complete(id)
    }))
}
