//! Queue pairs of EFA.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's request of QP creation.
///
/// Kernel: `struct efa_ibv_create_qp`; in Linux 6.1 its first 16 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQp {
    /// Must be 0.
    pub comp_mask: u32,
    /// Bytes of the receive ring.
    pub rq_ring_size: u32,
    /// Bytes of the send ring.
    pub sq_ring_size: u32,
    /// [`super::QP_DRIVER_TYPE_SRD`] with `IBV_QPT_DRIVER`.
    pub driver_qp_type: u32,
    /// [`super::CreateQpFlags`].
    pub flags: u16,
    /// Service level. Linux 7.3 has it, 6.12 does not.
    pub sl: u8,
    /// Must be 0.
    pub reserved_98: [u8; 5],
}

/// Driver's answer to QP creation.
///
/// Kernel: `struct efa_ibv_create_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQpResp {
    /// No bits are defined.
    pub comp_mask: u32,
    /// Offset of the receive doorbell in its page.
    pub rq_db_offset: u32,
    /// Offset of the send doorbell in its page.
    pub sq_db_offset: u32,
    /// Offset of the send ring in its first page.
    pub llq_desc_offset: u32,
    /// The receive ring.
    pub rq_mmap_key: u64,
    /// Its bytes, in whole pages.
    pub rq_mmap_size: u64,
    /// The page of the receive doorbell.
    pub rq_db_mmap_key: u64,
    /// The page of the send doorbell.
    pub sq_db_mmap_key: u64,
    /// The send ring, in the device's memory.
    pub llq_desc_mmap_key: u64,
    /// The ring of the send CQ in which sends are reported.
    pub send_sub_cq_idx: u16,
    /// The ring of the receive CQ in which receives are reported.
    pub recv_sub_cq_idx: u16,
    /// Reserved.
    pub reserved_1e0: [u8; 4],
}
