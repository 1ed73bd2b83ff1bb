//! Shared receive queues.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `CREATE_SRQ`.
///
/// Kernel: `struct ib_uverbs_create_srq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateSrq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Handle of the PD.
    pub pd_handle: u32,
    /// Requested capacity for receive requests.
    pub max_wr: u32,
    /// Elements a request may have.
    pub max_sge: u32,
    /// Fill level below which the limit event is raised; 0 for none.
    pub srq_limit: u32,
}

/// Request of `CREATE_XSRQ`: an SRQ of any type; answered by [`CreateSrqResp`].
///
/// Kernel: `struct ib_uverbs_create_xsrq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateXsrq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// [`crate::enums::SrqType`].
    pub srq_type: u32,
    /// Handle of the PD.
    pub pd_handle: u32,
    /// Requested capacity for receive requests.
    pub max_wr: u32,
    /// Elements a request may have.
    pub max_sge: u32,
    /// Fill level below which the limit event is raised; 0 for none.
    pub srq_limit: u32,
    /// Tags to match at once, tag-matching type only.
    pub max_num_tags: u32,
    /// Handle of the XRC domain, XRC type only.
    pub xrcd_handle: u32,
    /// Handle of the CQ, types XRC and tag matching only.
    pub cq_handle: u32,
}

/// Response of `CREATE_SRQ` and `CREATE_XSRQ`.
///
/// Kernel: `struct ib_uverbs_create_srq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateSrqResp {
    /// Handle of the new SRQ.
    pub srq_handle: u32,
    /// Actual capacity for receive requests.
    pub max_wr: u32,
    /// Elements a request may have.
    pub max_sge: u32,
    /// Its number on the wire, XRC type only.
    pub srqn: u32,
}

/// Request of `MODIFY_SRQ`, which has no response.
///
/// Kernel: `struct ib_uverbs_modify_srq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ModifySrq {
    /// Handle of the SRQ.
    pub srq_handle: u32,
    /// [`crate::flags::SrqAttrMask`]: what to change.
    pub attr_mask: u32,
    /// New capacity for receive requests.
    pub max_wr: u32,
    /// Fill level below which the limit event is raised once.
    pub srq_limit: u32,
}

/// Request of `QUERY_SRQ`.
///
/// Kernel: `struct ib_uverbs_query_srq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QuerySrq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the SRQ.
    pub srq_handle: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of `QUERY_SRQ`.
///
/// Kernel: `struct ib_uverbs_query_srq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QuerySrqResp {
    /// Capacity for receive requests.
    pub max_wr: u32,
    /// Elements a request may have.
    pub max_sge: u32,
    /// Armed limit, 0 for none.
    pub srq_limit: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Request of `DESTROY_SRQ`.
///
/// Kernel: `struct ib_uverbs_destroy_srq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroySrq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the SRQ.
    pub srq_handle: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of `DESTROY_SRQ`, and answer of the ioctl `SRQ_DESTROY`.
///
/// Kernel: `struct ib_uverbs_destroy_srq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroySrqResp {
    /// Asynchronous events that were delivered in all; the user must acknowledge them all before it frees its
    /// object.
    pub events_reported: u32,
}
