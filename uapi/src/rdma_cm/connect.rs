//! Connections: requesting, listening, accepting, refusing, ending.

use super::{Ece, PrivateData};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The parameters that the two sides of a connection send each other.
///
/// Kernel: `struct rdma_ucm_conn_param`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ConnParam {
    /// The queue pair's number.
    pub qp_num: u32,
    /// Its Q_Key, for datagrams.
    pub qkey: u32,
    /// Private data of the user.
    pub private_data: PrivateData,
    /// Bytes of the private data.
    pub private_data_len: u8,
    /// Not 0: it receives from a shared queue.
    pub srq: u8,
    /// READs and atomics that are served at the same time.
    pub responder_resources: u8,
    /// READs and atomics that may be in flight at the same time.
    pub initiator_depth: u8,
    /// Not 0: hardware flow control.
    pub flow_control: u8,
    /// Retries after missing acknowledgements.
    pub retry_count: u8,
    /// Retries after "receiver not ready".
    pub rnr_retry_count: u8,
    /// Not 0: the fields are valid.
    pub valid: u8,
}

/// Requests a connection from the peer.
///
/// Kernel: `struct rdma_ucm_connect`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Connect {
    /// The parameters of this side.
    pub conn_param: ConnParam,
    /// The identifier.
    pub id: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Options of the queue pair.
    pub ece: Ece,
}

/// Listens for requests.
///
/// Kernel: `struct rdma_ucm_listen`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Listen {
    /// The identifier.
    pub id: u32,
    /// Requests that may be unread; 0 for the maximum.
    pub backlog: u32,
}

/// Accepts a request, or confirms a connection that the peer has accepted.
///
/// Kernel: `struct rdma_ucm_accept`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Accept {
    /// The value that the identifier's events carry from now on; 0 for no events.
    pub uid: u64,
    /// The parameters of this side.
    pub conn_param: ConnParam,
    /// The identifier.
    pub id: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Options of the queue pair.
    pub ece: Ece,
}

/// Refuses a request.
///
/// Kernel: `struct rdma_ucm_reject`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Reject {
    /// The identifier.
    pub id: u32,
    /// Bytes of the private data.
    pub private_data_len: u8,
    /// [`RejectReason`](super::RejectReason); 0 for the consumer.
    pub reason: u8,
    /// Must be 0.
    pub reserved: [u8; 2],
    /// Private data of the user.
    pub private_data: PrivateData,
}

/// Ends a connection, or confirms its end.
///
/// Kernel: `struct rdma_ucm_disconnect`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Disconnect {
    /// The identifier.
    pub id: u32,
}

/// Queries the attributes for a transition of the queue pair. The response is
/// [`QpAttr`](crate::types::QpAttr).
///
/// Kernel: `struct rdma_ucm_init_qp_attr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct InitQpAttr {
    /// Address of the response.
    pub response: u64,
    /// The identifier.
    pub id: u32,
    /// [`crate::enums::QpState`]: the new state.
    pub qp_state: u32,
}

/// Notifies the identifier of an asynchronous event of its queue pair.
///
/// Kernel: `struct rdma_ucm_notify`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct Notify {
    /// The identifier.
    pub id: u32,
    /// [`crate::enums::AsyncEventType`].
    pub event: u32,
}
