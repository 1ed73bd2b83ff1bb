//! Buffers that the library allocates, and regions with attributes.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

/// An object that programs know only by its address.
#[repr(C)]
pub struct ibv_buf {
    _opaque: [u8; 0],
}

impl ibv_buf {
    pub(crate) const fn new() -> Self {
        Self { _opaque: [] }
    }
}

/// The struct of header version 64 and later; in version 59, which introduced it, it ends before `buf`.
#[repr(C)]
pub struct ibv_mr_init_attr {
    pub length: usize,
    pub access: c_int,
    pub comp_mask: u64,
    pub iova: u64,
    pub addr: *mut c_void,
    pub fd: c_int,
    pub fd_offset: u64,
    pub dmah: *mut c_void,
    /// Present only if `comp_mask` says so.
    pub buf: *mut ibv_buf,
}

const _: () = {
    assert!(size_of::<ibv_mr_init_attr>() == 72);
    assert!(offset_of!(ibv_mr_init_attr, comp_mask) == 16);
    assert!(offset_of!(ibv_mr_init_attr, addr) == 32);
    assert!(offset_of!(ibv_mr_init_attr, fd_offset) == 48);
    assert!(offset_of!(ibv_mr_init_attr, buf) == 64);
};
