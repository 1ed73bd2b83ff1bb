//! The completion ring of rxe. Its elements are the kernel's own `struct ib_uverbs_wc`.

#[cfg(feature = "c-abi")]
use std::ptr::NonNull;
use std::sync::Arc;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::{BadIndex, Consumer, Found, Waiting};
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
}

impl Cq {
    /// A completion queue over a ring; `map` keeps the ring's memory mapped. Of what the ring holds,
    /// `capacity` completions may be counted on.
    pub(super) fn new(ring: Consumer, capacity: u32, map: Option<RingMap>) -> Self {
        // SAFETY: it lies beside the map, and goes with it.
        let observer = unsafe { ring.observer() };
        let shared = Arc::new(Shared::new(&ring, observer, map));
        Self {
            ring,
            capacity,
            shared,
        }
    }

    /// Goes on in another ring, to which the kernel has moved what waits.
    pub(super) fn replace(&mut self, ring: Consumer, capacity: u32, map: Option<RingMap>) {
        // SAFETY: as in `new`.
        let observer = unsafe { ring.observer() };
        // First, so that nothing points into the map that goes.
        (self.ring, self.capacity) = (ring, capacity);
        self.shared.set(&self.ring, observer, map);
    }

    /// How many completions wait.
    pub(super) fn count(&mut self) -> Result<u32, PollError> {
        self.waiting().map(|waiting| waiting.count())
    }

    /// What its queues look at.
    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Polls a queue that has overrun, in which completions are to be forgotten, or into which messages of
    /// shared queues come: these are counted once, before they are taken.
    #[cold]
    #[inline(never)]
    fn poll_closer(&mut self) -> Result<Polled<'_>, PollError> {
        let filled = self.shared.closer(&self.ring)?;
        let waiting = self.ring.waiting_before(filled);
        waiting.map(Polled).map_err(broken)
    }

    /// The first completion, if it is before this index.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn shown_before(&self, filled: u32) -> Option<Shown> {
        let slot = self.ring.slot_before(self.ring.next(), filled)?;
        let at = slot.cast();
        Some(Shown { at, filled })
    }

    /// The completions that have arrived.
    #[inline(always)]
    fn waiting(&mut self) -> Result<Waiting<'_>, PollError> {
        self.ring.waiting().map_err(broken)
    }
}

#[cold]
#[inline(never)]
fn broken(BadIndex { index, index_mask }: BadIndex) -> PollError {
    PollError::Index {
        index,
        highest: index_mask,
    }
}

impl contract::Cq for Cq {
    type Backing = Arc<Shared>;
    type Completion = Completion;
    type Polled<'q> = Polled<'q>;
    #[cfg(feature = "c-abi")]
    type Shown = Shown;

