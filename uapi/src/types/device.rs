//! The attributes of a device.

use zerocopy::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Response of `QUERY_DEVICE`. A maximum of 0 means that the feature is missing.
///
/// Kernel: `struct ib_uverbs_query_device_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryDeviceResp {
    /// Firmware version, in three 16-bit parts from bit 32 down; a driver may use another format.
    pub fw_ver: u64,
    /// GUID of this device.
    pub node_guid: U64,
    /// GUID of the system that it is a part of.
    pub sys_image_guid: U64,
    /// Largest memory region in bytes.
    pub max_mr_size: u64,
    /// Bit mask of the page sizes that a region may consist of.
    pub page_size_cap: u64,
    /// Vendor, an IEEE OUI.
    pub vendor_id: u32,
    /// Part number of the vendor; for PCI devices mostly the PCI device id.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// QPs.
    pub max_qp: u32,
    /// Work requests on one queue.
    pub max_qp_wr: u32,
    /// Lower half of [`crate::flags::DeviceCapFlags`].
    pub device_cap_flags: u32,
    /// Elements in one work request.
    pub max_sge: u32,
    /// Elements in one RDMA READ.
    pub max_sge_rd: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries in one CQ.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// RDMA READs and atomics that one QP serves at the same time as the target.
    pub max_qp_rd_atom: u32,
    /// The same for one EE context (reliable datagram, unused).
    pub max_ee_rd_atom: u32,
    /// RDMA READs and atomics that the device serves at the same time as the target.
    pub max_res_rd_atom: u32,
    /// RDMA READs and atomics that one QP has in flight at the same time as the initiator.
    pub max_qp_init_rd_atom: u32,
    /// The same for one EE context (reliable datagram, unused).
    pub max_ee_init_rd_atom: u32,
    /// [`crate::enums::AtomicCap`].
    pub atomic_cap: u32,
    /// EE contexts (reliable datagram, unused).
    pub max_ee: u32,
    /// Reliable datagram domains (unused).
    pub max_rdd: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Raw IPv6 QPs.
    pub max_raw_ipv6_qp: u32,
    /// Raw EtherType QPs.
    pub max_raw_ethy_qp: u32,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// QPs attached to one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Attachments of QPs to multicast groups in all.
    pub max_total_mcast_qp_attach: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Fast memory regions (gone from the kernel).
    pub max_fmr: u32,
    /// Remaps of a fast memory region (gone from the kernel).
    pub max_map_per_fmr: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests in one SRQ.
    pub max_srq_wr: u32,
    /// Elements in one request of an SRQ.
    pub max_srq_sge: u32,
    /// Partition keys.
    pub max_pkeys: u16,
    /// Longest time from receipt to acknowledgement: 4.096 µs times 2 to this power.
    pub local_ca_ack_delay: u8,
    /// Ports.
    pub phys_port_cnt: u8,
    /// Reserved.
    pub reserved: [u8; 4],
}

/// On-demand paging for each transport, as [`crate::flags::OdpTransportCapBits`].
///
/// Kernel: member `per_transport_caps` of `struct ib_uverbs_odp_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct OdpTransportCaps {
    /// RC.
    pub rc_odp_caps: u32,
    /// UC.
    pub uc_odp_caps: u32,
    /// UD.
    pub ud_odp_caps: u32,
}

/// On-demand paging.
///
/// Kernel: `struct ib_uverbs_odp_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct OdpCaps {
    /// [`crate::flags::OdpGeneralCapBits`].
    pub general_caps: u64,
    /// Operations that may touch such memory.
    pub per_transport_caps: OdpTransportCaps,
    /// Reserved.
    pub reserved: u32,
}

/// Spreading of packets over receive queues.
///
/// Kernel: `struct ib_uverbs_rss_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct RssCaps {
    /// Bit mask of QP types: bit n is type n.
    pub supported_qpts: u32,
    /// Indirection tables.
    pub max_rwq_indirection_tables: u32,
    /// Entries in one table.
    pub max_rwq_indirection_table_size: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Tag matching.
///
/// Kernel: `struct ib_uverbs_tm_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct TmCaps {
    /// Largest header of a rendezvous request in bytes.
    pub max_rndv_hdr_size: u32,
    /// Tags in one list.
    pub max_num_tags: u32,
    /// [`crate::flags::TmCapFlags`].
    pub flags: u32,
    /// List operations in flight at the same time.
    pub max_ops: u32,
    /// Elements in one tagged buffer.
    pub max_sge: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Bounds of CQ moderation.
///
/// Kernel: `struct ib_uverbs_cq_moderation_caps`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CqModerationCaps {
    /// Completions.
    pub max_cq_moderation_count: u16,
    /// Microseconds.
    pub max_cq_moderation_period: u16,
    /// Reserved.
    pub reserved: u32,
}

/// Response of the extended `QUERY_DEVICE`; fields that an older kernel does not know are 0.
///
/// Kernel: `struct ib_uverbs_ex_query_device_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExQueryDeviceResp {
    /// The answer of the legacy command.
    pub base: QueryDeviceResp,
    /// 0 at present.
    pub comp_mask: u32,
    /// Bytes of the response that the kernel knew.
    pub response_length: u32,
    /// On-demand paging.
    pub odp_caps: OdpCaps,
    /// Significant bits of a completion timestamp; 0 if there are none.
    pub timestamp_mask: u64,
    /// Frequency of the clock of timestamps, in kHz.
    pub hca_core_clock: u64,
    /// All of [`crate::flags::DeviceCapFlags`].
    pub device_cap_flags_ex: u64,
    /// Receive side scaling.
    pub rss_caps: RssCaps,
    /// Receive work queues.
    pub max_wq_type_rq: u32,
    /// [`crate::flags::RawPacketCaps`].
    pub raw_packet_caps: u32,
    /// Tag matching.
    pub tm_caps: TmCaps,
    /// CQ moderation.
    pub cq_moderation_caps: CqModerationCaps,
    /// Device memory in bytes.
    pub max_dm_size: u64,
    /// [`crate::flags::OdpTransportCapBits`] of XRC.
    pub xrc_odp_caps: u32,
    /// Reserved.
    pub reserved: u32,
}
