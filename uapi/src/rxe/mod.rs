//! soft-RoCE's additions to the ABI (`include/uapi/rdma/rdma_user_rxe.h`): its rings, which the kernel
//! allocates and the process maps, and the answers with the places of the rings.
//!
//! Completions have no struct of their own: they are [`crate::types::Wc`].

mod queue;
mod resp;
mod wqe;

use crate::flags::WcFlags;

pub use queue::*;
pub use resp::*;
pub use wqe::*;

/// ABI versions of the driver that this module describes, from first to last; the device's sysfs file
/// `abi_version` has the kernel's.
pub const ABI_VERSIONS: core::ops::RangeInclusive<u32> = 1..=2;

/// [`Av::network_type`] for IPv4.
pub const NETWORK_TYPE_IPV4: u8 = 1;
/// [`Av::network_type`] for IPv6.
pub const NETWORK_TYPE_IPV6: u8 = 2;

/// Distance from the start of a mapped ring to its first element, in bytes.
pub const QUEUE_DATA_OFFSET: usize = size_of::<QueueBuf>();
/// Distance from the start of a send element to its union of request forms, in bytes.
pub const SEND_WR_OFFSET: usize =
    core::mem::offset_of!(SendWqe, wr) + core::mem::offset_of!(SendWr, wr);
/// Distance from the start of a send element to its scatter/gather list or inline data, in bytes.
pub const SEND_PAYLOAD_OFFSET: usize = core::mem::offset_of!(SendWqe, dma) + size_of::<DmaInfo>();
/// Distance from the start of a receive element to its scatter/gather list, in bytes.
pub const RECV_PAYLOAD_OFFSET: usize = core::mem::offset_of!(RecvWqe, dma) + size_of::<DmaInfo>();

/// The bit in [`crate::types::Wc::wc_flags`] for "a key was invalidated" on rxe: the kernel's own bit, which
/// libibverbs reads as [`WcFlags::IP_CSUM_OK`].
pub const WC_WITH_INVALIDATE: WcFlags = WcFlags::from_bits_retain(1 << 2);
