//! Identifiers: creating, binding, resolving, destroying.

use super::{ServiceName, SockaddrIn6, SockaddrStorage};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Starts every `write()` to the device file. The payload follows.
///
/// Kernel: `struct rdma_ucm_cmd_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CmdHdr {
    /// The command, of [`cmd`](super::cmd).
    pub cmd: u32,
    /// Bytes of the payload.
    pub in_: u16,
    /// Bytes of the response buffer.
    pub out: u16,
}

/// Creates an identifier. The response is [`CreateIdResp`].
///
/// Kernel: `struct rdma_ucm_create_id`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateId {
    /// The value that the identifier's events carry.
    pub uid: u64,
    /// Address of the response.
    pub response: u64,
    /// [`PortSpace`](super::PortSpace).
    pub ps: u16,
    /// [`crate::enums::QpType`] of the identifier's queue pair.
    pub qp_type: u8,
    /// Must be 0.
    pub reserved: [u8; 5],
}

/// The number of an identifier, or of a membership in a multicast group.
///
/// Kernel: `struct rdma_ucm_create_id_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CreateIdResp {
    /// The number, unique on the machine.
    pub id: u32,
}

/// Destroys an identifier, or leaves a multicast group. The response is [`DestroyIdResp`].
///
/// Kernel: `struct rdma_ucm_destroy_id`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyId {
    /// Address of the response.
    pub response: u64,
    /// The identifier's or the membership's number.
    pub id: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// The result of destroying.
///
/// Kernel: `struct rdma_ucm_destroy_id_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DestroyIdResp {
    /// How many of its events have been read.
    pub events_reported: u32,
}

/// Binds an identifier; [`Bind`] has room for more families.
///
/// Kernel: `struct rdma_ucm_bind_ip`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct BindIp {
    /// Address of the response.
    pub response: u64,
    /// The own address.
    pub addr: SockaddrIn6,
    /// The identifier.
    pub id: u32,
}

/// Binds an identifier to an own address.
///
/// Kernel: `struct rdma_ucm_bind`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Bind {
    /// The identifier.
    pub id: u32,
    /// Bytes of the address: 16, 28 or 48, by its family.
    pub addr_size: u16,
    /// Must be 0.
    pub reserved: u16,
    /// The own address.
    pub addr: SockaddrStorage,
}

/// Finds the route to an address; [`ResolveAddr`] has room for more families.
///
/// Kernel: `struct rdma_ucm_resolve_ip`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResolveIp {
    /// The own address; its family is 0 if there is none.
    pub src_addr: SockaddrIn6,
    /// The peer's address.
    pub dst_addr: SockaddrIn6,
    /// The identifier.
    pub id: u32,
    /// Milliseconds that the neighbour lookup may take.
    pub timeout_ms: u32,
}

/// Finds the device and the neighbour on the route to an address.
///
/// Kernel: `struct rdma_ucm_resolve_addr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResolveAddr {
    /// The identifier.
    pub id: u32,
    /// Milliseconds that the neighbour lookup may take.
    pub timeout_ms: u32,
    /// Bytes of the own address; 0 if there is none.
    pub src_size: u16,
    /// Bytes of the peer's address.
    pub dst_size: u16,
    /// Must be 0.
    pub reserved: u32,
    /// The own address.
    pub src_addr: SockaddrStorage,
    /// The peer's address.
    pub dst_addr: SockaddrStorage,
}

/// Finds the path to the peer whose address has been resolved.
///
/// Kernel: `struct rdma_ucm_resolve_route`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResolveRoute {
    /// The identifier.
    pub id: u32,
    /// Milliseconds that it may take; not 0.
    pub timeout_ms: u32,
}

/// A service of an InfiniBand subnet. Since Linux 6.18.
///
/// Kernel: `struct rdma_ucm_ib_service`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct IbService {
    /// Its number.
    pub service_id: u64,
    /// Its name.
    pub service_name: ServiceName,
    /// [`IbServiceFlags`](super::IbServiceFlags): the valid fields.
    pub flags: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Queries the subnet administrator for the providers of a service. Since Linux 6.18.
///
/// Kernel: `struct rdma_ucm_resolve_ib_service`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ResolveIbService {
    /// The identifier.
    pub id: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The service.
    pub ibs: IbService,
}

/// Moves an identifier from another file to this one. The response is [`MigrateResp`].
///
/// Kernel: `struct rdma_ucm_migrate_id`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct MigrateId {
    /// Address of the response.
    pub response: u64,
    /// The identifier.
    pub id: u32,
    /// The file that the identifier is on.
    pub fd: u32,
}

/// The result of migrating.
///
/// Kernel: `struct rdma_ucm_migrate_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct MigrateResp {
    /// How many of its events have been read.
    pub events_reported: u32,
}
