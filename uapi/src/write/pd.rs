//! Protection domains.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `ALLOC_PD`.
///
/// Kernel: `struct ib_uverbs_alloc_pd`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocPd {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
}

/// Response of `ALLOC_PD`; the driver's own answer follows directly.
///
/// Kernel: `struct ib_uverbs_alloc_pd_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocPdResp {
    /// Handle of the new PD.
    pub pd_handle: u32,
}

/// Request of `DEALLOC_PD`, which has no response.
///
/// Kernel: `struct ib_uverbs_dealloc_pd`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DeallocPd {
    /// Handle of the PD.
    pub pd_handle: u32,
}
