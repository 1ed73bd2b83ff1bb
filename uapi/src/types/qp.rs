//! Attributes and capacities of a QP.

use super::AhAttr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Capacities of a QP, requested or actual (ioctl `QP_CREATE`).
///
/// Kernel: `struct ib_uverbs_qp_cap`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QpCap {
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
}

/// All attributes of a QP, in the connection manager's form (`rdma_ucm`, `INIT_QP_ATTR`).
///
/// Kernel: `struct ib_uverbs_qp_attr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QpAttr {
    /// [`crate::flags::QpAttrMask`]: which fields are valid.
    pub qp_attr_mask: u32,
    /// [`crate::enums::QpState`].
    pub qp_state: u32,
    /// [`crate::enums::QpState`]: the present state, or the assumed one.
    pub cur_qp_state: u32,
    /// [`crate::enums::Mtu`] of the path.
    pub path_mtu: u32,
    /// [`crate::enums::MigState`].
    pub path_mig_state: u32,
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
    /// Primary path.
    pub ah_attr: AhAttr,
    /// Alternate path.
    pub alt_ah_attr: AhAttr,
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
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Index of the partition key on the alternate path.
    pub alt_pkey_index: u16,
    /// Not 0: an event reports when the send queue has drained.
    pub en_sqd_async_notify: u8,
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
    /// Must be 0.
    pub reserved: [u8; 5],
}
