//! A ring that this process and the rxe kernel driver share: a header with two indices, then slots.
//!
//! On work queues user space is the producer and the kernel the consumer; on completion queues it is the
//! reverse. Each side stores its own index with release and reads the other's with acquire, so the contents
//! of a slot are visible before the index that publishes it. Indices are kept masked; a ring of 2ⁿ slots is
//! full with 2ⁿ−1 elements. The kernel keeps private copies of its index and trusts ours to only move
//! forward, so a published index never moves back.
//!
//! Layout: `struct rxe_queue_buf` in `include/uapi/rdma/rdma_user_rxe.h`; the kernel's side is
//! `drivers/infiniband/sw/rxe/rxe_queue.h`. This file knows no layouts of work requests and completions. A
//! slot whose completion has not been taken is not filled again; a [`Watch`] counts those.

use std::fmt;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use uverbs_uapi::rxe::QueueBuf;

use super::watch::Watch;
use crate::memory::has_word;
use crate::work::Progress;

/// What is wrong with the header of a ring from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadRing {
    /// The memory is too small for the header.
    TooShort { length: usize },
    /// The number of slots is not a power of two above one.
    Slots { index_mask: u32 },
    /// A slot is smaller than its element, or absurdly large.
    SlotSize { log2: u32, element: usize },
    /// Slots reach beyond the memory.
    Beyond { needed: u64, length: usize },
    /// An index is not below the number of slots.
    Index(BadIndex),
}

/// An index in the header of a ring that is not below the number of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadIndex {
    pub(crate) index: u32,
    pub(crate) index_mask: u32,
}

impl From<BadIndex> for BadRing {
    fn from(bad: BadIndex) -> Self {
        BadRing::Index(bad)
    }
}

impl fmt::Display for BadRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            BadRing::TooShort { length } => {
                write!(f, "a ring of {length} bytes is too short for its head")
            }
            BadRing::Slots { index_mask } => write!(f, "the ring's index mask is {index_mask:#x}"),
            BadRing::SlotSize { log2, element } => {
                write!(
                    f,
                    "the ring's slots have 2^{log2} bytes for elements of {element}"
                )
            }
            BadRing::Beyond { needed, length } => {
                write!(
                    f,
                    "the ring's slots need {needed} bytes and the ring has {length}"
                )
            }
            BadRing::Index(BadIndex { index, index_mask }) => {
                write!(
                    f,
                    "the ring's index {index} is beyond its mask {index_mask:#x}"
                )
            }
        }
    }
}

/// A ring's memory, checked: a masked index is always that of a slot.
///
/// The header is read once, here. The kernel keeps its own copy of the sizes too, so a later change of the
/// header is harmless.
#[derive(Clone, Copy, Debug)]
struct Ring {
    head: NonNull<QueueBuf>,
    slots: NonNull<u8>,
    index_mask: u32,
    log2_slot: u32,
}

// SAFETY: a `Ring` is a pair of pointers into memory that belongs to one producer or one consumer on this
// side; which thread that is does not matter, and the indices that the kernel shares are atomics.
unsafe impl Send for Ring {}
// SAFETY: shared references allow nothing but atomic loads of the indices.
unsafe impl Sync for Ring {}

impl Ring {
    /// Checks the ring in the `length` bytes at `base`, whose elements have `element` bytes.
    ///
    /// # Safety
    ///
    /// The memory must be readable and writable, aligned to 8, shared with nobody on this side, and stay so
    /// as long as the result lives.
    unsafe fn new(base: NonNull<u8>, length: usize, element: usize) -> Result<Self, BadRing> {
        if length < size_of::<QueueBuf>() {
            return Err(BadRing::TooShort { length });
        }
        let head = base.cast::<QueueBuf>();
        // SAFETY: the header lies within the memory. The kernel wrote these two fields before user space
        // could map the ring, and does not change them.
        let (log2_slot, index_mask) = unsafe {
            (
                (&raw const (*head.as_ptr()).log2_elem_size).read(),
                (&raw const (*head.as_ptr()).index_mask).read(),
            )
        };
        if index_mask == 0 || index_mask == u32::MAX || !(index_mask + 1).is_power_of_two() {
            return Err(BadRing::Slots { index_mask });
        }
        if log2_slot > 20 || 1usize << log2_slot < element || log2_slot < 3 {
            return Err(BadRing::SlotSize {
                log2: log2_slot,
                element,
            });
        }
        let needed = size_of::<QueueBuf>() as u64 + ((u64::from(index_mask) + 1) << log2_slot);
        if needed > length as u64 {
            return Err(BadRing::Beyond { needed, length });
        }
        // SAFETY: the slots follow the header within the memory, as has just been checked.
        let slots = unsafe { base.add(size_of::<QueueBuf>()) };
        Ok(Self {
            head,
            slots,
            index_mask,
            log2_slot,
        })
    }

