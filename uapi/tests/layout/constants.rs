//! Every number of the crate with its name in C.

use bitflags::Flags;
use uverbs_uapi::names::{Ids, OBJECT_IDS, OBJECTS};
use uverbs_uapi::{cmd, efa, enums, flags, ioctl, mlx5, nldev, rdma_cm, rxe, write};

/// Name in C and value.
pub(crate) type Constant = (String, u64);

/// Numbers that the kernel's headers for user space have.
pub(crate) fn kernel() -> Vec<Constant> {
    let mut all = plain();
    all.extend(commands());
    all.extend(ids());
    all.extend(kernel_enums());
    all.extend(kernel_flags());
    all.extend(mlx5_flags());
    all.extend(efa_flags());
    all.extend(connection_manager());
    for (name, _) in &mut all {
        if let Some((_, kernel_name)) = RENAMED.iter().find(|(ours, _)| ours == name) {
            *name = (*kernel_name).to_owned();
        }
    }
    all
}

/// Numbers of the connection manager.
fn connection_manager() -> Vec<Constant> {
    let ids: &[Ids] = &[
        rdma_cm::cmd::IDS,
        rdma_cm::PortSpace::IDS,
        rdma_cm::QueryOption::IDS,
        rdma_cm::JoinFlags::IDS,
        rdma_cm::OptionLevel::IDS,
        rdma_cm::IdOption::IDS,
        rdma_cm::IbOption::IDS,
    ];
    let mut all: Vec<Constant> = ids.iter().flat_map(|ids| named(ids, ids.prefix)).collect();
    all.extend(bits::<rdma_cm::IbServiceFlags>(
        "RDMA_USER_CM_IB_SERVICE_FLAG_",
    ));
    all.extend(bits::<rdma_cm::PathFlags>("IB_PATH_"));
    all.extend([
        constant("RDMA_USER_CM_ABI_VERSION", rdma_cm::ABI_VERSION),
        constant("RDMA_MAX_PRIVATE_DATA", rdma_cm::MAX_PRIVATE_DATA as u64),
        constant(
            "RDMA_USER_CM_IB_SERVICE_NAME_SIZE",
            rdma_cm::IB_SERVICE_NAME_SIZE as u64,
        ),
    ]);
    all
}

/// Numbers that librdmacm's header has.
pub(crate) fn librdmacm() -> Vec<Constant> {
    let ids = rdma_cm::Event::IDS;
    named(&ids, ids.prefix)
}

/// Numbers of libibverbs' header. If its name is not the kernel's, that is checked too.
pub(crate) fn libibverbs() -> Vec<Constant> {
    let enums: &[Ids] = &[
        enums::NodeType::IDS,
        enums::AtomicCap::IDS,
        enums::PortState::IDS,
        enums::LinkLayer::IDS,
        enums::Mtu::IDS,
        enums::GidType::IDS,
        enums::QpType::IDS,
        enums::QpState::IDS,
        enums::MigState::IDS,
        enums::Rate::IDS,
        enums::WrOpcode::IDS,
        enums::WcOpcode::IDS,
        enums::WcStatus::IDS,
        enums::AsyncEventType::IDS,
        enums::MwType::IDS,
        enums::SrqType::IDS,
        enums::WqType::IDS,
        enums::WqState::IDS,
        enums::AdviseMrAdvice::IDS,
        enums::FlowSpecType::IDS,
        enums::FlowAttrType::IDS,
    ];
    let mut all: Vec<Constant> = enums
        .iter()
        .flat_map(|ids| named(ids, ids.prefix))
        .collect();
    all.extend(bits::<flags::ReregMrFlags>("IBV_REREG_MR_"));
    all.extend(bits::<flags::TmCapFlags>("IBV_TM_CAP_"));
    all.extend(bits::<flags::PortCapFlags2>("IBV_PORT_"));
    all.extend(bits::<flags::CqAttrMask>("IBV_CQ_ATTR_"));
    all.extend(bits::<flags::QpAttrMask>("IBV_QP_"));
    all.extend(bits::<flags::SendFlags>("IBV_SEND_"));
    all.extend(bits::<flags::WcFlags>("IBV_WC_"));
    all.extend(bits::<flags::SrqAttrMask>("IBV_SRQ_"));
    all.extend(bits::<flags::WqAttrMask>("IBV_WQ_ATTR_"));
    all.extend(bits::<flags::FlowAttrFlags>("IBV_FLOW_ATTR_FLAGS_"));
    all.push(constant(
        "IBV_QP_CREATE_SOURCE_QPN",
        flags::QpCreateFlags::SOURCE_QPN.bits(),
    ));
    all.push(constant(
        "IBV_PORT_CAP_MASK2_SUP",
        flags::PortCapFlags::CAP_MASK2_SUP.bits(),
    ));
    all
}

