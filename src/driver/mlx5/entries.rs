//! The ring of a completion queue: entries of 64 or 128 bytes, and the owner of each.
//!
//! An entry has an owner bit, which the device flips with each lap: the entry is this side's if the bit is
//! that of the consumer's lap. In an entry of 128 bytes the second half has the fields.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use super::barrier;
use super::format::{BLOCK, Cqe, NUMBER, OP_OWN, cqe};
use super::memory::Memory;

/// The entries, with their memory.
#[derive(Debug)]
pub(super) struct Entries {
    view: View,
    _memory: Memory,
}

/// Where the entries lie; valid as long as the [`Entries`] itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// The half of the first entry with the fields.
    first: NonNull<u8>,
    /// How many there are, a power of two, and one less.
    count: u32,
    mask: u32,
    /// Bytes of one.
    size: usize,
    /// Where one behind the last would have its half that counts, a mere address.
    end: *mut Cqe,
}

/// A walk over the entries of a ring, round its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    at: *mut Cqe,
    /// Where it goes on at the ring's start, or stops.
    end: *mut Cqe,
    /// The first entry that it does not come to.
    last: *mut Cqe,
    /// The owner bit of the entry once the device has written it.
    lap: u64,
}

/// An entry that is the device's for ever, for a walk that has come to its end.
static NEVER: [AtomicU8; BLOCK] = {
    let mut bytes = [const { AtomicU8::new(0) }; BLOCK];
    bytes[OP_OWN] = AtomicU8::new(1);
    bytes
};

impl Walk {
    /// The entry that it is at, and what that is: without the lap, so that the last bit is 0 in entries that
    /// are this side's. As for [`View::op_own`].
    #[inline(always)]
    pub(super) fn entry(&self) -> (NonNull<Cqe>, u8) {
        // SAFETY: it is the address of an entry of the ring, or of `NEVER`.
        let entry = unsafe { NonNull::new_unchecked(self.at) };
        (entry, View::op_own(entry) ^ self.lap as u8)
    }

    /// Goes no further.
    #[inline(always)]
    fn stop(&mut self) {
        self.at = NEVER.as_ptr().cast::<Cqe>().cast_mut();
        self.lap = 0;
    }
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

    /// Entries of `size` bytes, 64 or 128, over memory that has [`Self::bytes`] of them; `count` is a power
    /// of two.
    pub(super) fn new(memory: Memory, count: u32, size: usize) -> Self {
        debug_assert!(count.is_power_of_two() && (size == BLOCK || size == 2 * BLOCK));
        // SAFETY: an entry has `size` bytes, so the last 64 of the first lie in the memory.
        let first = unsafe { memory.base().add(size - BLOCK) };
        let view = View {
            first,
            count,
            mask: count - 1,
            size,
            end: first.as_ptr().wrapping_add(Self::bytes(count, size)).cast(),
        };
        Self {
            view,
            _memory: memory,
        }
    }

