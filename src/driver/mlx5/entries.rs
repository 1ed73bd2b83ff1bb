//! The ring of a completion queue: entries of 64 or 128 bytes, and whose each is.
//!
//! An entry has an owner bit, which the device turns over with each lap: it is this side's if the bit is that of the lap
//! that the consumer is in. In an entry of 128 bytes the second half is the one that counts.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use super::format::{BLOCK, Cqe, OP_OWN, cqe};
use super::memory::Memory;

/// The entries, with their memory.
#[derive(Debug)]
pub(super) struct Entries {
    view: View,
    _memory: Memory,
}

/// Where the entries lie; good as long as the [`Entries`] that it is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// The half that counts of the first entry.
    first: NonNull<u8>,
    /// How many there are, a power of two.
    count: u32,
    /// Binary logarithm of the bytes of one.
    log_size: u32,
}

// SAFETY: the memory is owned, and it is as good in one thread as in another.
unsafe impl Send for Entries {}
// SAFETY: shared references read atomics, and entries that are valid, which nobody writes.
unsafe impl Sync for Entries {}

impl Entries {
    /// Bytes of a ring.
    pub(super) fn bytes(count: u32, size: usize) -> usize {
        count as usize * size
    }

    /// Entries of `size` bytes, 64 or 128, over memory that has [`Self::bytes`] of them; `count` is a power of two.
    pub(super) fn new(memory: Memory, count: u32, size: usize) -> Self {
        debug_assert!(count.is_power_of_two() && (size == BLOCK || size == 2 * BLOCK));
        // SAFETY: an entry has `size` bytes, so the last 64 of the first lie in the memory.
        let first = unsafe { memory.base().add(size - BLOCK) };
        let view = View {
            first,
            count,
            log_size: size.ilog2(),
        };
        Self {
            view,
            _memory: memory,
        }
    }

    /// Marks every entry as the device's, for a consumer that starts at `first`: its owner bit is that of the lap before.
    /// The device must not write to the ring yet.
    pub(super) fn invalidate(&self, first: u32) {
        for at in 0..self.view.count() {
            let index = first.wrapping_add(at);
            let before = self.view.lap(index) ^ 1;
            // Relaxed: what starts the device comes later and has its own barrier.
            self.view
                .op_own(index)
                .store(cqe::INVALID << 4 | before, Ordering::Relaxed);
        }
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    /// The memory's address for the kernel.
    pub(super) fn address(&self) -> u64 {
        self._memory.address()
    }

    /// Whether the device has written the entry at this index.
    pub(super) fn is_valid(&self, index: u32) -> bool {
        self.view.poll(index).is_some()
    }

    /// The number in a valid entry.
    pub(super) fn number(&self, index: u32) -> u32 {
        // SAFETY: the entry lies in the memory that this value keeps. It is valid, or was a moment ago; if the device
        // has come round since, what is read is some number of its, and every bit pattern is one.
        let entry = unsafe { self.view.entry(index).as_ptr().read_volatile() };
        entry.srqn_uidx.get() & 0xff_ffff
    }
}

/// A consumer's place in the ring: kept beside its index, so that the next entry is found without arithmetic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    at: NonNull<u8>,
    first: NonNull<u8>,
    /// Behind the last entry.
    end: *mut u8,
    stride: usize,
    /// The owner bit of entries that are this side's.
    lap: u8,
}

impl Place {
    /// The entry, and what it is if the device has written it. The caller orders what it reads next behind this with
    /// [`super::barrier::owner_before_entry`].
    #[inline(always)]
    pub(super) fn poll(&self) -> Option<(NonNull<Cqe>, u8)> {
        let at = self.at;
        // SAFETY: a place is always that of an entry, and while the entry may be written only atomics touch the byte.
        let op_own = unsafe { at.cast::<AtomicU8>().add(OP_OWN).as_ref() };
        let op_own = op_own.load(Ordering::Relaxed);
        (op_own & 1 == self.lap).then_some((at.cast(), op_own))
    }

    /// Goes on to the next entry, which may be the ring's first again.
    #[inline(always)]
    pub(super) fn advance(&mut self) {
        let next = self.at.as_ptr().wrapping_add(self.stride);
        if next == self.end {
            self.at = self.first;
            self.lap ^= 1;
        } else {
            // SAFETY: the entry behind one that is not the last lies in the ring, not at address 0.
            self.at = unsafe { NonNull::new_unchecked(next) };
        }
    }
}

impl View {
    /// The place of an index.
    pub(super) fn place(self, index: u32) -> Place {
        let stride = 1 << self.log_size;
        // Of entries of 128 bytes this is beyond the memory's end by a half, and only compared with.
        let end = self
            .first
            .as_ptr()
            .wrapping_add(stride * self.count as usize);
        Place {
            at: self.entry(index).cast(),
            first: self.first,
            end,
            stride,
            lap: self.lap(index),
        }
    }

    /// How many entries there are.
    #[inline(always)]
    pub(super) fn count(self) -> u32 {
        self.count
    }

    /// The entry at this index, which counts on round the ring.
    #[inline(always)]
    pub(super) fn entry(self, index: u32) -> NonNull<Cqe> {
        let at = ((index & (self.count() - 1)) as usize) << self.log_size;
        // SAFETY: the masked index is below the count, so the entry lies in the ring.
        unsafe { self.first.add(at).cast() }
    }

    #[inline(always)]
    fn op_own(&self, index: u32) -> &AtomicU8 {
        // SAFETY: the byte lies in the entry, and while the entry may be written only atomics touch it.
        unsafe { self.entry(index).cast::<AtomicU8>().add(OP_OWN).as_ref() }
    }

    /// The owner bit of entries that the device has written, in the lap that an index is of.
    #[inline(always)]
    pub(super) fn lap(self, index: u32) -> u8 {
        u8::from(index & self.count() != 0)
    }

    /// What the entry is (the upper half of `op_own` counts) if the device has written it. The caller orders what it
    /// reads next behind this with [`super::barrier::owner_before_entry`].
    #[inline(always)]
    pub(super) fn poll(self, index: u32) -> Option<u8> {
        let op_own = self.op_own(index).load(Ordering::Relaxed);
        (op_own & 1 == self.lap(index)).then_some(op_own)
    }

    /// Copies a valid entry to a place of another ring, where it counts as written in that lap.
    pub(super) fn copy_to(self, index: u32, other: View, to: u32) {
        // SAFETY: both entries lie in their rings. The device wrote this one and no longer does; of the other ring it
        // leaves the places alone that are for such copies.
        unsafe {
            let mut entry = self.entry(index).as_ptr().read();
            entry.op_own = entry.op_own & !1 | other.lap(to);
            other.entry(to).as_ptr().write(entry);
        }
    }
}
