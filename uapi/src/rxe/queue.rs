//! The head of a mapped ring.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Head of every ring; the elements follow it. Each index has cache lines of its own.
///
/// Kernel: `struct rxe_queue_buf`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(C)]
pub struct QueueBuf {
    /// Base-2 logarithm of the distance between elements in bytes; always to be read, never
    /// computed.
    pub log2_elem_size: u32,
    /// Number of slots less 1; the ring is full one slot earlier.
    pub index_mask: u32,
    /// Rest of the cache lines.
    pub pad_1: [u32; 30],
    /// Slot to be filled next, masked. Written by user space on work queues, by the kernel on CQs.
    pub producer_index: u32,
    /// Rest of the cache lines.
    pub pad_2: [u32; 31],
    /// Slot to be taken next, masked. Written by the kernel on work queues, by user space on CQs.
    pub consumer_index: u32,
    /// Rest of the cache lines.
    pub pad_3: [u32; 31],
}
