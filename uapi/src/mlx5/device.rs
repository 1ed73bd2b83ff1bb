//! mlx5 driver data of the extended `QUERY_DEVICE`, and of its own port query.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// TCP segmentation.
///
/// Kernel: `struct mlx5_ib_tso_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct TsoCaps {
    /// Largest payload in bytes.
    pub max_tso: u32,
    /// Bit mask of QP types: bit n is type n.
    pub supported_qpts: u32,
}

/// Receive side scaling.
///
/// Kernel: `struct mlx5_ib_rss_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RssCaps {
    /// [`super::RxHashFields`] that can be hashed.
    pub rx_hash_fields_mask: u64,
    /// Bit 0: Toeplitz.
    pub rx_hash_function: u8,
    /// Reserved.
    pub reserved: [u8; 7],
}

/// Compressed completions.
///
/// Kernel: `struct mlx5_ib_cqe_comp_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CqeCompCaps {
    /// Completions in one compressed session.
    pub max_num: u32,
    /// [`super::CqeCompFormat`].
    pub supported_format: u32,
}

/// Packet pacing.
///
/// Kernel: `struct mlx5_packet_pacing_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PacketPacingCaps {
    /// Slowest rate in kbit/s.
    pub qp_rate_limit_min: u32,
    /// Fastest rate in kbit/s.
    pub qp_rate_limit_max: u32,
    /// Bit mask of QP types: bit n is type n.
    pub supported_qpts: u32,
    /// Bit 0: bursts.
    pub cap_flags: u8,
    /// Must be 0.
    pub reserved: [u8; 3],
}

/// Parsing helped by software.
///
/// Kernel: `struct mlx5_ib_sw_parsing_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct SwParsingCaps {
    /// Bit 0: it is supported; 1: checksum; 2: segmentation.
    pub sw_parsing_offloads: u32,
    /// Bit mask of QP types: bit n is type n.
    pub supported_qpts: u32,
}

/// Striding receive queues; logarithms to base 2.
///
/// Kernel: `struct mlx5_ib_striding_rq_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct StridingRqCaps {
    /// Smallest stride.
    pub min_single_stride_log_num_of_bytes: u32,
    /// Largest stride.
    pub max_single_stride_log_num_of_bytes: u32,
    /// Fewest strides in an element.
    pub min_single_wqe_log_num_of_strides: u32,
    /// Most strides in an element.
    pub max_single_wqe_log_num_of_strides: u32,
    /// Bit mask of QP types: bit n is type n.
    pub supported_qpts: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Streams of a DC initiator; logarithms to base 2.
///
/// Kernel: `struct mlx5_ib_dci_streams_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DciStreamsCaps {
    /// Most streams.
    pub max_log_num_concurent: u8,
    /// Most failed streams.
    pub max_log_num_errored: u8,
}

/// Value and mask of a steering register.
///
/// Kernel: `struct mlx5_ib_uapi_reg`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Reg {
    /// Value.
    pub value: u32,
    /// Significant bits.
    pub mask: u32,
}

/// Driver's answer to the extended `QUERY_DEVICE`.
///
/// Kernel: `struct mlx5_ib_query_device_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryDeviceResp {
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Segmentation.
    pub tso_caps: TsoCaps,
    /// Receive side scaling.
    pub rss_caps: RssCaps,
    /// Compressed completions.
    pub cqe_comp_caps: CqeCompCaps,
    /// Pacing.
    pub packet_pacing_caps: PacketPacingCaps,
    /// Bit 1: multi-packet sends; bit 2: enhanced.
    pub mlx5_ib_support_multi_pkt_send_wqes: u32,
    /// [`super::QueryDevRespFlags`].
    pub flags: u32,
    /// Parsing.
    pub sw_parsing_caps: SwParsingCaps,
    /// Striding receive queues.
    pub striding_rq_caps: StridingRqCaps,
    /// [`super::TunnelOffloads`].
    pub tunnel_offloads_caps: u32,
    /// Streams.
    pub dci_streams_caps: DciStreamsCaps,
    /// Reserved.
    pub reserved: u16,
    /// Value of steering register C0 on packets that this device receives. Since Linux 6.8.
    pub reg_c0: Reg,
}

/// Answer of mlx5's method `QUERY_PORT`.
///
/// Kernel: `struct mlx5_ib_uapi_query_port`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryPort {
    /// [`super::QueryPortFlags`]: which of the fields below are valid.
    pub flags: u64,
    /// Virtual port.
    pub vport: u16,
    /// Virtual device of that port.
    pub vport_vhca_id: u16,
    /// Virtual device that owns the switch.
    pub esw_owner_vhca_id: u16,
    /// Reserved.
    pub rsvd0: u16,
    /// Steering root for receive.
    pub vport_steering_icm_rx: u64,
    /// Steering root for send.
    pub vport_steering_icm_tx: u64,
    /// Mark of packets from that port.
    pub reg_c0: Reg,
}
