//! What the owner tells the agent, as plain bytes.

use uverbs_queue::handover::{Handover, Region};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes that a request writes.
pub(crate) const SLOT: usize = 64;
/// Requests, each to a slot of its own.
pub(crate) const SLOTS: usize = 1024;

/// What the agent is to do, and with what.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Order {
    /// The queue.
    pub(crate) queue: Handover,
    /// The peer's memory. There is no local key to it.
    pub(crate) target: Region,
    /// The descriptors that the agent has inherited: of the command file, of the dma-buf with the rings, and
    /// of the memory of the queue's region.
    pub(crate) command: u32,
    /// As above.
    pub(crate) rings: u32,
    /// As above.
    pub(crate) memory: u32,
    /// Bytes of a page.
    pub(crate) page: u32,
}

/// What lies in a slot: its number, again and again.
pub(crate) fn contents(slot: usize) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    for place in bytes.chunks_exact_mut(8) {
        place.copy_from_slice(&(slot as u64 + 1).to_le_bytes());
    }
    bytes
}
