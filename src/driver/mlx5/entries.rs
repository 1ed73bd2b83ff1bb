//! The ring of a completion queue: entries (CQEs) of 64 or 128 bytes, and the owner of each.
//!
//! An entry has an owner bit, which the device flips in each lap. The entry is this side's if the bit is that
//! of the consumer's lap. In an entry of 128 bytes the second half has the fields.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::barrier;
use super::format::{self, BLOCK, Cqe, INDEX_MASK, NUMBER, OP_OWN, RECORD_CONSUMER, cqe};
use super::memory::Memory;
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
use super::place::RingPlace;
use crate::driver::kit::directory::Ring;

/// The entries, with their memory, which clones share.
#[derive(Clone, Debug)]
pub(super) struct Entries {
    view: View,
    memory: Arc<Memory>,
    /// An agent has them, which may write anything: this side does not read them.
    are_away: bool,
}

/// Where the entries lie; valid as long as the [`Entries`] itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// The half of the first entry with the fields.
    first: NonNull<u8>,
    /// How many there are, a power of two.
    pub(super) count: NonZeroU32,
    /// Bytes of an entry.
    size: usize,
}

// SAFETY: the memory is owned, and any thread may use it.
unsafe impl Send for Entries {}
// SAFETY: shared references read atomics, and entries that have arrived, which are not written meanwhile.
unsafe impl Sync for Entries {}

impl Entries {
    /// Bytes of a ring.
    pub(super) fn bytes(count: u32, size: usize) -> usize {
        count as usize * size
    }

    /// Entries of `size` bytes, 64 or 128, over memory that has [`Self::bytes`] of them; `count` is a power
    /// of two.
    pub(super) fn new(memory: Memory, count: u32, size: usize) -> Self {
        debug_assert!(count.is_power_of_two() && (size == BLOCK || size == 2 * BLOCK));
        let count = NonZeroU32::new(count).expect("a power of two");
        // SAFETY: an entry has `size` bytes, so the last 64 of the first lie in the memory.
        let first = unsafe { memory.base().add(size - BLOCK) };
        let view = View { first, count, size };
        Self {
            view,
            memory: Arc::new(memory),
            are_away: false,
        }
    }

    /// Marks every entry as the device's, for a consumer that starts at `first`: its owner bit is that of the
    /// lap before. The device must not write to the ring yet.
    pub(super) fn invalidate(&self, first: u32) {
        for at in 0..self.view.count() {
            let index = first.wrapping_add(at);
            let before = self.view.lap(index) ^ 1;
            // Relaxed: what starts the device comes later and has its own barrier.
            View::op_own(&self.view.entry(index))
                .store(cqe::INVALID << 4 | before, Ordering::Relaxed);
        }
    }

    /// Leaves the entries to an agent.
    pub(super) fn leave(&mut self) {
        self.are_away = true;
    }

    /// Takes the entries back from the agent. Whatever lies there counts as not arrived, for a consumer that
    /// starts at `first`. The device writes nothing meanwhile.
    pub(super) fn come_back(&mut self, first: u32) {
        self.invalidate(first);
        self.are_away = false;
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    /// The entry at this index, if the device has written it and this side may read it.
    fn arrived(&self, index: u32) -> Option<NonNull<Cqe>> {
        match self.are_away {
            true => None,
            false => self.view.arrived(index),
        }
    }

    /// Whether this side has the entry at this index.
    #[cfg(feature = "c-abi")]
    pub(super) fn has(&self, index: u32) -> bool {
        self.arrived(index).is_some()
    }

    /// Where they lie.
    #[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
    pub(super) fn place(&self) -> RingPlace {
        RingPlace {
            first: self.memory.base(),
            entries: self.view.count(),
            entry_bytes: self.view.entry_bytes() as u32,
        }
    }

    /// Their memory, for the kernel.
    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Ring for Entries {
    /// The kernel takes the number above as none (`MLX5_IB_DEFAULT_UIDX`, which `verify_assign_uidx`
    /// refuses).
    const MOST: u32 = NUMBER - 1;
    const CONSUMER: (usize, u32) = (RECORD_CONSUMER, INDEX_MASK);

    fn number(&self, index: u32) -> Option<u32> {
        let entry = self.arrived(index)?.as_ptr();
        // SAFETY: the entry lies in the memory that this value keeps. It has arrived. If the poller has given
        // it back since and the device has come round, this reads another number, and every bit pattern is
        // valid. Nothing else is read: the poller may be clearing bytes that were data (`super::inline`).
        let number = unsafe { (&raw const (*entry).srqn_uidx).read_volatile() };
        Some(number.get() & NUMBER)
    }

    fn received(&self, index: u32) -> Option<u16> {
        let entry = self.arrived(index)?;
        // SAFETY: as in `number`.
        let counter = unsafe { (&raw const (*entry.as_ptr()).wqe_counter).read_volatile() };
        let op_own = View::op_own(&entry).load(Ordering::Relaxed);
        cqe::is_receive(op_own).then_some(counter.get())
    }
}

impl View {
    /// How many entries there are.
    #[inline(always)]
    pub(super) fn count(self) -> u32 {
        self.count.get()
    }

    /// Bytes of an entry.
    pub(super) fn entry_bytes(self) -> usize {
        self.size
    }

    /// The entry at this index, which keeps counting past the end of the ring.
    #[inline(always)]
    pub(super) fn entry(self, index: u32) -> NonNull<Cqe> {
        let at = (index & (self.count() - 1)) as usize * self.size;
        // SAFETY: the masked index is below the count, so the entry lies in the ring.
        unsafe { self.first.add(at).cast() }
    }

    /// The entry at this index if the device has written it. Its contents are read after its owner bit.
    #[inline(always)]
    pub(super) fn arrived(self, index: u32) -> Option<NonNull<Cqe>> {
        let entry = self.entry(index);
        // Relaxed: the barrier orders it.
        let owner = Self::op_own(&entry).load(Ordering::Relaxed) & 1;
        if owner != self.lap(index) {
            return None;
        }
        barrier::owner_before_entry();
        Some(entry)
    }

    #[inline(always)]
    fn op_own(entry: &NonNull<Cqe>) -> &AtomicU8 {
        // SAFETY: entries only come from `entry`, and while one may be written only atomics access this byte
        // of it.
        unsafe { entry.cast::<AtomicU8>().add(OP_OWN).as_ref() }
    }

    /// The owner bit of entries that the device has written, in the lap of this index.
    #[inline(always)]
    pub(super) fn lap(self, index: u32) -> u8 {
        format::lap(index, self.count())
    }

    /// Copies an entry that has arrived to a place of another ring with entries of the same size, where it
    /// counts as written in that lap.
    pub(super) fn copy_to(self, index: u32, other: View, to: u32) {
        // SAFETY: both entries lie in their rings, with what comes before the half with the fields. The
        // device wrote this one and no longer does. In the other ring it leaves alone the places for such
        // copies.
        unsafe {
            if self.size == other.size {
                let before = self.size - BLOCK;
                let (from, to) = (self.entry(index).cast::<u8>(), other.entry(to).cast::<u8>());
                to.sub(before)
                    .copy_from_nonoverlapping(from.sub(before), before);
            }
            let mut entry = self.entry(index).as_ptr().read();
            entry.op_own = entry.op_own & !1 | other.lap(to);
            other.entry(to).as_ptr().write(entry);
        }
    }
}
