//! Values that C programs have in `infiniband/verbs.h`, by the names that they have there. They carry data
//! only: what has pointers in C has none here.
#![allow(non_camel_case_types, missing_docs)]

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;

use bitflags::bitflags;
use enumflags2::BitFlags;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use strum::{FromRepr, IntoStaticStr};

use crate::types::{FwVer, Guid, LinkLayer, WRID, WRType};

#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ibv_transport_type {
    #[default]
    IBV_TRANSPORT_UNKNOWN = -1,
    IBV_TRANSPORT_IB = 0,
    IBV_TRANSPORT_IWARP = 1,
    IBV_TRANSPORT_USNIC = 2,
    IBV_TRANSPORT_USNIC_UDP = 3,
    IBV_TRANSPORT_UNSPECIFIED = 4,
}

#[repr(u32)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromRepr, Serialize, Deserialize, JsonSchema,
)]
pub enum ibv_atomic_cap {
    #[default]
    IBV_ATOMIC_NONE = 0,
    IBV_ATOMIC_HCA = 1,
    IBV_ATOMIC_GLOB = 2,
}

#[repr(u32)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromRepr, Serialize, Deserialize, JsonSchema,
)]
pub enum ibv_port_state {
    #[default]
    IBV_PORT_NOP = 0,
    IBV_PORT_DOWN = 1,
    IBV_PORT_INIT = 2,
    IBV_PORT_ARMED = 3,
    IBV_PORT_ACTIVE = 4,
    IBV_PORT_ACTIVE_DEFER = 5,
}

#[repr(u32)]
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromRepr, Serialize, Deserialize, JsonSchema,
)]
pub enum ibv_mtu {
    #[default]
    IBV_MTU_256 = 1,
    IBV_MTU_512 = 2,
    IBV_MTU_1024 = 3,
    IBV_MTU_2048 = 4,
    IBV_MTU_4096 = 5,
}

/// Only queue pairs of type RC can be created.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ibv_qp_type {
    #[default]
    IBV_QPT_RC = 2,
    IBV_QPT_UC = 3,
    IBV_QPT_UD = 4,
    IBV_QPT_RAW_PACKET = 8,
    IBV_QPT_XRC_SEND = 9,
    IBV_QPT_XRC_RECV = 10,
    IBV_QPT_DRIVER = 255,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ibv_qp_state {
    #[default]
    IBV_QPS_RESET = 0,
    IBV_QPS_INIT = 1,
    IBV_QPS_RTR = 2,
    IBV_QPS_RTS = 3,
    IBV_QPS_SQD = 4,
    IBV_QPS_SQE = 5,
    IBV_QPS_ERR = 6,
    IBV_QPS_UNKNOWN = 7,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ibv_mig_state {
    #[default]
    IBV_MIG_MIGRATED = 0,
    IBV_MIG_REARM = 1,
    IBV_MIG_ARMED = 2,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromRepr)]
pub enum ibv_wc_status {
    #[default]
    IBV_WC_SUCCESS = 0,
    IBV_WC_LOC_LEN_ERR = 1,
    IBV_WC_LOC_QP_OP_ERR = 2,
    IBV_WC_LOC_EEC_OP_ERR = 3,
    IBV_WC_LOC_PROT_ERR = 4,
    IBV_WC_WR_FLUSH_ERR = 5,
    IBV_WC_MW_BIND_ERR = 6,
    IBV_WC_BAD_RESP_ERR = 7,
    IBV_WC_LOC_ACCESS_ERR = 8,
    IBV_WC_REM_INV_REQ_ERR = 9,
    IBV_WC_REM_ACCESS_ERR = 10,
    IBV_WC_REM_OP_ERR = 11,
    IBV_WC_RETRY_EXC_ERR = 12,
    IBV_WC_RNR_RETRY_EXC_ERR = 13,
    IBV_WC_LOC_RDD_VIOL_ERR = 14,
    IBV_WC_REM_INV_RD_REQ_ERR = 15,
    IBV_WC_REM_ABORT_ERR = 16,
    IBV_WC_INV_EECN_ERR = 17,
    IBV_WC_INV_EEC_STATE_ERR = 18,
    IBV_WC_FATAL_ERR = 19,
    IBV_WC_RESP_TIMEOUT_ERR = 20,
    IBV_WC_GENERAL_ERR = 21,
    IBV_WC_TM_ERR = 22,
    IBV_WC_TM_RNDV_INCOMPLETE = 23,
}

