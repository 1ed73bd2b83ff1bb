//! Thread domains, parent domains and XRC domains.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use super::context::ibv_context;
use super::ibv_pd;

#[repr(C)]
pub struct ibv_td_init_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

/// Allocates memory: domain, its context, size, alignment, type of resource. NULL means failure, and the
/// largest address requests the driver's own memory.
pub type Alloc = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;

/// Frees memory: domain, its context, address, type of resource.
pub type Free = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

#[repr(C)]
pub struct ibv_parent_domain_init_attr {
    pub pd: *mut ibv_pd,
    pub td: *mut ibv_td,
    pub comp_mask: u32,
    pub alloc: Option<Alloc>,
    pub free: Option<Free>,
    pub pd_context: *mut c_void,
}

const _: () = {
    assert!(size_of::<ibv_parent_domain_init_attr>() == 48);
    assert!(offset_of!(ibv_parent_domain_init_attr, alloc) == 24);
    assert!(offset_of!(ibv_parent_domain_init_attr, pd_context) == 40);
};

#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}

#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}
