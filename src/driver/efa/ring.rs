//! The rings of a completion queue, and registers.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::format::{Entry, Words, entry};
use super::order::{self, Step};
use crate::alloc::Grant;
use crate::driver::kit::map::Map;

/// Memory of the rings of a completion queue. It begins at a page.
#[derive(Debug)]
pub(super) enum RingMemory {
    /// Mapped from the kernel.
    Mapped(Map),
    /// From an allocator, with its length in bytes.
    Given(Grant, usize),
}

impl RingMemory {
    /// The first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        match self {
            Self::Mapped(map) => map.base(),
            Self::Given(grant, _) => grant.address(),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Mapped(map) => map.length(),
            Self::Given(_, length) => *length,
        }
    }
}

/// The entries of a ring. Valid as long as the memory in which they lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    first: NonNull<u8>,
    /// How many there are, a power of two.
    count: u32,
}

// SAFETY: it is an address. Through it only atomics are read, and entries that have arrived.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// The rings that lie in memory one after the other, with `count` entries each; `None` if they do not
    /// fit, or no such ring exists.
    pub(super) fn of(memory: &RingMemory, rings: usize, count: u32) -> Option<Box<[Self]>> {
        let bytes = (count as usize).checked_mul(Entry::BYTES)?;
        let fits = bytes.checked_mul(rings)? <= memory.length();
        if !fits || rings == 0 || !count.is_power_of_two() {
            return None;
        }
        let ring = |at| Self {
            // SAFETY: the ring lies in the memory, as was just checked.
            first: unsafe { memory.base().add(at * bytes) },
            count,
        };
        Some((0..rings).map(ring).collect())
    }

    /// How many entries there are.
    pub(super) fn count(self) -> u32 {
        self.count
    }

    #[inline(always)]
    fn at(self, index: u32) -> NonNull<u8> {
        let at = (index & (self.count - 1)) as usize * Entry::BYTES;
        // SAFETY: the masked index is below the count, so the entry lies in the ring.
        unsafe { self.first.add(at) }
    }

    /// Whether the device has written the entry at this index, which keeps counting past the ring's end.
    #[inline(always)]
    pub(super) fn has_arrived(self, index: u32) -> bool {
        // SAFETY: the byte lies in the entry; while the device may write it only atomics touch it.
        let flags = unsafe { self.at(index).cast::<AtomicU8>().add(Entry::FLAGS).as_ref() };
        let is_odd_lap = index & self.count != 0;
        // Relaxed: the barrier below orders it.
        let phase = flags.load(Ordering::Relaxed) & entry::PHASE != 0;
        if phase == is_odd_lap {
            return false;
        }
        order::after_phase();
        true
    }

    /// Whether the device has gone once round the ring and written over the entry at this index, which has
    /// not been taken. By its phase that entry then looks as if it had not arrived. But the last of the
    /// `count` entries from this index on has arrived, and the device writes that one later. If the device is
    /// two laps or more ahead of the first entry that was not taken, this is not noticed: no place shows the
    /// lap any more.
    pub(super) fn has_overrun(self, index: u32) -> bool {
        let last = index.wrapping_add(self.count - 1);
        // In this order, which the barrier of the first look keeps. The other way round, the device could
        // write all of these entries between the two looks, which would pass for an overrun.
        self.has_arrived(last) && !self.has_arrived(index)
    }

    /// The first entry after those, from this index on, that the device has written over.
    pub(super) fn behind_lost(self, index: u32) -> Option<u32> {
        let mut places = (1..self.count).map(|ahead| index.wrapping_add(ahead));
        places.find(|at| self.has_arrived(*at))
    }

    /// The first word of the entry at this index, which has arrived: its request's number, its status, and
    /// its queue.
    #[inline(always)]
    pub(super) fn head(self, index: u32) -> Words {
        order::step(Step::Read);
        // SAFETY: as in `entry`, of its first word.
        Words([unsafe { self.at(index).cast().read_volatile() }, 0, 0, 0])
    }

    /// A copy of the entry at this index, which has arrived.
    #[inline(always)]
    pub(super) fn entry(self, index: u32) -> Words {
        order::step(Step::Read);
        // SAFETY: the entry lies in the ring and is aligned to its size, since the memory starts at a page.
        // The device has written it and leaves it alone until it has gone once round the ring. Volatile: if
        // the device has gone further, this reads another entry or parts of several, and every bit pattern is
        // valid.
        Words(unsafe { self.at(index).cast().read_volatile() })
    }

    /// Writes an entry as the device does.
    #[cfg(test)]
    pub(super) fn play(self, index: u32, mut written: Entry) {
        let is_odd_lap = index & self.count != 0;
        written.flags = written.flags & !entry::PHASE | u8::from(!is_odd_lap);
        // SAFETY: the entry lies in the ring, and the test plays the device.
        unsafe { self.at(index).cast().write(written) };
    }
}

/// A register of 32 bits, in uncached memory of the device.
#[derive(Debug)]
pub(super) struct Register {
    at: NonNull<u32>,
    _map: Arc<Map>,
}

// SAFETY: it is only stored to, in single whole stores.
unsafe impl Send for Register {}
// SAFETY: as above.
unsafe impl Sync for Register {}

impl Register {
    /// The register at an offset of a map; `None` if it does not lie there.
    pub(super) fn new(map: Arc<Map>, offset: u32) -> Option<Self> {
        let offset = offset as usize;
        let end = offset.checked_add(size_of::<u32>())?;
        if end > map.length() || !offset.is_multiple_of(size_of::<u32>()) {
            return None;
        }
        // SAFETY: the register lies in the map.
        let at = unsafe { map.base().add(offset) }.cast();
        Some(Self { at, _map: map })
    }

    /// Stores a number.
    #[inline(always)]
    pub(super) fn store(&self, value: u32) {
        order::step(Step::Stored(value));
        // SAFETY: the register lies in the map that this value keeps, aligned; the store is a single one.
        unsafe { self.at.write_volatile(value.to_le()) };
    }

    /// Its address, valid as long as this value lives.
    #[cfg(feature = "c-abi")]
    pub(super) fn address(&self) -> *mut u32 {
        self.at.as_ptr()
    }

    /// The value that was stored last.
    #[cfg(test)]
    pub(super) fn stored(&self) -> u32 {
        // SAFETY: as in `store`; in tests it is memory.
        unsafe { self.at.read_volatile() }
    }
}
