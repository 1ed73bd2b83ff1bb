//! mlx5 driver data of protection domains and address handles.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's answer to PD creation.
///
/// Kernel: `struct mlx5_ib_alloc_pd_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocPdResp {
    /// Number of the PD in the device.
    pub pdn: u32,
}

/// Driver's answer to AH creation.
///
/// Kernel: `struct mlx5_ib_create_ah_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateAhResp {
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Ethernet address of the next hop.
    pub dmac: [u8; 6],
    /// Reserved.
    pub reserved: [u8; 6],
}

/// Driver's request with memory window creation.
///
/// Kernel: `struct mlx5_ib_alloc_mw`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocMw {
    /// Must be 0.
    pub comp_mask: u32,
    /// Translation entries that the window needs.
    pub num_klms: u8,
    /// Must be 0.
    pub reserved1: u8,
    /// Must be 0.
    pub reserved2: u16,
}
