//! Rings in memory that the other side fills with anything, indices above all.
//!
//! The memory ends where a page without access starts, so an access to a slot outside of it is noticed.

use std::hint::black_box;
use std::mem::offset_of;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use uverbs_uapi::rxe::{QueueBuf, RecvWqe};
use uverbs_uapi::types::Wc;

use super::cq::{Completion, Cq};
use super::recv::RecvQueue;
use super::ring::{Consumer, Producer};
use crate::driver::contract::methods::*;
use crate::work::LocalSlice;

/// Memory followed by a page without access.
struct Guarded {
    base: NonNull<u8>,
    length: usize,
    map: NonNull<u8>,
    mapped: usize,
}

impl Guarded {
    /// A copy of the bytes, filled up to whole words.
    fn new(bytes: &[u8]) -> Option<Self> {
        let page = rustix::param::page_size();
        let length = bytes.len().next_multiple_of(8).max(8);
        let room = length.next_multiple_of(page);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, in a place that the kernel chooses.
        let map = unsafe { mmap_anonymous(null_mut(), room + page, access, MapFlags::PRIVATE) };
        let map = NonNull::new(map.ok()?.cast::<u8>())?;
        // SAFETY: the last page of the mapping, which nobody uses, and an address within the mapping.
        let base = unsafe {
            mprotect(map.as_ptr().add(room).cast(), page, MprotectFlags::empty()).ok()?;
            map.add(room - length)
        };
        // SAFETY: the memory has that many bytes and is nobody else's.
        unsafe { base.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Some(Self {
            base,
            length,
            map,
            mapped: room + page,
        })
    }

    /// Stores an index in the ring's header, as the other side does.
    fn set(&self, offset: usize, value: u32) {
        if offset + 4 <= self.length {
            // SAFETY: within the memory and aligned, and both sides use the indices atomically.
            let index = unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) };
            // Release: as the kernel does; pairs with the ring's acquire.
            index.store(value, Ordering::Release);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and nothing points into it any more.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.mapped) };
    }
}

/// The first bytes, at most 16, as steps; the rest is the ring.
fn parts(bytes: &[u8]) -> (impl Iterator<Item = u32>, &[u8]) {
    let (steps, ring) = bytes.split_at(bytes.len().min(16));
    let (words, _) = steps.as_chunks::<4>();
    (words.iter().map(|word| u32::from_le_bytes(*word)), ring)
}

/// A completion ring of rxe: four indices that its producer jumps to, then the ring.
pub fn rxe_poll(bytes: &[u8]) {
    let (steps, ring) = parts(bytes);
    let Some(memory) = Guarded::new(ring) else {
        return;
    };
    // SAFETY: the memory is aligned to 8 and outlives the ring, which nobody else on this side uses.
    let ring = unsafe { Consumer::new(memory.base, memory.length, size_of::<Wc>()) };
    let Ok(ring) = ring else { return };
    let capacity = ring.capacity();
    let mut cq = Cq::new(ring, capacity, None);
    for producer in steps {
        if let Ok(polled) = cq.poll() {
            let mut taken = 0;
            for completion in polled {
                look(&completion);
                taken += 1;
            }
            assert!(taken <= capacity, "more than the ring holds");
        }
        memory.set(offset_of!(QueueBuf, producer_index), producer);
    }
}

fn look(completion: &Completion) {
    black_box((
        completion.wr_id(),
        completion.status(),
        completion.opcode(),
        completion.byte_len(),
        completion.ex(),
        completion.flags(),
    ));
    black_box(format!("{:?}", completion.flags()));
}

/// A work queue ring of rxe: four indices that its consumer jumps to, then the ring.
pub fn rxe_post(bytes: &[u8]) {
    let (steps, ring) = parts(bytes);
    let Some(memory) = Guarded::new(ring) else {
        return;
    };
    // SAFETY: as in `rxe_poll`.
    let ring = unsafe { Producer::new(memory.base, memory.length, size_of::<RecvWqe>()) };
    let Ok(ring) = ring else { return };
    let mut queue = RecvQueue::new(ring, 0, None);
    for consumer in steps {
        let none: &[LocalSlice<'_>] = &[];
        let mut written = 0;
        while queue.write(written, 7, none).is_ok() {
            written += 1;
            assert!(written <= queue.capacity(), "more than the ring holds");
        }
        assert!(queue.in_flight() <= queue.capacity());
        if consumer % 2 == 0 {
            queue.ring(written);
        }
        memory.set(offset_of!(QueueBuf, consumer_index), consumer);
    }
}