#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromRepr)]
pub enum ibv_wc_opcode {
    #[default]
    IBV_WC_SEND = 0,
    IBV_WC_RDMA_WRITE = 1,
    IBV_WC_RDMA_READ = 2,
    IBV_WC_COMP_SWAP = 3,
    IBV_WC_FETCH_ADD = 4,
    IBV_WC_BIND_MW = 5,
    IBV_WC_LOCAL_INV = 6,
    IBV_WC_TSO = 7,
    IBV_WC_FLUSH = 8,
    IBV_WC_ATOMIC_WRITE = 9,
    IBV_WC_RECV = 128,
    IBV_WC_RECV_RDMA_WITH_IMM = 129,
    IBV_WC_TM_ADD = 130,
    IBV_WC_TM_DEL = 131,
    IBV_WC_TM_SYNC = 132,
    IBV_WC_TM_RECV = 133,
    IBV_WC_TM_NO_TAG = 134,
    IBV_WC_DRIVER1 = 135,
    IBV_WC_DRIVER2 = 136,
    IBV_WC_DRIVER3 = 137,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ibv_access_flags(pub u32);

bitflags! {
    impl ibv_access_flags: u32 {
        const IBV_ACCESS_LOCAL_WRITE = 1 << 0;
        const IBV_ACCESS_REMOTE_WRITE = 1 << 1;
        const IBV_ACCESS_REMOTE_READ = 1 << 2;
        const IBV_ACCESS_REMOTE_ATOMIC = 1 << 3;
        const IBV_ACCESS_MW_BIND = 1 << 4;
        const IBV_ACCESS_ZERO_BASED = 1 << 5;
        const IBV_ACCESS_ON_DEMAND = 1 << 6;
        const IBV_ACCESS_HUGETLB = 1 << 7;
        const IBV_ACCESS_FLUSH_GLOBAL = 1 << 8;
        const IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9;
        const IBV_ACCESS_RELAXED_ORDERING = 1 << 20;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ibv_send_flags(pub u32);

bitflags! {
    impl ibv_send_flags: u32 {
        const IBV_SEND_FENCE = 1 << 0;
        const IBV_SEND_SIGNALED = 1 << 1;
        const IBV_SEND_SOLICITED = 1 << 2;
        const IBV_SEND_INLINE = 1 << 3;
        const IBV_SEND_IP_CSUM = 1 << 4;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ibv_wc_flags(pub u32);

bitflags! {
    impl ibv_wc_flags: u32 {
        const IBV_WC_GRH = 1 << 0;
        const IBV_WC_WITH_IMM = 1 << 1;
        const IBV_WC_IP_CSUM_OK = 1 << 2;
        const IBV_WC_WITH_INV = 1 << 3;
        const IBV_WC_TM_SYNC_REQ = 1 << 4;
        const IBV_WC_TM_MATCH = 1 << 5;
        const IBV_WC_TM_DATA_VALID = 1 << 6;
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ibv_qp_attr_mask(pub u32);

bitflags! {
    impl ibv_qp_attr_mask: u32 {
        const IBV_QP_STATE = 1 << 0;
        const IBV_QP_CUR_STATE = 1 << 1;
        const IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2;
        const IBV_QP_ACCESS_FLAGS = 1 << 3;
        const IBV_QP_PKEY_INDEX = 1 << 4;
        const IBV_QP_PORT = 1 << 5;
        const IBV_QP_QKEY = 1 << 6;
        const IBV_QP_AV = 1 << 7;
        const IBV_QP_PATH_MTU = 1 << 8;
        const IBV_QP_TIMEOUT = 1 << 9;
        const IBV_QP_RETRY_CNT = 1 << 10;
        const IBV_QP_RNR_RETRY = 1 << 11;
        const IBV_QP_RQ_PSN = 1 << 12;
        const IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
        const IBV_QP_ALT_PATH = 1 << 14;
        const IBV_QP_MIN_RNR_TIMER = 1 << 15;
        const IBV_QP_SQ_PSN = 1 << 16;
        const IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
        const IBV_QP_PATH_MIG_STATE = 1 << 18;
        const IBV_QP_CAP = 1 << 19;
        const IBV_QP_DEST_QPN = 1 << 20;
        const IBV_QP_RATE_LIMIT = 1 << 25;
    }
}

#[enumflags2::bitflags]
#[repr(u32)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, Serialize, Deserialize, JsonSchema,
)]
pub enum ibv_device_cap_flags {
    IBV_DEVICE_RESIZE_MAX_WR = 1 << 0,
    IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
    IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
    IBV_DEVICE_RAW_MULTI = 1 << 3,
    IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
    IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
    IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
    IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
    IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
    IBV_DEVICE_INIT_TYPE = 1 << 9,
    IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
    IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
    IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
    IBV_DEVICE_SRQ_RESIZE = 1 << 13,
    IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
    IBV_DEVICE_MEM_WINDOW = 1 << 17,
    IBV_DEVICE_UD_IP_CSUM = 1 << 18,
    IBV_DEVICE_XRC = 1 << 20,
    IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
    IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
    IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
    IBV_DEVICE_RC_IP_CSUM = 1 << 25,
    IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
    IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
}

#[enumflags2::bitflags]
#[repr(u32)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, Serialize, Deserialize, JsonSchema,
)]
pub enum ibv_port_cap_flags {
    IBV_PORT_SM = 1 << 1,
    IBV_PORT_NOTICE_SUP = 1 << 2,
    IBV_PORT_TRAP_SUP = 1 << 3,
    IBV_PORT_OPT_IPD_SUP = 1 << 4,
    IBV_PORT_AUTO_MIGR_SUP = 1 << 5,
    IBV_PORT_SL_MAP_SUP = 1 << 6,
    IBV_PORT_MKEY_NVRAM = 1 << 7,
    IBV_PORT_PKEY_NVRAM = 1 << 8,
    IBV_PORT_LED_INFO_SUP = 1 << 9,
    IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
    IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
    IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
    IBV_PORT_CAP_MASK2_SUP = 1 << 15,
    IBV_PORT_CM_SUP = 1 << 16,
    IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
    IBV_PORT_REINIT_SUP = 1 << 18,
    IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
    IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
    IBV_PORT_DR_NOTICE_SUP = 1 << 21,
    IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
    IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
    IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
    IBV_PORT_CLIENT_REG_SUP = 1 << 25,
    IBV_PORT_IP_BASED_GIDS = 1 << 26,
}

#[enumflags2::bitflags]
#[repr(u16)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, Serialize, Deserialize, JsonSchema,
)]
pub enum ibv_port_cap_flags2 {
    IBV_PORT_SET_NODE_DESC_SUP = 1 << 0,
    IBV_PORT_INFO_EXT_SUP = 1 << 1,
    IBV_PORT_VIRT_SUP = 1 << 2,
    IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
    IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
    IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
    IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10,
    IBV_PORT_LINK_SPEED_XDR_SUP = 1 << 12,
}

impl ibv_device_cap_flags {
    /// The name without what all have in front.
    pub fn name(self) -> &'static str {
        without("IBV_DEVICE_", self.into())
    }
}

