//! Opening a context on EFA, the limits of its device, and its protection domains and address handles.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Driver's request of `GET_CONTEXT`.
///
/// Kernel: `struct efa_ibv_alloc_ucontext_cmd`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocUcontextCmd {
    /// [`super::UcontextCaps`]: the limits that user space respects. If a limit is missing that the device
    /// needs, the kernel refuses. Called `comp_mask` before Linux 7.3.
    pub supported_caps: u32,
    /// Must be 0.
    pub reserved_20: [u8; 4],
}

/// Driver's answer to `GET_CONTEXT`.
///
/// Kernel: `struct efa_ibv_alloc_ucontext_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocUcontextResp {
    /// No bits are defined.
    pub comp_mask: u32,
    /// [`super::UdataCmds`]: commands that take driver data.
    pub cmds_supp_udata_mask: u32,
    /// Number of rings of a completion queue.
    pub sub_cqs_per_cq: u16,
    /// Inline bytes of a request of 64 bytes.
    pub inline_buf_size: u16,
    /// Largest send ring in bytes.
    pub max_llq_size: u32,
    /// Most bytes that may be written to a send ring between two doorbells, in units of 64 bytes; 0 for no
    /// limit.
    pub max_tx_batch: u16,
    /// Fewest requests of a send ring; 0 for no limit.
    pub min_sq_wr: u16,
    /// Inline bytes of a request of 128 bytes; those of a request of 64 bytes if the device has no others.
    /// Since Linux 7.3; before that 0.
    pub inline_buf_size_ex: u16,
    /// Reserved.
    pub reserved_b0: [u8; 2],
}

/// Driver's answer to `EX_QUERY_DEVICE`.
///
/// Kernel: `struct efa_ibv_ex_query_device_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryDeviceResp {
    /// No bits are defined.
    pub comp_mask: u32,
    /// Most requests of a send ring.
    pub max_sq_wr: u32,
    /// Most requests of a receive ring.
    pub max_rq_wr: u32,
    /// Most slices of a message to send.
    pub max_sq_sge: u16,
    /// Most slices of a receive.
    pub max_rq_sge: u16,
    /// Most bytes of a READ or WRITE.
    pub max_rdma_size: u32,
    /// [`super::DeviceCaps`].
    pub device_caps: u32,
}

/// Driver's answer to PD allocation.
///
/// Kernel: `struct efa_ibv_alloc_pd_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AllocPdResp {
    /// No bits are defined.
    pub comp_mask: u32,
    /// Number of the PD in the device.
    pub pdn: u16,
    /// Reserved.
    pub reserved_30: [u8; 2],
}

/// Driver's answer to AH creation.
///
/// Kernel: `struct efa_ibv_create_ah_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateAhResp {
    /// No bits are defined.
    pub comp_mask: u32,
    /// Number of the AH in requests.
    pub efa_address_handle: u16,
    /// Reserved.
    pub reserved_30: [u8; 2],
}