    #[inline(always)]
    fn producer_index(&self) -> &AtomicU32 {
        self.index_at(offset_of!(QueueBuf, producer_index))
    }

    #[inline(always)]
    fn consumer_index(&self) -> &AtomicU32 {
        self.index_at(offset_of!(QueueBuf, consumer_index))
    }

    #[inline(always)]
    fn index_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: the header is live and aligned, the offset is that of a u32 in it, and both sides access
        // the indices atomically only.
        unsafe { AtomicU32::from_ptr(self.head.as_ptr().cast::<u8>().add(offset).cast()) }
    }

    /// The address of the slot of a masked index.
    #[inline(always)]
    fn slot(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index <= self.index_mask);
        // SAFETY: a masked index is at most `index_mask`, and that many slots were checked to lie within
        // the memory.
        unsafe { self.slots.add((index as usize) << self.log2_slot) }
    }

    /// Checks an index that was read from the ring.
    #[inline(always)]
    fn checked(&self, index: u32) -> Result<u32, BadIndex> {
        if index > self.index_mask {
            return Err(BadIndex {
                index,
                index_mask: self.index_mask,
            });
        }
        Ok(index)
    }
}

/// The indices of a work queue's ring, for threads that neither fill nor empty it.
#[derive(Debug)]
pub(super) struct Indices(Ring);

impl Indices {
    /// How far the ring is. The kernel takes an element out when it has finished with it. Elements of shared
    /// receive queues it takes out earlier.
    pub(super) fn progress(&self) -> Progress {
        // Acquire: pairs with the kernel's release of its index; the caller may conclude that the kernel no
        // longer uses the memory of the requests.
        let finished = || self.0.consumer_index().load(Ordering::Acquire);
        // Acquire: the consumer index is loaded after this.
        let posted = || self.0.producer_index().load(Ordering::Acquire);
        Progress::look(self.0.index_mask, posted, finished)
    }

    /// Whether one of the elements in flight contains this word. An element that is finished meanwhile may be
    /// filled again; then the answer no longer matters.
    pub(super) fn have(&self, in_flight: Progress, word: u32) -> bool {
        let Ring {
            index_mask,
            log2_slot,
            ..
        } = self.0;
        in_flight.places().any(|at| {
            // SAFETY: the slot of a masked index is aligned to 8 and has `1 << log2_slot` bytes.
            unsafe { has_word(self.0.slot(at & index_mask), 1 << log2_slot, word) }
        })
    }
}

/// The filling side of a work queue.
///
/// Slots are counted. The count runs on round after round and wraps at 2^32; its low bits are the slot's
/// index. [`Producer::slot`] gives slots ahead of the published count to the caller, who fills them, and
/// [`Producer::publish`] gives them to the kernel.
#[derive(Debug)]
pub(super) struct Producer {
    ring: Ring,
    /// The published count.
    published: u32,
    /// Slots before this index are free: the kernel's index when it was last looked at, less the completions
    /// that nobody had taken.
    consumed: u32,
    /// Counts the completions that nobody has taken.
    watch: Option<Watch>,
    /// It has no free slot any more.
    is_shut: bool,
}

impl Producer {
    /// The producer of a ring of elements of `element` bytes that lies in `length` bytes at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Ring::new`], and nobody else on this side may produce into the ring.
    pub(super) unsafe fn new(
        base: NonNull<u8>,
        length: usize,
        element: usize,
    ) -> Result<Self, BadRing> {
        // SAFETY: this function has the same contract.
        let ring = unsafe { Ring::new(base, length, element)? };
        // Relaxed: this index is ours, nobody else stores to it.
        let published = ring.checked(ring.producer_index().load(Ordering::Relaxed))?;
        // Acquire: as in `look`.
        let consumed = ring.checked(ring.consumer_index().load(Ordering::Acquire))?;
        Ok(Self {
            ring,
            published,
            consumed,
            watch: None,
            is_shut: false,
        })
    }

