//! Completion channels and completion queues.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `CREATE_COMP_CHANNEL`.
///
/// Kernel: `struct ib_uverbs_create_comp_channel`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCompChannel {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
}

/// Response of `CREATE_COMP_CHANNEL`.
///
/// Kernel: `struct ib_uverbs_create_comp_channel_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCompChannelResp {
    /// File descriptor from which completion events are read.
    pub fd: u32,
}

/// Request of `CREATE_CQ`.
///
/// Kernel: `struct ib_uverbs_create_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Requested number of entries.
    pub cqe: u32,
    /// Completion vector: which interrupt serves its events.
    pub comp_vector: u32,
    /// File descriptor of the completion channel, or -1 for none.
    pub comp_channel: i32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of `CREATE_CQ`.
///
/// Kernel: `struct ib_uverbs_create_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateCqResp {
    /// Handle of the new CQ.
    pub cq_handle: u32,
    /// Actual number of entries.
    pub cqe: u32,
}

/// Request of the extended `CREATE_CQ`.
///
/// Kernel: `struct ib_uverbs_ex_create_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateCq {
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Requested number of entries.
    pub cqe: u32,
    /// Completion vector: which interrupt serves its events.
    pub comp_vector: u32,
    /// File descriptor of the completion channel, or -1 for none.
    pub comp_channel: i32,
    /// Must be 0.
    pub comp_mask: u32,
    /// [`crate::flags::CqCreateFlags`].
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of the extended `CREATE_CQ`.
///
/// Kernel: `struct ib_uverbs_ex_create_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateCqResp {
    /// The answer of the legacy command.
    pub base: CreateCqResp,
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
}

/// Request of `RESIZE_CQ`.
///
/// Kernel: `struct ib_uverbs_resize_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResizeCq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the CQ.
    pub cq_handle: u32,
    /// Requested number of entries.
    pub cqe: u32,
}

/// Response of `RESIZE_CQ`.
///
/// Kernel: `struct ib_uverbs_resize_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResizeCqResp {
    /// Actual number of entries.
    pub cqe: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Request of `POLL_CQ`, which few drivers support: user space polls the ring in memory.
///
/// Kernel: `struct ib_uverbs_poll_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PollCq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the CQ.
    pub cq_handle: u32,
    /// Most entries to return.
    pub ne: u32,
}

/// Response of `POLL_CQ`; `count` times [`crate::types::Wc`] follow.
///
/// Kernel: `struct ib_uverbs_poll_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PollCqResp {
    /// Number of entries returned.
    pub count: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Request of `REQ_NOTIFY_CQ`, which has no response: arm the CQ for one event.
///
/// Kernel: `struct ib_uverbs_req_notify_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ReqNotifyCq {
    /// Handle of the CQ.
    pub cq_handle: u32,
    /// Not 0: only a solicited completion or an error raises the event.
    pub solicited_only: u32,
}

/// Request of `DESTROY_CQ`.
///
/// Kernel: `struct ib_uverbs_destroy_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyCq {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the CQ.
    pub cq_handle: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of `DESTROY_CQ`: the user must acknowledge all these events before it frees its object.
///
/// Kernel: `struct ib_uverbs_destroy_cq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyCqResp {
    /// Completion events delivered over the CQ's life.
    pub comp_events_reported: u32,
    /// Asynchronous events delivered over the CQ's life.
    pub async_events_reported: u32,
}

/// The conditions for the event of a moderated CQ.
///
/// Kernel: `struct ib_uverbs_cq_moderation`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CqModeration {
    /// After this many completions.
    pub cq_count: u16,
    /// Or after this many microseconds.
    pub cq_period: u16,
}

/// Request of the extended `MODIFY_CQ`, which has no response.
///
/// Kernel: `struct ib_uverbs_ex_modify_cq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExModifyCq {
    /// Handle of the CQ.
    pub cq_handle: u32,
    /// [`crate::flags::CqAttrMask`].
    pub attr_mask: u32,
    /// The new moderation.
    pub attr: CqModeration,
    /// Must be 0.
    pub reserved: u32,
}
