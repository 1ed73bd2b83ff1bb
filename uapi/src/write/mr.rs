//! Memory regions.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `REG_MR`.
///
/// Kernel: `struct ib_uverbs_reg_mr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RegMr {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Address of the memory in this process.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address of the first byte for peers and work requests; its offset in a page must be that of `start`.
    pub hca_va: u64,
    /// Handle of the PD.
    pub pd_handle: u32,
    /// [`crate::flags::Access`].
    pub access_flags: u32,
}

/// Response of `REG_MR`.
///
/// Kernel: `struct ib_uverbs_reg_mr_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RegMrResp {
    /// Handle of the new MR.
    pub mr_handle: u32,
    /// Key for local use in scatter/gather elements.
    pub lkey: u32,
    /// Key for remote peers.
    pub rkey: u32,
}

/// Request of `REREG_MR`; it changes only the properties in `flags`.
///
/// Kernel: `struct ib_uverbs_rereg_mr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ReregMr {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the MR.
    pub mr_handle: u32,
    /// [`crate::flags::ReregMrFlags`]: what to change.
    pub flags: u32,
    /// New address of the memory in this process.
    pub start: u64,
    /// New length in bytes.
    pub length: u64,
    /// New address of the first byte for peers and work requests.
    pub hca_va: u64,
    /// New PD.
    pub pd_handle: u32,
    /// New [`crate::flags::Access`].
    pub access_flags: u32,
}

/// Response of `REREG_MR`.
///
/// Kernel: `struct ib_uverbs_rereg_mr_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ReregMrResp {
    /// Local key after the change.
    pub lkey: u32,
    /// Remote key after the change.
    pub rkey: u32,
}

/// Request of `DEREG_MR`, which has no response.
///
/// Kernel: `struct ib_uverbs_dereg_mr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DeregMr {
    /// Handle of the MR.
    pub mr_handle: u32,
}