    /// From now on fills no slot whose completion nobody has taken.
    pub(super) fn heed(&mut self, watch: Watch) {
        self.watch = Some(watch);
        // The slots that it knew to be free may be such slots.
        self.know_no_slot();
    }

    /// From now on has no free slot.
    pub(super) fn shut(&mut self) {
        self.is_shut = true;
        // So the question is asked only where the kernel's index is looked at again.
        self.know_no_slot();
    }

    /// Forgets which slots are free, as if the ring were full: the next request for a slot looks again.
    fn know_no_slot(&mut self) {
        self.consumed = self.published.wrapping_add(1) & self.ring.index_mask;
    }

    /// Whether it has been shut.
    pub(super) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// The capacity in elements.
    pub(super) fn capacity(&self) -> u32 {
        self.ring.index_mask
    }

    /// Bytes of a slot.
    pub(super) fn slot_size(&self) -> usize {
        1 << self.ring.log2_slot
    }

    /// How many slots were published.
    #[inline(always)]
    pub(super) fn published(&self) -> u32 {
        self.published
    }

    /// The slot of a count at or ahead of the published one, if it is free. The caller has asked for all
    /// slots in between.
    #[inline(always)]
    pub(super) fn slot(&mut self, count: u32) -> Option<NonNull<u8>> {
        let mask = self.ring.index_mask;
        match count.wrapping_add(1) & mask == self.consumed {
            true => self.look_for_slot(count),
            false => Some(self.ring.slot(count & mask)),
        }
    }

    /// As [`Self::slot`], once the kernel's index has been looked at again.
    #[cold]
    #[inline(never)]
    fn look_for_slot(&mut self, count: u32) -> Option<NonNull<u8>> {
        if self.is_shut {
            return None;
        }
        self.look();
        let mask = self.ring.index_mask;
        let is_free = count.wrapping_add(1) & mask != self.consumed;
        is_free.then(|| self.ring.slot(count & mask))
    }

    /// Looks at the kernel's index again.
    fn look(&mut self) {
        let (consumed, unread) = self.progress();
        // What was not published cannot have been consumed. Such an index frees nothing: it would let slots
        // be filled twice.
        let mask = self.ring.index_mask;
        let distance = |to: u32| to.wrapping_sub(self.consumed) & mask;
        if distance(consumed) > distance(self.published) {
            return;
        }
        let free = distance(consumed).saturating_sub(unread);
        self.consumed = (self.consumed + free) & mask;
    }

    /// The kernel's index, and how many completions of requests before it nobody has taken.
    fn progress(&self) -> (u32, u32) {
        let mask = self.ring.index_mask;
        // Acquire: pairs with the kernel's release of its consumer index after its last access to the
        // slots before it, which are about to be written again.
        let look = || self.ring.consumer_index().load(Ordering::Acquire) & mask;
        let mut consumed = look();
        let Some(watch) = &self.watch else {
            return (consumed, 0);
        };
        // The two must be of one moment: a request that completes in between would count twice, as in flight
        // and as untaken. While nothing is published, the index moves at most once round the ring.
        for _ in 0..mask {
            let unread = watch.unread();
            let again = look();
            if again == consumed {
                return (consumed, unread);
            }
            consumed = again;
        }
        (consumed, watch.unread())
    }

    /// Publishes all slots before this count.
    #[inline(always)]
    pub(super) fn publish(&mut self, count: u32) {
        self.published = count;
        // Release: pairs with the kernel's acquire of the producer index before it reads the slots.
        let index = self.ring.producer_index();
        index.store(count & self.ring.index_mask, Ordering::Release);
    }

    /// The indices, for other threads. The caller keeps their memory mapped.
    pub(super) fn indices(&self) -> Indices {
        Indices(self.ring)
    }

    /// How many published elements the kernel has not consumed yet.
    pub(super) fn in_flight(&self) -> u32 {
        // Acquire: as in `look`; a caller may conclude that the kernel no longer uses slots.
        let consumed = self.ring.consumer_index().load(Ordering::Acquire);
        self.published.wrapping_sub(consumed) & self.ring.index_mask
    }
}

/// The emptying side of a completion queue. The position is in the ring alone: a slot is the kernel's again
/// as soon as it has been taken.
#[derive(Debug)]
pub(super) struct Consumer {
    ring: Ring,
}

