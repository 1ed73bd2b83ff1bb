//! Every struct of the crate, with its layout in Rust.

use uverbs_uapi::{efa, event, ioctl, mlx5, rdma_cm, rxe, types, write};

/// A struct with its layout in Rust.
pub(crate) struct Layout {
    /// The kernel's name, or for a part of a struct the path to it: `rxe_send_wr.wr.rdma`.
    pub(crate) path: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: Vec<Field>,
}

/// A field with its layout in Rust.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// The size of a field, from a function that borrows it.
const fn field_size<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// Lists structs with all their fields: the pattern does not compile if one is missing.
macro_rules! layouts {
    ($($module:ident::$name:ident = $path:literal { $($field:ident),* })*) => {
        vec![$({
            let _ = |$module::$name { $($field: _),* }: $module::$name| ();
            Layout {
                path: $path,
                size: size_of::<$module::$name>(),
                fields: vec![$(Field {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($module::$name, $field),
                    size: field_size(|s: &$module::$name| &s.$field),
                }),*],
            }
        }),*]
    };
}

/// All structs.
pub(crate) fn all() -> Vec<Layout> {
    layouts! {
        write::CmdHdr = "ib_uverbs_cmd_hdr" { command, in_words, out_words }
        write::ExCmdHdr = "ib_uverbs_ex_cmd_hdr" { response, provider_in_words, provider_out_words, cmd_hdr_reserved }
        write::GetContext = "ib_uverbs_get_context" { response }
        write::GetContextResp = "ib_uverbs_get_context_resp" { async_fd, num_comp_vectors }
        write::QueryDevice = "ib_uverbs_query_device" { response }
        write::ExQueryDevice = "ib_uverbs_ex_query_device" { comp_mask, reserved }
        write::QueryPort = "ib_uverbs_query_port" { response, port_num, reserved }
        write::AllocPd = "ib_uverbs_alloc_pd" { response }
        write::AllocPdResp = "ib_uverbs_alloc_pd_resp" { pd_handle }
        write::DeallocPd = "ib_uverbs_dealloc_pd" { pd_handle }
        write::OpenXrcd = "ib_uverbs_open_xrcd" { response, fd, oflags }
        write::OpenXrcdResp = "ib_uverbs_open_xrcd_resp" { xrcd_handle }
        write::CloseXrcd = "ib_uverbs_close_xrcd" { xrcd_handle }
        write::RegMr = "ib_uverbs_reg_mr" { response, start, length, hca_va, pd_handle, access_flags }
        write::RegMrResp = "ib_uverbs_reg_mr_resp" { mr_handle, lkey, rkey }
        write::ReregMr = "ib_uverbs_rereg_mr" { response, mr_handle, flags, start, length, hca_va, pd_handle, access_flags }
        write::ReregMrResp = "ib_uverbs_rereg_mr_resp" { lkey, rkey }
        write::DeregMr = "ib_uverbs_dereg_mr" { mr_handle }
        write::AllocMw = "ib_uverbs_alloc_mw" { response, pd_handle, mw_type, reserved }
        write::AllocMwResp = "ib_uverbs_alloc_mw_resp" { mw_handle, rkey }
        write::DeallocMw = "ib_uverbs_dealloc_mw" { mw_handle }
        write::CreateCompChannel = "ib_uverbs_create_comp_channel" { response }
        write::CreateCompChannelResp = "ib_uverbs_create_comp_channel_resp" { fd }
        write::CreateCq = "ib_uverbs_create_cq" { response, user_handle, cqe, comp_vector, comp_channel, reserved }
        write::CreateCqResp = "ib_uverbs_create_cq_resp" { cq_handle, cqe }
        write::ExCreateCq = "ib_uverbs_ex_create_cq" { user_handle, cqe, comp_vector, comp_channel, comp_mask, flags, reserved }
        write::ExCreateCqResp = "ib_uverbs_ex_create_cq_resp" { base, comp_mask, response_length }
        write::ResizeCq = "ib_uverbs_resize_cq" { response, cq_handle, cqe }
        write::ResizeCqResp = "ib_uverbs_resize_cq_resp" { cqe, reserved }
        write::PollCq = "ib_uverbs_poll_cq" { response, cq_handle, ne }
        write::PollCqResp = "ib_uverbs_poll_cq_resp" { count, reserved }
        write::ReqNotifyCq = "ib_uverbs_req_notify_cq" { cq_handle, solicited_only }
        write::DestroyCq = "ib_uverbs_destroy_cq" { response, cq_handle, reserved }
        write::DestroyCqResp = "ib_uverbs_destroy_cq_resp" { comp_events_reported, async_events_reported }
        write::CqModeration = "ib_uverbs_cq_moderation" { cq_count, cq_period }
        write::ExModifyCq = "ib_uverbs_ex_modify_cq" { cq_handle, attr_mask, attr, reserved }
        write::CreateQp = "ib_uverbs_create_qp" { response, user_handle, pd_handle, send_cq_handle, recv_cq_handle, srq_handle, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, sq_sig_all, qp_type, is_srq, reserved }
        write::CreateQpResp = "ib_uverbs_create_qp_resp" { qp_handle, qpn, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, reserved }
        write::ExCreateQp = "ib_uverbs_ex_create_qp" { user_handle, pd_handle, send_cq_handle, recv_cq_handle, srq_handle, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, sq_sig_all, qp_type, is_srq, reserved, comp_mask, create_flags, rwq_ind_tbl_handle, source_qpn }
        write::ExCreateQpResp = "ib_uverbs_ex_create_qp_resp" { base, comp_mask, response_length }
        write::OpenQp = "ib_uverbs_open_qp" { response, user_handle, pd_handle, qpn, qp_type, reserved }
        write::QueryQp = "ib_uverbs_query_qp" { response, qp_handle, attr_mask }
        write::QueryQpResp = "ib_uverbs_query_qp_resp" { dest, alt_dest, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index, alt_pkey_index, qp_state, cur_qp_state, path_mtu, path_mig_state, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, sq_sig_all, reserved }
        write::ModifyQp = "ib_uverbs_modify_qp" { dest, alt_dest, qp_handle, attr_mask, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index, alt_pkey_index, qp_state, cur_qp_state, path_mtu, path_mig_state, en_sqd_async_notify, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, reserved }
        write::ExModifyQp = "ib_uverbs_ex_modify_qp" { base, rate_limit, reserved }
        write::ExModifyQpResp = "ib_uverbs_ex_modify_qp_resp" { comp_mask, response_length }
        write::DestroyQp = "ib_uverbs_destroy_qp" { response, qp_handle, reserved }
        write::DestroyQpResp = "ib_uverbs_destroy_qp_resp" { events_reported }
        write::AttachMcast = "ib_uverbs_attach_mcast" { gid, qp_handle, mlid, reserved }
        write::DetachMcast = "ib_uverbs_detach_mcast" { gid, qp_handle, mlid, reserved }
        write::PostSend = "ib_uverbs_post_send" { response, qp_handle, wr_count, sge_count, wqe_size }
        write::PostSendResp = "ib_uverbs_post_send_resp" { bad_wr }
        write::PostRecv = "ib_uverbs_post_recv" { response, qp_handle, wr_count, sge_count, wqe_size }
        write::PostRecvResp = "ib_uverbs_post_recv_resp" { bad_wr }
        write::PostSrqRecv = "ib_uverbs_post_srq_recv" { response, srq_handle, wr_count, sge_count, wqe_size }
        write::PostSrqRecvResp = "ib_uverbs_post_srq_recv_resp" { bad_wr }
        write::CreateSrq = "ib_uverbs_create_srq" { response, user_handle, pd_handle, max_wr, max_sge, srq_limit }
        write::CreateXsrq = "ib_uverbs_create_xsrq" { response, user_handle, srq_type, pd_handle, max_wr, max_sge, srq_limit, max_num_tags, xrcd_handle, cq_handle }
        write::CreateSrqResp = "ib_uverbs_create_srq_resp" { srq_handle, max_wr, max_sge, srqn }
        write::ModifySrq = "ib_uverbs_modify_srq" { srq_handle, attr_mask, max_wr, srq_limit }
        write::QuerySrq = "ib_uverbs_query_srq" { response, srq_handle, reserved }
        write::QuerySrqResp = "ib_uverbs_query_srq_resp" { max_wr, max_sge, srq_limit, reserved }
        write::DestroySrq = "ib_uverbs_destroy_srq" { response, srq_handle, reserved }
        write::DestroySrqResp = "ib_uverbs_destroy_srq_resp" { events_reported }
        write::CreateAh = "ib_uverbs_create_ah" { response, user_handle, pd_handle, reserved, attr }
        write::CreateAhResp = "ib_uverbs_create_ah_resp" { ah_handle }
        write::DestroyAh = "ib_uverbs_destroy_ah" { ah_handle }
        write::ExCreateWq = "ib_uverbs_ex_create_wq" { comp_mask, wq_type, user_handle, pd_handle, cq_handle, max_wr, max_sge, create_flags, reserved }
        write::ExCreateWqResp = "ib_uverbs_ex_create_wq_resp" { comp_mask, response_length, wq_handle, max_wr, max_sge, wqn }
        write::ExDestroyWq = "ib_uverbs_ex_destroy_wq" { comp_mask, wq_handle }
        write::ExDestroyWqResp = "ib_uverbs_ex_destroy_wq_resp" { comp_mask, response_length, events_reported, reserved }
        write::ExModifyWq = "ib_uverbs_ex_modify_wq" { attr_mask, wq_handle, wq_state, curr_wq_state, flags, flags_mask }
        write::ExCreateRwqIndTable = "ib_uverbs_ex_create_rwq_ind_table" { comp_mask, log_ind_tbl_size }
        write::ExCreateRwqIndTableResp = "ib_uverbs_ex_create_rwq_ind_table_resp" { comp_mask, response_length, ind_tbl_handle, ind_tbl_num }
        write::ExDestroyRwqIndTable = "ib_uverbs_ex_destroy_rwq_ind_table" { comp_mask, ind_tbl_handle }
        write::FlowSpecHdr = "ib_uverbs_flow_spec_hdr" { type_, size, reserved }
        write::FlowEthFilter = "ib_uverbs_flow_eth_filter" { dst_mac, src_mac, ether_type, vlan_tag }
        write::FlowSpecEth = "ib_uverbs_flow_spec_eth" { hdr, val, mask }
        write::FlowIpv4Filter = "ib_uverbs_flow_ipv4_filter" { src_ip, dst_ip, proto, tos, ttl, flags }
        write::FlowSpecIpv4 = "ib_uverbs_flow_spec_ipv4" { hdr, val, mask }
        write::FlowTcpUdpFilter = "ib_uverbs_flow_tcp_udp_filter" { dst_port, src_port }
        write::FlowSpecTcpUdp = "ib_uverbs_flow_spec_tcp_udp" { hdr, val, mask }
        write::FlowIpv6Filter = "ib_uverbs_flow_ipv6_filter" { src_ip, dst_ip, flow_label, next_hdr, traffic_class, hop_limit, reserved }
        write::FlowSpecIpv6 = "ib_uverbs_flow_spec_ipv6" { hdr, val, mask }
        write::FlowSpecActionTag = "ib_uverbs_flow_spec_action_tag" { hdr, tag_id, reserved1 }
        write::FlowSpecActionDrop = "ib_uverbs_flow_spec_action_drop" { hdr }
        write::FlowSpecActionHandle = "ib_uverbs_flow_spec_action_handle" { hdr, handle, reserved1 }
        write::FlowSpecActionCount = "ib_uverbs_flow_spec_action_count" { hdr, handle, reserved1 }
        write::FlowTunnelFilter = "ib_uverbs_flow_tunnel_filter" { tunnel_id }
        write::FlowSpecTunnel = "ib_uverbs_flow_spec_tunnel" { hdr, val, mask }
        write::FlowSpecEspFilter = "ib_uverbs_flow_spec_esp_filter" { spi, seq }
        write::FlowSpecEsp = "ib_uverbs_flow_spec_esp" { hdr, val, mask }
        write::FlowGreFilter = "ib_uverbs_flow_gre_filter" { c_ks_res0_ver, protocol, key }
        write::FlowSpecGre = "ib_uverbs_flow_spec_gre" { hdr, val, mask }
        write::FlowMplsFilter = "ib_uverbs_flow_mpls_filter" { label }
        write::FlowSpecMpls = "ib_uverbs_flow_spec_mpls" { hdr, val, mask }
        write::FlowAttr = "ib_uverbs_flow_attr" { type_, size, priority, num_of_specs, reserved, port, flags }
        write::CreateFlow = "ib_uverbs_create_flow" { comp_mask, qp_handle, flow_attr }
        write::CreateFlowResp = "ib_uverbs_create_flow_resp" { comp_mask, flow_handle }
        write::DestroyFlow = "ib_uverbs_destroy_flow" { comp_mask, flow_handle }
        types::QueryDeviceResp = "ib_uverbs_query_device_resp" { fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt, reserved }
        types::OdpTransportCaps = "ib_uverbs_odp_caps.per_transport_caps" { rc_odp_caps, uc_odp_caps, ud_odp_caps }
        types::OdpCaps = "ib_uverbs_odp_caps" { general_caps, per_transport_caps, reserved }
        types::RssCaps = "ib_uverbs_rss_caps" { supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size, reserved }
        types::TmCaps = "ib_uverbs_tm_caps" { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge, reserved }
        types::CqModerationCaps = "ib_uverbs_cq_moderation_caps" { max_cq_moderation_count, max_cq_moderation_period, reserved }
        types::ExQueryDeviceResp = "ib_uverbs_ex_query_device_resp" { base, comp_mask, response_length, odp_caps, timestamp_mask, hca_core_clock, device_cap_flags_ex, rss_caps, max_wq_type_rq, raw_packet_caps, tm_caps, cq_moderation_caps, max_dm_size, xrc_odp_caps, reserved }
        types::QueryPortResp = "ib_uverbs_query_port_resp" { port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, gid_tbl_len, pkey_tbl_len, lid, sm_lid, state, max_mtu, active_mtu, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags, reserved }
        types::QueryPortRespEx = "ib_uverbs_query_port_resp_ex" { legacy_resp, port_cap_flags2, reserved, active_speed_ex }
        types::GidEntry = "ib_uverbs_gid_entry" { gid, gid_index, port_num, gid_type, netdev_ifindex }
        types::GlobalRoute = "ib_uverbs_global_route" { dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved }
        types::AhAttr = "ib_uverbs_ah_attr" { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num, reserved }
        types::QpDest = "ib_uverbs_qp_dest" { dgid, flow_label, dlid, reserved, sgid_index, hop_limit, traffic_class, sl, src_path_bits, static_rate, is_global, port_num }
        types::QpCap = "ib_uverbs_qp_cap" { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        types::QpAttr = "ib_uverbs_qp_attr" { qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, reserved }
        types::Sge = "ib_uverbs_sge" { addr, length, lkey }
        types::Wc = "ib_uverbs_wc" { wr_id, status, opcode, vendor_err, byte_len, ex, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits, port_num, reserved }
        types::SendWr = "ib_uverbs_send_wr" { wr_id, num_sge, opcode, send_flags, ex, wr }
        types::SendWrRdma = "ib_uverbs_send_wr.wr.rdma" { remote_addr, rkey, reserved }
        types::SendWrAtomic = "ib_uverbs_send_wr.wr.atomic" { remote_addr, compare_add, swap, rkey, reserved }
        types::SendWrUd = "ib_uverbs_send_wr.wr.ud" { ah, remote_qpn, remote_qkey, reserved }
        types::RecvWr = "ib_uverbs_recv_wr" { wr_id, num_sge, reserved }
        types::BufferDesc = "ib_uverbs_buffer_desc" { type_, fd, flags, optional_flags, addr, length }
        types::ClockInfo = "ib_uverbs_clock_info" { sign, resv, nsec, cycles, frac, mult, shift, mask, overflow_period }
        types::ClockInfo = "mlx5_ib_clock_info" { sign, resv, nsec, cycles, frac, mult, shift, mask, overflow_period }
        types::FlowActionEspKeymatAesGcm = "ib_uverbs_flow_action_esp_keymat_aes_gcm" { iv, iv_algo, salt, icv_len, key_len, aes_key }
        types::FlowActionEspReplayBmp = "ib_uverbs_flow_action_esp_replay_bmp" { size }
        types::FlowActionEspEncap = "ib_uverbs_flow_action_esp_encap" { val_ptr, next_ptr, len, type_, _pad0 }
        types::FlowActionEsp = "ib_uverbs_flow_action_esp" { spi, seq, tfc_pad, flags, hard_limit_pkts }
        event::CompEventDesc = "ib_uverbs_comp_event_desc" { cq_handle }
        event::AsyncEventDesc = "ib_uverbs_async_event_desc" { element, event_type, reserved }
        ioctl::IoctlHdr = "ib_uverbs_ioctl_hdr" { length, object_id, method_id, num_attrs, reserved1, driver_id, reserved2 }
        ioctl::IoctlAttr = "ib_uverbs_attr" { attr_id, len, flags, attr_data, data }
        rxe::Mminfo = "mminfo" { offset, size, pad }
        rxe::CreateAhResp = "rxe_create_ah_resp" { ah_num, reserved }
        rxe::CreateCqResp = "rxe_create_cq_resp" { mi }
        rxe::ResizeCqResp = "rxe_resize_cq_resp" { mi }
        rxe::CreateQpResp = "rxe_create_qp_resp" { rq_mi, sq_mi }
        rxe::CreateSrqResp = "rxe_create_srq_resp" { mi, srq_num, reserved }
        rxe::ModifySrqCmd = "rxe_modify_srq_cmd" { mmap_info_addr }
        rxe::QueueBuf = "rxe_queue_buf" { log2_elem_size, index_mask, pad_1, producer_index, pad_2, consumer_index, pad_3 }
        rxe::Sge = "rxe_sge" { addr, length, lkey }
        rxe::GlobalRoute = "rxe_global_route" { dgid, flow_label, sgid_index, hop_limit, traffic_class, _pad0 }
        rxe::Av = "rxe_av" { port_num, network_type, dmac, grh, sgid_addr, dgid_addr }
        rxe::SendWr = "rxe_send_wr" { wr_id, reserved, opcode, send_flags, ex, wr }
        rxe::WrRdma = "rxe_send_wr.wr.rdma" { remote_addr, rkey, reserved }
        rxe::WrAtomic = "rxe_send_wr.wr.atomic" { remote_addr, compare_add, swap, rkey, reserved }
        rxe::WrUd = "rxe_send_wr.wr.ud" { remote_qpn, remote_qkey, pkey_index, reserved, ah_num, pad, av }
        rxe::WrMw = "rxe_send_wr.wr.mw" { addr, length, mr_lkey, mw_rkey, rkey, access }
        rxe::WrFlush = "rxe_send_wr.wr.flush" { remote_addr, length, rkey, type_, level, _pad0 }
        rxe::DmaInfo = "rxe_dma_info" { length, resid, cur_sge, num_sge, sge_offset, reserved }
        rxe::SendWqe = "rxe_send_wqe" { wr, status, state, iova, mask, first_psn, last_psn, ack_length, ssn, has_rd_atomic, dma }
        rxe::RecvWqe = "rxe_recv_wqe" { wr_id, reserved, padding, dma }
        mlx5::AllocUcontextReq = "mlx5_ib_alloc_ucontext_req" { total_num_bfregs, num_low_latency_bfregs }
        mlx5::AllocUcontextReqV2 = "mlx5_ib_alloc_ucontext_req_v2" { total_num_bfregs, num_low_latency_bfregs, flags, comp_mask, max_cqe_version, reserved0, reserved1, reserved2, lib_caps }
        mlx5::AllocUcontextResp = "mlx5_ib_alloc_ucontext_resp" { qp_tab_size, bf_reg_size, tot_bfregs, cache_line_size, max_sq_desc_sz, max_rq_desc_sz, max_send_wqebb, max_recv_wr, max_srq_recv_wr, num_ports, flow_action_flags, comp_mask, response_length, cqe_version, cmds_supp_uhw, eth_min_inline, clock_info_versions, hca_core_clock_offset, log_uar_size, num_uars_per_page, num_dyn_bfregs, dump_fill_mkey }
        mlx5::AllocPdResp = "mlx5_ib_alloc_pd_resp" { pdn }
        mlx5::CreateAhResp = "mlx5_ib_create_ah_resp" { response_length, dmac, reserved }
        mlx5::AllocMw = "mlx5_ib_alloc_mw" { comp_mask, num_klms, reserved1, reserved2 }
        mlx5::CreateCq = "mlx5_ib_create_cq" { buf_addr, db_addr, cqe_size, cqe_comp_en, cqe_comp_res_format, flags, uar_page_index, reserved0, reserved1 }
        mlx5::CreateCqResp = "mlx5_ib_create_cq_resp" { cqn, reserved }
        mlx5::ResizeCq = "mlx5_ib_resize_cq" { buf_addr, cqe_size, reserved0, reserved1 }
        mlx5::CreateSrq = "mlx5_ib_create_srq" { buf_addr, db_addr, flags, reserved0, uidx, reserved1 }
        mlx5::CreateSrqResp = "mlx5_ib_create_srq_resp" { srqn, reserved }
        mlx5::CreateQpDciStreams = "mlx5_ib_create_qp_dci_streams" { log_num_concurent, log_num_errored }
        mlx5::CreateQp = "mlx5_ib_create_qp" { buf_addr, db_addr, sq_wqe_count, rq_wqe_count, rq_wqe_shift, flags, uidx, bfreg_index, sq_buf_addr, ece_options, dci_streams, reserved }
        mlx5::CreateQpRss = "mlx5_ib_create_qp_rss" { rx_hash_fields_mask, rx_hash_function, rx_key_len, reserved, rx_hash_key, comp_mask, flags }
        mlx5::CreateQpResp = "mlx5_ib_create_qp_resp" { bfreg_index, ece_options, comp_mask, tirn, tisn, rqn, sqn, reserved1, tir_icm_addr }
        mlx5::BurstInfo = "mlx5_ib_burst_info" { max_burst_sz, typical_pkt_sz, reserved }
        mlx5::ModifyQp = "mlx5_ib_modify_qp" { comp_mask, burst_info, ece_options }
        mlx5::ModifyQpResp = "mlx5_ib_modify_qp_resp" { response_length, dctn, ece_options, reserved }
        mlx5::CreateWq = "mlx5_ib_create_wq" { buf_addr, db_addr, rq_wqe_count, rq_wqe_shift, user_index, flags, comp_mask, single_stride_log_num_of_bytes, single_wqe_log_num_of_strides, two_byte_shift_en }
        mlx5::CreateWqResp = "mlx5_ib_create_wq_resp" { response_length, reserved }
        mlx5::CreateRwqIndTblResp = "mlx5_ib_create_rwq_ind_tbl_resp" { response_length, reserved }
        mlx5::ModifyWq = "mlx5_ib_modify_wq" { comp_mask, reserved }
        mlx5::TsoCaps = "mlx5_ib_tso_caps" { max_tso, supported_qpts }
        mlx5::RssCaps = "mlx5_ib_rss_caps" { rx_hash_fields_mask, rx_hash_function, reserved }
        mlx5::CqeCompCaps = "mlx5_ib_cqe_comp_caps" { max_num, supported_format }
        mlx5::PacketPacingCaps = "mlx5_packet_pacing_caps" { qp_rate_limit_min, qp_rate_limit_max, supported_qpts, cap_flags, reserved }
        mlx5::SwParsingCaps = "mlx5_ib_sw_parsing_caps" { sw_parsing_offloads, supported_qpts }
        mlx5::StridingRqCaps = "mlx5_ib_striding_rq_caps" { min_single_stride_log_num_of_bytes, max_single_stride_log_num_of_bytes, min_single_wqe_log_num_of_strides, max_single_wqe_log_num_of_strides, supported_qpts, reserved }
        mlx5::DciStreamsCaps = "mlx5_ib_dci_streams_caps" { max_log_num_concurent, max_log_num_errored }
        mlx5::Reg = "mlx5_ib_uapi_reg" { value, mask }
        mlx5::QueryDeviceResp = "mlx5_ib_query_device_resp" { comp_mask, response_length, tso_caps, rss_caps, cqe_comp_caps, packet_pacing_caps, mlx5_ib_support_multi_pkt_send_wqes, flags, sw_parsing_caps, striding_rq_caps, tunnel_offloads_caps, dci_streams_caps, reserved, reg_c0 }
        mlx5::QueryPort = "mlx5_ib_uapi_query_port" { flags, vport, vport_vhca_id, esw_owner_vhca_id, rsvd0, vport_steering_icm_rx, vport_steering_icm_tx, reg_c0 }
        mlx5::DevxAsyncCmdHdr = "mlx5_ib_uapi_devx_async_cmd_hdr" { wr_id }
        mlx5::DevxAsyncEventHdr = "mlx5_ib_uapi_devx_async_event_hdr" { cookie }
        mlx5::MatchParams = "mlx5_ib_match_params" { match_params }
        mlx5::FlowCountersDesc = "mlx5_ib_flow_counters_desc" { description, index }
        mlx5::FlowCountersData = "mlx5_ib_flow_counters_data" { counters_data, ncounters, reserved }
        mlx5::CreateFlow = "mlx5_ib_create_flow" { ncounters_data, reserved }
        efa::AllocUcontextCmd = "efa_ibv_alloc_ucontext_cmd" { supported_caps, reserved_20 }
        efa::AllocUcontextResp = "efa_ibv_alloc_ucontext_resp" { comp_mask, cmds_supp_udata_mask, sub_cqs_per_cq, inline_buf_size, max_llq_size, max_tx_batch, min_sq_wr, inline_buf_size_ex, reserved_b0 }
        efa::QueryDeviceResp = "efa_ibv_ex_query_device_resp" { comp_mask, max_sq_wr, max_rq_wr, max_sq_sge, max_rq_sge, max_rdma_size, device_caps }
        efa::AllocPdResp = "efa_ibv_alloc_pd_resp" { comp_mask, pdn, reserved_30 }
        efa::CreateAhResp = "efa_ibv_create_ah_resp" { comp_mask, efa_address_handle, reserved_30 }
        efa::CreateCq = "efa_ibv_create_cq" { comp_mask, cq_entry_size, num_sub_cqs, flags, reserved_58 }
        efa::CreateCqResp = "efa_ibv_create_cq_resp" { comp_mask, reserved_20, q_mmap_key, q_mmap_size, cq_idx, reserved_d0, db_off, db_mmap_key }
        efa::CreateQp = "efa_ibv_create_qp" { comp_mask, rq_ring_size, sq_ring_size, driver_qp_type, flags, sl, reserved_98 }
        efa::CreateQpResp = "efa_ibv_create_qp_resp" { comp_mask, rq_db_offset, sq_db_offset, llq_desc_offset, rq_mmap_key, rq_mmap_size, rq_db_mmap_key, sq_db_mmap_key, llq_desc_mmap_key, send_sub_cq_idx, recv_sub_cq_idx, reserved_1e0 }
        rdma_cm::CmdHdr = "rdma_ucm_cmd_hdr" { cmd, in_, out }
        rdma_cm::CreateId = "rdma_ucm_create_id" { uid, response, ps, qp_type, reserved }
        rdma_cm::CreateIdResp = "rdma_ucm_create_id_resp" { id }
        rdma_cm::DestroyId = "rdma_ucm_destroy_id" { response, id, reserved }
        rdma_cm::DestroyIdResp = "rdma_ucm_destroy_id_resp" { events_reported }
        rdma_cm::BindIp = "rdma_ucm_bind_ip" { response, addr, id }
        rdma_cm::Bind = "rdma_ucm_bind" { id, addr_size, reserved, addr }
        rdma_cm::ResolveIp = "rdma_ucm_resolve_ip" { src_addr, dst_addr, id, timeout_ms }
        rdma_cm::ResolveAddr = "rdma_ucm_resolve_addr" { id, timeout_ms, src_size, dst_size, reserved, src_addr, dst_addr }
        rdma_cm::ResolveRoute = "rdma_ucm_resolve_route" { id, timeout_ms }
        rdma_cm::IbService = "rdma_ucm_ib_service" { service_id, service_name, flags, reserved }
        rdma_cm::ResolveIbService = "rdma_ucm_resolve_ib_service" { id, reserved, ibs }
        rdma_cm::MigrateId = "rdma_ucm_migrate_id" { response, id, fd }
        rdma_cm::MigrateResp = "rdma_ucm_migrate_resp" { events_reported }
        rdma_cm::ConnParam = "rdma_ucm_conn_param" { qp_num, qkey, private_data, private_data_len, srq, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, valid }
        rdma_cm::Connect = "rdma_ucm_connect" { conn_param, id, reserved, ece }
        rdma_cm::Listen = "rdma_ucm_listen" { id, backlog }
        rdma_cm::Accept = "rdma_ucm_accept" { uid, conn_param, id, reserved, ece }
        rdma_cm::Reject = "rdma_ucm_reject" { id, private_data_len, reason, reserved, private_data }
        rdma_cm::Disconnect = "rdma_ucm_disconnect" { id }
        rdma_cm::InitQpAttr = "rdma_ucm_init_qp_attr" { response, id, qp_state }
        rdma_cm::Notify = "rdma_ucm_notify" { id, event }
        rdma_cm::JoinIpMcast = "rdma_ucm_join_ip_mcast" { response, uid, addr, id }
        rdma_cm::JoinMcast = "rdma_ucm_join_mcast" { response, uid, id, addr_size, join_flags, addr }
        rdma_cm::UdParam = "rdma_ucm_ud_param" { qp_num, qkey, ah_attr, private_data, private_data_len, reserved }
        rdma_cm::GetEvent = "rdma_ucm_get_event" { response }
        rdma_cm::EventResp = "rdma_ucm_event_resp" { uid, id, event, status, param, reserved, ece }
        rdma_cm::WriteCmEvent = "rdma_ucm_write_cm_event" { id, reserved, event, status, param }
        rdma_cm::Query = "rdma_ucm_query" { response, id, option }
        rdma_cm::QueryRouteResp = "rdma_ucm_query_route_resp" { node_guid, ib_route, src_addr, dst_addr, num_paths, port_num, reserved, ibdev_index, reserved1 }
        rdma_cm::QueryAddrResp = "rdma_ucm_query_addr_resp" { node_guid, port_num, reserved, pkey, src_size, dst_size, src_addr, dst_addr, ibdev_index, reserved1 }
        rdma_cm::QueryPathResp = "rdma_ucm_query_path_resp" { num_paths, reserved }
        rdma_cm::QueryIbServiceResp = "rdma_ucm_query_ib_service_resp" { num_service_recs, reserved }
        rdma_cm::PathRecData = "ib_path_rec_data" { flags, reserved, path_rec }
        rdma_cm::UserPathRec = "ib_user_path_rec" { dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector, rate, packet_life_time_selector, packet_life_time, preference }
        rdma_cm::UserServiceRec = "ib_user_service_rec" { id, gid, pkey, reserved, lease, key, name, data_8, data_16, data_32, data_64 }
        rdma_cm::SetOption = "rdma_ucm_set_option" { optval, id, level, optname, optlen }
        rdma_cm::Ece = "rdma_ucm_ece" { vendor_id, attr_mod }
    }
}
