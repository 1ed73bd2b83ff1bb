//! Attributes to create, change and query objects.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

pub use uverbs_uapi::types::QpCap as ibv_qp_cap;

use super::domain::ibv_xrcd;
use super::ibv_pd;
use super::port::ibv_gid;
use super::queue::{ibv_comp_channel, ibv_cq, ibv_srq};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

const _: () = assert!(size_of::<ibv_ah_attr>() == 32);

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

const _: () = assert!(size_of::<ibv_qp_init_attr>() == 64);

/// It begins like [`ibv_qp_init_attr`], whose padding holds `comp_mask`. The fields after that exist only if
/// the mask names them: older headers have fewer.
#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash_conf: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

const _: () = {
    assert!(size_of::<ibv_qp_init_attr_ex>() == 136);
    assert!(offset_of!(ibv_qp_init_attr_ex, comp_mask) == 60);
    assert!(offset_of!(ibv_qp_init_attr_ex, send_ops_flags) == 128);
};

#[repr(C)]
pub struct ibv_qp_attr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

const _: () = {
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(offset_of!(ibv_qp_attr, rate_limit) == 136);
};

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}

#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}

const _: () = assert!(size_of::<ibv_srq_init_attr>() == 24);

/// It begins like [`ibv_srq_init_attr`], whose padding holds `comp_mask`.
#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
}

const _: () = {
    assert!(offset_of!(ibv_srq_init_attr_ex, comp_mask) == 20);
    assert!(offset_of!(ibv_srq_init_attr_ex, srq_type) == 24);
    assert!(offset_of!(ibv_srq_init_attr_ex, pd) == 32);
    assert!(offset_of!(ibv_srq_init_attr_ex, cq) == 48);
};

/// The attributes to open a queue pair of an XRC domain that another process has created.
#[repr(C)]
pub struct ibv_qp_open_attr {
    pub comp_mask: u32,
    pub qp_num: u32,
    pub xrcd: *mut ibv_xrcd,
    pub qp_context: *mut c_void,
    pub qp_type: u32,
}

const _: () = {
    assert!(size_of::<ibv_qp_open_attr>() == 32);
    assert!(offset_of!(ibv_qp_open_attr, qp_type) == 24);
};

#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    /// Present only if `comp_mask` says so: older headers do not have it.
    pub parent_domain: *mut ibv_pd,
}

const _: () = assert!(size_of::<ibv_cq_init_attr_ex>() == 56);

/// The moderation of completion events. In C the last two fields are a struct in it.
#[repr(C)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub cq_count: u16,
    pub cq_period: u16,
}

const _: () = assert!(size_of::<ibv_modify_cq_attr>() == 8);

/// The source of an asynchronous event: an object by its pointer, or a port by its number.
#[repr(C)]
pub struct ibv_async_event {
    pub element: *mut c_void,
    pub event_type: u32,
}

const _: () = assert!(size_of::<ibv_async_event>() == 16);

/// Options of a connection beyond the standard.
#[repr(C)]
pub struct ibv_ece {
    pub vendor_id: u32,
    pub options: u32,
    pub comp_mask: u32,
}
