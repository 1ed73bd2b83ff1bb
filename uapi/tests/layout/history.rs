//! Things that are newer than the oldest tested kernel, have changed or have been removed, and things that
//! the crate leaves out on purpose. A `*` in a name stands for any text.

use crate::probe::Version;

/// The kernel versions whose headers have something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum History {
    Always,
    /// First version that has it.
    Since(Version),
    /// First version that does not have it any more.
    Until(Version),
}

/// Structs, members and constants, with the version that introduced them.
const SINCE: &[(Version, &[&str])] = &[
    (
        (6, 2),
        &[
            "RDMA_DRIVER_MANA",
            "IB_FLUSH_*",
            "IB_UVERBS_WR_FLUSH",
            "IB_UVERBS_WR_ATOMIC_WRITE",
            "IB_UVERBS_WC_FLUSH",
            "IB_UVERBS_WC_ATOMIC_WRITE",
            "IB_UVERBS_ACCESS_FLUSH_*",
            "IB_UVERBS_DEVICE_FLUSH_*",
            "IB_UVERBS_DEVICE_ATOMIC_WRITE",
            "rxe_send_wr.wr.flush*",
        ],
    ),
    ((6, 7), &["ib_uverbs_query_port_resp_ex.active_speed_ex"]),
    (
        (6, 8),
        &[
            "mlx5_ib_query_device_resp.reg_c0",
            "MLX5_IB_UAPI_DM_TYPE_ENCAP_SW_ICM",
        ],
    ),
    (
        (6, 11),
        &["UVERBS_ID_DRIVER_NS*", "MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX"],
    ),
    (
        (6, 12),
        &[
            "RDMA_NLDEV_CMD_MONITOR",
            "MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH",
            "MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH",
            "MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS",
            "MLX5_IB_UAPI_REG_DMABUF_ACCESS_*",
            // At the latest.
            "EFA_QUERY_DEVICE_CAPS_DATA_POLLING_128",
            "EFA_QUERY_DEVICE_CAPS_RDMA_WRITE",
            "EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV",
            "EFA_CREATE_QP_WITH_UNSOLICITED_WRITE_RECV",
            "EFA_QUERY_MR_VALIDITY_*",
            "EFA_IB_ATTR_QUERY_MR_*",
            "EFA_IB_METHOD_MR_QUERY",
            "efa_ibv_create_qp.flags",
        ],
    ),
    (
        (6, 13),
        &[
            "MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP",
            "MLX5_IB_MODIFY_QP_OOO_DP",
        ],
    ),
    (
        (6, 15),
        &[
            "UVERBS_ATTR_GET_CONTEXT_FD_ARR",
            "MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT",
            "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_*",
        ],
    ),
    ((6, 16), &["IB_UVERBS_ODP_SUPPORT*"]),
    (
        (6, 17),
        &[
            "UVERBS_OBJECT_DMAH",
            "UVERBS_METHOD_DMAH_*",
            "UVERBS_ATTR_ALLOC_DMAH_*",
            "UVERBS_ATTR_FREE_DMA_HANDLE",
            "UVERBS_METHOD_REG_MR",
            "UVERBS_ATTR_REG_MR_*",
            "UVERBS_ATTR_CREATE_CQ_BUFFER_*",
        ],
    ),
    (
        (6, 18),
        &[
            "RDMA_DRIVER_IONIC",
            "RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE",
            "RDMA_USER_CM_CMD_WRITE_CM_EVENT",
            "RDMA_USER_CM_QUERY_IB_SERVICE",
            "RDMA_USER_CM_IB_SERVICE_*",
            "rdma_ucm_query_ib_service_resp*",
            "rdma_ucm_ib_service*",
            "rdma_ucm_resolve_ib_service*",
            "rdma_ucm_write_cm_event*",
            "ib_user_service_rec*",
        ],
    ),
    (
        (7, 0),
        &[
            "UVERBS_METHOD_QUERY_PORT_SPEED",
            "UVERBS_ATTR_QUERY_PORT_SPEED_*",
            "UVERBS_OBJECT_DMABUF",
            "UVERBS_METHOD_DMABUF_*",
            "UVERBS_ATTR_ALLOC_DMABUF_*",
        ],
    ),
    (
        (7, 1),
        &[
            "IB_UVERBS_CORE_SUPPORT_ROBUST_UDATA",
            "MLX5_IB_ATTR_VAR_OBJ_ALLOC_FLAGS",
            "MLX5_IB_UAPI_VAR_ALLOC_FLAG_*",
        ],
    ),
    (
        (7, 2),
        &[
            "IB_UVERBS_DEVICE_CC_DMA_BOUNCE",
            "IB_UVERBS_BUFFER_TYPE_*",
            "ib_uverbs_buffer_desc*",
            "UVERBS_ATTR_CREATE_CQ_BUF_UMEM",
            "UVERBS_ATTR_CREATE_QP_*BUF_UMEM",
            "MLX5_IB_ATTR_CREATE_CQ_DBR_BUF_UMEM",
            "MLX5_IB_ATTR_CREATE_QP_DBR_BUF_UMEM",
        ],
    ),
    (
        (7, 3),
        &[
            "UVERBS_OBJECT_COMP_CNTR",
            "UVERBS_METHOD_*COMP_CNTR*",
            "UVERBS_ATTR_*COMP_CNTR_*",
            "IB_UVERBS_COMP_CNTR_*",
            "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_*",
            "UVERBS_ATTR_CREATE_SRQ_BUF_UMEM",
            "MLX5_IB_ATTR_CREATE_SRQ_DBR_BUF_UMEM",
            "ib_uverbs_clock_info*",
            // At the latest.
            "EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_*",
            "EFA_QUERY_DEVICE_CAPS_CQ_WITH_EXT_MEM",
            "EFA_QUERY_DEVICE_CAPS_COMP_CNTR",
            "EFA_QUERY_DEVICE_CAPS_SQ_64_BIT_REQ_ID",
            "EFA_CREATE_CQ_WITH_SQ_COMP_64_BIT_REQ_ID",
            "EFA_CREATE_QP_WITH_SQ_64_BIT_REQ_ID",
            "EFA_IB_ATTR_CREATE_COMP_CNTR_*",
            "efa_ibv_alloc_ucontext_cmd.supported_caps",
            "efa_ibv_alloc_ucontext_resp.inline_buf_size_ex",
            "efa_ibv_alloc_ucontext_resp.reserved_b0",
            "efa_ibv_create_qp.sl",
            "efa_ibv_create_qp.reserved_98",
        ],
    ),
];

