//! mlx5 driver data of receive work queues.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's request with WQ creation.
///
/// Kernel: `struct mlx5_ib_create_wq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateWq {
    /// Address of the ring.
    pub buf_addr: u64,
    /// Address of the doorbell record.
    pub db_addr: u64,
    /// Elements in the ring.
    pub rq_wqe_count: u32,
    /// Base-2 logarithm of an element's size in bytes.
    pub rq_wqe_shift: u32,
    /// Number of the WQ in completions, in completion format 1.
    pub user_index: u32,
    /// Bit 0: elements carry a signature.
    pub flags: u32,
    /// Bit 0: striding, with the fields below.
    pub comp_mask: u32,
    /// Base-2 logarithm of a stride in bytes.
    pub single_stride_log_num_of_bytes: u32,
    /// Base-2 logarithm of the strides in an element.
    pub single_wqe_log_num_of_strides: u32,
    /// Not 0: packets are written 2 bytes into the stride.
    pub two_byte_shift_en: u32,
}

/// Driver's answer to WQ creation.
///
/// Kernel: `struct mlx5_ib_create_wq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateWqResp {
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Driver's answer to creation of an indirection table.
///
/// Kernel: `struct mlx5_ib_create_rwq_ind_tbl_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateRwqIndTblResp {
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Driver's request with WQ modification.
///
/// Kernel: `struct mlx5_ib_modify_wq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ModifyWq {
    /// Must be 0.
    pub comp_mask: u32,
    /// Must be 0.
    pub reserved: u32,
}
