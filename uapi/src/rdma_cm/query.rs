//! Querying identifiers.

use super::{ServiceName, SockaddrIn6, SockaddrStorage};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Queries the addresses or paths of an identifier.
///
/// Kernel: `struct rdma_ucm_query`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Query {
    /// Address of the response.
    pub response: u64,
    /// The identifier.
    pub id: u32,
    /// [`QueryOption`](super::QueryOption).
    pub option: u32,
}

/// Addresses and paths.
///
/// Kernel: `struct rdma_ucm_query_route_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryRouteResp {
    /// GUID of the device; 0 if the identifier is not bound to one.
    pub node_guid: U64,
    /// The paths.
    pub ib_route: [UserPathRec; 2],
    /// The own address.
    pub src_addr: SockaddrIn6,
    /// The peer's address.
    pub dst_addr: SockaddrIn6,
    /// Number of paths.
    pub num_paths: u32,
    /// Port of the device; 0 if the identifier is not bound to one.
    pub port_num: u8,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Index of the device.
    pub ibdev_index: u32,
    /// Reserved.
    pub reserved1: u32,
}

/// Addresses.
///
/// Kernel: `struct rdma_ucm_query_addr_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryAddrResp {
    /// GUID of the device; 0 if the identifier is not bound to one.
    pub node_guid: U64,
    /// Port of the device; 0 if the identifier is not bound to one.
    pub port_num: u8,
    /// Reserved.
    pub reserved: u8,
    /// Partition key, in network byte order.
    pub pkey: u16,
    /// Bytes of the own address.
    pub src_size: u16,
    /// Bytes of the peer's address.
    pub dst_size: u16,
    /// The own address.
    pub src_addr: SockaddrStorage,
    /// The peer's address.
    pub dst_addr: SockaddrStorage,
    /// Index of the device.
    pub ibdev_index: u32,
    /// Reserved.
    pub reserved1: u32,
}

/// Starts the answer with paths; [`PathRecData`] follow.
///
/// Kernel: `struct rdma_ucm_query_path_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryPathResp {
    /// Number of paths.
    pub num_paths: u32,
    /// Reserved.
    pub reserved: u32,
}

/// Starts the answer with services; [`UserServiceRec`] follow. Since Linux 6.18.
///
/// Kernel: `struct rdma_ucm_query_ib_service_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryIbServiceResp {
    /// Number of services.
    pub num_service_recs: u32,
    /// Reserved.
    pub reserved: u32,
}

/// A path in the subnet administrator's form.
///
/// Kernel: `struct ib_path_rec_data`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct PathRecData {
    /// [`PathFlags`](super::PathFlags).
    pub flags: u32,
    /// Reserved.
    pub reserved: u32,
    /// The record, in the format of the packets.
    pub path_rec: [u32; 16],
}

/// A path, field by field.
///
/// Kernel: `struct ib_user_path_rec`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct UserPathRec {
    /// The peer's GID.
    pub dgid: [u8; 16],
    /// The own GID.
    pub sgid: [u8; 16],
    /// The peer's LID.
    pub dlid: U16,
    /// The own LID.
    pub slid: U16,
    /// Not 0: raw packets pass.
    pub raw_traffic: u32,
    /// Flow label.
    pub flow_label: U32,
    /// Not 0: the path can be used in both directions.
    pub reversible: u32,
    /// [`crate::enums::Mtu`].
    pub mtu: u32,
    /// Partition key.
    pub pkey: U16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Requested number of paths.
    pub numb_path: u8,
    /// Service level.
    pub sl: u8,
    /// The selector for `mtu`.
    pub mtu_selector: u8,
    /// The selector for `rate`.
    pub rate_selector: u8,
    /// [`crate::enums::Rate`].
    pub rate: u8,
    /// The selector for `packet_life_time`.
    pub packet_life_time_selector: u8,
    /// 4.096 µs times 2 to this power.
    pub packet_life_time: u8,
    /// Preference.
    pub preference: u8,
}

/// A service of an InfiniBand subnet. Since Linux 6.18.
///
/// Kernel: `struct ib_user_service_rec`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct UserServiceRec {
    /// Its number.
    pub id: U64,
    /// GID of the port that provides it.
    pub gid: [u8; 16],
    /// Partition key.
    pub pkey: U16,
    /// Reserved.
    pub reserved: [u8; 2],
    /// Seconds that it is valid for.
    pub lease: U32,
    /// Key.
    pub key: [u8; 16],
    /// Its name.
    pub name: ServiceName,
    /// Data of the service.
    pub data_8: [u8; 16],
    /// Data of the service.
    pub data_16: [U16; 8],
    /// Data of the service.
    pub data_32: [U32; 4],
    /// Data of the service.
    pub data_64: [U64; 2],
}
