//! Address handles.

use crate::types::AhAttr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `CREATE_AH`.
///
/// Kernel: `struct ib_uverbs_create_ah`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateAh {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Handle of the PD.
    pub pd_handle: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The destination.
    pub attr: AhAttr,
}

/// Response of `CREATE_AH`; the driver's own answer follows directly.
///
/// Kernel: `struct ib_uverbs_create_ah_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateAhResp {
    /// Handle of the new AH.
    pub ah_handle: u32,
}

/// Request of `DESTROY_AH`, which has no response.
///
/// Kernel: `struct ib_uverbs_destroy_ah`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyAh {
    /// Handle of the AH.
    pub ah_handle: u32,
}
