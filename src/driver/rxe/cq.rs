//! The completion ring of rxe. Its elements are the kernel's own `struct ib_uverbs_wc`.

#[cfg(feature = "c-abi")]
use std::mem::MaybeUninit;
use std::sync::Arc;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::{BadIndex, Consumer, Waiting};
use super::watch::Shared;
use crate::driver::contract;
use crate::work::PollError;

/// rxe reports an invalidated rkey with the kernel's internal flag `IB_WC_WITH_INVALIDATE`, whose bit
/// means "IP checksum is good" in the userspace ABI (`drivers/infiniband/sw/rxe/rxe_resp.c`). rxe has no
/// checksum offload, so the bit has one meaning only.
const WITH_INVALIDATE: u32 = uverbs_uapi::rxe::WC_WITH_INVALIDATE.bits();

/// The completion ring.
#[derive(Debug)]
pub(crate) struct Cq {
    // It points into the map that `shared` has.
    ring: Consumer,
    capacity: u32,
    shared: Arc<Shared>,
    /// Up to which index messages of shared queues are counted, if any come in.
    counted: Option<u32>,
    #[cfg(feature = "c-abi")]
    shown: Option<Shown>,
}

/// A completion that a C program reads in its slot. The kernel gets the slot back when the next one is shown.
#[cfg(feature = "c-abi")]
#[derive(Clone, Copy, Debug)]
struct Shown {
    at: u32,
    /// Completions are known to have come up to this index.
    filled: u32,
}

impl Cq {
    /// A completion queue over a ring; `map` keeps the ring's memory mapped. `capacity` is how many
    /// completions a program may rely on.
    pub(super) fn new(ring: Consumer, capacity: u32, map: Option<RingMap>) -> Self {
        // SAFETY: it lies beside the map, and goes with it.
        let observer = unsafe { ring.observer() };
        Self {
            ring,
            capacity,
            shared: Arc::new(Shared::new(observer, map)),
            counted: None,
            #[cfg(feature = "c-abi")]
            shown: None,
        }
    }

    /// Changes to another ring: `resize` makes the kernel move the completions that wait, and `map` maps the
    /// ring of its answer, with its capacity. If `map` fails, the queue is lost, and each poll says so. No
    /// lock is held, since an allocator is called.
    pub(super) fn replace<T, E>(
        &mut self,
        resize: impl FnOnce() -> Result<T, E>,
        map: impl FnOnce(T) -> Result<(Consumer, u32, Option<RingMap>), E>,
    ) -> Result<(), E> {
        self.shared.begin_move(&self.ring);
        let resized = resize().inspect_err(|_| self.shared.stay())?;
        let (ring, capacity, map) = map(resized).inspect_err(|_| self.shared.lose())?;
        // SAFETY: as in `new`.
        let observer = unsafe { ring.observer() };
        // First, so that nothing points into the map that is dropped.
        (self.ring, self.capacity) = (ring, capacity);
        #[cfg(feature = "c-abi")]
        {
            self.shown = None;
        }
        self.shared.set(&self.ring, observer, map);
        Ok(())
    }

    /// Bytes of a slot of its ring.
    pub(super) fn slot_size(&self) -> usize {
        self.ring.slot_size()
    }

    /// How many completions wait.
    pub(super) fn count(&mut self) -> Result<u32, PollError> {
        self.waiting(self.ring.filled())
            .map(|waiting| waiting.count())
    }

    /// What the posters look at.
    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The completions before this index.
    #[inline(always)]
    fn waiting(&mut self, filled: u32) -> Result<Waiting<'_>, PollError> {
        let broken = |BadIndex { index, index_mask }| PollError::Index {
            index,
            highest: index_mask,
        };
        self.ring.waiting(filled).map_err(broken)
    }

    /// Whether a poll must look closer: something has come up, or completions have come after those in which
    /// messages of shared queues are counted.
    #[inline(always)]
    fn needs_look(&self, filled: u32) -> bool {
        self.shared.needs_attention() && (self.counted != Some(filled) || self.shared.has_news())
    }

    /// Does what has come up, and counts messages of shared queues before they are taken. Returns the queue
    /// again, and the index after the last completion.
    #[cold]
    #[inline(never)]
    fn look_closer(&mut self) -> Result<(&mut Self, u32), PollError> {
        let (filled, counts) = self.shared.closer(&self.ring)?;
        self.counted = counts.then_some(filled);
        Ok((self, filled))
    }
}