/// Names that differ from the kernel's.
const RENAMED: &[(&str, &str)] = &[
    ("IB_UVERBS_QPT_XRC_SEND", "IB_UVERBS_QPT_XRC_INI"),
    ("IB_UVERBS_QPT_XRC_RECV", "IB_UVERBS_QPT_XRC_TGT"),
    ("RDMA_NODE_CA", "RDMA_NODE_IB_CA"),
    ("RDMA_NODE_SWITCH", "RDMA_NODE_IB_SWITCH"),
    ("RDMA_NODE_ROUTER", "RDMA_NODE_IB_ROUTER"),
    ("MLX5_LIB_CAP_UAR_4K", "MLX5_LIB_CAP_4K_UAR"),
];

/// Constants that belong to no group.
fn plain() -> Vec<Constant> {
    vec![
        constant("IB_USER_VERBS_ABI_VERSION", cmd::ABI_VERSION),
        constant("IB_USER_VERBS_CMD_THRESHOLD", cmd::THRESHOLD),
        constant("IB_USER_VERBS_CMD_FLAG_EXTENDED", cmd::FLAG_EXTENDED),
        constant("IB_USER_VERBS_CMD_COMMAND_MASK", write::COMMAND_MASK),
        constant(
            "IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE",
            write::MAX_LOG_IND_TBL_SIZE,
        ),
        constant("RDMA_VERBS_IOCTL", ioctl::RDMA_VERBS_IOCTL),
        constant("RDMA_IOCTL_MAGIC", ioctl::IOCTL_MAGIC),
        constant("UVERBS_ID_NS_SHIFT", ioctl::ID_NS_SHIFT),
        constant("UVERBS_ID_NS_MASK", ioctl::ID_NS_MASK),
        constant("UVERBS_ID_DRIVER_NS", ioctl::DRIVER_NS),
        constant("UVERBS_ID_DRIVER_NS_WITH_UHW", ioctl::DRIVER_NS_WITH_UHW),
        constant(
            "IB_UVERBS_ACCESS_OPTIONAL_RANGE",
            flags::Access::OPTIONAL.bits(),
        ),
        constant("RXE_NETWORK_TYPE_IPV4", rxe::NETWORK_TYPE_IPV4),
        constant("RXE_NETWORK_TYPE_IPV6", rxe::NETWORK_TYPE_IPV6),
        constant("MLX5_IB_UVERBS_ABI_VERSION", mlx5::ABI_VERSION),
        constant("EFA_UVERBS_ABI_VERSION", efa::ABI_VERSION),
        constant("EFA_QP_DRIVER_TYPE_SRD", efa::QP_DRIVER_TYPE_SRD),
    ]
}

/// Commands; the kernel has the extended ones with another prefix and without their flag.
fn commands() -> Vec<Constant> {
    let command = |(name, value): Constant| match name.strip_prefix("IB_USER_VERBS_CMD_EX_") {
        Some(rest) => (
            format!("IB_USER_VERBS_EX_CMD_{rest}"),
            value & !u64::from(cmd::FLAG_EXTENDED),
        ),
        None => (name, value),
    };
    named(&cmd::IDS, cmd::IDS.prefix)
        .into_iter()
        .map(command)
        .collect()
}

/// Objects, methods, attributes, and netlink.
fn ids() -> Vec<Constant> {
    let methods = OBJECTS.iter().flat_map(|object| object.methods);
    let attrs = OBJECTS
        .iter()
        .flat_map(|object| object.attrs)
        .flat_map(|(_, attrs)| *attrs);
    let netlink = [nldev::client::IDS, nldev::cmd::IDS, nldev::attr::IDS];
    OBJECT_IDS
        .iter()
        .chain(methods)
        .chain(attrs)
        .chain(&netlink)
        .flat_map(|ids| named(ids, ids.prefix))
        .collect()
}

