//! Addresses and routes: binding, resolving, and reading the kernel's results.

use std::ffi::{c_int, c_void};

use super::abi::{rdma_cm_id, sockaddr_storage};
use super::command::{QueryGid, QueryPath, address, port};
use super::device::Use;
use super::event::complete;
use super::id::{IdObject, id, set_paths};
use crate::c::abi::port::ibv_gid;
use crate::c::failure::{Failure, Result, minus_one};
use crate::cm::address::Wire;
use crate::cm::command::{self, QueryAddr, ResolveRoute, SetOption};

/// A program's milliseconds.
fn milliseconds(timeout: c_int) -> u32 {
    timeout as u32
}

/// Stores the kernel's addresses in the identifier, and the device once there is one.
pub(super) fn query_addr(id: &IdObject) -> Result<()> {
    let reply = id.send(&QueryAddr::of(id.handle()))?;
    let c = id.c();
    // SAFETY: the struct is the object's.
    unsafe {
        let addr = &raw mut (*c).route.addr;
        put(&mut (*addr).src, &reply.src_addr.0, reply.src_size);
        put(&mut (*addr).dst, &reply.dst_addr.0, reply.dst_size);
    }
    let mut state = id.state();
    if state.device.is_none() && reply.port_num != 0 {
        let device = Use::of(reply.node_guid.get().to_be(), reply.ibdev_index)?;
        // SAFETY: as above.
        unsafe {
            ((*c).verbs, (*c).pd) = (device.verbs, device.pd);
            (*c).port_num = reply.port_num;
            (*c).route.addr.ibaddr.pkey = reply.pkey;
        }
        state.device = Some(device);
    }
    Ok(())
}

/// Stores the first bytes of an address.
fn put(to: &mut sockaddr_storage, from: &[u8; 128], length: u16) {
    let length = usize::from(length).min(from.len());
    to.0[..length].copy_from_slice(&from[..length]);
}

/// Stores the GIDs in the identifier.
pub(super) fn query_gid(id: &IdObject) -> Result<()> {
    let reply = id.send(&QueryGid::of(id.handle()))?;
    // The answer has the form of `struct sockaddr_ib`.
    let gid = |address: &[u8; 128]| ibv_gid {
        raw: address[8..24].try_into().unwrap_or_default(),
    };
    // SAFETY: the struct is the object's.
    unsafe {
        let addr = &raw mut (*id.c()).route.addr.ibaddr;
        (*addr).sgid = gid(&reply.src_addr.0);
        (*addr).dgid = gid(&reply.dst_addr.0);
    }
    Ok(())
}

/// Stores the paths in the identifier.
pub(super) fn query_path(id: &IdObject) -> Result<()> {
    let reply = id.send(&QueryPath::of(id.handle()))?;
    // SAFETY: the struct is the object's, and so are its paths.
    unsafe { set_paths(&mut (*id.c()).route, reply.records()) };
    Ok(())
}

/// `rdma_bind_addr(3)`.
pub unsafe extern "C" fn rdma_bind_addr(c: *mut rdma_cm_id, own: *mut libc::sockaddr) -> c_int {
    // SAFETY: the caller passes an identifier and an address.
    minus_one(unsafe { id(c).and_then(|id| bind(id, address(own).ok_or(Failure::INVALID)?)) })
}

/// Binds an identifier to an own address.
pub(super) fn bind(id: &IdObject, address: Wire) -> Result<()> {
    id.send(&command::bind(id.handle(), address))?;
    query_addr(id)?;
    query_gid(id)
}

/// `rdma_resolve_addr(3)`.
pub unsafe extern "C" fn rdma_resolve_addr(
    c: *mut rdma_cm_id,
    own: *mut libc::sockaddr,
    peer: *mut libc::sockaddr,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller passes an identifier and addresses.
    minus_one(unsafe {
        id(c).and_then(|id| {
            let source = match own.is_null() {
                true => None,
                false => Some(address(own).ok_or(Failure::INVALID)?),
            };
            let peer = address(peer).ok_or(Failure::INVALID)?;
            resolve_addr(id, source, peer, milliseconds(timeout))
        })
    })
}

/// Finds the device and the neighbour on the route to a peer.
pub(super) fn resolve_addr(
    id: &IdObject,
    source: Option<Wire>,
    peer: Wire,
    timeout_ms: u32,
) -> Result<()> {
    // SAFETY: the struct is the object's.
    let to = unsafe { &raw mut (*id.c()).route.addr.dst };
    // Before the command: once it is sent, another thread may read the event, which writes the address too.
    // SAFETY: a field of the struct. No event is under way that writes it.
    let before = unsafe {
        let before = to.read();
        put(&mut *to, &peer.bytes.0, peer.length);
        before
    };
    let sent = id.send(&command::resolve_addr(
        id.handle(),
        timeout_ms,
        source,
        peer,
    ));
    if sent.is_err() {
        // SAFETY: as above; no event comes of what the kernel has refused.
        unsafe { to.write(before) };
    }
    sent?;
    complete(id)
}

/// `rdma_resolve_route(3)`.
pub unsafe extern "C" fn rdma_resolve_route(c: *mut rdma_cm_id, timeout: c_int) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| resolve_route(id, milliseconds(timeout))))
}

/// Finds the path to the peer.
pub(super) fn resolve_route(id: &IdObject, timeout_ms: u32) -> Result<()> {
    id.send(&ResolveRoute {
        id: id.handle(),
        timeout_ms,
    })?;
    complete(id)
}

/// `rdma_set_option(3)`.
pub unsafe extern "C" fn rdma_set_option(
    c: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller passes an identifier.
    minus_one(unsafe { id(c) }.and_then(|id| set_option(id, level, name, value, length)))
}

/// Sets an option. The kernel reads the value, and reports it if it cannot.
pub(super) fn set_option(
    id: &IdObject,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> Result<()> {
    id.send(&SetOption {
        optval: value as u64,
        id: id.handle(),
        level: level as u32,
        optname: name as u32,
        optlen: u32::try_from(length).map_err(|_| Failure::INVALID)?,
    })
}

/// `rdma_get_src_port(3)`, in network byte order.
pub unsafe extern "C" fn rdma_get_src_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller passes an identifier.
    port(unsafe { &(*c).route.addr.src })
}

/// `rdma_get_dst_port(3)`, in network byte order.
pub unsafe extern "C" fn rdma_get_dst_port(c: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller passes an identifier.
    port(unsafe { &(*c).route.addr.dst })
}
