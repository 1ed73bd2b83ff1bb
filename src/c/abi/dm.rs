//! Device memory.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use super::context::ibv_context;

#[repr(C)]
pub struct ibv_alloc_dm_attr {
    pub length: usize,
    pub log_align_req: u32,
    pub comp_mask: u32,
}

/// Copies to device memory: the memory, the offset in it, the source, the number of bytes.
pub type CopyTo = unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int;

/// Copies from device memory: the destination, the memory, the offset in it, the number of bytes.
pub type CopyFrom = unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int;

#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: Option<CopyTo>,
    pub memcpy_from_dm: Option<CopyFrom>,
    pub comp_mask: u32,
    pub handle: u32,
}

const _: () = {
    assert!(size_of::<ibv_alloc_dm_attr>() == 16);
    assert!(size_of::<ibv_dm>() == 32);
    assert!(offset_of!(ibv_dm, memcpy_from_dm) == 16);
    assert!(offset_of!(ibv_dm, handle) == 28);
};
