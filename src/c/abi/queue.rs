//! The objects that programs have pointers to.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;

use super::context::ibv_context;
use super::work::{ibv_data_buf, ibv_mw_bind_info, ibv_sge};
use super::{ibv_pd, pthread_cond_t, pthread_mutex_t};

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

const _: () = assert!(size_of::<ibv_mr>() == 48 && offset_of!(ibv_mr, lkey) == 36);

#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: c_int,
}

const _: () = assert!(size_of::<ibv_mw>() == 32 && offset_of!(ibv_mw, mw_type) == 24);

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

const _: () = assert!(size_of::<ibv_ah>() == 24);

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    /// The number of completion queues that report to it.
    pub refcnt: AtomicU32,
}

const _: () = assert!(size_of::<ibv_comp_channel>() == 16);

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: AtomicU32,
    pub async_events_completed: AtomicU32,
}

const _: () = {
    assert!(size_of::<ibv_cq>() == 128);
    assert!(offset_of!(ibv_cq, cqe) == 28);
    assert!(offset_of!(ibv_cq, comp_events_completed) == 120);
};

type Read<T> = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> T>;

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// The data about a message with a tag.
#[repr(C)]
#[derive(Default)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub data: u32,
}

#[repr(C)]
pub struct ibv_cq_ex {
    pub cq: ibv_cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: Read<u32>,
    pub read_vendor_err: Read<u32>,
    pub read_byte_len: Read<u32>,
    pub read_imm_data: Read<u32>,
    pub read_qp_num: Read<u32>,
    pub read_src_qp: Read<u32>,
    pub read_wc_flags: Read<u32>,
    pub read_slid: Read<u32>,
    pub read_sl: Read<u8>,
    pub read_dlid_path_bits: Read<u8>,
    pub read_completion_ts: Read<u64>,
    pub read_cvlan: Read<u16>,
    pub read_flow_tag: Read<u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Read<u64>,
}

const _: () = {
    assert!(size_of::<ibv_cq_ex>() == 288);
    assert!(offset_of!(ibv_cq_ex, status) == 132);
    assert!(offset_of!(ibv_cq_ex, wr_id) == 136);
    assert!(offset_of!(ibv_cq_ex, start_poll) == 144);
    assert!(offset_of!(ibv_cq_ex, read_completion_wallclock_ns) == 280);
};

#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: AtomicU32,
}

const _: () = {
    assert!(size_of::<ibv_srq>() == 128);
    assert!(offset_of!(ibv_srq, handle) == 24);
    assert!(offset_of!(ibv_srq, events_completed) == 120);
};

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub events_completed: AtomicU32,
}

const _: () = {
    assert!(size_of::<ibv_qp>() == 160);
    assert!(offset_of!(ibv_qp, handle) == 48);
    assert!(offset_of!(ibv_qp, qp_type) == 60);
    assert!(offset_of!(ibv_qp, events_completed) == 152);
};

/// The functions of `ibv_wr_*(3)`. A program compiled before version 56 does not know the last one.
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: u32,
    pub wr_atomic_cmp_swp: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64, u64)>,
    pub wr_atomic_fetch_add: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u64)>,
    pub wr_bind_mw:
        Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
    pub wr_local_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_rdma_read: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64)>,
    pub wr_rdma_write_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_send: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_send_imm: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_send_inv: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_send_tso: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u16, u16)>,
    pub wr_set_ud_addr: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32)>,
    pub wr_set_xrc_srqn: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32)>,
    pub wr_set_inline_data: Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
    pub wr_set_inline_data_list:
        Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
    pub wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
    pub wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
    pub wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
    pub wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
    pub wr_atomic_write: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void)>,
    pub wr_flush: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8)>,
}

const _: () = {
    assert!(size_of::<ibv_qp_ex>() == 360);
    assert!(offset_of!(ibv_qp_ex, wr_id) == 168);
    assert!(offset_of!(ibv_qp_ex, wr_flags) == 176);
    assert!(offset_of!(ibv_qp_ex, wr_atomic_cmp_swp) == 184);
    assert!(offset_of!(ibv_qp_ex, wr_flush) == 352);
};