impl ibv_port_cap_flags {
    /// The name without what all have in front.
    pub fn name(self) -> &'static str {
        without("IBV_PORT_", self.into())
    }
}

impl ibv_port_cap_flags2 {
    /// The name without what all have in front.
    pub fn name(self) -> &'static str {
        without("IBV_PORT_", self.into())
    }
}

fn without(prefix: &str, name: &'static str) -> &'static str {
    name.strip_prefix(prefix).unwrap_or(name)
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ibv_device_attr {
    pub fw_ver: FwVer,
    pub node_guid: Guid,
    pub sys_image_guid: Guid,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: i32,
    pub max_qp_wr: i32,
    #[schemars(with = "u32")]
    pub device_cap_flags: BitFlags<ibv_device_cap_flags>,
    pub max_sge: i32,
    pub max_sge_rd: i32,
    pub max_cq: i32,
    pub max_cqe: i32,
    pub max_mr: i32,
    pub max_pd: i32,
    pub max_qp_rd_atom: i32,
    pub max_ee_rd_atom: i32,
    pub max_res_rd_atom: i32,
    pub max_qp_init_rd_atom: i32,
    pub max_ee_init_rd_atom: i32,
    pub atomic_cap: ibv_atomic_cap,
    pub max_ee: i32,
    pub max_rdd: i32,
    pub max_mw: i32,
    pub max_raw_ipv6_qp: i32,
    pub max_raw_ethy_qp: i32,
    pub max_mcast_grp: i32,
    pub max_mcast_qp_attach: i32,
    pub max_total_mcast_qp_attach: i32,
    pub max_ah: i32,
    pub max_fmr: i32,
    pub max_map_per_fmr: i32,
    pub max_srq: i32,
    pub max_srq_wr: i32,
    pub max_srq_sge: i32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

impl ibv_device_attr {
    /// Fields of which no kernel tells anything (of end-to-end contexts, reliable datagrams, raw IPv6 and
    /// FMRs) stay 0.
    pub(crate) fn new(attr: &uverbs::query::DeviceAttr, fw_ver: FwVer) -> Self {
        let int = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        Self {
            fw_ver,
            node_guid: attr.node_guid.into(),
            sys_image_guid: attr.sys_image_guid.into(),
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            max_qp: int(attr.max_qp),
            max_qp_wr: int(attr.max_qp_wr),
            device_cap_flags: BitFlags::from_bits_truncate(attr.capabilities.bits() as u32),
            max_sge: int(attr.max_sge),
            max_sge_rd: int(attr.max_sge_rd),
            max_cq: int(attr.max_cq),
            max_cqe: int(attr.max_cqe),
            max_mr: int(attr.max_mr),
            max_pd: int(attr.max_pd),
            max_qp_rd_atom: int(attr.max_qp_rd_atom),
            max_res_rd_atom: int(attr.max_res_rd_atom),
            max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
            atomic_cap: ibv_atomic_cap::from_repr(attr.atomic_cap.0).unwrap_or_default(),
            max_mw: int(attr.max_mw),
            max_raw_ethy_qp: int(attr.max_raw_ethy_qp),
            max_mcast_grp: int(attr.max_mcast_grp),
            max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
            max_total_mcast_qp_attach: int(attr.max_total_mcast_qp_attach),
            max_ah: int(attr.max_ah),
            max_srq: int(attr.max_srq),
            max_srq_wr: int(attr.max_srq_wr),
            max_srq_sge: int(attr.max_srq_sge),
            max_pkeys: attr.max_pkeys,
            local_ca_ack_delay: attr.local_ca_ack_delay,
            phys_port_cnt: attr.phys_port_cnt,
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct ibv_port_attr {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: i32,
    #[schemars(with = "u32")]
    pub port_cap_flags: BitFlags<ibv_port_cap_flags>,
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
    pub link_layer: LinkLayer,
    pub flags: u8,
    #[schemars(with = "u16")]
    pub port_cap_flags2: BitFlags<ibv_port_cap_flags2>,
}

impl ibv_port_attr {
    pub(crate) fn new(attr: &uverbs::query::PortAttr) -> Self {
        let mtu = |mtu: uverbs::qp::Mtu| ibv_mtu::from_repr(mtu.0).unwrap_or_default();
        Self {
            state: state(attr.state),
            max_mtu: mtu(attr.max_mtu),
            active_mtu: mtu(attr.active_mtu),
            gid_tbl_len: i32::try_from(attr.gid_tbl_len).unwrap_or(i32::MAX),
            port_cap_flags: BitFlags::from_bits_truncate(attr.capabilities.bits()),
            max_msg_sz: attr.max_msg_sz,
            bad_pkey_cntr: attr.bad_pkey_cntr,
            qkey_viol_cntr: attr.qkey_viol_cntr,
            pkey_tbl_len: attr.pkey_tbl_len,
            lid: attr.lid,
            sm_lid: attr.sm_lid,
            lmc: attr.lmc,
            max_vl_num: attr.max_vl_num,
            sm_sl: attr.sm_sl,
            subnet_timeout: attr.subnet_timeout,
            init_type_reply: attr.init_type_reply,
            active_width: attr.active_width,
            active_speed: attr.active_speed,
            phys_state: phys_state(attr.phys_state),
            link_layer: LinkLayer::from_u8(attr.link_layer.0 as u8),
            flags: attr.flags.bits(),
            port_cap_flags2: BitFlags::from_bits_truncate(attr.capabilities2.bits()),
        }
    }

    /// How many lanes the link uses.
    pub const fn active_width_lanes(&self) -> Option<u8> {
        match self.active_width {
            1 => Some(1),
            2 => Some(4),
            4 => Some(8),
            8 => Some(12),
            16 => Some(2),
            _ => None,
        }
    }

    /// The speed as a number of the C header.
    pub const fn active_speed_raw(&self) -> u32 {
        self.active_speed as u32
    }

    /// What one lane carries, in bits per second.
    pub const fn active_speed_bps(&self) -> Option<u64> {
        let tenths_of_gigabits = match self.active_speed_raw() {
            1 => 25,
            2 => 50,
            4 | 8 => 100,
            16 => 140,
            32 => 250,
            64 => 500,
            128 => 1000,
            256 => 2000,
            _ => return None,
        };
        Some(tenths_of_gigabits * 100_000_000)
    }

    /// What the link carries, in bits per second.
    pub const fn bandwidth_bps(&self) -> Option<u64> {
        match (self.active_width_lanes(), self.active_speed_bps()) {
            (Some(lanes), Some(speed)) => Some(lanes as u64 * speed),
            _ => None,
        }
    }
}

fn state(state: uverbs::device::PortState) -> ibv_port_state {
    use uverbs::device::PortState;
    match state {
        PortState::Down => ibv_port_state::IBV_PORT_DOWN,
        PortState::Init => ibv_port_state::IBV_PORT_INIT,
        PortState::Armed => ibv_port_state::IBV_PORT_ARMED,
        PortState::Active => ibv_port_state::IBV_PORT_ACTIVE,
        PortState::ActiveDefer => ibv_port_state::IBV_PORT_ACTIVE_DEFER,
        _ => ibv_port_state::IBV_PORT_NOP,
    }
}

fn phys_state(state: uverbs::device::PhysicalState) -> u8 {
    use uverbs::device::PhysicalState;
    match state {
        PhysicalState::Sleep => 1,
        PhysicalState::Polling => 2,
        PhysicalState::Disabled => 3,
        PhysicalState::Training => 4,
        PhysicalState::LinkUp => 5,
        PhysicalState::ErrorRecovery => 6,
        PhysicalState::PhyTest => 7,
        PhysicalState::Other(number) => number,
        _ => 0,
    }
}

/// A GID. In C it is a union; here are its two words, in network byte order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ibv_gid {
    pub global: ibv_gid_global,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ibv_gid_global {
    pub subnet_prefix: u64,
    pub interface_id: u64,
}

impl ibv_gid {
    /// As a number.
    pub fn as_bits(&self) -> u128 {
        u128::from(self.subnet_prefix()) << 64 | u128::from(self.interface_id())
    }

    /// As an address.
    pub fn as_ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.as_bits())
    }

    /// The first word.
    pub fn subnet_prefix(&self) -> u64 {
        u64::from_be(self.global.subnet_prefix)
    }

    /// The second word.
    pub fn interface_id(&self) -> u64 {
        u64::from_be(self.global.interface_id)
    }

    /// Whether its second word is zero: no port has such a GID.
    pub fn is_null(&self) -> bool {
        self.global.interface_id == 0
    }

    /// Whether it is an address of one link.
    pub fn is_unicast_link_local(&self) -> bool {
        self.as_ipv6().is_unicast_link_local()
    }
}

impl From<Ipv6Addr> for ibv_gid {
    fn from(address: Ipv6Addr) -> Self {
        let bits = address.to_bits();
        Self {
            global: ibv_gid_global {
                subnet_prefix: ((bits >> 64) as u64).to_be(),
                interface_id: (bits as u64).to_be(),
            },
        }
    }
}

impl From<uverbs::Gid> for ibv_gid {
    fn from(gid: uverbs::Gid) -> Self {
        Ipv6Addr::from(gid).into()
    }
}

impl From<ibv_gid> for uverbs::Gid {
    fn from(gid: ibv_gid) -> Self {
        gid.as_ipv6().into()
    }
}

impl fmt::Debug for ibv_gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_ipv6(), f)
    }
}

impl Serialize for ibv_gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.as_ipv6())
    }
}

