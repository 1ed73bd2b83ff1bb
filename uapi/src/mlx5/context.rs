//! Opening a context on mlx5.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's request of `GET_CONTEXT`, first version.
///
/// Kernel: `struct mlx5_ib_alloc_ucontext_req`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocUcontextReq {
    /// Requested doorbell registers in all.
    pub total_num_bfregs: u32,
    /// The number of these for low latency.
    pub num_low_latency_bfregs: u32,
}

/// Driver's request of `GET_CONTEXT`.
///
/// Kernel: `struct mlx5_ib_alloc_ucontext_req_v2`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocUcontextReqV2 {
    /// Requested doorbell registers in all.
    pub total_num_bfregs: u32,
    /// The number of these for low latency.
    pub num_low_latency_bfregs: u32,
    /// [`super::AllocUctxFlags`].
    pub flags: u32,
    /// Must be 0.
    pub comp_mask: u32,
    /// Newest completion format that user space knows.
    pub max_cqe_version: u8,
    /// Must be 0.
    pub reserved0: u8,
    /// Must be 0.
    pub reserved1: u16,
    /// Must be 0.
    pub reserved2: u32,
    /// [`super::LibCaps`].
    pub lib_caps: u64,
}

/// Driver's answer to `GET_CONTEXT`, and to the method `QUERY_CONTEXT`.
///
/// Kernel: `struct mlx5_ib_alloc_ucontext_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocUcontextResp {
    /// QPs the device may have.
    pub qp_tab_size: u32,
    /// Size of a BlueFlame register in bytes, 0 for none.
    pub bf_reg_size: u32,
    /// Allocated doorbell registers.
    pub tot_bfregs: u32,
    /// Cache line of the host in bytes.
    pub cache_line_size: u32,
    /// Largest send element in bytes.
    pub max_sq_desc_sz: u16,
    /// Largest receive element in bytes.
    pub max_rq_desc_sz: u16,
    /// Basic blocks (64 bytes) in one send ring.
    pub max_send_wqebb: u32,
    /// Elements in one receive ring.
    pub max_recv_wr: u32,
    /// Elements in one SRQ.
    pub max_srq_recv_wr: u32,
    /// Ports.
    pub num_ports: u16,
    /// [`super::FlowActionCaps`].
    pub flow_action_flags: u16,
    /// [`super::AllocUcontextRespMask`]: which of the fields below are valid.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Completion format in use.
    pub cqe_version: u8,
    /// [`super::UhwCmds`]: commands that take driver data.
    pub cmds_supp_uhw: u8,
    /// [`super::InlineMode`] that raw packets need.
    pub eth_min_inline: u8,
    /// Bit mask of clock page layouts.
    pub clock_info_versions: u8,
    /// Offset of the clock within its page.
    pub hca_core_clock_offset: u64,
    /// Base-2 logarithm of a UAR's size in bytes.
    pub log_uar_size: u32,
    /// UARs in one system page.
    pub num_uars_per_page: u32,
    /// Doorbell registers that may be added later.
    pub num_dyn_bfregs: u32,
    /// Key of a region that discards sends and reads as filler.
    pub dump_fill_mkey: u32,
}
