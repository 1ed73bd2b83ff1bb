/*
 * Sizes and offsets of what the headers of libibverbs and librdmacm compile into programs, a line each: "STRUCT SIZE" or "STRUCT.FIELD OFFSET".
 * What has grown from version to version (ibv_port_attr, ibv_qp_ex, verbs_context) has no size here.
 */

#include <stddef.h>
#include <stdio.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define SIZE(type) printf("%s %zu\n", #type, sizeof(struct type))
#define FIELD(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(struct type, field))
/* Operations of a context are found from its end, since the struct grows at its start. */
#define OPERATION(field) \
	printf("verbs_context.%s -%zu\n", #field, sizeof(struct verbs_context) - offsetof(struct verbs_context, field))

static void devices(void)
{
	SIZE(ibv_device);
	FIELD(ibv_device, node_type);
	FIELD(ibv_device, transport_type);
	FIELD(ibv_device, name);
	FIELD(ibv_device, dev_name);
	FIELD(ibv_device, dev_path);
	FIELD(ibv_device, ibdev_path);
	SIZE(ibv_context_ops);
	FIELD(ibv_context_ops, poll_cq);
	FIELD(ibv_context_ops, req_notify_cq);
	FIELD(ibv_context_ops, post_srq_recv);
	FIELD(ibv_context_ops, post_send);
	FIELD(ibv_context_ops, post_recv);
	FIELD(ibv_context_ops, alloc_mw);
	FIELD(ibv_context_ops, bind_mw);
	FIELD(ibv_context_ops, dealloc_mw);
	SIZE(ibv_context);
	FIELD(ibv_context, device);
	FIELD(ibv_context, ops);
	FIELD(ibv_context, cmd_fd);
	FIELD(ibv_context, async_fd);
	FIELD(ibv_context, num_comp_vectors);
	FIELD(ibv_context, mutex);
	FIELD(ibv_context, abi_compat);
}

static void operations(void)
{
	OPERATION(query_port);
	OPERATION(advise_mr);
	OPERATION(alloc_null_mr);
	OPERATION(read_counters);
	OPERATION(attach_counters_point_flow);
	OPERATION(create_counters);
	OPERATION(destroy_counters);
	OPERATION(reg_dm_mr);
	OPERATION(alloc_dm);
	OPERATION(free_dm);
	OPERATION(modify_flow_action_esp);
	OPERATION(destroy_flow_action);
	OPERATION(create_flow_action_esp);
	OPERATION(modify_qp_rate_limit);
	OPERATION(alloc_parent_domain);
	OPERATION(dealloc_td);
	OPERATION(alloc_td);
	OPERATION(modify_cq);
	OPERATION(post_srq_ops);
	OPERATION(destroy_rwq_ind_table);
	OPERATION(create_rwq_ind_table);
	OPERATION(destroy_wq);
	OPERATION(modify_wq);
	OPERATION(create_wq);
	OPERATION(query_rt_values);
	OPERATION(create_cq_ex);
	OPERATION(query_device_ex);
	OPERATION(ibv_create_flow);
	OPERATION(ibv_destroy_flow);
	OPERATION(open_qp);
	OPERATION(create_qp_ex);
	OPERATION(get_srq_num);
	OPERATION(create_srq_ex);
	OPERATION(open_xrcd);
	OPERATION(close_xrcd);
	OPERATION(sz);
	OPERATION(context);
}

static void regions(void)
{
	SIZE(ibv_pd);
	FIELD(ibv_pd, context);
	FIELD(ibv_pd, handle);
	SIZE(ibv_mr);
	FIELD(ibv_mr, context);
	FIELD(ibv_mr, pd);
	FIELD(ibv_mr, addr);
	FIELD(ibv_mr, length);
	FIELD(ibv_mr, handle);
	FIELD(ibv_mr, lkey);
	FIELD(ibv_mr, rkey);
	SIZE(ibv_mw);
	FIELD(ibv_mw, context);
	FIELD(ibv_mw, pd);
	FIELD(ibv_mw, rkey);
	FIELD(ibv_mw, handle);
	FIELD(ibv_mw, type);
	SIZE(ibv_ah);
	FIELD(ibv_ah, context);
	FIELD(ibv_ah, pd);
	FIELD(ibv_ah, handle);
	SIZE(ibv_td);
	SIZE(ibv_td_init_attr);
	SIZE(ibv_xrcd);
	SIZE(ibv_dm);
	FIELD(ibv_dm, context);
	FIELD(ibv_dm, memcpy_to_dm);
	FIELD(ibv_dm, memcpy_from_dm);
	FIELD(ibv_dm, comp_mask);
	FIELD(ibv_dm, handle);
	SIZE(ibv_parent_domain_init_attr);
	FIELD(ibv_parent_domain_init_attr, pd);
	FIELD(ibv_parent_domain_init_attr, td);
	FIELD(ibv_parent_domain_init_attr, comp_mask);
	FIELD(ibv_parent_domain_init_attr, alloc);
	FIELD(ibv_parent_domain_init_attr, free);
	FIELD(ibv_parent_domain_init_attr, pd_context);
	SIZE(ibv_mw_bind);
	FIELD(ibv_mw_bind, bind_info);
	SIZE(ibv_mw_bind_info);
	FIELD(ibv_mw_bind_info, mw_access_flags);
}

static void completions(void)
{
	SIZE(ibv_comp_channel);
	FIELD(ibv_comp_channel, fd);
	FIELD(ibv_comp_channel, refcnt);
	SIZE(ibv_cq);
	FIELD(ibv_cq, context);
	FIELD(ibv_cq, channel);
	FIELD(ibv_cq, cq_context);
	FIELD(ibv_cq, handle);
	FIELD(ibv_cq, cqe);
	FIELD(ibv_cq, mutex);
	FIELD(ibv_cq, cond);
	FIELD(ibv_cq, comp_events_completed);
	FIELD(ibv_cq, async_events_completed);
	SIZE(ibv_cq_ex);
	FIELD(ibv_cq_ex, comp_mask);
	FIELD(ibv_cq_ex, status);
	FIELD(ibv_cq_ex, wr_id);
	FIELD(ibv_cq_ex, start_poll);
	FIELD(ibv_cq_ex, next_poll);
	FIELD(ibv_cq_ex, end_poll);
	FIELD(ibv_cq_ex, read_opcode);
	FIELD(ibv_cq_ex, read_vendor_err);
	FIELD(ibv_cq_ex, read_byte_len);
	FIELD(ibv_cq_ex, read_imm_data);
	FIELD(ibv_cq_ex, read_qp_num);
	FIELD(ibv_cq_ex, read_src_qp);
	FIELD(ibv_cq_ex, read_wc_flags);
	FIELD(ibv_cq_ex, read_slid);
	FIELD(ibv_cq_ex, read_sl);
	FIELD(ibv_cq_ex, read_dlid_path_bits);
	FIELD(ibv_cq_ex, read_completion_ts);
	FIELD(ibv_cq_ex, read_cvlan);
	FIELD(ibv_cq_ex, read_flow_tag);
	FIELD(ibv_cq_ex, read_tm_info);
	FIELD(ibv_cq_ex, read_completion_wallclock_ns);
	SIZE(ibv_cq_init_attr_ex);
	FIELD(ibv_cq_init_attr_ex, wc_flags);
	FIELD(ibv_cq_init_attr_ex, comp_mask);
	FIELD(ibv_cq_init_attr_ex, flags);
	FIELD(ibv_cq_init_attr_ex, parent_domain);
	SIZE(ibv_wc);
	FIELD(ibv_wc, status);
	FIELD(ibv_wc, opcode);
	FIELD(ibv_wc, vendor_err);
	FIELD(ibv_wc, byte_len);
	FIELD(ibv_wc, imm_data);
	FIELD(ibv_wc, qp_num);
	FIELD(ibv_wc, src_qp);
	FIELD(ibv_wc, wc_flags);
	FIELD(ibv_wc, pkey_index);
	FIELD(ibv_wc, slid);
	FIELD(ibv_wc, sl);
	FIELD(ibv_wc, dlid_path_bits);
	SIZE(ibv_async_event);
	FIELD(ibv_async_event, event_type);
}

static void queues(void)
{
	SIZE(ibv_srq);
	FIELD(ibv_srq, context);
	FIELD(ibv_srq, srq_context);
	FIELD(ibv_srq, pd);
	FIELD(ibv_srq, handle);
	FIELD(ibv_srq, mutex);
	FIELD(ibv_srq, cond);
	FIELD(ibv_srq, events_completed);
	SIZE(ibv_wq);
	FIELD(ibv_wq, wq_num);
	FIELD(ibv_wq, handle);
	FIELD(ibv_wq, post_recv);
	SIZE(ibv_qp);
	FIELD(ibv_qp, context);
	FIELD(ibv_qp, qp_context);
	FIELD(ibv_qp, pd);
	FIELD(ibv_qp, send_cq);
	FIELD(ibv_qp, recv_cq);
	FIELD(ibv_qp, srq);
	FIELD(ibv_qp, handle);
	FIELD(ibv_qp, qp_num);
	FIELD(ibv_qp, state);
	FIELD(ibv_qp, qp_type);
	FIELD(ibv_qp, mutex);
	FIELD(ibv_qp, cond);
	FIELD(ibv_qp, events_completed);
	FIELD(ibv_qp_ex, comp_mask);
	FIELD(ibv_qp_ex, wr_id);
	FIELD(ibv_qp_ex, wr_flags);
	FIELD(ibv_qp_ex, wr_atomic_cmp_swp);
	FIELD(ibv_qp_ex, wr_atomic_fetch_add);
	FIELD(ibv_qp_ex, wr_bind_mw);
	FIELD(ibv_qp_ex, wr_local_inv);
	FIELD(ibv_qp_ex, wr_rdma_read);
	FIELD(ibv_qp_ex, wr_rdma_write);
	FIELD(ibv_qp_ex, wr_rdma_write_imm);
	FIELD(ibv_qp_ex, wr_send);
	FIELD(ibv_qp_ex, wr_send_imm);
	FIELD(ibv_qp_ex, wr_send_inv);
	FIELD(ibv_qp_ex, wr_send_tso);
	FIELD(ibv_qp_ex, wr_set_ud_addr);
	FIELD(ibv_qp_ex, wr_set_xrc_srqn);
	FIELD(ibv_qp_ex, wr_set_inline_data);
	FIELD(ibv_qp_ex, wr_set_inline_data_list);
	FIELD(ibv_qp_ex, wr_set_sge);
	FIELD(ibv_qp_ex, wr_set_sge_list);
	FIELD(ibv_qp_ex, wr_start);
	FIELD(ibv_qp_ex, wr_complete);
	FIELD(ibv_qp_ex, wr_abort);
	FIELD(ibv_qp_ex, wr_atomic_write);
}

static void requests(void)
{
	SIZE(ibv_sge);
	FIELD(ibv_sge, length);
	FIELD(ibv_sge, lkey);
	SIZE(ibv_data_buf);
	SIZE(ibv_recv_wr);
	FIELD(ibv_recv_wr, next);
	FIELD(ibv_recv_wr, sg_list);
	FIELD(ibv_recv_wr, num_sge);
	SIZE(ibv_send_wr);
	FIELD(ibv_send_wr, next);
	FIELD(ibv_send_wr, sg_list);
	FIELD(ibv_send_wr, num_sge);
	FIELD(ibv_send_wr, opcode);
	FIELD(ibv_send_wr, send_flags);
	FIELD(ibv_send_wr, imm_data);
	FIELD(ibv_send_wr, wr.rdma.remote_addr);
	FIELD(ibv_send_wr, wr.rdma.rkey);
	FIELD(ibv_send_wr, wr.atomic.compare_add);
	FIELD(ibv_send_wr, wr.atomic.swap);
	FIELD(ibv_send_wr, wr.atomic.rkey);
	FIELD(ibv_send_wr, wr.ud.ah);
	FIELD(ibv_send_wr, wr.ud.remote_qpn);
	FIELD(ibv_send_wr, wr.ud.remote_qkey);
	FIELD(ibv_send_wr, qp_type.xrc.remote_srqn);
	FIELD(ibv_send_wr, bind_mw.mw);
	FIELD(ibv_send_wr, bind_mw.rkey);
	FIELD(ibv_send_wr, bind_mw.bind_info);
	FIELD(ibv_send_wr, tso.hdr);
}

static void attributes(void)
{
	SIZE(ibv_device_attr);
	FIELD(ibv_device_attr, node_guid);
	FIELD(ibv_device_attr, max_mr_size);
	FIELD(ibv_device_attr, max_qp);
	FIELD(ibv_device_attr, max_sge);
	FIELD(ibv_device_attr, atomic_cap);
	FIELD(ibv_device_attr, max_srq);
	FIELD(ibv_device_attr, max_pkeys);
	FIELD(ibv_device_attr, phys_port_cnt);
	SIZE(ibv_device_attr_ex);
	FIELD(ibv_device_attr_ex, comp_mask);
	FIELD(ibv_device_attr_ex, odp_caps);
	FIELD(ibv_device_attr_ex, completion_timestamp_mask);
	FIELD(ibv_device_attr_ex, device_cap_flags_ex);
	FIELD(ibv_device_attr_ex, rss_caps);
	FIELD(ibv_device_attr_ex, raw_packet_caps);
	FIELD(ibv_device_attr_ex, tm_caps);
	FIELD(ibv_device_attr_ex, max_dm_size);
	FIELD(ibv_device_attr_ex, phys_port_cnt_ex);
	FIELD(ibv_port_attr, state);
	FIELD(ibv_port_attr, gid_tbl_len);
	FIELD(ibv_port_attr, port_cap_flags);
	FIELD(ibv_port_attr, lid);
	FIELD(ibv_port_attr, link_layer);
	FIELD(ibv_port_attr, flags);
	FIELD(ibv_port_attr, port_cap_flags2);
	SIZE(ibv_gid_entry);
	SIZE(ibv_ah_attr);
	FIELD(ibv_ah_attr, dlid);
	FIELD(ibv_ah_attr, is_global);
	FIELD(ibv_ah_attr, port_num);
	SIZE(ibv_qp_attr);
	FIELD(ibv_qp_attr, cap);
	FIELD(ibv_qp_attr, ah_attr);
	FIELD(ibv_qp_attr, pkey_index);
	FIELD(ibv_qp_attr, timeout);
	FIELD(ibv_qp_attr, rate_limit);
	SIZE(ibv_qp_cap);
	SIZE(ibv_qp_init_attr);
	FIELD(ibv_qp_init_attr, cap);
	FIELD(ibv_qp_init_attr, qp_type);
	FIELD(ibv_qp_init_attr, sq_sig_all);
	SIZE(ibv_qp_init_attr_ex);
	FIELD(ibv_qp_init_attr_ex, comp_mask);
	FIELD(ibv_qp_init_attr_ex, pd);
	FIELD(ibv_qp_init_attr_ex, xrcd);
	FIELD(ibv_qp_init_attr_ex, create_flags);
	FIELD(ibv_qp_init_attr_ex, rx_hash_conf);
	FIELD(ibv_qp_init_attr_ex, source_qpn);
	FIELD(ibv_qp_init_attr_ex, send_ops_flags);
	SIZE(ibv_srq_attr);
	SIZE(ibv_srq_init_attr);
	SIZE(ibv_srq_init_attr_ex);
	FIELD(ibv_srq_init_attr_ex, comp_mask);
	FIELD(ibv_srq_init_attr_ex, srq_type);
	FIELD(ibv_srq_init_attr_ex, pd);
	FIELD(ibv_srq_init_attr_ex, xrcd);
	FIELD(ibv_srq_init_attr_ex, cq);
	FIELD(ibv_srq_init_attr_ex, tm_cap);
	SIZE(ibv_wq_init_attr);
	SIZE(ibv_modify_cq_attr);
	SIZE(ibv_ece);
	SIZE(ibv_values_ex);
	SIZE(ibv_alloc_dm_attr);
	FIELD(ibv_alloc_dm_attr, length);
	FIELD(ibv_alloc_dm_attr, log_align_req);
	FIELD(ibv_alloc_dm_attr, comp_mask);
	SIZE(ibv_flow_attr);
}

static void connections(void)
{
	SIZE(rdma_event_channel);
	SIZE(rdma_ib_addr);
	SIZE(rdma_addr);
	SIZE(rdma_route);
	FIELD(rdma_route, path_rec);
	FIELD(rdma_route, num_paths);
	SIZE(rdma_cm_id);
	FIELD(rdma_cm_id, channel);
	FIELD(rdma_cm_id, context);
	FIELD(rdma_cm_id, qp);
	FIELD(rdma_cm_id, route);
	FIELD(rdma_cm_id, ps);
	FIELD(rdma_cm_id, port_num);
	FIELD(rdma_cm_id, event);
	FIELD(rdma_cm_id, send_cq_channel);
	FIELD(rdma_cm_id, send_cq);
	FIELD(rdma_cm_id, recv_cq_channel);
	FIELD(rdma_cm_id, recv_cq);
	FIELD(rdma_cm_id, srq);
	FIELD(rdma_cm_id, pd);
	FIELD(rdma_cm_id, qp_type);
	SIZE(rdma_conn_param);
	FIELD(rdma_conn_param, private_data_len);
	FIELD(rdma_conn_param, responder_resources);
	FIELD(rdma_conn_param, initiator_depth);
	FIELD(rdma_conn_param, flow_control);
	FIELD(rdma_conn_param, retry_count);
	FIELD(rdma_conn_param, rnr_retry_count);
	FIELD(rdma_conn_param, srq);
	FIELD(rdma_conn_param, qp_num);
	SIZE(rdma_ud_param);
	FIELD(rdma_ud_param, private_data_len);
	FIELD(rdma_ud_param, ah_attr);
	FIELD(rdma_ud_param, qp_num);
	FIELD(rdma_ud_param, qkey);
	SIZE(rdma_cm_event);
	FIELD(rdma_cm_event, listen_id);
	FIELD(rdma_cm_event, event);
	FIELD(rdma_cm_event, status);
	FIELD(rdma_cm_event, param);
	SIZE(rdma_addrinfo);
	FIELD(rdma_addrinfo, ai_port_space);
	FIELD(rdma_addrinfo, ai_src_len);
	FIELD(rdma_addrinfo, ai_dst_addr);
	FIELD(rdma_addrinfo, ai_route_len);
	FIELD(rdma_addrinfo, ai_connect);
	FIELD(rdma_addrinfo, ai_next);
	SIZE(rdma_cm_join_mc_attr_ex);
	FIELD(rdma_cm_join_mc_attr_ex, join_flags);
	FIELD(rdma_cm_join_mc_attr_ex, addr);
}

int main(void)
{
	devices();
	operations();
	regions();
	completions();
	queues();
	requests();
	attributes();
	connections();
	return 0;
}