impl<'de> Deserialize<'de> for ibv_gid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let address: Ipv6Addr = text.parse().map_err(de::Error::custom)?;
        Ok(address.into())
    }
}

impl JsonSchema for ibv_gid {
    fn schema_name() -> Cow<'static, str> {
        "GID".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "description": "A GID, written as an IPv6 address" })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// How a queue pair is to be created. Its completion queue is a parameter, and there are no shared receive
/// queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_init_attr {
    pub cap: ibv_qp_cap,
    pub qp_type: ibv_qp_type,
    pub sq_sig_all: i32,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_qp_attr {
    pub qp_state: ibv_qp_state,
    pub cur_qp_state: ibv_qp_state,
    pub path_mtu: ibv_mtu,
    pub path_mig_state: ibv_mig_state,
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

/// A completion. Immediate data is in [`ibv_wc::imm`], in this host's byte order.
#[derive(Clone, Copy, Default)]
pub struct ibv_wc {
    pub wr_id: WRID,
    pub status: ibv_wc_status,
    pub opcode: ibv_wc_opcode,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub(crate) imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

impl ibv_wc {
    pub(crate) fn new(completion: &uverbs::Completion) -> Self {
        let status = completion.status().0;
        Self {
            wr_id: WRID(completion.wr_id()),
            status: ibv_wc_status::from_repr(status).unwrap_or(ibv_wc_status::IBV_WC_GENERAL_ERR),
            // One that failed has none.
            opcode: match completion.result() {
                Ok(opcode) => ibv_wc_opcode::from_repr(opcode.0).unwrap_or_default(),
                Err(_) => ibv_wc_opcode::default(),
            },
            vendor_err: completion.vendor_err(),
            byte_len: completion.byte_len(),
            imm_data: completion.imm().unwrap_or_default(),
            qp_num: completion.qp_num(),
            src_qp: completion.src_qp(),
            wc_flags: completion.flags().bits(),
            pkey_index: completion.pkey_index(),
            slid: completion.slid(),
            sl: completion.sl(),
            dlid_path_bits: completion.dlid_path_bits(),
        }
    }

    /// Whether it is of a receive.
    pub fn is_recv(&self) -> bool {
        self.wr_id.get_type() == WRType::Recv
    }

    /// Whether it is of a SEND without immediate data.
    pub fn is_send_data(&self) -> bool {
        self.wr_id.get_type() == WRType::SendData
    }

    /// Whether it is of a SEND with immediate data.
    pub fn is_send_imm(&self) -> bool {
        self.wr_id.get_type() == WRType::SendImm
    }

    /// Whether it is of a READ.
    pub fn is_read(&self) -> bool {
        self.wr_id.get_type() == WRType::Read
    }

    /// Whether the request succeeded.
    pub fn succ(&self) -> bool {
        self.status == ibv_wc_status::IBV_WC_SUCCESS
    }

    /// The immediate data, if some came.
    pub fn imm(&self) -> Option<u32> {
        let with = ibv_wc_flags(self.wc_flags).contains(ibv_wc_flags::IBV_WC_WITH_IMM);
        with.then_some(self.imm_data)
    }
}

impl fmt::Debug for ibv_wc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ibv_wc")
            .field("wr_id", &self.wr_id)
            .field("status", &self.status)
            .field("opcode", &self.opcode)
            .field("vendor_err", &self.vendor_err)
            .field("byte_len", &self.byte_len)
            .field("imm", &self.imm())
            .finish_non_exhaustive()
    }
}