fn kernel_enums() -> Vec<Constant> {
    let own_prefix: &[Ids] = &[
        enums::DriverId::IDS,
        enums::FlushLevel::IDS,
        enums::BufferType::IDS,
        enums::CompCntrEntry::IDS,
        enums::CompCntrModifyOp::IDS,
        enums::FlowActionEspKeymat::IDS,
        enums::FlowActionIvAlgo::IDS,
        enums::FlowActionEspReplay::IDS,
        mlx5::InlineMode::IDS,
        mlx5::DmType::IDS,
        mlx5::UarAllocType::IDS,
        mlx5::FlowTableType::IDS,
        mlx5::PacketReformatType::IDS,
        mlx5::FlowType::IDS,
        mlx5::MmapCmd::IDS,
    ];
    let other_prefix: &[(Ids, &str)] = &[
        (enums::NodeType::IDS, "RDMA_NODE_"),
        (enums::GidType::IDS, "IB_UVERBS_GID_TYPE_"),
        (enums::QpType::IDS, "IB_UVERBS_QPT_"),
        (enums::WrOpcode::IDS, "IB_UVERBS_WR_"),
        (enums::SrqType::IDS, "IB_UVERBS_SRQT_"),
        (enums::WqType::IDS, "IB_UVERBS_WQT_"),
        (enums::AdviseMrAdvice::IDS, "IB_UVERBS_ADVISE_MR_ADVICE_"),
    ];
    let mut all: Vec<Constant> = own_prefix
        .iter()
        .flat_map(|ids| named(ids, ids.prefix))
        .collect();
    all.extend(
        other_prefix
            .iter()
            .flat_map(|(ids, prefix)| named(ids, prefix)),
    );
    // From bit 7 on, completions have only libibverbs' numbers.
    let completions = named(&enums::WcOpcode::IDS, "IB_UVERBS_WC_");
    all.extend(completions.into_iter().filter(|(_, value)| *value < 1 << 7));
    all
}

fn kernel_flags() -> Vec<Constant> {
    let mut all = bits::<ioctl::AttrFlags>("UVERBS_ATTR_F_");
    all.extend(bits::<flags::Access>("IB_UVERBS_ACCESS_"));
    all.extend(bits::<flags::AdviseMrFlags>("IB_UVERBS_ADVISE_MR_FLAG_"));
    all.extend(bits::<flags::DeviceCapFlags>("IB_UVERBS_DEVICE_"));
    all.extend(bits::<flags::RawPacketCaps>("IB_UVERBS_RAW_PACKET_CAP_"));
    all.extend(bits::<flags::OdpGeneralCapBits>("IB_UVERBS_ODP_"));
    all.extend(bits::<flags::OdpTransportCapBits>("IB_UVERBS_ODP_SUPPORT_"));
    all.extend(bits::<flags::CoreSupport>("IB_UVERBS_CORE_SUPPORT_"));
    let port = flags::PortCapFlags::all() - flags::PortCapFlags::CAP_MASK2_SUP;
    all.extend(bits_of(port, "IB_UVERBS_PCF_"));
    all.extend(bits::<flags::QueryPortFlags>("IB_UVERBS_QPF_"));
    all.extend(bits::<flags::CqCreateFlags>("IB_UVERBS_CQ_FLAGS_"));
    all.extend(bits::<flags::QpAttachCompCntrOps>(
        "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_",
    ));
    let qp = flags::QpCreateFlags::all() - flags::QpCreateFlags::SOURCE_QPN;
    all.extend(bits_of(qp, "IB_UVERBS_QP_CREATE_"));
    all.extend(bits::<flags::CreateQpMask>("IB_UVERBS_CREATE_QP_MASK_"));
    all.extend(bits::<flags::FlushPlacement>("IB_FLUSH_"));
    all.extend(bits::<flags::WqFlags>("IB_UVERBS_WQ_FLAGS_"));
    all.extend(bits::<flags::FlowActionEspFlags>(
        "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_",
    ));
    all.extend(bits::<flags::ReadCountersFlags>("IB_UVERBS_READ_COUNTERS_"));
    all
}

