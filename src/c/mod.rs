//! The C ABI: the functions that programs linked to libibverbs call.
//!
//! The functions have the names, the signatures and the contracts of the manual pages `ibv_*(3)`, and the
//! structs in [`abi`] the layout of `<infiniband/verbs.h>`. The package in `library/` gives the functions
//! their versioned names and makes the shared library; nothing else uses this module, and it is no part of
//! the crate's interface. `docs/c-abi.md` says what works and how to build it.
//!
//! Every object is one [`Box`], with the C struct that programs see at its start (`object`). Programs own the
//! objects and may call everything from every thread, so queues have locks here (`lock`). A failure is an
//! errno (`failure`). Nothing unwinds into C: a panic in an `extern "C"` function ends the process.

#![allow(
    clippy::missing_safety_doc,
    reason = "the callers are C programs, and the manual pages are their contract"
)]

pub mod abi;
mod ah;
mod buf;
mod channel;
mod context;
mod cq;
mod device;
pub mod direct;
mod dm;
mod domain;
mod ece;
mod event;
mod failure;
mod files;
#[cfg(test)]
mod first_day;
mod fork;
mod gid;
mod import;
mod lock;
mod log;
mod marshal;
mod mcast;
pub mod missing;
mod mr;
mod mw;
mod names;
mod object;
mod pd;
mod poll;
mod poll_ex;
mod qp;
mod qp_ex;
mod qp_state;
mod query;
mod rate;
pub mod rdmacm;
mod recv;
mod send;
mod srq;
mod station;
mod wr;
mod xrcd;

pub use ah::{ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah, ibv_init_ah_from_wc};
pub use buf::{
    ibv_alloc_buf, ibv_export_buf_dmabuf_fd, ibv_free_buf, ibv_reg_buf_mr, ibv_reg_mr_ex,
};
pub use channel::{ibv_create_comp_channel, ibv_destroy_comp_channel};
pub use context::{ibv_close_device, ibv_open_device};
pub use cq::{ibv_create_cq, ibv_destroy_cq, ibv_resize_cq};
pub use device::{
    ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list,
    ibv_get_device_name,
};
pub use dm::{ibv_dm_export_dmabuf_fd, ibv_import_dm, ibv_unimport_dm};
pub use ece::{ibv_query_ece, ibv_set_ece};
pub use event::{ibv_ack_async_event, ibv_ack_cq_events, ibv_get_async_event, ibv_get_cq_event};
pub use files::{ibv_get_sysfs_path, ibv_read_sysfs_file};
pub use fork::{ibv_dofork_range, ibv_dontfork_range, ibv_fork_init, ibv_is_fork_initialized};
pub use gid::{_ibv_query_gid_ex, _ibv_query_gid_table, ibv_query_gid, ibv_query_gid_type};
pub use import::{ibv_import_device, ibv_import_mr, ibv_import_pd, ibv_unimport_mr};
pub use marshal::{
    ibv_copy_ah_attr_from_kern, ibv_copy_path_rec_from_kern, ibv_copy_path_rec_to_kern,
    ibv_copy_qp_attr_from_kern,
};
pub use mcast::{ibv_attach_mcast, ibv_detach_mcast};
pub use mr::{
    ibv_dereg_mr, ibv_reg_dmabuf_mr, ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr,
};
pub use names::{
    ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_wc_status_str, ibv_wr_opcode_str,
};
pub use pd::{ibv_alloc_pd, ibv_dealloc_pd, ibv_unimport_pd};
pub use qp::{ibv_create_qp, ibv_destroy_qp, ibv_qp_to_qp_ex};
pub use qp_state::{ibv_modify_qp, ibv_query_qp, ibv_query_qp_data_in_order};
pub use query::{
    ibv_get_pkey_index, ibv_query_device, ibv_query_pkey, ibv_query_port, ibv_query_port_speed,
};
pub use rate::{ibv_rate_to_mbps, ibv_rate_to_mult, mbps_to_ibv_rate, mult_to_ibv_rate};
pub use srq::{ibv_create_srq, ibv_destroy_srq, ibv_modify_srq, ibv_query_srq};
pub use station::ibv_resolve_eth_l2_from_gid;
