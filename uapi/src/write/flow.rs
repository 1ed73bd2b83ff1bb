//! Flow steering: rules that direct packets to a QP.

use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Starts every flow specification.
///
/// Kernel: `struct ib_uverbs_flow_spec_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C, align(8))]
pub struct FlowSpecHdr {
    /// [`crate::enums::FlowSpecType`].
    pub type_: u32,
    /// Size of the whole specification in bytes.
    pub size: u16,
    /// Must be 0.
    pub reserved: u16,
}

/// Ethernet header fields to match, or the mask of their significant bits.
///
/// Kernel: `struct ib_uverbs_flow_eth_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowEthFilter {
    /// Destination address.
    pub dst_mac: [u8; 6],
    /// Source address.
    pub src_mac: [u8; 6],
    /// EtherType.
    pub ether_type: U16,
    /// 802.1Q tag.
    pub vlan_tag: U16,
}

/// Matches Ethernet headers.
///
/// Kernel: `struct ib_uverbs_flow_spec_eth`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecEth {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowEthFilter,
    /// The significant bits of it.
    pub mask: FlowEthFilter,
}

/// IPv4 header fields to match, or their mask.
///
/// Kernel: `struct ib_uverbs_flow_ipv4_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowIpv4Filter {
    /// Source address.
    pub src_ip: U32,
    /// Destination address.
    pub dst_ip: U32,
    /// Protocol.
    pub proto: u8,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Fragmentation flags.
    pub flags: u8,
}

/// Matches IPv4 headers.
///
/// Kernel: `struct ib_uverbs_flow_spec_ipv4`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecIpv4 {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowIpv4Filter,
    /// The significant bits of it.
    pub mask: FlowIpv4Filter,
}

/// TCP or UDP ports to match, or their mask.
///
/// Kernel: `struct ib_uverbs_flow_tcp_udp_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowTcpUdpFilter {
    /// Destination port.
    pub dst_port: U16,
    /// Source port.
    pub src_port: U16,
}

/// Matches TCP or UDP headers.
///
/// Kernel: `struct ib_uverbs_flow_spec_tcp_udp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecTcpUdp {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowTcpUdpFilter,
    /// The significant bits of it.
    pub mask: FlowTcpUdpFilter,
}

/// IPv6 header fields to match, or their mask.
///
/// Kernel: `struct ib_uverbs_flow_ipv6_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowIpv6Filter {
    /// Source address.
    pub src_ip: [u8; 16],
    /// Destination address.
    pub dst_ip: [u8; 16],
    /// Flow label (20 bits).
    pub flow_label: U32,
    /// Next header.
    pub next_hdr: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Must be 0.
    pub reserved: u8,
}

/// Matches IPv6 headers.
///
/// Kernel: `struct ib_uverbs_flow_spec_ipv6`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecIpv6 {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowIpv6Filter,
    /// The significant bits of it.
    pub mask: FlowIpv6Filter,
}

/// Marks the completions of matching packets.
///
/// Kernel: `struct ib_uverbs_flow_spec_action_tag`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecActionTag {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// Mark to report.
    pub tag_id: u32,
    /// Must be 0.
    pub reserved1: u32,
}

/// Drops matching packets.
///
/// Kernel: `struct ib_uverbs_flow_spec_action_drop`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecActionDrop {
    /// Type and size.
    pub hdr: FlowSpecHdr,
}

/// Applies a flow action object.
///
/// Kernel: `struct ib_uverbs_flow_spec_action_handle`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecActionHandle {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// Handle of the flow action.
    pub handle: u32,
    /// Must be 0.
    pub reserved1: u32,
}

/// Counts matching packets.
///
/// Kernel: `struct ib_uverbs_flow_spec_action_count`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecActionCount {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// Handle of the counters object.
    pub handle: u32,
    /// Must be 0.
    pub reserved1: u32,
}

/// VXLAN network id to match, or its mask.
///
/// Kernel: `struct ib_uverbs_flow_tunnel_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowTunnelFilter {
    /// Network id.
    pub tunnel_id: U32,
}

/// Matches VXLAN headers.
///
/// Kernel: `struct ib_uverbs_flow_spec_tunnel`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecTunnel {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowTunnelFilter,
    /// The significant bits of it.
    pub mask: FlowTunnelFilter,
}

/// IPsec ESP header fields to match, or their mask.
///
/// Kernel: `struct ib_uverbs_flow_spec_esp_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecEspFilter {
    /// Security parameters index.
    pub spi: u32,
    /// Sequence number.
    pub seq: u32,
}

/// Matches IPsec ESP headers.
///
/// Kernel: `struct ib_uverbs_flow_spec_esp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecEsp {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowSpecEspFilter,
    /// The significant bits of it.
    pub mask: FlowSpecEspFilter,
}

/// GRE header fields to match, or their mask.
///
/// Kernel: `struct ib_uverbs_flow_gre_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowGreFilter {
    /// First 16 bits of the header: flags and version.
    pub c_ks_res0_ver: U16,
    /// EtherType of the payload.
    pub protocol: U16,
    /// Key.
    pub key: U32,
}

/// Matches GRE headers.
///
/// Kernel: `struct ib_uverbs_flow_spec_gre`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecGre {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowGreFilter,
    /// The significant bits of it.
    pub mask: FlowGreFilter,
}

/// MPLS label stack entry to match, or its mask.
///
/// Kernel: `struct ib_uverbs_flow_mpls_filter`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowMplsFilter {
    /// The whole entry: label, traffic class, bottom of stack, time to live.
    pub label: U32,
}

/// Matches MPLS labels.
///
/// Kernel: `struct ib_uverbs_flow_spec_mpls`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowSpecMpls {
    /// Type and size.
    pub hdr: FlowSpecHdr,
    /// What to match.
    pub val: FlowMplsFilter,
    /// The significant bits of it.
    pub mask: FlowMplsFilter,
}

/// A flow rule; `num_of_specs` specifications follow.
///
/// Kernel: `struct ib_uverbs_flow_attr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct FlowAttr {
    /// [`crate::enums::FlowAttrType`].
    pub type_: u32,
    /// Size of the specifications that follow, in bytes.
    pub size: u16,
    /// Order among rules, 0 first.
    pub priority: u16,
    /// Number of specifications that follow.
    pub num_of_specs: u8,
    /// Must be 0.
    pub reserved: [u8; 2],
    /// Port, counted from 1.
    pub port: u8,
    /// [`crate::flags::FlowAttrFlags`].
    pub flags: u32,
}

/// Request of the extended `CREATE_FLOW`.
///
/// Kernel: `struct ib_uverbs_create_flow`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateFlow {
    /// Must be 0.
    pub comp_mask: u32,
    /// Handle of the QP that gets the packets.
    pub qp_handle: u32,
    /// The rule.
    pub flow_attr: FlowAttr,
}

/// Response of the extended `CREATE_FLOW`.
///
/// Kernel: `struct ib_uverbs_create_flow_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateFlowResp {
    /// 0 at present.
    pub comp_mask: u32,
    /// Handle of the new flow.
    pub flow_handle: u32,
}

/// Request of the extended `DESTROY_FLOW`, which has no response.
///
/// Kernel: `struct ib_uverbs_destroy_flow`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyFlow {
    /// Must be 0.
    pub comp_mask: u32,
    /// Handle of the flow.
    pub flow_handle: u32,
}
