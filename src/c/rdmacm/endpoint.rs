//! Endpoints: identifiers with a queue pair, whose functions wait for their events.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::slice;

use uverbs_uapi::rdma_cm::{Event as Kind, IbOption, OptionLevel};

use super::abi::{rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_event_channel};
use super::addrinfo::PASSIVE;
use super::command::address;
use super::event::{complete, of_status, rdma_get_cm_event};
use super::id::{IdObject, Template, create, id, rdma_destroy_id};
use super::qp::{create_plain, rdma_destroy_qp};
use super::resolve::{bind, resolve_addr, resolve_route, set_option};
use super::srq::rdma_destroy_srq;
use crate::c::abi::attr::ibv_qp_init_attr;
use crate::c::abi::ibv_pd;
use crate::c::failure::{Failure, Result, minus_one};
use crate::error::Errno;

/// The milliseconds that each step of resolving may take.
const TIMEOUT: u32 = 2000;

/// `rdma_create_ep(3)`.
pub unsafe extern "C" fn rdma_create_ep(
    to: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the caller passes room for a pointer, an address, a domain or NULL, and attributes or NULL.
    minus_one(unsafe {
        match info.as_ref() {
            Some(info) => endpoint(info, pd, attr.as_mut()).map(|made| to.write(made)),
            None => Err(Failure::INVALID),
        }
    })
}

/// Makes an endpoint.
///
/// # Safety
/// The objects that the address and the attributes point to exist.
unsafe fn endpoint(
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<*mut rdma_cm_id> {
    let (space, qp_type) = (info.ai_port_space as u32, info.ai_qp_type as u32);
    let c = create(null_mut(), null_mut(), space, qp_type)?;
    // SAFETY: the caller vouches for the rest.
    let prepared = unsafe {
        id(c).and_then(|id| match info.ai_flags & PASSIVE {
            0 => active(id, info, pd, attr),
            _ => passive(id, info, pd, attr),
        })
    };
    match prepared {
        Ok(()) => Ok(c),
        Err(failure) => {
            // SAFETY: only this function has the identifier.
            unsafe { rdma_destroy_ep(c) };
            Err(failure)
        }
    }
}

/// Binds an endpoint, and keeps the attributes for the queue pairs of its requests.
///
/// # Safety
/// The contract of [`endpoint`].
unsafe fn passive(
    id: &IdObject,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let own = unsafe { address(info.ai_src_addr) };
    bind(id, own.ok_or(Failure::INVALID)?)?;
    if !pd.is_null() {
        // SAFETY: the struct is the object's.
        unsafe { (*id.c()).pd = pd };
    }
    id.state().qp_init_attr = attr.map(|attr| {
        Template(ibv_qp_init_attr {
            qp_type: info.ai_qp_type as u32,
            ..*attr
        })
    });
    Ok(())
}

/// Resolves an endpoint's address and route, and creates its queue pair.
///
/// # Safety
/// The contract of [`endpoint`].
unsafe fn active(
    id: &IdObject,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<()> {
    // SAFETY: the caller vouches for it.
    let (source, peer) = unsafe { (address(info.ai_src_addr), address(info.ai_dst_addr)) };
    resolve_addr(id, source, peer.ok_or(Failure::INVALID)?, TIMEOUT)?;
    match info.ai_route_len {
        0 => resolve_route(id, TIMEOUT)?,
        length => {
            let (level, name) = (OptionLevel::IB.0 as c_int, IbOption::PATH.0 as c_int);
            set_option(id, level, name, info.ai_route, length)?;
            complete(id)?;
        }
    }
    if let Some(attr) = attr {
        attr.qp_type = info.ai_qp_type as u32;
        // SAFETY: the caller vouches for it.
        unsafe { create_plain(id, pd, attr) }?;
    }
    if !info.ai_connect.is_null() {
        // SAFETY: the caller vouches for it.
        let data = unsafe { slice::from_raw_parts(info.ai_connect.cast(), info.ai_connect_len) };
        id.state().connect_data = data.to_vec();
    }
    Ok(())
}

/// `rdma_get_request(3)`. A thread may be cancelled in it, as in [`rdma_get_cm_event`].
pub unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    to: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: the caller passes an identifier.
    let channel = match unsafe { id(listen) }.and_then(channel_of_requests) {
        Ok(channel) => channel,
        Err(failure) => return minus_one(Err(failure)),
    };
    let mut event = null_mut();
    // SAFETY: the channel is the identifier's own. Nothing here has to be dropped.
    if unsafe { rdma_get_cm_event(channel, &mut event) } != 0 {
        return -1;
    }
    // SAFETY: the identifier is still there, the event is new, and the caller passes room for a pointer.
    minus_one(unsafe { id(listen).and_then(|id| request(id, event).map(|new| to.write(new))) })
}

/// The channel on which a waiting listener gets its requests.
fn channel_of_requests(listener: &IdObject) -> Result<*mut rdma_event_channel> {
    if !listener.state().sync {
        return Err(Failure::INVALID);
    }
    listener.drop_event();
    Ok(listener.channel())
}

/// The identifier of a request.
///
/// # Safety
/// The event is a new one of the listener.
unsafe fn request(listener: &IdObject, event: *mut rdma_cm_event) -> Result<*mut rdma_cm_id> {
    // SAFETY: the event is new.
    let new = unsafe { admit(listener, &*event) };
    // The request's identifier keeps the event, or the listener does if this fails.
    // SAFETY: both structs are of objects that exist.
    unsafe {
        match new {
            Ok(new) => (*new).event = event,
            Err(_) => {
                if Kind((*event).event) == Kind::CONNECT_REQUEST {
                    // The program does not get this identifier. Its peer is refused.
                    rdma_destroy_id(std::mem::replace(&mut (*event).id, listener.c()));
                }
                (*listener.c()).event = event;
            }
        }
    }
    new
}

/// Prepares a request's identifier, so that it can be accepted.
///
/// # Safety
/// The event is one of the listener.
unsafe fn admit(listener: &IdObject, event: &rdma_cm_event) -> Result<*mut rdma_cm_id> {
    match (Kind(event.event), event.status) {
        (Kind::REJECTED, _) => return Err(Failure(Errno::CONNREFUSED)),
        (Kind::CONNECT_REQUEST, 0) => {}
        (_, 0) => return Err(Failure::INVALID),
        (_, status) => return Err(of_status(status)),
    }
    let template = listener.state().qp_init_attr.as_ref().map(|template| {
        let Template(attr) = template;
        ibv_qp_init_attr { ..*attr }
    });
    if let Some(mut attr) = template {
        // SAFETY: the request's identifier is new, and the attributes' objects are the program's.
        unsafe { create_plain(id(event.id)?, (*listener.c()).pd, &mut attr) }?;
    }
    Ok(event.id)
}

/// `rdma_destroy_ep(3)`.
pub unsafe extern "C" fn rdma_destroy_ep(c: *mut rdma_cm_id) {
    // SAFETY: the caller passes an identifier for the last time.
    unsafe {
        if c.is_null() {
            return;
        }
        let (has_qp, has_srq) = (!(*c).qp.is_null(), !(*c).srq.is_null());
        if has_qp {
            rdma_destroy_qp(c);
        }
        if has_srq {
            rdma_destroy_srq(c);
        }
        rdma_destroy_id(c);
    }
}
