//! Multicast groups.

use super::{SockaddrIn6, SockaddrStorage};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Joins a group; [`JoinMcast`] has room for more families. The response is
/// [`CreateIdResp`](super::CreateIdResp).
///
/// Kernel: `struct rdma_ucm_join_ip_mcast`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct JoinIpMcast {
    /// Address of the response.
    pub response: u64,
    /// The value that the membership's events carry.
    pub uid: u64,
    /// The group's address.
    pub addr: SockaddrIn6,
    /// The identifier.
    pub id: u32,
}

/// Joins a group. The response is [`CreateIdResp`](super::CreateIdResp).
///
/// Kernel: `struct rdma_ucm_join_mcast`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct JoinMcast {
    /// Address of the response.
    pub response: u64,
    /// The value that the membership's events carry.
    pub uid: u64,
    /// The identifier.
    pub id: u32,
    /// Bytes of the address.
    pub addr_size: u16,
    /// [`JoinFlags`](super::JoinFlags).
    pub join_flags: u16,
    /// The group's address.
    pub addr: SockaddrStorage,
}
