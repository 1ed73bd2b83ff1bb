//! Queue pairs and multicast membership.

use crate::types::QpDest;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `CREATE_QP`.
///
/// Kernel: `struct ib_uverbs_create_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQp {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Handle of the PD; of the XRC domain for an XRC receive QP.
    pub pd_handle: u32,
    /// Handle of the CQ for send completions.
    pub send_cq_handle: u32,
    /// Handle of the CQ for receive completions.
    pub recv_cq_handle: u32,
    /// Handle of the SRQ, valid if `is_srq` is not 0.
    pub srq_handle: u32,
    /// Requested capacity for send requests.
    pub max_send_wr: u32,
    /// Requested capacity for receive requests.
    pub max_recv_wr: u32,
    /// Elements a send request may have.
    pub max_send_sge: u32,
    /// Elements a receive request may have.
    pub max_recv_sge: u32,
    /// Bytes a send request may carry inline.
    pub max_inline_data: u32,
    /// Not 0: every send request raises a completion.
    pub sq_sig_all: u8,
    /// [`crate::enums::QpType`].
    pub qp_type: u8,
    /// Not 0: receives come from the SRQ.
    pub is_srq: u8,
    /// Must be 0.
    pub reserved: u8,
}

/// Response of `CREATE_QP` and of `OPEN_QP`.
///
/// Kernel: `struct ib_uverbs_create_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateQpResp {
    /// Handle of the QP.
    pub qp_handle: u32,
    /// Its number on the wire (24 bits).
    pub qpn: u32,
    /// Actual capacity for send requests.
    pub max_send_wr: u32,
    /// Actual capacity for receive requests.
    pub max_recv_wr: u32,
    /// Elements a send request may have.
    pub max_send_sge: u32,
    /// Elements a receive request may have.
    pub max_recv_sge: u32,
    /// Bytes a send request may carry inline.
    pub max_inline_data: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Request of the extended `CREATE_QP`.
///
/// Kernel: `struct ib_uverbs_ex_create_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateQp {
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Handle of the PD; of the XRC domain for an XRC receive QP.
    pub pd_handle: u32,
    /// Handle of the CQ for send completions.
    pub send_cq_handle: u32,
    /// Handle of the CQ for receive completions.
    pub recv_cq_handle: u32,
    /// Handle of the SRQ, valid if `is_srq` is not 0.
    pub srq_handle: u32,
    /// Requested capacity for send requests.
    pub max_send_wr: u32,
    /// Requested capacity for receive requests.
    pub max_recv_wr: u32,
    /// Elements a send request may have.
    pub max_send_sge: u32,
    /// Elements a receive request may have.
    pub max_recv_sge: u32,
    /// Bytes a send request may carry inline.
    pub max_inline_data: u32,
    /// Not 0: every send request raises a completion.
    pub sq_sig_all: u8,
    /// [`crate::enums::QpType`].
    pub qp_type: u8,
    /// Not 0: receives come from the SRQ.
    pub is_srq: u8,
    /// Must be 0.
    pub reserved: u8,
    /// [`crate::flags::CreateQpMask`].
    pub comp_mask: u32,
    /// [`crate::flags::QpCreateFlags`].
    pub create_flags: u32,
    /// Handle of the receive indirection table, if `comp_mask` includes it.
    pub rwq_ind_tbl_handle: u32,
    /// QP number to send as, if [`crate::flags::QpCreateFlags::SOURCE_QPN`] is set.
    pub source_qpn: u32,
}

/// Response of the extended `CREATE_QP`.
///
/// Kernel: `struct ib_uverbs_ex_create_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateQpResp {
    /// The answer of the legacy command.
    pub base: CreateQpResp,
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
}

/// Request of `OPEN_QP`: a second handle to a shared XRC receive QP; answered by [`CreateQpResp`].
///
/// Kernel: `struct ib_uverbs_open_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct OpenQp {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Handle of the XRC domain.
    pub pd_handle: u32,
    /// Number of the QP to open.
    pub qpn: u32,
    /// [`crate::enums::QpType`].
    pub qp_type: u8,
    /// Must be 0.
    pub reserved: [u8; 7],
}

/// Request of `QUERY_QP`.
///
/// Kernel: `struct ib_uverbs_query_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryQp {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the QP.
    pub qp_handle: u32,
    /// [`crate::flags::QpAttrMask`]: the requested attributes; drivers may fill in more.
    pub attr_mask: u32,
}

