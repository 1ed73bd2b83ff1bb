//! Receive work queues and the tables that spread packets over them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Largest [`ExCreateRwqIndTable::log_ind_tbl_size`] that the kernel accepts.
pub const MAX_LOG_IND_TBL_SIZE: u32 = 0x0d;

/// Request of the extended `CREATE_WQ`.
///
/// Kernel: `struct ib_uverbs_ex_create_wq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateWq {
    /// Must be 0.
    pub comp_mask: u32,
    /// [`crate::enums::WqType`].
    pub wq_type: u32,
    /// Opaque value, returned by events about the object.
    pub user_handle: u64,
    /// Handle of the PD.
    pub pd_handle: u32,
    /// Handle of the CQ.
    pub cq_handle: u32,
    /// Requested capacity for receive requests.
    pub max_wr: u32,
    /// Elements a request may have.
    pub max_sge: u32,
    /// [`crate::flags::WqFlags`].
    pub create_flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Response of the extended `CREATE_WQ`.
///
/// Kernel: `struct ib_uverbs_ex_create_wq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateWqResp {
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Handle of the new WQ.
    pub wq_handle: u32,
    /// Actual capacity for receive requests.
    pub max_wr: u32,
    /// Elements a request may have.
    pub max_sge: u32,
    /// Its number.
    pub wqn: u32,
}

/// Request of the extended `DESTROY_WQ`.
///
/// Kernel: `struct ib_uverbs_ex_destroy_wq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExDestroyWq {
    /// Must be 0.
    pub comp_mask: u32,
    /// Handle of the WQ.
    pub wq_handle: u32,
}

/// Response of the extended `DESTROY_WQ`.
///
/// Kernel: `struct ib_uverbs_ex_destroy_wq_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExDestroyWqResp {
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Asynchronous events that were delivered in all; the user must acknowledge them all before it frees its
    /// object.
    pub events_reported: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Request of the extended `MODIFY_WQ`, which has no response.
///
/// Kernel: `struct ib_uverbs_ex_modify_wq`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExModifyWq {
    /// [`crate::flags::WqAttrMask`]: what to change.
    pub attr_mask: u32,
    /// Handle of the WQ.
    pub wq_handle: u32,
    /// [`crate::enums::WqState`]: the new state.
    pub wq_state: u32,
    /// [`crate::enums::WqState`]: the assumed present state.
    pub curr_wq_state: u32,
    /// New [`crate::flags::WqFlags`].
    pub flags: u32,
    /// The flags to change.
    pub flags_mask: u32,
}

/// Request of the extended `CREATE_RWQ_IND_TBL`; the handles of `1 << log_ind_tbl_size` WQs follow,
/// padded to 8 bytes.
///
/// Kernel: `struct ib_uverbs_ex_create_rwq_ind_table`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateRwqIndTable {
    /// Must be 0.
    pub comp_mask: u32,
    /// Base-2 logarithm of the number of entries, at most [`MAX_LOG_IND_TBL_SIZE`].
    pub log_ind_tbl_size: u32,
}

/// Response of the extended `CREATE_RWQ_IND_TBL`.
///
/// Kernel: `struct ib_uverbs_ex_create_rwq_ind_table_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExCreateRwqIndTableResp {
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// Handle of the new table.
    pub ind_tbl_handle: u32,
    /// Its number.
    pub ind_tbl_num: u32,
}

/// Request of the extended `DESTROY_RWQ_IND_TBL`, which has no response.
///
/// Kernel: `struct ib_uverbs_ex_destroy_rwq_ind_table`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExDestroyRwqIndTable {
    /// Must be 0.
    pub comp_mask: u32,
    /// Handle of the table.
    pub ind_tbl_handle: u32,
}