    /// Marks every entry as the device's, for a consumer that starts at `first`: its owner bit is that of the
    /// lap before. The device must not write to the ring yet.
    pub(super) fn invalidate(&self, first: u32) {
        for at in 0..self.view.count() {
            let index = first.wrapping_add(at);
            let before = self.view.lap(index) ^ 1;
            // Relaxed: what starts the device comes later and has its own barrier.
            View::op_own_of(&self.view.entry(index))
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

    /// The index of the request in a valid entry, if it reports a receive.
    pub(super) fn received(&self, index: u32) -> Option<u16> {
        let op_own = self.view.poll(index)?;
        barrier::owner_before_entry();
        let entry = self.view.entry(index).as_ptr();
        // SAFETY: as in `number`.
        let counter = unsafe { (&raw const (*entry).wqe_counter).read_volatile() };
        cqe::is_receive(op_own).then_some(counter.get())
    }

    /// The number in a valid entry.
    pub(super) fn number(&self, index: u32) -> u32 {
        let entry = self.view.entry(index).as_ptr();
        // SAFETY: the entry lies in the memory that this value keeps. It is valid, or was a moment ago; if
        // the device has come round since, what is read is some number of its, and every bit pattern is one.
        // Nothing else is read: the poller may be clearing what was data (`super::inline`).
        let number = unsafe { (&raw const (*entry).srqn_uidx).read_volatile() };
        number.get() & NUMBER
    }
}

impl View {
    /// How many entries there are.
    #[inline(always)]
    pub(super) fn count(self) -> u32 {
        self.count
    }

    /// Bytes of an entry.
    pub(super) fn entry_bytes(self) -> usize {
        self.size
    }

    /// The entry at this index, which keeps counting past the end of the ring.
    #[inline(always)]
    pub(super) fn entry(self, index: u32) -> NonNull<Cqe> {
        // A product: on x86 it is one instruction where a shift by what memory says is two.
        let at = (index & self.mask) as usize * self.size;
        // SAFETY: the masked index is below the count, so the entry lies in the ring.
        unsafe { self.first.add(at).cast() }
    }

    /// What an entry is, and whose. The caller orders what it reads next behind this with
    /// [`super::barrier::owner_before_entry`].
    #[inline(always)]
    pub(super) fn op_own(entry: NonNull<Cqe>) -> u8 {
        Self::op_own_of(&entry).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn op_own_of(entry: &NonNull<Cqe>) -> &AtomicU8 {
        // SAFETY: entries are only given out by `entry`, and while one may be written only atomics touch this
        // byte of it.
        unsafe { entry.cast::<AtomicU8>().add(OP_OWN).as_ref() }
    }

    /// The owner bit of entries that the device has written, in the lap that an index is of.
    #[inline(always)]
    pub(super) fn lap(self, index: u32) -> u8 {
        u8::from(index & self.count() != 0)
    }

    /// A walk over at most as many entries as there are, from this index on, which is of that lap.
    #[inline(always)]
    pub(super) fn walk(self, index: u32, lap: u8) -> Walk {
        let at = self.entry(index).as_ptr();
        Walk {
            at,
            end: self.end,
            last: at,
            lap: lap.into(),
        }
    }

    /// As [`Self::walk`], over at most `count` entries.
    pub(super) fn walk_of(self, index: u32, count: u32) -> Walk {
        let mut walk = self.walk(index, self.lap(index));
        walk.last = self.entry(index.wrapping_add(count)).as_ptr();
        if count == 0 {
            walk.stop();
        } else if count < self.count - (index & self.mask) {
            walk.end = walk.last;
        }
        walk
    }

    /// Goes on to the next entry of a walk; true if that is the first of another lap.
    #[inline(always)]
    pub(super) fn step(self, walk: &mut Walk) -> bool {
        walk.at = walk.at.wrapping_byte_add(self.size);
        walk.at == walk.end && self.turn(walk)
    }

    /// Goes on at the ring's start, or stops.
    #[inline(always)]
    fn turn(self, walk: &mut Walk) -> bool {
        let is_round = walk.at == self.end;
        if is_round {
            (walk.at, walk.end) = (self.first.as_ptr().cast(), walk.last);
            walk.lap ^= 1;
        }
        if walk.at == walk.last {
            walk.stop();
        }
        is_round
    }

    /// What the entry at this index is (the upper half of `op_own` counts) if the device has written it; as
    /// for [`Self::op_own`].
    pub(super) fn poll(self, index: u32) -> Option<u8> {
        let op_own = Self::op_own(self.entry(index));
        (op_own & 1 == self.lap(index)).then_some(op_own)
    }

    /// Copies a valid entry to a place of another ring with entries as large, where it counts as written in
    /// that lap.
    pub(super) fn copy_to(self, index: u32, other: View, to: u32) {
        // SAFETY: both entries lie in their rings, with what is before the half that counts. The device wrote
        // this one and no longer does; of the other ring it leaves the places alone that are for such copies.
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