/// Response of `QUERY_QP`.
///
/// Kernel: `struct ib_uverbs_query_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryQpResp {
    /// Primary path.
    pub dest: QpDest,
    /// Alternate path.
    pub alt_dest: QpDest,
    /// Capacity for send requests.
    pub max_send_wr: u32,
    /// Capacity for receive requests.
    pub max_recv_wr: u32,
    /// Elements a send request may have.
    pub max_send_sge: u32,
    /// Elements a receive request may have.
    pub max_recv_sge: u32,
    /// Bytes a send request may carry inline.
    pub max_inline_data: u32,
    /// Q_Key, datagrams only.
    pub qkey: u32,
    /// Packet sequence number expected first (24 bits).
    pub rq_psn: u32,
    /// Packet sequence number sent first (24 bits).
    pub sq_psn: u32,
    /// Number of the peer's QP.
    pub dest_qp_num: u32,
    /// [`crate::flags::Access`] that incoming operations may use.
    pub qp_access_flags: u32,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Index of the partition key on the alternate path.
    pub alt_pkey_index: u16,
    /// [`crate::enums::QpState`].
    pub qp_state: u8,
    /// [`crate::enums::QpState`]: the present state, or the assumed one.
    pub cur_qp_state: u8,
    /// [`crate::enums::Mtu`] of the path.
    pub path_mtu: u8,
    /// [`crate::enums::MigState`].
    pub path_mig_state: u8,
    /// Not 0: the send queue is still draining.
    pub sq_draining: u8,
    /// RDMA READs and atomics in flight at the same time as the initiator.
    pub max_rd_atomic: u8,
    /// RDMA READs and atomics served at the same time as the target.
    pub max_dest_rd_atomic: u8,
    /// Delay for a sender that found no posted receive, encoded (5 bits).
    pub min_rnr_timer: u8,
    /// Local port, counted from 1.
    pub port_num: u8,
    /// Time to wait for an acknowledgement: 4.096 µs times 2 to this power; 0 means forever.
    pub timeout: u8,
    /// Retries after missing acknowledgements (3 bits).
    pub retry_cnt: u8,
    /// Retries after "receiver not ready"; 7 means forever.
    pub rnr_retry: u8,
    /// Local port of the alternate path.
    pub alt_port_num: u8,
    /// Like `timeout`, for the alternate path.
    pub alt_timeout: u8,
    /// Not 0: every send request raises a completion.
    pub sq_sig_all: u8,
    /// Reserved.
    pub reserved: [u8; 5],
}

/// Request of `MODIFY_QP`, which has no response; only the attributes in `attr_mask` are used.
///
/// Kernel: `struct ib_uverbs_modify_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ModifyQp {
    /// Primary path.
    pub dest: QpDest,
    /// Alternate path.
    pub alt_dest: QpDest,
    /// Handle of the QP.
    pub qp_handle: u32,
    /// [`crate::flags::QpAttrMask`]: what to change.
    pub attr_mask: u32,
    /// Q_Key, datagrams only.
    pub qkey: u32,
    /// Packet sequence number expected first (24 bits).
    pub rq_psn: u32,
    /// Packet sequence number sent first (24 bits).
    pub sq_psn: u32,
    /// Number of the peer's QP.
    pub dest_qp_num: u32,
    /// [`crate::flags::Access`] that incoming operations may use.
    pub qp_access_flags: u32,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Index of the partition key on the alternate path.
    pub alt_pkey_index: u16,
    /// [`crate::enums::QpState`].
    pub qp_state: u8,
    /// [`crate::enums::QpState`]: the present state, or the assumed one.
    pub cur_qp_state: u8,
    /// [`crate::enums::Mtu`] of the path.
    pub path_mtu: u8,
    /// [`crate::enums::MigState`].
    pub path_mig_state: u8,
    /// Not 0: an event reports when the send queue has drained.
    pub en_sqd_async_notify: u8,
    /// RDMA READs and atomics in flight at the same time as the initiator.
    pub max_rd_atomic: u8,
    /// RDMA READs and atomics served at the same time as the target.
    pub max_dest_rd_atomic: u8,
    /// Delay for a sender that found no posted receive, encoded (5 bits).
    pub min_rnr_timer: u8,
    /// Local port, counted from 1.
    pub port_num: u8,
    /// Time to wait for an acknowledgement: 4.096 µs times 2 to this power; 0 means forever.
    pub timeout: u8,
    /// Retries after missing acknowledgements (3 bits).
    pub retry_cnt: u8,
    /// Retries after "receiver not ready"; 7 means forever.
    pub rnr_retry: u8,
    /// Local port of the alternate path.
    pub alt_port_num: u8,
    /// Like `timeout`, for the alternate path.
    pub alt_timeout: u8,
    /// Must be 0.
    pub reserved: [u8; 2],
}

/// Request of the extended `MODIFY_QP`.
///
/// Kernel: `struct ib_uverbs_ex_modify_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExModifyQp {
    /// The attributes of the legacy command.
    pub base: ModifyQp,
    /// Pacing rate in kbit/s, 0 for none.
    pub rate_limit: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of the extended `MODIFY_QP`.
///
/// Kernel: `struct ib_uverbs_ex_modify_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExModifyQpResp {
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
}

/// Request of `DESTROY_QP`.
///
/// Kernel: `struct ib_uverbs_destroy_qp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyQp {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// Handle of the QP.
    pub qp_handle: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of `DESTROY_QP`, and answer of the ioctl `QP_DESTROY`.
///
/// Kernel: `struct ib_uverbs_destroy_qp_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyQpResp {
    /// Asynchronous events that were delivered in all; the user must acknowledge them all before it frees its
    /// object.
    pub events_reported: u32,
}

/// Request of `ATTACH_MCAST`, which has no response.
///
/// Kernel: `struct ib_uverbs_attach_mcast`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AttachMcast {
    /// Multicast group.
    pub gid: [u8; 16],
    /// Handle of the QP.
    pub qp_handle: u32,
    /// Multicast LID of the group, InfiniBand only.
    pub mlid: u16,
    /// Must be 0.
    pub reserved: u16,
}

/// Request of `DETACH_MCAST`, which has no response.
///
/// Kernel: `struct ib_uverbs_detach_mcast`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DetachMcast {
    /// Multicast group.
    pub gid: [u8; 16],
    /// Handle of the QP.
    pub qp_handle: u32,
    /// Multicast LID of the group, InfiniBand only.
    pub mlid: u16,
    /// Must be 0.
    pub reserved: u16,
}
