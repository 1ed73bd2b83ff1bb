//! The receive queue of an rxe QP. It has no doorbell: the kernel reads the ring when a packet arrives.
//!
//! Slot layout: `struct rxe_recv_wqe` in `include/uapi/rdma/rdma_user_rxe.h`.

use std::ptr::NonNull;

use uverbs_uapi::rxe::{DmaInfo, RecvWqe, Sge};

use super::map::Keep;
use super::ring::Producer;
use super::send::{full, too_many, write_sges};
use super::watch::Watch;
use crate::driver::contract;
use crate::work::{Element, PostError};

/// The receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    // Before the maps, because it points into one.
    ring: Producer,
    max_sge: u32,
    _maps: Option<Keep>,
}

impl RecvQueue {
    /// A receive queue over a ring; `maps` keep the ring's memory mapped.
    pub(super) fn new(ring: Producer, max_sge: u32, maps: Option<Keep>) -> Self {
        let room = ring.slot_size() - size_of::<RecvWqe>();
        Self {
            max_sge: max_sge.min((room / size_of::<Sge>()) as u32),
            ring,
            _maps: maps,
        }
    }
}

impl RecvQueue {
    /// Bytes of a slot of its ring.
    pub(super) fn slot_size(&self) -> usize {
        self.ring.slot_size()
    }

    /// Fills no slot from now on whose completion nobody has taken.
    pub(super) fn heed(&mut self, watch: Watch) {
        self.ring.heed(watch);
    }

    /// Refuses every request from now on: the kernel does not look at the ring any more.
    pub(super) fn shut(&mut self) {
        self.ring.shut();
    }

    /// Why there is no free slot.
    #[cold]
    fn refusal(&self) -> PostError {
        match self.ring.is_shut() {
            true => PostError::QueueLost,
            false => full(self.ring.capacity()),
        }
    }
}

impl contract::RecvQueue for RecvQueue {
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn max_sge(&self) -> u32 {
        self.max_sge
    }

    fn in_flight(&self) -> u32 {
        self.ring.in_flight()
    }

    #[inline(always)]
    fn write<E: Element>(&mut self, nth: u32, wr_id: u64, slices: &[E]) -> Result<(), PostError> {
        if slices.len() > self.max_sge as usize {
            return Err(too_many(slices.len(), self.max_sge));
        }
        let Some(slot) = self.ring.slot(self.ring.published().wrapping_add(nth)) else {
            return Err(self.refusal());
        };
        fill(slot, wr_id, slices);
        Ok(())
    }

    #[inline(always)]
    fn ring(&mut self, count: u32) {
        self.ring.publish(self.ring.published().wrapping_add(count));
    }
}

/// Fills a free slot with at most `max_sge` slices.
#[inline(always)]
fn fill<E: Element>(slot: NonNull<u8>, wr_id: u64, slices: &[E]) {
    let wqe = slot.cast::<RecvWqe>().as_ptr();
    // SAFETY: the slot is free, so it is ours alone until it is published. It is aligned to 8 and holds a
    // `RecvWqe` and `max_sge` slices after it: `new` made sure of the room, and the caller of the number.
    unsafe {
        let bytes = write_sges(wqe.cast::<u8>().add(size_of::<RecvWqe>()), slices);
        // For the kernel a receive has at most 2^32 - 1 bytes, and no message is as long. If the sum were cut
        // to 32 bits, as in libibverbs, messages that have room would be refused.
        let length = match E::FOREIGN {
            false => u32::try_from(bytes).unwrap_or(u32::MAX),
            true => bytes as u32,
        };
        let num_sge = slices.len() as u32;
        (&raw mut (*wqe).wr_id).write(wr_id);
        (&raw mut (*wqe).dma).write(DmaInfo {
            length,
            resid: length,
            num_sge,
            ..DmaInfo::default()
        });
    }
}