impl Consumer {
    /// The consumer of a ring of elements of `element` bytes that lies in `length` bytes at `base`.
    ///
    /// # Safety
    ///
    /// As for [`Ring::new`], and nobody else on this side may consume from the ring.
    pub(super) unsafe fn new(
        base: NonNull<u8>,
        length: usize,
        element: usize,
    ) -> Result<Self, BadRing> {
        // SAFETY: this function has the same contract.
        let ring = unsafe { Ring::new(base, length, element)? };
        // Relaxed: this index is ours, nobody else stores to it.
        ring.checked(ring.consumer_index().load(Ordering::Relaxed))?;
        let consumer = Self { ring };
        // A ring that is broken from the start is refused here, not at the first poll.
        ring.checked(consumer.filled())?;
        Ok(consumer)
    }

    /// The capacity in elements.
    pub(super) fn capacity(&self) -> u32 {
        self.ring.index_mask
    }

    /// Bytes of a slot.
    pub(super) fn slot_size(&self) -> usize {
        1 << self.ring.log2_slot
    }

    /// The next slot to read.
    #[inline(always)]
    pub(super) fn next(&self) -> u32 {
        // Relaxed: this index is ours, nobody else stores to it. Masked, so that any value leads to a slot.
        self.ring.consumer_index().load(Ordering::Relaxed) & self.ring.index_mask
    }

    /// Lets other threads look at the completions that wait.
    ///
    /// # Safety
    ///
    /// The result must not be used once the memory no longer is as [`Consumer::new`] needs it.
    pub(super) unsafe fn observer(&self) -> Observer {
        Observer { ring: self.ring }
    }

    /// The index after the last element that the kernel has added, if it is an index of the ring.
    #[inline(always)]
    pub(super) fn filled(&self) -> u32 {
        // Acquire: pairs with the kernel's release of the producer index after it has filled the slots.
        self.ring.producer_index().load(Ordering::Acquire)
    }

    /// The slot of an index that was masked.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> NonNull<u8> {
        self.ring.slot(index)
    }

    /// Gives the next slot to read, whose masked index this is, back to the kernel; returns the index after
    /// it.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    pub(super) fn pass(&mut self, index: u32) -> u32 {
        let behind = (index + 1) & self.ring.index_mask;
        // Release: as in `Waiting::take`.
        self.ring.consumer_index().store(behind, Ordering::Release);
        behind
    }

    /// Takes elements that the kernel has added, at most one for each of `places`, and calls `copy` with each
    /// slot and its place. Returns how many. After that the slots are the kernel's again. `None` if the
    /// kernel's index is not one of the ring, or if `is_left` says that the caller takes them another way; it
    /// is called after the load of the kernel's index.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    pub(super) fn take_each<T>(
        &mut self,
        places: &mut [T],
        is_left: impl FnOnce() -> bool,
        mut copy: impl FnMut(NonNull<u8>, &mut T),
    ) -> Option<usize> {
        let ring = self.ring;
        let filled = self.filled();
        if is_left() {
            return None;
        }
        let filled = ring.checked(filled).ok()?;
        let mut next = self.next();
        let mut taken = 0;
        while taken < places.len() && next != filled {
            copy(ring.slot(next), &mut places[taken]);
            next = (next + 1) & self.ring.index_mask;
            taken += 1;
        }
        // Release: as in `Waiting::take`.
        self.ring.consumer_index().store(next, Ordering::Release);
        Some(taken)
    }

    /// The elements that have not been taken. `filled` is an index after the last one that was found earlier.
    #[inline(always)]
    pub(super) fn waiting(&mut self, filled: u32) -> Result<Waiting<'_>, BadIndex> {
        let filled = self.ring.checked(filled)?;
        Ok(Waiting {
            slots: self.ring.slots,
            log2_slot: self.ring.log2_slot as usize,
            mask: self.ring.index_mask as usize,
            next: self.next() as usize,
            filled: filled as usize,
            consumer_index: self.ring.consumer_index(),
        })
    }
}

/// The view of other threads on the completions that wait in a ring.
#[derive(Debug)]
pub(super) struct Observer {
    ring: Ring,
}

impl Observer {
    /// The highest index.
    pub(super) fn mask(&self) -> u32 {
        self.ring.index_mask
    }

