//! mlx5 driver data of completion queues.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's request with CQ creation.
///
/// Kernel: `struct mlx5_ib_create_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCq {
    /// Address of the ring.
    pub buf_addr: u64,
    /// Address of the doorbell record, 8 bytes.
    pub db_addr: u64,
    /// Size of an entry in bytes, 64 or 128.
    pub cqe_size: u32,
    /// Not 0: compressed entries.
    pub cqe_comp_en: u8,
    /// [`super::CqeCompFormat`].
    pub cqe_comp_res_format: u8,
    /// [`super::CreateCqFlags`].
    pub flags: u16,
    /// UAR whose doorbell arms the CQ, with its flag.
    pub uar_page_index: u16,
    /// Must be 0.
    pub reserved0: u16,
    /// Must be 0.
    pub reserved1: u32,
}

/// Driver's answer to CQ creation.
///
/// Kernel: `struct mlx5_ib_create_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCqResp {
    /// Number of the CQ in the device.
    pub cqn: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Driver's request with CQ resizing.
///
/// Kernel: `struct mlx5_ib_resize_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResizeCq {
    /// Address of the new ring.
    pub buf_addr: u64,
    /// Size of an entry in bytes.
    pub cqe_size: u16,
    /// Must be 0.
    pub reserved0: u16,
    /// Must be 0.
    pub reserved1: u32,
}