impl contract::Cq for Cq {
    type Backing = Arc<Shared>;
    type Completion = Completion;
    type Polled<'q> = Polled<'q>;

    fn backing(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    fn overran(backing: &Arc<Shared>) {
        backing.overran();
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Reports what has come up, as a poll does: a caller that waits does not poll an empty queue.
    fn is_empty(&mut self) -> Result<bool, PollError> {
        Ok(self.poll()?.0.is_empty())
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<Polled<'_>, PollError> {
        // In this order: see `Shared::draw_attention`.
        let filled = self.ring.filled();
        let (cq, filled) = match self.needs_look(filled) {
            true => self.look_closer()?,
            false => (self, filled),
        };
        Ok(Polled(cq.waiting(filled)?))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn take_into(&mut self, places: &mut [MaybeUninit<Wc>]) -> Option<usize> {
        // In this order: as in `poll`.
        let is_left = || self.shared.needs_attention();
        self.ring.take_each(places, is_left, |slot, place| {
            // SAFETY: the kernel has filled the slot and leaves it alone meanwhile. A completion ring is one
            // of `Wc`, and every bit pattern is one.
            let found = unsafe { slot.cast::<Wc>().as_ref() };
            let wc = place.write(*found);
            if found.wc_flags & WITH_INVALIDATE != 0 {
                wc.wc_flags = found.wc_flags & !WITH_INVALIDATE | WcFlags::WITH_INV.bits();
            }
        })
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self) -> Result<Option<Completion>, PollError> {
        if let Some(shown) = &mut self.shown {
            let next = self.ring.pass(shown.at);
            if next != shown.filled {
                shown.at = next;
                return Ok(self.shown());
            }
            self.shown = None;
        }
        let indices = self.poll()?.0.indices();
        self.shown = indices.map(|(at, filled)| Shown { at, filled });
        Ok(self.shown())
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn shown(&self) -> Option<Completion> {
        let slot = self.ring.slot(self.shown?.at);
        // SAFETY: the kernel has filled the slot, which has not been given back. A completion ring is one of
        // `Wc`, and every bit pattern is one.
        Some(Completion(unsafe { slot.cast::<Wc>().read() }))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn hide(&mut self) {
        if let Some(shown) = self.shown.take() {
            self.ring.pass(shown.at);
        }
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// The completions that had arrived when the poll began.
#[derive(Debug)]
pub(crate) struct Polled<'q>(Waiting<'q>);

impl Iterator for Polled<'_> {
    type Item = Completion;

    #[inline(always)]
    fn next(&mut self) -> Option<Completion> {
        // SAFETY: a completion ring is one of `Wc`, and every bit pattern is one.
        unsafe { self.0.take() }.map(Completion)
    }
}

/// The flags of a completion, in the userspace ABI's terms.
#[inline(always)]
fn flags(wc: &Wc) -> WcFlags {
    let mut flags = WcFlags::from_bits_retain(wc.wc_flags & !WITH_INVALIDATE);
    flags.set(WcFlags::WITH_INV, wc.wc_flags & WITH_INVALIDATE != 0);
    flags
}

/// A completion: a copy of what the kernel wrote. The compiler copies only the fields that are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion(Wc);

impl contract::Completion for Completion {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.0.wr_id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        WcStatus(self.0.status)
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        WcOpcode(self.0.opcode)
    }

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        self.0.vendor_err
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        self.0.byte_len
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        self.0.src_qp
    }

    /// The immediate data in network byte order, or the rkey.
    #[inline(always)]
    fn ex(&self) -> u32 {
        self.0.ex
    }

    #[inline(always)]
    fn flags(&self) -> WcFlags {
        flags(&self.0)
    }

    #[inline(always)]
    fn pkey_index(&self) -> u16 {
        self.0.pkey_index
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        self.0.slid
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        self.0.sl
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        self.0.dlid_path_bits
    }
}
