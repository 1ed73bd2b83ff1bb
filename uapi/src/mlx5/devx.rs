//! Records read from mlx5's DEVX event files.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Starts the answer of an asynchronous query; the device's output follows.
///
/// Kernel: `struct mlx5_ib_uapi_devx_async_cmd_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DevxAsyncCmdHdr {
    /// Id with which the query was sent.
    pub wr_id: u64,
}

/// Starts an event; the device's event data follow.
///
/// Kernel: `struct mlx5_ib_uapi_devx_async_event_hdr`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct DevxAsyncEventHdr {
    /// Value with which the subscription was made.
    pub cookie: u64,
}
