//! Where queues lie, for programs that post and poll by themselves (`mlx5dv_init_obj(3)`). Nobody else may
//! post or poll meanwhile: this side does not notice.

use std::ptr::NonNull;

/// A ring: where it begins, how many elements it has (a power of two), and the bytes of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingPlace {
    pub(crate) first: NonNull<u8>,
    pub(crate) entries: u32,
    pub(crate) entry_bytes: u32,
}

/// A register for doorbells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterPlace {
    pub(crate) first: NonNull<u8>,
    /// Bytes of each of its two halves, into which requests may be copied; 0 if it takes no copies.
    pub(crate) half: u32,
    /// Where its page begins in the command file, in bytes.
    pub(crate) page_offset: u64,
}

/// The rings of a queue pair. One that receives from a shared queue has no elements in the second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpPlace {
    pub(crate) send: RingPlace,
    pub(crate) receive: RingPlace,
    pub(crate) record: NonNull<u8>,
    pub(crate) register: RegisterPlace,
}

/// The ring of a completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqPlace {
    pub(crate) ring: RingPlace,
    pub(crate) record: NonNull<u8>,
    /// The page of registers in which it is armed.
    pub(crate) page: NonNull<u8>,
    pub(crate) number: u32,
}

/// The ring of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqPlace {
    pub(crate) ring: RingPlace,
    pub(crate) record: NonNull<u8>,
    /// The element that is posted next.
    pub(crate) head: u32,
    pub(crate) number: u32,
}
