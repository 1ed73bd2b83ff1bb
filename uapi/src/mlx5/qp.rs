//! mlx5 driver data of queue pairs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Streams of a DC initiator.
///
/// Kernel: `struct mlx5_ib_create_qp_dci_streams`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQpDciStreams {
    /// Base-2 logarithm of the number of streams.
    pub log_num_concurent: u8,
    /// Base-2 logarithm of the number of failed streams that stops the QP.
    pub log_num_errored: u8,
}

/// Driver's request with QP creation.
///
/// Kernel: `struct mlx5_ib_create_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQp {
    /// Address of the rings: receive first, then send.
    pub buf_addr: u64,
    /// Address of the doorbell record, 8 bytes.
    pub db_addr: u64,
    /// Basic blocks (64 bytes) in the send ring.
    pub sq_wqe_count: u32,
    /// Elements in the receive ring.
    pub rq_wqe_count: u32,
    /// Base-2 logarithm of a receive element's size in bytes.
    pub rq_wqe_shift: u32,
    /// [`super::QpFlags`].
    pub flags: u32,
    /// Number of the QP in completions, in completion format 1.
    pub uidx: u32,
    /// Doorbell register, or UAR page, depending on `flags`.
    pub bfreg_index: u32,
    /// Address of the send ring of a raw packet QP; the access key of a DC target.
    pub sq_buf_addr: u64,
    /// Requested options of enhanced connection establishment.
    pub ece_options: u32,
    /// Streams, with their flag.
    pub dci_streams: CreateQpDciStreams,
    /// Must be 0.
    pub reserved: u16,
}

/// Driver's request with creation of an RSS QP.
///
/// Kernel: `struct mlx5_ib_create_qp_rss`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CreateQpRss {
    /// [`super::RxHashFields`].
    pub rx_hash_fields_mask: u64,
    /// Bit 0: Toeplitz.
    pub rx_hash_function: u8,
    /// Bytes of the key.
    pub rx_key_len: u8,
    /// Must be 0.
    pub reserved: [u8; 6],
    /// The key.
    pub rx_hash_key: [u8; 128],
    /// Must be 0.
    pub comp_mask: u32,
    /// [`super::QpFlags`].
    pub flags: u32,
}

/// Driver's answer to QP creation.
///
/// Kernel: `struct mlx5_ib_create_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQpResp {
    /// Allocated doorbell register.
    pub bfreg_index: u32,
    /// Actual options.
    pub ece_options: u32,
    /// [`super::CreateQpRespMask`]: which of the numbers below are valid.
    pub comp_mask: u32,
    /// Transport interface receive object.
    pub tirn: u32,
    /// Transport interface send object.
    pub tisn: u32,
    /// Receive queue.
    pub rqn: u32,
    /// Send queue.
    pub sqn: u32,
    /// Reserved.
    pub reserved1: u32,
    /// Address of the receive object in device context memory.
    pub tir_icm_addr: u64,
}

/// Pacing of bursts.
///
/// Kernel: `struct mlx5_ib_burst_info`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct BurstInfo {
    /// Largest burst in bytes.
    pub max_burst_sz: u32,
    /// Typical packet in bytes.
    pub typical_pkt_sz: u16,
    /// Must be 0.
    pub reserved: u16,
}

/// Driver's request with the extended `MODIFY_QP`.
///
/// Kernel: `struct mlx5_ib_modify_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ModifyQp {
    /// [`super::ModifyQpMask`].
    pub comp_mask: u32,
    /// Pacing of bursts.
    pub burst_info: BurstInfo,
    /// Options to set.
    pub ece_options: u32,
}

/// Driver's answer to the extended `MODIFY_QP`.
///
/// Kernel: `struct mlx5_ib_modify_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ModifyQpResp {
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Number of a DC target, which exists after this.
    pub dctn: u32,
    /// Actual options.
    pub ece_options: u32,
    /// Reserved.
    pub reserved: u32,
}
