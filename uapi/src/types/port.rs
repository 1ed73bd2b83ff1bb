//! The attributes of a port: its properties and GIDs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Response of the write command `QUERY_PORT`.
///
/// Kernel: `struct ib_uverbs_query_port_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryPortResp {
    /// [`crate::flags::PortCapFlags`].
    pub port_cap_flags: u32,
    /// Largest message in bytes.
    pub max_msg_sz: u32,
    /// Count of packets with a bad partition key.
    pub bad_pkey_cntr: u32,
    /// Count of packets with a wrong Q_Key.
    pub qkey_viol_cntr: u32,
    /// Entries in the GID table.
    pub gid_tbl_len: u32,
    /// Entries in the partition key table.
    pub pkey_tbl_len: u16,
    /// Base LID, InfiniBand only.
    pub lid: u16,
    /// LID of the subnet manager.
    pub sm_lid: u16,
    /// [`crate::enums::PortState`].
    pub state: u8,
    /// Largest [`crate::enums::Mtu`].
    pub max_mtu: u8,
    /// [`crate::enums::Mtu`] in use.
    pub active_mtu: u8,
    /// LID mask count: the port answers to 2 to this power LIDs.
    pub lmc: u8,
    /// Virtual lanes, encoded.
    pub max_vl_num: u8,
    /// Service level to the subnet manager.
    pub sm_sl: u8,
    /// Propagation delay of the subnet: 4.096 µs times 2 to this power.
    pub subnet_timeout: u8,
    /// The initialisation by the subnet manager.
    pub init_type_reply: u8,
    /// [`crate::enums::LinkWidth`].
    pub active_width: u8,
    /// [`crate::enums::LinkSpeed`] that fits in 8 bits; for more see [`QueryPortRespEx::active_speed_ex`].
    pub active_speed: u8,
    /// [`crate::enums::PhysState`].
    pub phys_state: u8,
    /// [`crate::enums::LinkLayer`].
    pub link_layer: u8,
    /// [`crate::flags::QueryPortFlags`].
    pub flags: u8,
    /// Reserved.
    pub reserved: u8,
}

/// Answer of the ioctl `QUERY_PORT`.
///
/// Kernel: `struct ib_uverbs_query_port_resp_ex`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryPortRespEx {
    /// The answer of the write command.
    pub legacy_resp: QueryPortResp,
    /// [`crate::flags::PortCapFlags2`].
    pub port_cap_flags2: u16,
    /// Must be 0.
    pub reserved: [u8; 2],
    /// All of [`crate::enums::LinkSpeed`]; 0 from kernels before 6.7.
    pub active_speed_ex: u32,
}

/// One entry of a GID table (`QUERY_GID_TABLE`, `QUERY_GID_ENTRY`).
///
/// Kernel: `struct ib_uverbs_gid_entry`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct GidEntry {
    /// The GID in network byte order.
    pub gid: [u8; 16],
    /// Index in the port's table.
    pub gid_index: u32,
    /// Port, counted from 1.
    pub port_num: u32,
    /// [`crate::enums::GidType`].
    pub gid_type: u32,
    /// Index of the network interface that it belongs to, 0 for none.
    pub netdev_ifindex: u32,
}
