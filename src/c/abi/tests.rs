//! Compares the structs here with those of the distribution's headers.

use std::mem::offset_of;

use super::attr::{
    ibv_ah_attr, ibv_async_event, ibv_cq_init_attr_ex, ibv_qp_attr, ibv_qp_init_attr,
    ibv_qp_init_attr_ex, ibv_srq_attr, ibv_srq_init_attr,
};
use super::context::{ibv_context, ibv_context_ops, verbs_context};
use super::device::{ibv_device, ibv_device_attr, ibv_device_attr_ex};
use super::dm::{ibv_alloc_dm_attr, ibv_dm};
use super::ibv_pd;
use super::port::{ibv_gid_entry, ibv_port_attr};
use super::queue::{
    ibv_ah, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_mr, ibv_mw, ibv_qp, ibv_qp_ex, ibv_srq,
};
use super::work::{ibv_data_buf, ibv_mw_bind, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_wc};
use crate::c::rdmacm::abi::{
    rdma_addr, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param,
    rdma_event_channel, rdma_ib_addr, rdma_route, rdma_ud_param,
};

/// What C reports about its structs (`tests/c_abi/layout.c`, which a test in a guest compares with this
/// file): a line for each size, and for each field's offset.
const LAYOUT: &str = include_str!("../../../tests/c_abi/layout.txt");

/// The same for a struct here: the start of a line, and the number.
type Facts = Vec<(String, i64)>;

macro_rules! facts {
    ($($name:ident { $($field:ident),* })*) => {{
        let mut facts = Facts::new();
        $(
            facts.push((stringify!($name).to_owned(), size_of::<$name>() as i64));
            $(facts.push((
                concat!(stringify!($name), ".", stringify!($field)).to_owned(),
                offset_of!($name, $field) as i64,
            ));)*
        )*
        facts
    }};
}

fn facts() -> Facts {
    facts! {
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv, alloc_mw, bind_mw, dealloc_mw }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        verbs_context { query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow, create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp, destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain, dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, query_device_ex, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd, close_xrcd, sz, context }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_mw { context, pd, rkey, handle }
        ibv_ah { context, pd, handle }
        ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        ibv_mw_bind { bind_info }
        ibv_mw_bind_info { mw_access_flags }
        ibv_comp_channel { fd, refcnt }
        ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
        ibv_cq_ex { comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info, read_completion_wallclock_ns }
        ibv_cq_init_attr_ex { wc_flags, comp_mask, flags, parent_domain }
        ibv_wc { status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits }
        ibv_async_event { event_type }
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond, events_completed }
        ibv_qp_ex { comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write }
        ibv_data_buf {  }
        ibv_recv_wr { next, sg_list, num_sge }
        ibv_send_wr { next, sg_list, num_sge, opcode, send_flags }
        ibv_device_attr { node_guid, max_mr_size, max_qp, max_sge, atomic_cap, max_srq, max_pkeys, phys_port_cnt }
        ibv_device_attr_ex { comp_mask, odp_caps, completion_timestamp_mask, device_cap_flags_ex, rss_caps, raw_packet_caps, tm_caps, max_dm_size, phys_port_cnt_ex }
        ibv_port_attr { state, gid_tbl_len, port_cap_flags, lid, link_layer, flags, port_cap_flags2 }
        ibv_gid_entry {  }
        ibv_ah_attr { dlid, is_global, port_num }
        ibv_qp_attr { cap, ah_attr, pkey_index, timeout, rate_limit }
        ibv_qp_init_attr { cap, qp_type, sq_sig_all }
        ibv_qp_init_attr_ex { comp_mask, pd, xrcd, create_flags, rx_hash_conf, source_qpn, send_ops_flags }
        ibv_srq_attr {  }
        ibv_srq_init_attr {  }
        rdma_event_channel {  }
        rdma_ib_addr {  }
        rdma_addr {  }
        rdma_route { path_rec, num_paths }
        rdma_cm_id { channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type }
        rdma_conn_param { private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num }
        rdma_ud_param { private_data_len, ah_attr, qp_num, qkey }
        rdma_cm_event { listen_id, event, status, param }
        rdma_addrinfo { ai_port_space, ai_src_len, ai_dst_addr, ai_route_len, ai_connect, ai_next }
        rdma_cm_join_mc_attr_ex { join_flags, addr }
    }
}

/// Would catch a field at a wrong offset, such as one that C puts into the padding before it.
#[test]
fn structs_are_as_c_has_them() {
    let told = |name: &str| {
        let mut lines = LAYOUT.lines().filter_map(|line| line.rsplit_once(' '));
        lines.find_map(|(of, number)| (of == name).then(|| number.parse::<i64>().unwrap()))
    };
    let mut compared = 0;
    for (name, number) in facts() {
        let Some(told) = told(&name) else {
            continue;
        };
        // For fields at the end of a growing struct, C reports the distance from the end.
        let number = match told {
            ..0 => number - size_of::<verbs_context>() as i64,
            _ => number,
        };
        assert_eq!(number, told, "{name}");
        compared += 1;
    }
    assert!(compared >= 266, "only {compared} were compared");
}