/// Things that the headers have lost, with the first version without them.
const UNTIL: &[(Version, &[&str])] = &[((7, 3), &["mlx5_ib_clock_info*"])];

/// Things with another size since the version here; the crate has the new one.
const CHANGED: &[(Version, &str)] = &[
    ((6, 7), "ib_uverbs_query_port_resp_ex.reserved"),
    ((6, 8), "mlx5_ib_query_device_resp"),
    ((6, 12), "efa_ibv_create_qp"),
];

/// Things that the crate leaves out, with the reason.
const OUT_OF_SCOPE: &[(&str, &str)] = &[
    (
        "ib_uverbs_attr.attr_data.*",
        "the union is a plain u16 here",
    ),
    ("ib_uverbs_attr.data_s64", "the same as `data`, signed"),
    ("ib_uverbs_wc.ex.*", "read by methods of `Wc`"),
    ("ib_uverbs_send_wr.ex.*", "the union is a plain u32 here"),
    ("rxe_send_wr.ex.*", "the union is a plain u32 here"),
    ("ib_uverbs_flow_spec_*.type", "in the union with `hdr`"),
    ("ib_uverbs_flow_spec_*.size", "in the union with `hdr`"),
    ("ib_uverbs_flow_spec_*.reserved", "in the union with `hdr`"),
    (
        "mlx5_ib_create_qp.access_key",
        "in the union with `sq_buf_addr`",
    ),
    ("rxe_av.sgid_addr.*", "the union is bytes here"),
    ("rxe_av.dgid_addr.*", "the union is bytes here"),
    ("IB_IOCTL_MAGIC", "old name of RDMA_IOCTL_MAGIC"),
    ("IB_USER_MAD_*", "ib_umad, another device file"),
    ("HFI1_IOCTL_*", "hfi1's own device file"),
    ("RDMA_DRIVER_I40IW", "old name of RDMA_DRIVER_IRDMA"),
    (
        "UVERBS_UDATA_DRIVER_DATA_*",
        "old names of UVERBS_ID_DRIVER_NS",
    ),
    (
        "IB_UVERBS_CREATE_QP_SUP_COMP_MASK",
        "what one header knows, not ABI",
    ),
    (
        "IB_UVERBS_ACCESS_OPTIONAL_FIRST",
        "first of IB_UVERBS_ACCESS_OPTIONAL_RANGE",
    ),
    (
        "IB_UVERBS_ACCESS_OPTIONAL_LAST",
        "last of IB_UVERBS_ACCESS_OPTIONAL_RANGE",
    ),
    (
        "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO",
        "0: absence of the flag beside it",
    ),
    (
        "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL",
        "0: absence of the flag beside it",
    ),
    (
        "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT",
        "0: absence of the flag beside it",
    ),
    ("IB_DEVICE_NAME_MAX", "length of a name in the kernel"),
    (
        "MLX5_IB_DW_MATCH_PARAM",
        "the length of MatchParams::match_params",
    ),
    ("MPW_RESERVED", "reserved"),
    (
        "MLX5_IB_CLOCK_INFO_*",
        "numbers within a page that mlx5 maps",
    ),
    (
        "mlx5_ib_clock_info",
        "since 7.3 a macro for ib_uverbs_clock_info",
    ),
    ("rxe_gid*", "the union is bytes here"),
    (
        "EFA_ALLOC_UCONTEXT_CMD_COMP_*",
        "old names of EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_*",
    ),
    (
        "efa_ibv_alloc_ucontext_cmd.comp_mask",
        "old name of `supported_caps`",
    ),
    (
        "efa_ibv_alloc_ucontext_resp.reserved_a0",
        "has become `inline_buf_size_ex` in part",
    ),
    ("efa_ibv_create_qp.reserved_90", "has become `sl` in part"),
    ("RDMA_NL_*", "netlink: only what finds devices and objects"),
    (
        "RDMA_NLDEV_*",
        "netlink: only what finds devices and objects",
    ),
    ("RDMA_COUNTER_*", "netlink: counters"),
    ("RDMA_*_EVENT", "netlink: what the monitor tells"),
    ("RDMA_DEVICE_TYPE_SMI", "netlink: sub-devices"),
    ("RDMA_NAME_ASSIGN_TYPE_*", "netlink: who named a device"),
    ("RDMA_NLA_*", "netlink of local services"),
    ("RDMA_MC_JOIN_FLAG_RESERVED", "the number behind the last"),
    ("rdma_ucm_event_resp.param.*", "the union is bytes here"),
    ("rdma_ucm_write_cm_event.param.*", "the union is bytes here"),
    (
        "IB_PATH_BIDIRECTIONAL",
        "OUTBOUND and INBOUND_REVERSE of PathFlags",
    ),
    ("rdma_ls_*", "netlink of local services"),
    ("rdma_nla_ls_gid*", "netlink of local services"),
    ("IWPM_*", "netlink of the iWARP port mapper"),
    ("LS_*", "netlink of local services"),
];

