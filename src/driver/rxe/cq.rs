//! The completion ring of rxe. Its elements are the kernel's own `struct ib_uverbs_wc`.

use std::ptr::NonNull;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
use uverbs_uapi::types::Wc;

use super::map::RingMap;
use super::ring::{BadIndex, Consumer};
use super::srq::{Attached, Receivers, SharedRecvQueue};
use crate::driver::contract;
use crate::work::PollError;

/// rxe reports an invalidated rkey with the kernel's internal flag `IB_WC_WITH_INVALIDATE`, whose bit
/// means "IP checksum is good" in the userspace ABI (`drivers/infiniband/sw/rxe/rxe_resp.c`). rxe has no
/// checksum offload, so the bit has one meaning only.
const WITH_INVALIDATE: u32 = uverbs_uapi::rxe::WC_WITH_INVALIDATE.bits();

/// The completion ring.
#[derive(Debug)]
pub(crate) struct Cq {
    // Before the map, because it points into it.
    ring: Consumer,
    receivers: Receivers,
    _map: Option<RingMap>,
}

impl Cq {
    /// A completion queue over a ring; `map` keeps the ring's memory mapped.
    pub(super) fn new(ring: Consumer, map: Option<RingMap>) -> Self {
        Self {
            ring,
            receivers: Receivers::default(),
            _map: map,
        }
    }

    /// Takes over another ring.
    pub(super) fn replace(&mut self, ring: Consumer, map: RingMap) {
        // In this order: a ring goes before its map.
        self.ring = ring;
        self._map = Some(map);
    }

    /// A queue pair whose receives complete here and come from a shared queue.
    pub(super) fn attach(&self, qpn: u32, srq: &SharedRecvQueue) -> Attached {
        self.receivers.attach(qpn, srq)
    }

    /// How far completions can be taken now.
    #[inline(always)]
    pub(super) fn filled(&self) -> Result<u32, PollError> {
        let bad = |BadIndex { index, index_mask }| PollError::Index {
            index,
            highest: index_mask,
        };
        self.ring.filled().map_err(bad)
    }

    /// True if nothing is left to take before `filled`.
    pub(super) fn is_at(&self, filled: u32) -> bool {
        self.ring.is_at(filled)
    }

    /// The next completion before `filled`.
    ///
    /// The reference must not be used after [`Self::release`]; the caller's lifetimes see to that.
    #[inline(always)]
    pub(crate) fn take(&mut self, filled: u32) -> Option<Completion> {
        self.ring.take(filled).map(|slot| Completion(slot.cast()))
    }

    /// Gives all completions that have been taken back to the kernel.
    #[inline(always)]
    pub(crate) fn release(&mut self) {
        if self.receivers.any() {
            self.count();
        }
        self.ring.release();
    }

    /// Counts the messages that came into shared queues among what is about to be given back.
    #[cold]
    fn count(&self) {
        let received = self.ring.taken().filter_map(|slot| {
            let completion = Completion(slot.cast());
            let Wc {
                status,
                opcode,
                qp_num,
                ..
            } = *completion.wc();
            // A failed one does not tell whether it was a receive: the queue pair has come to its end then.
            let received = WcStatus(status) == WcStatus::SUCCESS && opcode & WcOpcode::RECV.0 != 0;
            received.then_some(qp_num)
        });
        self.receivers.count(received);
    }
}

impl contract::Cq for Cq {
    type Backing = contract::Nothing;
    type Completion = Completion;
    type Polled<'q> = Polled<'q>;

    fn backing(&self) -> contract::Nothing {
        contract::Nothing
    }

    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn is_empty(&mut self) -> Result<bool, PollError> {
        Ok(self.is_at(self.filled()?))
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<Polled<'_>, PollError> {
        let filled = self.filled()?;
        Ok(Polled { cq: self, filled })
    }
}

/// The completions up to an index of the ring.
#[derive(Debug)]
pub(crate) struct Polled<'q> {
    cq: &'q mut Cq,
    filled: u32,
}

impl contract::Polled for Polled<'_> {
    type Completion = Completion;

    #[inline(always)]
    fn take(&mut self, moved: &mut bool) -> Option<Completion> {
        let taken = self.cq.take(self.filled)?;
        *moved = true;
        Some(taken)
    }

    #[inline(always)]
    fn release(&mut self) {
        self.cq.release();
    }
}

/// A completion that lies in the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion(NonNull<Wc>);

impl Completion {
    #[inline(always)]
    fn wc(&self) -> &Wc {
        // SAFETY: the slot was filled by the kernel and is not given back before the loan to the user
        // ends, so nobody writes it; every bit pattern is a `Wc`.
        unsafe { self.0.as_ref() }
    }
}

impl contract::Completion for Completion {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.wc().wr_id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        WcStatus(self.wc().status)
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        WcOpcode(self.wc().opcode)
    }

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        self.wc().vendor_err
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        self.wc().byte_len
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.wc().qp_num
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        self.wc().src_qp
    }

    /// The immediate data in network byte order, or the rkey.
    #[inline(always)]
    fn ex(&self) -> u32 {
        self.wc().ex
    }

    #[inline(always)]
    fn flags(&self) -> WcFlags {
        let raw = self.wc().wc_flags;
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
        self.wc().pkey_index
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        self.wc().slid
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        self.wc().sl
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        self.wc().dlid_path_bits
    }
}
