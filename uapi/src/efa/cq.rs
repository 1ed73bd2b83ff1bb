//! Completion queues of EFA.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's request of CQ creation.
///
/// Kernel: `struct efa_ibv_create_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCq {
    /// Must be 0.
    pub comp_mask: u32,
    /// Bytes of an entry: 16 or 32.
    pub cq_entry_size: u32,
    /// Number of rings: [`super::AllocUcontextResp::sub_cqs_per_cq`].
    pub num_sub_cqs: u16,
    /// [`super::CreateCqFlags`].
    pub flags: u8,
    /// Must be 0.
    pub reserved_58: [u8; 5],
}

/// Driver's answer to CQ creation.
///
/// Kernel: `struct efa_ibv_create_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCqResp {
    /// [`super::CreateCqRespMask`].
    pub comp_mask: u32,
    /// Reserved.
    pub reserved_20: [u8; 4],
    /// The rings, one after the other.
    pub q_mmap_key: u64,
    /// Their bytes, in whole pages.
    pub q_mmap_size: u64,
    /// Number of the CQ.
    pub cq_idx: u16,
    /// Reserved.
    pub reserved_d0: [u8; 2],
    /// Offset of the doorbell in its page.
    pub db_off: u32,
    /// The page of the doorbell.
    pub db_mmap_key: u64,
}
