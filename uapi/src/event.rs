//! Records read from event file descriptors.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Read from a completion channel: a CQ has a completion.
///
/// Kernel: `struct ib_uverbs_comp_event_desc`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct CompEventDesc {
    /// The `user_handle` with which the CQ was created.
    pub cq_handle: u64,
}

/// Read from an asynchronous event file.
///
/// Kernel: `struct ib_uverbs_async_event_desc`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct AsyncEventDesc {
    /// The `user_handle` of the CQ, QP, SRQ or WQ concerned; or the port number, or 0 for the
    /// device.
    pub element: u64,
    /// [`crate::enums::AsyncEventType`].
    pub event_type: u32,
    /// Reserved.
    pub reserved: u32,
}