/// Names that libibverbs' or librdmacm's header lacks: only the kernel has them, or they are newer than some
/// versions of the library.
const LACKING_IN_LIBRARIES: &[&str] = &[
    "IBV_WR_RDMA_READ_WITH_INV",
    "IBV_WR_MASKED_ATOMIC_*",
    "IBV_WR_FLUSH",
    "IBV_WR_ATOMIC_WRITE",
    "IBV_WC_FLUSH",
    "IBV_WC_ATOMIC_WRITE",
    "IBV_EVENT_DEVICE_SPEED_CHANGE",
    "IBV_RATE_800_GBPS",
    "IBV_RATE_1200_GBPS",
    "IBV_PORT_LINK_SPEED_XDR_SUP",
    "RDMA_CM_EVENT_ADDRINFO_*",
    "RDMA_CM_EVENT_USER",
    "RDMA_CM_EVENT_INTERNAL",
];

/// The kernel versions whose headers have a struct, member or constant.
pub(crate) fn of(name: &str) -> History {
    if let Some(version) = find(UNTIL, name) {
        return History::Until(version);
    }
    find(SINCE, name).map_or(History::Always, History::Since)
}

/// The version since which a struct or member is as in this crate, if it was different before.
pub(crate) fn changed(path: &str) -> Option<Version> {
    let entry = CHANGED.iter().find(|(_, changed)| *changed == path);
    entry.map(|(version, _)| *version)
}

/// Whether the crate leaves something out on purpose.
pub(crate) fn out_of_scope(name: &str) -> bool {
    OUT_OF_SCOPE
        .iter()
        .any(|(pattern, _)| matches(pattern, name))
}

/// Whether a library's header may lack something.
pub(crate) fn lacking_in_libraries(name: &str) -> bool {
    LACKING_IN_LIBRARIES
        .iter()
        .any(|pattern| matches(pattern, name))
}

/// All patterns of things that the crate has.
pub(crate) fn patterns() -> impl Iterator<Item = &'static str> {
    let dated = SINCE
        .iter()
        .chain(UNTIL)
        .flat_map(|(_, names)| *names)
        .copied();
    dated.chain(CHANGED.iter().map(|(_, path)| *path))
}

/// Whether a name matches a pattern.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            (0..=tail.len()).any(|from| tail.get(from..).is_some_and(|tail| matches(rest, tail)))
        }),
    }
}

fn find(entries: &[(Version, &[&str])], name: &str) -> Option<Version> {
    let fits = |names: &[&str]| names.iter().any(|pattern| matches(pattern, name));
    entries
        .iter()
        .find(|(_, names)| fits(names))
        .map(|(version, _)| *version)
}
