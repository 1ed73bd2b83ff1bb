//! Events.

use super::{Ece, Param, PrivateData};
use crate::types::AhAttr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The data of an event about the peer's datagram queue pair, or about a multicast group.
///
/// Kernel: `struct rdma_ucm_ud_param`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct UdParam {
    /// The number of the peer's queue pair.
    pub qp_num: u32,
    /// Its Q_Key.
    pub qkey: u32,
    /// The path to it.
    pub ah_attr: AhAttr,
    /// The peer's private data.
    pub private_data: PrivateData,
    /// Bytes of the private data.
    pub private_data_len: u8,
    /// Reserved.
    pub reserved: [u8; 7],
}

/// Takes the next event. The response is [`EventResp`].
///
/// Kernel: `struct rdma_ucm_get_event`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct GetEvent {
    /// Address of the response.
    pub response: u64,
}

/// An event.
///
/// Kernel: `struct rdma_ucm_event_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct EventResp {
    /// The value that the identifier was created with; the listener's for a request.
    pub uid: u64,
    /// The identifier; a new one for a request.
    pub id: u32,
    /// [`Event`](super::Event).
    pub event: u32,
    /// 0, a negative errno, or a reason of the peer.
    pub status: u32,
    /// The data of the event.
    pub param: Param,
    /// Reserved.
    pub reserved: u32,
    /// Options of the peer's queue pair.
    pub ece: Ece,
}

/// Puts an event into the queue of an identifier. Since Linux 6.18.
///
/// Kernel: `struct rdma_ucm_write_cm_event`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct WriteCmEvent {
    /// The identifier.
    pub id: u32,
    /// Must be 0.
    pub reserved: u32,
    /// [`Event`](super::Event): `USER` or `INTERNAL`.
    pub event: u32,
    /// The event's status.
    pub status: u32,
    /// The data of the event; a `u64` of the caller is at its start.
    pub param: Param,
}
