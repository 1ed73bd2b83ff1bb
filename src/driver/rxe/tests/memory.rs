//! Ring memory on the heap, and the two ways in which the kernel uses a ring, after its own
//! `drivers/infiniband/sw/rxe/rxe_queue.h`: a private copy of its own index, masked indices, acquire and
//! release where the two sides meet.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::rxe::QueueBuf;
use zerocopy::{FromBytes, IntoBytes};

pub(super) const LOG2_ELEM_SIZE: usize = offset_of!(QueueBuf, log2_elem_size);
pub(super) const INDEX_MASK: usize = offset_of!(QueueBuf, index_mask);
pub(super) const PRODUCER_INDEX: usize = offset_of!(QueueBuf, producer_index);
pub(super) const CONSUMER_INDEX: usize = offset_of!(QueueBuf, consumer_index);

/// Zeroed memory with a ring's header in it.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is owned, and both sides that share it keep the ring's protocol.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory of `length` bytes, at least one, without a header.
    pub(super) fn bare(length: usize) -> Arc<Self> {
        let layout = Layout::from_size_align(length, 64).unwrap();
        // SAFETY: the layout has bytes.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        Arc::new(Self { base, layout })
    }

    /// An empty ring of `slots` slots of 2^`log2` bytes, and not a byte more.
    pub(super) fn ring(slots: u32, log2: u32) -> Arc<Self> {
        let memory = Self::bare(size_of::<QueueBuf>() + ((slots as usize) << log2));
        memory.set(LOG2_ELEM_SIZE, log2);
        memory.set(INDEX_MASK, slots - 1);
        memory
    }

    /// A ring whose indices stand at `index`, as if it had been used for a while.
    pub(super) fn ring_at(slots: u32, log2: u32, index: u32) -> Arc<Self> {
        let memory = Self::ring(slots, log2);
        memory.set(PRODUCER_INDEX, index);
        memory.set(CONSUMER_INDEX, index);
        memory
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn length(&self) -> usize {
        self.layout.size()
    }

    fn head(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.length());
        // SAFETY: within the memory, aligned, and accessed atomically by both sides once they share it.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Sets a number of the header.
    pub(super) fn set(&self, offset: usize, value: u32) {
        self.head(offset).store(value, Ordering::Release);
    }

    /// A number of the header.
    pub(super) fn get(&self, offset: usize) -> u32 {
        self.head(offset).load(Ordering::Acquire)
    }

    fn slot(&self, index: u32) -> (*mut u8, usize) {
        let size = 1usize << self.get(LOG2_ELEM_SIZE);
        let at = size_of::<QueueBuf>() + index as usize * size;
        assert!(at + size <= self.length());
        // SAFETY: within the memory.
        (unsafe { self.base.as_ptr().add(at) }, size)
    }

    /// Reads `T` at `offset` of a slot that the other side leaves alone now.
    pub(super) fn read<T: FromBytes>(&self, index: u32, offset: usize) -> T {
        let (slot, size) = self.slot(index);
        assert!(offset + size_of::<T>() <= size);
        // SAFETY: within the slot; any bytes are a `T`; the protocol of the ring gives this side the slot.
        unsafe { slot.add(offset).cast::<T>().read_unaligned() }
    }

    /// Writes `value` at `offset` of a slot that the other side leaves alone now.
    pub(super) fn write<T: IntoBytes>(&self, index: u32, offset: usize, value: T) {
        let (slot, size) = self.slot(index);
        assert!(offset + size_of::<T>() <= size);
        // SAFETY: as in `read`.
        unsafe { slot.add(offset).cast::<T>().write_unaligned(value) };
    }

    /// A slot's bytes.
    pub(super) fn bytes(&self, index: u32) -> Vec<u8> {
        let (_, size) = self.slot(index);
        (0..size).map(|at| self.read::<u8>(index, at)).collect()
    }

    /// Fills a slot with one byte.
    pub(super) fn fill(&self, index: u32, byte: u8) {
        let (slot, size) = self.slot(index);
        // SAFETY: as in `write`.
        unsafe { slot.write_bytes(byte, size) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the last owner goes.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// The kernel as the consumer of a work queue.
pub(super) struct KernelConsumer {
    memory: Arc<Memory>,
    index: u32,
}

impl KernelConsumer {
    pub(super) fn new(memory: &Arc<Memory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            index: memory.get(CONSUMER_INDEX),
        }
    }

    /// The slot to be worked on, if there is one.
    pub(super) fn head(&self) -> Option<u32> {
        (self.memory.get(PRODUCER_INDEX) != self.index).then_some(self.index)
    }

    /// Finishes the slot at the kernel's index.
    pub(super) fn advance(&mut self) {
        self.index = (self.index + 1) & self.memory.get(INDEX_MASK);
        self.memory.set(CONSUMER_INDEX, self.index);
    }

    /// Takes the `u64` at the start of the next slot.
    pub(super) fn take(&mut self) -> Option<u64> {
        let value = self.memory.read(self.head()?, 0);
        self.advance();
        Some(value)
    }
}

/// The kernel as the producer of a completion queue.
pub(super) struct KernelProducer {
    memory: Arc<Memory>,
    index: u32,
}

impl KernelProducer {
    pub(super) fn new(memory: &Arc<Memory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            index: memory.get(PRODUCER_INDEX),
        }
    }

    /// The slot to be filled, if one is free.
    pub(super) fn tail(&self) -> Option<u32> {
        let next = (self.index + 1) & self.memory.get(INDEX_MASK);
        (next != self.memory.get(CONSUMER_INDEX)).then_some(self.index)
    }

    /// How many slots the other side has not given back.
    pub(super) fn waiting(&self) -> u32 {
        let mask = self.memory.get(INDEX_MASK);
        self.index.wrapping_sub(self.memory.get(CONSUMER_INDEX)) & mask
    }

    /// Publishes the slot at the kernel's index.
    pub(super) fn advance(&mut self) {
        self.index = (self.index + 1) & self.memory.get(INDEX_MASK);
        self.memory.set(PRODUCER_INDEX, self.index);
    }

    /// Puts a value at the start of the next slot; false if the ring is full.
    pub(super) fn put<T: IntoBytes>(&mut self, value: T) -> bool {
        let Some(slot) = self.tail() else {
            return false;
        };
        self.memory.write(slot, 0, value);
        self.advance();
        true
    }
}