    fn backing(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    fn overran(backing: &Arc<Shared>) {
        backing.overran();
    }

    fn capacity(&self) -> u32 {
        self.capacity
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        Ok(self.waiting()?.is_empty())
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<Polled<'_>, PollError> {
        // In this order: see `Shared::look_closer`.
        let filled = self.ring.filled();
        let below = self.shared.usual_below();
        if filled >= below {
            return self.poll_closer();
        }
        // SAFETY: `below` is at most the number of the ring's slots, for `shared` was told of this ring.
        Ok(Polled(unsafe { self.ring.waiting_until(filled) }))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn poll_plainly(&mut self) -> Option<Polled<'_>> {
        let filled = self.ring.filled();
        // SAFETY: as in `poll`.
        (filled < self.shared.usual_below())
            .then(|| Polled(unsafe { self.ring.waiting_until(filled) }))
    }

    #[cfg(feature = "c-abi")]
    fn show(&mut self) -> Result<Option<Shown>, PollError> {
        let filled = self.poll()?.0.filled();
        Ok(self.shown_before(filled))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_plainly(&mut self) -> Option<Option<Shown>> {
        let filled = self.ring.filled();
        (filled < self.shared.usual_below()).then(|| self.shown_before(filled))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self, shown: &mut Shown) -> bool {
        let next = self.ring.pass();
        match self.ring.slot_before(next, shown.filled) {
            Some(slot) => {
                shown.at = slot.cast();
                true
            }
            None => false,
        }
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn go_on(&mut self, _: &mut Shown) {
        self.ring.pass();
    }
}

/// A completion that a C program looks at where it lies. Its slot is the kernel's again when the program goes
/// on, as on librxe: the ring has a slot less to fill for one that the program is at.
#[cfg(feature = "c-abi")]
#[derive(Debug)]
pub(crate) struct Shown {
    at: NonNull<Wc>,
    /// The index behind the last completion that is known.
    filled: u32,
}

#[cfg(feature = "c-abi")]
impl contract::Shown for Shown {
    type Completion = Completion;

    #[inline(always)]
    unsafe fn completion(&self) -> Completion {
        // SAFETY: by this function's contract the slot is in the ring, filled, and not the kernel's yet;
        // every bit pattern is a `Wc`.
        Completion(unsafe { self.at.read() })
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

impl contract::Polled for Polled<'_> {
    type Completion = Completion;

    #[inline(always)]
    fn take(&mut self) -> Option<Completion> {
        // SAFETY: a completion ring is one of `Wc`, and every bit pattern is one.
        unsafe { self.0.take() }.map(Completion)
    }

    #[inline(always)]
    fn take_by(&mut self, each: &mut impl contract::Each<Completion>) -> Option<bool> {
        let find = |wc: &Wc| {
            each.find(contract::Outline {
                wr_id: wc.wr_id,
                qp_num: wc.qp_num,
                is_ok: wc.status == WcStatus::SUCCESS.0,
            })
        };
        // SAFETY: as in `take`.
        match unsafe { self.0.take_found(find) } {
            Found::Nothing => None,
            Found::It(found) => Some(each.found(found)),
            Found::Another => Some(each.other(self.take()?)),
        }
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn has_none(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn takes_one(&self, most: usize) -> bool {
        most == 1 || self.0.count() == 1
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    unsafe fn take_into(&mut self, most: usize, to: *mut Wc) -> usize {
        let mut seen = 0;
        // SAFETY: by this function's contract, and as in `take`. The copies are what was just written.
        unsafe {
            let look = |wc: *mut Wc| seen |= (*wc).wc_flags;
            let count = self.0.take_into(most, to, look);
            if seen & WITH_INVALIDATE != 0 {
                mend(to, count);
            }
            count
        }
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    unsafe fn take_one_into(&mut self, to: *mut Wc) -> usize {
        // SAFETY: as in `take`, and by this function's contract.
        unsafe {
            if !self.0.take_to(to) {
                return 0;
            }
            if (*to).wc_flags & WITH_INVALIDATE != 0 {
                mend(to, 1);
            }
            1
        }
    }
}

/// Moves the flag of the kernel's where user space has it, in so many completions.
///
/// # Safety
///
/// They are there, and the caller's.
#[cfg(feature = "c-abi")]
#[cold]
#[inline(never)]
unsafe fn mend(first: *mut Wc, count: usize) {
    for at in 0..count {
        // SAFETY: by this function's contract.
        unsafe {
            let flags = &raw mut (*first.add(at)).wc_flags;
            if *flags & WITH_INVALIDATE != 0 {
                *flags = *flags & !WITH_INVALIDATE | WcFlags::WITH_INV.bits();
            }
        }
    }
}

/// A completion: a copy of what the kernel wrote, of which the compiler makes as much as is looked at.
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
        let raw = self.0.wc_flags;
        let mut flags = WcFlags::from_bits_retain(raw & !WITH_INVALIDATE);
        flags.set(WcFlags::WITH_INV, raw & WITH_INVALIDATE != 0);
        flags
    }

    /// rxe has no clock.
    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        None
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