fn mlx5_flags() -> Vec<Constant> {
    let mut all = bits::<mlx5::LibCaps>("MLX5_LIB_CAP_");
    all.extend(bits::<mlx5::AllocUctxFlags>("MLX5_IB_ALLOC_UCTX_"));
    all.extend(bits::<mlx5::AllocUcontextRespMask>(
        "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_",
    ));
    all.extend(bits::<mlx5::UhwCmds>("MLX5_USER_CMDS_SUPP_UHW_"));
    all.extend(bits::<mlx5::FlowActionCaps>(
        "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_",
    ));
    all.extend(bits::<mlx5::QpFlags>("MLX5_QP_FLAG_"));
    all.extend(bits::<mlx5::SrqFlags>("MLX5_SRQ_FLAG_"));
    all.extend(bits::<mlx5::WqFlags>("MLX5_WQ_FLAG_"));
    all.extend(bits::<mlx5::CreateWqMask>("MLX5_IB_CREATE_WQ_"));
    all.extend(bits::<mlx5::CreateCqFlags>("MLX5_IB_CREATE_CQ_FLAGS_"));
    all.extend(bits::<mlx5::CqeCompFormat>("MLX5_IB_CQE_RES_FORMAT_"));
    all.extend(bits::<mlx5::CreateQpRespMask>(
        "MLX5_IB_CREATE_QP_RESP_MASK_",
    ));
    all.extend(bits::<mlx5::ModifyQpMask>("MLX5_IB_MODIFY_QP_"));
    all.extend(bits::<mlx5::RxHashFields>("MLX5_RX_HASH_"));
    all.extend(bits::<mlx5::RxHashFunctions>("MLX5_RX_HASH_FUNC_"));
    all.extend(bits::<mlx5::PacketPacingCapFlags>("MLX5_IB_PP_SUPPORT_"));
    all.extend(bits::<mlx5::MpwCaps>("MLX5_IB_"));
    all.extend(bits::<mlx5::SwParsingOffloads>("MLX5_IB_SW_"));
    all.extend(bits::<mlx5::QueryDevRespFlags>("MLX5_IB_QUERY_DEV_RESP_"));
    all.extend(bits::<mlx5::TunnelOffloads>("MLX5_IB_TUNNELED_OFFLOADS_"));
    all.extend(bits::<mlx5::QueryPortFlags>("MLX5_IB_UAPI_QUERY_PORT_"));
    all.extend(bits::<mlx5::RegDmabufFlags>(
        "MLX5_IB_UAPI_REG_DMABUF_ACCESS_",
    ));
    all.extend(bits::<mlx5::DevxEventChannelFlags>(
        "MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_",
    ));
    all.extend(bits::<mlx5::VarAllocFlags>("MLX5_IB_UAPI_VAR_ALLOC_FLAG_"));
    all.extend(bits::<mlx5::PpAllocFlags>("MLX5_IB_UAPI_PP_ALLOC_FLAGS_"));
    all.extend(bits::<mlx5::CreateFlowFlags>(
        "MLX5_IB_ATTR_CREATE_FLOW_FLAGS_",
    ));
    all.extend(bits::<mlx5::FlowActionFlags>(
        "MLX5_IB_UAPI_FLOW_ACTION_FLAGS_",
    ));
    all
}

fn efa_flags() -> Vec<Constant> {
    let mut all = bits::<efa::UcontextCaps>("EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_");
    all.extend(bits::<efa::UdataCmds>("EFA_USER_CMDS_SUPP_UDATA_"));
    all.extend(bits::<efa::DeviceCaps>("EFA_QUERY_DEVICE_CAPS_"));
    all.extend(bits::<efa::CreateCqFlags>("EFA_CREATE_CQ_WITH_"));
    all.extend(bits::<efa::CreateCqRespMask>("EFA_CREATE_CQ_RESP_"));
    all.extend(bits::<efa::CreateQpFlags>("EFA_CREATE_QP_WITH_"));
    all.extend(bits::<efa::QueryMrValidity>("EFA_QUERY_MR_VALIDITY_"));
    let ids = [
        efa::method::mr::IDS,
        efa::attr::query_mr::IDS,
        efa::attr::create_comp_cntr::IDS,
    ];
    all.extend(ids.iter().flat_map(|ids| named(ids, ids.prefix)));
    all
}

fn constant(name: &str, value: impl Into<u64>) -> Constant {
    (name.to_owned(), value.into())
}

fn named(ids: &Ids, prefix: &str) -> Vec<Constant> {
    let constant = |(value, name): &(u32, &str)| (format!("{prefix}{name}"), u64::from(*value));
    ids.ids.iter().map(constant).collect()
}

fn bits<F: Flags>(prefix: &str) -> Vec<Constant>
where
    F::Bits: Into<u64>,
{
    bits_of(F::all(), prefix)
}

fn bits_of<F: Flags>(flags: F, prefix: &str) -> Vec<Constant>
where
    F::Bits: Into<u64>,
{
    let constant = |(name, flag): (&str, F)| (format!("{prefix}{name}"), flag.bits().into());
    flags.iter_names().map(constant).collect()
}
