//! Multicast groups, for identifiers for datagrams.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use uverbs_uapi::rdma_cm::JoinFlags;
use uverbs_uapi::types::AhAttr;

use super::abi::{rdma_cm_id, rdma_cm_join_mc_attr_ex};
use super::command::{LeaveMcast, address};
use super::event::complete;
use super::id::{Acknowledged, IdObject, id};
use super::verbs;
use crate::c::abi::port::ibv_gid;
use crate::c::failure::{Failure, Result, minus_one};
use crate::cm::address::Wire;
use crate::cm::command::JoinMcast;
use crate::error::Errno;

/// A membership. The kernel knows it by its address, which its events carry.
pub(super) struct Group {
    pub(super) id: *const IdObject,
    /// The program's context for it.
    pub(super) context: *mut c_void,
    pub(super) acknowledged: Arc<Acknowledged>,
    address: Wire,
    flags: JoinFlags,
    /// The kernel's number, once the group has been joined.
    handle: OnceLock<u32>,
    /// The group that the queue pair is attached to.
    attached: OnceLock<(ibv_gid, u16)>,
}

// SAFETY: the pointers are the program's and the identifier's; every thread may call the functions.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// The group has been joined: attaches the identifier's queue pair, if there is one, so that it receives.
    pub(super) fn joined(&self, id: &IdObject, path: &AhAttr) -> Result<()> {
        let qp = id.qp();
        if qp.is_null() || self.flags == JoinFlags::SENDONLY_FULLMEMBER {
            return Ok(());
        }
        let gid = ibv_gid { raw: path.grh.dgid };
        // SAFETY: the program keeps the queue pair while it is on the identifier.
        unsafe { verbs::attach_mcast(qp, &gid, path.dlid) }?;
        // A group is joined only once.
        let _ = self.attached.set((gid, path.dlid));
        Ok(())
    }
}

/// `rdma_join_multicast(3)`.
pub unsafe extern "C" fn rdma_join_multicast(
    c: *mut rdma_cm_id,
    group: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes an identifier and an address.
    minus_one(unsafe {
        id(c).and_then(|id| {
            let group = address(group).ok_or(Failure::INVALID)?;
            join(id, group, JoinFlags::FULLMEMBER, context)
        })
    })
}

/// `enum rdma_cm_join_mc_attr_mask`: the address and the flags, which both are required.
const ADDRESS_AND_FLAGS: u32 = 1 << 0 | 1 << 1;

/// `rdma_join_multicast_ex(3)`.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    c: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes an identifier, and attributes with an address.
    minus_one(unsafe {
        id(c).and_then(|id| {
            let attr = attr.as_ref().ok_or(Failure::INVALID)?;
            let flags = JoinFlags(attr.join_flags);
            match attr.comp_mask {
                ADDRESS_AND_FLAGS => {}
                mask if mask > ADDRESS_AND_FLAGS => return Err(Failure::UNSUPPORTED),
                _ => return Err(Failure::INVALID),
            }
            if !matches!(
                flags,
                JoinFlags::FULLMEMBER | JoinFlags::SENDONLY_FULLMEMBER
            ) {
                return Err(Failure::INVALID);
            }
            let group = address(attr.addr).ok_or(Failure::INVALID)?;
            join(id, group, flags, context)
        })
    })
}

/// Joins a group. An event reports when it has been joined.
fn join(id: &IdObject, address: Wire, flags: JoinFlags, context: *mut c_void) -> Result<()> {
    let group = Arc::new(Group {
        id,
        context,
        acknowledged: Arc::default(),
        address,
        flags,
        handle: OnceLock::new(),
        attached: OnceLock::new(),
    });
    // The event may come before the answer.
    id.state().groups.push(group.clone());
    let joined = id.send(&JoinMcast {
        id: id.handle(),
        uid: Arc::as_ptr(&group) as u64,
        addr_size: address.length,
        join_flags: flags.0 as u16,
        addr: address.bytes,
        ..Default::default()
    });
    match joined {
        Ok(reply) => {
            // It is set only here.
            let _ = group.handle.set(reply.id);
            complete(id)
        }
        Err(failure) => {
            let mut state = id.state();
            state.groups.retain(|other| !Arc::ptr_eq(other, &group));
            Err(failure)
        }
    }
}

/// `rdma_leave_multicast(3)`. Waits until the program has acknowledged the events of the group.
pub unsafe extern "C" fn rdma_leave_multicast(
    c: *mut rdma_cm_id,
    group: *mut libc::sockaddr,
) -> c_int {
    // SAFETY: the caller passes an identifier and an address.
    minus_one(unsafe { id(c).and_then(|id| leave(id, address(group).ok_or(Failure::INVALID)?)) })
}

fn leave(id: &IdObject, address: Wire) -> Result<()> {
    let group = {
        let mut state = id.state();
        let groups = &mut state.groups;
        // The latest one, if the program has joined several times.
        let at = groups
            .iter()
            .rposition(|group| group.address == address && group.handle.get().is_some())
            .ok_or(Failure(Errno::ADDRNOTAVAIL))?;
        groups.remove(at)
    };
    let qp = id.qp();
    if let (Some((gid, lid)), false) = (group.attached.get(), qp.is_null()) {
        // SAFETY: the program keeps the queue pair while it is on the identifier.
        unsafe { verbs::ibv_detach_mcast(qp, gid, *lid) };
    }
    let handle = group.handle.get().copied().unwrap_or_default();
    let left = id.send(&LeaveMcast::of(handle));
    match left {
        Ok(reply) => {
            // A synchronous identifier holds the event of the last function, which may be one of the group's.
            if id.state().sync {
                id.drop_event();
            }
            group.acknowledged.wait_for(reply.events_reported);
            Ok(())
        }
        Err(failure) => {
            // Its events may still come: it stays until the identifier is destroyed.
            id.state().groups.push(group);
            Err(failure)
        }
    }
}
