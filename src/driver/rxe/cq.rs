//! The completion ring of rxe. Its elements are the kernel's own `struct ib_uverbs_wc`.

#[cfg(feature = "c-abi")]
use std::ptr::NonNull;
use std::sync::Arc;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::types::Wc;

use super::map::RingMap;
#[cfg(feature = "c-abi")]
use super::ring::seldom;
use super::ring::{BadIndex, Consumer, Found, Waiting};
use super::watch::Shared;
use crate::driver::contract;
#[cfg(feature = "c-abi")]
use crate::driver::contract::First;
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
    /// Up to here messages of shared queues are counted; [`TOLD`] if that is not known or there are none.
    counted: u32,
    /// What a poll tells.
    told: Option<PollError>,
}

/// No index: there is something to tell.
const TOLD: u32 = u32::MAX;

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
            counted: TOLD,
            told: None,
        }
    }

    /// Goes on in another ring, to which the kernel has moved what waits.
    pub(super) fn replace(&mut self, ring: Consumer, capacity: u32, map: Option<RingMap>) {
        // SAFETY: as in `new`.
        let observer = unsafe { ring.observer() };
        // First, so that nothing points into the map that goes.
        (self.ring, self.capacity) = (ring, capacity);
        self.counted = TOLD;
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

    /// The index behind the last completion of a queue that has overrun, in which completions are to be
    /// forgotten, or into which messages of shared queues come: these are counted once, before they are
    /// taken. [`TOLD`] if there is something to tell. It gives the queue back, so that callers, which expect
    /// it not to be called, keep nothing over the call.
    #[cold]
    #[inline(never)]
    fn look_closer(&mut self, filled: u32) -> (&mut Self, u32) {
        // What is counted lies in the ring until a poll takes it, so the kernel has not gone round since.
        if filled == self.counted && !self.shared.needs_attention() {
            return (self, filled);
        }
        self.look_under_the_lock()
    }

    #[inline(never)]
    fn look_under_the_lock(&mut self) -> (&mut Self, u32) {
        let looked = self.shared.closer(&self.ring);
        let looked = looked.and_then(|(filled, counts)| {
            let filled = self.ring.checked(filled).map_err(broken)?;
            Ok((filled, counts))
        });
        match looked {
            Ok((filled, counts)) => {
                // Without, later polls do not look closer, and this would be of a round before.
                self.counted = if counts { filled } else { TOLD };
                (self, filled)
            }
            Err(error) => {
                (self.counted, self.told) = (TOLD, Some(error));
                (self, TOLD)
            }
        }
    }

    /// Shows what lies there from one index on, if anything does before the other, with all that lies behind
    /// it.
    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_from(&self, next: u32, filled: u32, shown: &mut Shown) -> bool {
        let Some(slot) = self.ring.filled_slot(next, filled) else {
            return false;
        };
        shown.at = slot;
        shown.last = self.ring.last_before(next, filled);
        true
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
        let mut head = self.ring.head();
        let mut filled = self.ring.filled();
        let mut cq = self;
        if filled >= cq.shared.usual_below() {
            (cq, filled) = cq.look_closer(filled);
            if filled == TOLD {
                // In line, so that whoever drops it has no room for it.
                return Err(cq.told.unwrap_or(PollError::Overrun));
            }
            // Not to be looked up once more in the usual case.
            head = cq.ring.head();
        }
        // SAFETY: it is the ring's. What is usual is below the number of the ring's slots at most, for
        // `shared` was told of this ring; and a closer look has it checked.
        Ok(Polled(unsafe { cq.ring.waiting_until(head, filled) }))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn poll_plainly(&mut self) -> Option<Polled<'_>> {
        let filled = self.ring.filled();
        // SAFETY: as in `poll`.
        (filled < self.shared.usual_below())
            .then(|| Polled(unsafe { self.ring.waiting_until(self.ring.head(), filled) }))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    unsafe fn take_first(&mut self, most: usize, to: *mut Wc) -> First {
        let filled = self.ring.filled();
        if filled >= self.shared.usual_below() {
            return First::Otherwise;
        }
        let next = self.ring.next();
        let behind = self.ring.index_behind(next);
        if next == filled {
            return First::None;
        }
        if most != 1 {
            seldom();
            if most == 0 || behind != filled {
                return First::Several;
            }
        }
        // SAFETY: a completion ring is one of `Wc`, and the slot is filled. By this function's contract there
        // is room. The copy is what was just written.
        unsafe {
            self.ring.take_to(next, behind, to);
            match (*to).wc_flags & WITH_INVALIDATE {
                0 => First::One,
                _ => First::Raw,
            }
        }
    }

    #[cfg(feature = "c-abi")]
    fn show_nothing(&self) -> Shown {
        let passed = self.ring.slot_before(self.ring.next());
        Shown {
            at: passed,
            last: passed,
        }
    }

    #[cfg(feature = "c-abi")]
    fn show_first(&mut self, shown: &mut Shown) -> Result<bool, PollError> {
        let filled = self.poll()?.0.filled();
        Ok(self.show_from(self.ring.next(), filled, shown))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_plainly(&mut self, shown: &mut Shown) -> Option<bool> {
        let head = self.ring.head();
        let filled = self.ring.filled();
        if filled >= self.shared.usual_below() {
            return None;
        }
        // SAFETY: it is the ring's.
        let next = unsafe { self.ring.next_at(head) };
        let Some(slot) = self.ring.filled_slot(next, filled) else {
            return Some(false);
        };
        // Whoever wants one only is not to pay for a look at how many there are.
        (shown.at, shown.last) = (slot, slot);
        Some(true)
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_next(&mut self, shown: &mut Shown) -> bool {
        if shown.at == shown.last {
            return false;
        }
        // SAFETY: it is a slot of this ring, and the last one is behind it.
        shown.at = unsafe { self.ring.behind(shown.at) };
        true
    }

    #[cfg(feature = "c-abi")]
    fn show_more(&mut self, shown: &mut Shown) -> Result<bool, PollError> {
        self.go_on(shown);
        self.show_first(shown)
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn show_more_plainly(&mut self, shown: &mut Shown) -> Option<bool> {
        let filled = self.ring.filled();
        if filled >= self.shared.usual_below() {
            return None;
        }
        // SAFETY: as in `go_on`.
        let next = unsafe { self.ring.pass(shown.at) };
        Some(self.show_from(next, filled, shown))
    }

    #[cfg(feature = "c-abi")]
    #[inline(always)]
    fn go_on(&mut self, shown: &mut Shown) {
        // SAFETY: it is a slot of this ring, up to which all are filled and have been looked at, or have gone
        // back before.
        let _ = unsafe { self.ring.pass(shown.at) };
    }
}

/// A completion that a C program looks at where it lies. The slots of what has been shown are the kernel's
/// again when the program ends, or has seen all that was known to be there: till then the ring has so many
/// less to fill. If nothing is shown, it is the slot that went back last: so to go on behind it changes
/// nothing.
#[cfg(feature = "c-abi")]
#[derive(Debug)]
pub(crate) struct Shown {
    at: NonNull<u8>,
    /// Up to here, which is not before it in the ring, completions are known to be there.
    last: NonNull<u8>,
}

// SAFETY: whoever has the queue may look at its slots.
#[cfg(feature = "c-abi")]
unsafe impl Send for Shown {}

#[cfg(feature = "c-abi")]
impl contract::Shown for Shown {
    type Completion = Completion;

    #[inline(always)]
    unsafe fn completion(&self) -> Completion {
        // SAFETY: by this function's contract the slot is in the ring. It is filled and not the kernel's yet:
        // programs look at nothing else. Every bit pattern is a `Wc`.
        Completion(unsafe { self.at.cast::<Wc>().read() })
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
    unsafe fn finish(to: *mut Wc) {
        // SAFETY: by this function's contract.
        unsafe { mend(to, 1) };
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
