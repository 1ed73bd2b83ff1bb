//! Posting of work requests through the kernel. Few drivers support it; rxe uses an empty `POST_SEND` as its
//! doorbell.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `POST_SEND`; `wr_count` requests, each of `wqe_size` bytes, then `sge_count`
/// [`crate::types::Sge`] follow.
///
/// Kernel: `struct ib_uverbs_post_send`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PostSend {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the QP.
    pub qp_handle: u32,
    /// Work requests that follow.
    pub wr_count: u32,
    /// Scatter/gather elements that follow, of all requests together.
    pub sge_count: u32,
    /// Size of one request in bytes, at least that of [`crate::types::SendWr`].
    pub wqe_size: u32,
}

/// Response of `POST_SEND`.
///
/// Kernel: `struct ib_uverbs_post_send_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PostSendResp {
    /// Number of the first request that was refused, counted from 1; 0 if none was.
    pub bad_wr: u32,
}

/// Request of `POST_RECV`; `wr_count` requests, each of `wqe_size` bytes, then `sge_count`
/// [`crate::types::Sge`] follow.
///
/// Kernel: `struct ib_uverbs_post_recv`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PostRecv {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the QP.
    pub qp_handle: u32,
    /// Work requests that follow.
    pub wr_count: u32,
    /// Scatter/gather elements that follow, of all requests together.
    pub sge_count: u32,
    /// Size of one request in bytes, at least that of [`crate::types::RecvWr`].
    pub wqe_size: u32,
}

/// Response of `POST_RECV`.
///
/// Kernel: `struct ib_uverbs_post_recv_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PostRecvResp {
    /// Number of the first request that was refused, counted from 1; 0 if none was.
    pub bad_wr: u32,
}

/// Request of `POST_SRQ_RECV`; `wr_count` requests, each of `wqe_size` bytes, then `sge_count`
/// [`crate::types::Sge`] follow.
///
/// Kernel: `struct ib_uverbs_post_srq_recv`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PostSrqRecv {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the SRQ.
    pub srq_handle: u32,
    /// Work requests that follow.
    pub wr_count: u32,
    /// Scatter/gather elements that follow, of all requests together.
    pub sge_count: u32,
    /// Size of one request in bytes, at least that of [`crate::types::RecvWr`].
    pub wqe_size: u32,
}

/// Response of `POST_SRQ_RECV`.
///
/// Kernel: `struct ib_uverbs_post_srq_recv_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PostSrqRecvResp {
    /// Number of the first request that was refused, counted from 1; 0 if none was.
    pub bad_wr: u32,
}
