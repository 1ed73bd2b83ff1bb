//! Open devices: the tables through which the header's inline functions call.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::offset_of;

use super::attr::{
    ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_srq_init_attr_ex,
};
use super::device::{
    ibv_device, ibv_device_attr, ibv_device_attr_ex, ibv_query_device_ex_input, ibv_values_ex,
};
use super::dm::{ibv_alloc_dm_attr, ibv_dm};
use super::domain::{
    ibv_parent_domain_init_attr, ibv_td, ibv_td_init_attr, ibv_xrcd, ibv_xrcd_init_attr,
};
use super::port::ibv_port_attr;
use super::queue::{ibv_cq, ibv_cq_ex, ibv_mr, ibv_mw, ibv_qp, ibv_srq};
use super::work::{ibv_mw_bind, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc};
use super::{ibv_pd, pthread_mutex_t};

/// A function that this library does not have. The header's inline function then returns `EOPNOTSUPP`.
pub type Lacking = Option<unsafe extern "C" fn()>;

/// `struct ibv_context_ops`. Its names with an underscore exist only for the layout, and no program calls
/// them.
#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_query_device:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int>,
    pub _compat_query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int>,
    pub _compat_of_objects: [Lacking; 5],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub bind_mw: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int>,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: Lacking,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_of_cqs_and_srqs: [Lacking; 7],
    pub post_srq_recv: Option<
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    >,
    pub _compat_of_qps: [Lacking; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_of_the_rest: [Lacking; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: pthread_mutex_t,
    /// -1 means that a `verbs_context` surrounds it.
    pub abi_compat: *mut c_void,
}

const _: () = {
    assert!(size_of::<ibv_context>() == 328);
    assert!(offset_of!(ibv_context, ops) == 8);
    assert!(offset_of!(ibv_context, cmd_fd) == 264);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(offset_of!(ibv_context, num_comp_vectors) == 272);
    assert!(offset_of!(ibv_context, mutex) == 280);
    assert!(offset_of!(ibv_context, abi_compat) == 320);
    assert!(offset_of!(ibv_context_ops, alloc_mw) == 7 * 8);
    assert!(offset_of!(ibv_context_ops, poll_cq) == 11 * 8);
    assert!(offset_of!(ibv_context_ops, post_srq_recv) == 20 * 8);
    assert!(offset_of!(ibv_context_ops, post_send) == 25 * 8);
};

/// `struct verbs_context` of header version 65. It grows at its start: a program finds a function by its
/// distance from the end, and `sz` says whether the library has it.
#[repr(C)]
pub struct verbs_context {
    pub free_buf: Lacking,
    pub alloc_buf: Lacking,
    pub dm_export_dmabuf_fd: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub reg_mr_ex: Lacking,
    pub dealloc_dmah: Lacking,
    pub alloc_dmah: Lacking,
    pub query_port:
        Option<unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr, usize) -> c_int>,
    pub advise_mr: Option<unsafe extern "C" fn(*mut ibv_pd, u32, u32, *mut ibv_sge, u32) -> c_int>,
    pub alloc_null_mr: Option<unsafe extern "C" fn(*mut ibv_pd) -> *mut ibv_mr>,
    pub read_counters: Lacking,
    pub attach_counters_point_flow: Lacking,
    pub create_counters: Lacking,
    pub destroy_counters: Lacking,
    pub reg_dm_mr:
        Option<unsafe extern "C" fn(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint) -> *mut ibv_mr>,
    pub alloc_dm:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_alloc_dm_attr) -> *mut ibv_dm>,
    pub free_dm: Option<unsafe extern "C" fn(*mut ibv_dm) -> c_int>,
    pub modify_flow_action_esp: Lacking,
    pub destroy_flow_action: Lacking,
    pub create_flow_action_esp: Lacking,
    pub modify_qp_rate_limit: Lacking,
    pub alloc_parent_domain: Option<
        unsafe extern "C" fn(*mut ibv_context, *mut ibv_parent_domain_init_attr) -> *mut ibv_pd,
    >,
    pub dealloc_td: Option<unsafe extern "C" fn(*mut ibv_td) -> c_int>,
    pub alloc_td:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_td_init_attr) -> *mut ibv_td>,
    pub modify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, *mut ibv_modify_cq_attr) -> c_int>,
    pub post_srq_ops: Lacking,
    pub destroy_rwq_ind_table: Lacking,
    pub create_rwq_ind_table: Lacking,
    pub destroy_wq: Lacking,
    pub modify_wq: Lacking,
    pub create_wq: Lacking,
    pub query_rt_values:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_values_ex) -> c_int>,
    pub create_cq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex>,
    /// Programs do not use it.
    pub private: *mut c_void,
    pub query_device_ex: Option<
        unsafe extern "C" fn(
            *mut ibv_context,
            *const ibv_query_device_ex_input,
            *mut ibv_device_attr_ex,
            usize,
        ) -> c_int,
    >,
    pub destroy_flow: Lacking,
    pub abi_placeholder_2: Lacking,
    pub create_flow: Lacking,
    pub abi_placeholder_1: Lacking,
    pub open_qp:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_open_attr) -> *mut ibv_qp>,
    pub create_qp_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp>,
    pub get_srq_num: Option<unsafe extern "C" fn(*mut ibv_srq, *mut u32) -> c_int>,
    pub create_srq_ex:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq>,
    pub open_xrcd:
        Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd>,
    pub close_xrcd: Option<unsafe extern "C" fn(*mut ibv_xrcd) -> c_int>,
    pub abi_placeholder_3: u64,
    pub sz: usize,
    pub context: ibv_context,
}

const _: () = {
    const SIZE: usize = size_of::<verbs_context>();
    assert!(SIZE == 696);
    assert!(SIZE - offset_of!(verbs_context, query_port) == 648);
    assert!(SIZE - offset_of!(verbs_context, create_cq_ex) == 448);
    assert!(SIZE - offset_of!(verbs_context, query_device_ex) == 432);
    assert!(SIZE - offset_of!(verbs_context, create_qp_ex) == 384);
    assert!(SIZE - offset_of!(verbs_context, close_xrcd) == 352);
};
