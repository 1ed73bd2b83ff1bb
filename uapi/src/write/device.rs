//! Commands on the device as a whole: context, device attributes, port attributes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Request of `GET_CONTEXT`: make this open file a verbs context.
///
/// Kernel: `struct ib_uverbs_get_context`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct GetContext {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
}

/// Response of `GET_CONTEXT`.
///
/// Kernel: `struct ib_uverbs_get_context_resp`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct GetContextResp {
    /// File descriptor from which asynchronous events are read.
    pub async_fd: u32,
    /// Number of completion vectors; a CQ uses one below this.
    pub num_comp_vectors: u32,
}

/// Request of `QUERY_DEVICE`; the answer is [`crate::types::QueryDeviceResp`].
///
/// Kernel: `struct ib_uverbs_query_device`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryDevice {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
}

/// Request of the extended `QUERY_DEVICE`; the answer is [`crate::types::ExQueryDeviceResp`].
///
/// Kernel: `struct ib_uverbs_ex_query_device`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct ExQueryDevice {
    /// Must be 0.
    pub comp_mask: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// Request of `QUERY_PORT`; the answer is [`crate::types::QueryPortResp`].
///
/// Kernel: `struct ib_uverbs_query_port`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueryPort {
    /// Address to which the kernel writes the response; ignored, but present, under `INVOKE_WRITE`.
    pub response: u64,
    /// The port, counted from 1.
    pub port_num: u8,
    /// Must be 0.
    pub reserved: [u8; 7],
}
