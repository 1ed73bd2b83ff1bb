//! Memory windows.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `ALLOC_MW`.
///
/// Kernel: `struct ib_uverbs_alloc_mw`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocMw {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the PD.
    pub pd_handle: u32,
    /// [`crate::enums::MwType`].
    pub mw_type: u8,
    /// Must be 0.
    pub reserved: [u8; 3],
}

/// Response of `ALLOC_MW`.
///
/// Kernel: `struct ib_uverbs_alloc_mw_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocMwResp {
    /// Handle of the new window.
    pub mw_handle: u32,
    /// Its key before the first bind.
    pub rkey: u32,
}

/// Request of `DEALLOC_MW`, which has no response.
///
/// Kernel: `struct ib_uverbs_dealloc_mw`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DeallocMw {
    /// Handle of the window.
    pub mw_handle: u32,
}
