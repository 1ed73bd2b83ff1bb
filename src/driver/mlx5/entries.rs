//! The ring of a completion queue: entries of 64 or 128 bytes, and the owner of each.
//!
//! An entry has an owner bit, which the device flips with each lap: the entry is this side's if the bit is
//! that of the consumer's lap. In an entry of 128 bytes the second half has the fields.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use super::barrier;
use super::format::{BLOCK, Cqe, OP_OWN, cqe, place};
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
}

/// A poller's way over the entries of a ring, round and round.
///
/// It goes in stretches. Inside of one, whoever takes an entry counts the device's record of the consumer's
/// index on by one in its last byte alone: it does not carry. The entry behind a stretch is taken by itself,
/// with a look at the whole index; where the way leads to that one, it leads to a [`Mark`].
#[derive(Debug)]
pub(super) struct Walk {
    view: View,
    /// The next entry, or the mark.
    at: NonNull<Cqe>,
    /// The owner bit of entries that the device has written in this lap.
    lap: u8,
    /// Where the stretch ends. A poll goes round the ring at most once: that is here at the latest.
    end: NonNull<Cqe>,
    /// What stands for whatever is at the end.
    mark: NonNull<Cqe>,
    /// Where the latest poll began.
    began: NonNull<Cqe>,
    /// Where that poll goes on, if it keeps that here: at the next entry, or nowhere.
    now: NonNull<Cqe>,
}

/// What looks like an entry and is none, in the one lap and in the other.
type Mark = [[AtomicU8; BLOCK]; 2];

const fn mark(even: u8, odd: u8) -> Mark {
    let mut marks = [const { [const { AtomicU8::new(0) }; BLOCK] }; 2];
    marks[0][OP_OWN] = AtomicU8::new(even);
    marks[1][OP_OWN] = AtomicU8::new(odd);
    marks
}

/// Entries that are the device's for ever: a poll that has come to one goes no further.
static NEVER: Mark = mark(1, 0);

/// Entries that are this side's, and of no simple kind: whoever comes to one looks closer.
static CLOSER: Mark = mark(cqe::INVALID << 4, cqe::INVALID << 4 | 1);

/// Entries of a stretch, with the one behind it; a power of two. The last byte of the record counts as many.
const STRETCH: u32 = 256;

impl Walk {
    /// It begins at this index.
    pub(super) fn new(view: View, index: u32) -> Self {
        let at = view.entry(index);
        let mut walk = Self {
            view,
            at,
            lap: 0,
            end: at,
            mark: at,
            began: at,
            now: at,
        };
        walk.go_to(index);
        walk
    }

    #[inline(always)]
    pub(super) fn view(&self) -> View {
        self.view
    }

    /// What an entry is that a poll has come to, with 0 as its owner bit if it is this side's, whatever the
    /// lap; as for [`View::op_own`].
    #[inline(always)]
    pub(super) fn look(&self, entry: NonNull<Cqe>) -> u8 {
        View::op_own(entry) ^ self.lap
    }

    /// Begins a poll, and tells with which entry.
    #[inline(always)]
    pub(super) fn begin(&mut self) -> NonNull<Cqe> {
        self.began = self.at;
        self.at
    }

    /// Where a poll goes on behind an entry inside of a stretch, which is the next.
    #[inline(always)]
    pub(super) fn step(&mut self, at: NonNull<Cqe>) -> NonNull<Cqe> {
        // SAFETY: an entry has so many bytes, and behind this one there is another.
        let behind = unsafe { at.byte_add(self.view.size) };
        self.at = match behind == self.end {
            true => self.mark,
            false => behind,
        };
        self.at
    }

    /// Where the latest poll goes on, if it keeps that here.
    pub(super) fn now(&self) -> NonNull<Cqe> {
        self.now
    }

    /// The entry at which the latest poll goes on, which is that at this index, if it keeps that here. None
    /// if it has been round.
    pub(super) fn entry(&self, index: u32) -> Option<NonNull<Cqe>> {
        (self.now != of_lap(&NEVER, self.lap)).then(|| self.view.entry(index))
    }

    /// Has the latest poll, which has come to the entry at this index, keep here where it goes on.
    pub(super) fn keep(&mut self, index: u32) {
        if self.at != self.mark {
            self.now = self.at;
        } else if self.began == self.mark {
            // There, and not elsewhere, if it comes round.
            self.began = self.view.entry(index);
            self.go_to(index);
            self.now = self.at;
        } else {
            self.pass_to(index);
        }
    }

    /// Has a poll that keeps here where it goes on do so at the entry at this index, behind another one,
    /// unless it has been round.
    pub(super) fn pass_to(&mut self, index: u32) {
        self.go_to(index);
        self.now = match self.began == self.view.entry(index) {
            true => of_lap(&NEVER, self.lap),
            false => self.at,
        };
    }

    /// The entry at this index is the next.
    fn go_to(&mut self, index: u32) {
        let view = self.view;
        // The ring's end is behind its last entry, so it is in no stretch.
        let last = STRETCH.min(view.count()) - 1;
        self.lap = view.lap(index);
        self.mark = of_lap(&CLOSER, self.lap);
        let (at, end) = (view.entry(index), view.entry(index | last));
        let is_inside = at < self.began && self.began < end;
        self.end = if is_inside { self.began } else { end };
        self.at = if at == end { self.mark } else { at };
    }
}

fn of_lap(mark: &'static Mark, lap: u8) -> NonNull<Cqe> {
    NonNull::from(&mark[usize::from(lap)]).cast()
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

    /// The place of whom a valid entry is of ([`Cqe::place`]).
    pub(super) fn place(&self, index: u32) -> u32 {
        let entry = self.view.entry(index).as_ptr();
        // SAFETY: the entry lies in the memory that this value keeps. It is valid, or was a moment ago; if
        // the device has come round since, what is read is some number of its, and every bit pattern is one.
        // Nothing else is read: the poller may be clearing what was data (`super::inline`).
        let number = unsafe { (&raw const (*entry).srqn_uidx).read_volatile() };
        place(number)
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