    /// The index of the next slot to be taken, and the index after the last, of one moment: completions come
    /// and are taken meanwhile, and the difference of older and newer indices may be more than one round.
    pub(super) fn indices(&self) -> (u32, u32) {
        let mask = self.ring.index_mask;
        // Acquire: pairs with the release in `Waiting::take`. A poster that finds slots free by this index
        // fills them, and the kernel writes their completions, only after this load.
        let next = || self.ring.consumer_index().load(Ordering::Acquire) & mask;
        let seen = Progress::look(mask, || self.filled() & mask, next);
        (seen.finished(), seen.posted())
    }

    /// The index after the last element, if it is an index of the ring.
    #[inline(always)]
    pub(super) fn filled(&self) -> u32 {
        // Acquire: as in `Consumer::filled`.
        self.ring.producer_index().load(Ordering::Acquire)
    }

    /// The slot of an index.
    #[inline(always)]
    pub(super) fn slot(&self, index: u32) -> NonNull<u8> {
        self.ring.slot(index & self.ring.index_mask)
    }

    /// The slots from one index to another, in two parts: up to the ring's end, and from its start on.
    #[inline(always)]
    pub(super) fn runs(&self, from: u32, to: u32) -> [impl Iterator<Item = NonNull<u8>>; 2] {
        let mask = self.ring.index_mask;
        let (from, to) = (from & mask, to & mask);
        let Ring {
            slots, log2_slot, ..
        } = self.ring;
        // SAFETY: the indices are masked, or the one after the last slot, so the slots lie in the ring's
        // memory.
        let address = |index: u32| unsafe { slots.add((index as usize) << log2_slot) };
        let run = |from: u32, to: u32| {
            // Addresses, so that the compiler steps from slot to slot.
            let (mut at, end) = (address(from), address(to));
            std::iter::from_fn(move || {
                let slot = (at != end).then_some(at)?;
                // SAFETY: as above: at most the address after the last slot.
                at = unsafe { slot.add(1 << log2_slot) };
                Some(slot)
            })
        };
        match from <= to {
            true => [run(from, to), run(0, 0)],
            false => [run(from, mask + 1), run(0, to)],
        }
    }

    /// The index of the first slot that waits to be taken, and all such slots. Some may be taken meanwhile
    /// and filled again, so the contents are read as memory that others write to.
    pub(super) fn waiting(&self) -> (u32, impl Iterator<Item = NonNull<u8>>) {
        let (next, filled) = self.indices();
        let waiting = filled.wrapping_sub(next) & self.mask();
        let slots = (0..waiting).map(move |at| self.slot(next.wrapping_add(at)));
        (next, slots)
    }
}

/// Elements that wait to be taken.
#[derive(Debug)]
pub(super) struct Waiting<'r> {
    slots: NonNull<u8>,
    log2_slot: usize,
    mask: usize,
    /// The next slot to read, and the index after the last.
    next: usize,
    filled: usize,
    consumer_index: &'r AtomicU32,
}

impl Waiting<'_> {
    /// How many are left.
    pub(super) fn count(&self) -> u32 {
        (self.filled.wrapping_sub(self.next) & self.mask) as u32
    }

    /// The index of the next slot to read, and the index after the last; `None` if nothing is left.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    pub(super) fn indices(&self) -> Option<(u32, u32)> {
        (!self.is_empty()).then_some((self.next as u32, self.filled as u32))
    }

    /// True if nothing is left.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.filled
    }

    /// Takes the next element, as a copy: its slot is the kernel's again.
    ///
    /// # Safety
    ///
    /// The ring's elements are of this type, and every bit pattern is valid.
    #[inline(always)]
    pub(super) unsafe fn take<T>(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let behind = (self.next + 1) & self.mask;
        // SAFETY: the index is masked, so the slot lies in the memory of the consumer that is borrowed. By
        // this function's contract the kernel has filled it with an element. It leaves the slot alone until
        // the index that is stored below is past it.
        let element = unsafe {
            self.slots
                .add(self.next << self.log2_slot)
                .cast::<T>()
                .read()
        };
        self.next = behind;
        // Release: pairs with the kernel's acquire of the consumer index before it fills the slot again, so
        // the element was read before that; and with the acquire in `Observer::indices`.
        self.consumer_index
            .store(self.next as u32, Ordering::Release);
        Some(element)
    }
}
