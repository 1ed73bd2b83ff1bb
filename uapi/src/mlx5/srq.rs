//! mlx5 driver data of shared receive queues.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's request with SRQ creation.
///
/// Kernel: `struct mlx5_ib_create_srq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateSrq {
    /// Address of the ring.
    pub buf_addr: u64,
    /// Address of the doorbell record.
    pub db_addr: u64,
    /// Bit 0: elements carry a signature.
    pub flags: u32,
    /// Must be 0.
    pub reserved0: u32,
    /// Number of the SRQ in completions, in completion format 1.
    pub uidx: u32,
    /// Must be 0.
    pub reserved1: u32,
}

/// Driver's answer to SRQ creation.
///
/// Kernel: `struct mlx5_ib_create_srq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateSrqResp {
    /// Number of the SRQ in the device.
    pub srqn: u32,
    /// Reserved.
    pub reserved: u32,
}
