//! The header of a mapped ring.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The header of every ring; the elements follow it. Each index has cache lines of its own.
///
/// Kernel: `struct rxe_queue_buf`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueueBuf {
    /// Base-2 logarithm of the distance between elements in bytes; it must always be read, never computed.
    pub log2_elem_size: u32,
    /// Number of slots less 1; the ring is full one slot earlier.
    pub index_mask: u32,
    /// The rest of the cache lines.
    pub pad_1: [u32; 30],
    /// The next slot to fill, masked. User space writes it on work queues, the kernel on CQs.
    pub producer_index: u32,
    /// The rest of the cache lines.
    pub pad_2: [u32; 31],
    /// The next slot to take, masked. The kernel writes it on work queues, user space on CQs.
    pub consumer_index: u32,
    /// The rest of the cache lines.
    pub pad_3: [u32; 31],
}
