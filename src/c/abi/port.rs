//! Ports and GIDs.

use std::ffi::c_int;
use std::mem::offset_of;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_port_attr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: u32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Present since the header of version 56.
    pub active_speed_ex: u32,
}

/// The length that the exported `ibv_query_port` fills: the struct of the first headers.
pub(in crate::c) const COMPAT_PORT_ATTR: usize = 48;

const _: () = {
    assert!(size_of::<ibv_port_attr>() == 56);
    assert!(offset_of!(ibv_port_attr, flags) == 47);
    assert!(offset_of!(ibv_port_attr, active_speed_ex) == 52);
};

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_gid {
    pub raw: [u8; 16],
    /// These words give the struct its alignment.
    pub global: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

const _: () = assert!(size_of::<ibv_gid_entry>() == 32);

/// `enum ibv_gid_type_sysfs`, of the function `ibv_query_gid_type`. It does not distinguish InfiniBand and
/// RoCE v1.
pub(in crate::c) mod gid_type_sysfs {
    use super::c_int;

    pub(in crate::c) const IB_ROCE_V1: c_int = 0;
    pub(in crate::c) const ROCE_V2: c_int = 1;
}
