//! The receive queue of an rxe QP. It has no doorbell: the kernel reads the ring when a packet arrives.
//!
//! Slot layout: `struct rxe_recv_wqe` in `include/uapi/rdma/rdma_user_rxe.h`.

use std::ptr::NonNull;

use uverbs_uapi::rxe::{DmaInfo, RecvWqe, Sge};

use super::map::Keep;
use super::ring::Producer;
use super::send::{full, too_many, write_sges};
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
    fn begin(&mut self) -> u64 {
        self.ring.published().into()
    }

    #[inline(always)]
    fn pending(&self, at: u64) -> u32 {
        self.ring.pending(at as u32)
    }

    #[inline(always)]
    fn push<E: Element>(
        &mut self,
        at: &mut u64,
        wr_id: u64,
        slices: &[E],
    ) -> Result<(), PostError> {
        if slices.len() > self.max_sge as usize {
            return Err(too_many(slices.len(), self.max_sge));
        }
        // SAFETY: it is what `begin` has given, or this function.
        match unsafe { self.ring.known_slot(*at as u32) } {
            Some((slot, behind)) => {
                fill(slot, wr_id, slices);
                *at = behind.into();
                Ok(())
            }
            None => {
                let behind = self.fill_if_free(*at as u32, wr_id, slices);
                if behind == FULL {
                    return Err(full(self.ring.capacity()));
                }
                *at = behind;
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn ring(&mut self, at: u64) {
        self.ring.publish(at as u32);
    }
}

impl RecvQueue {
    /// Looks how far the kernel has come, and fills the next slot if it is free: the index behind it, or
    /// [`FULL`]. Out of line, with all that is left to do, and an answer in a register, so that who posts
    /// keeps as little as can be for it.
    #[cold]
    #[inline(never)]
    fn fill_if_free<E: Element>(&mut self, at: u32, wr_id: u64, slices: &[E]) -> u64 {
        // SAFETY: as in `push`.
        match unsafe { self.ring.free_slot(at) } {
            Some((slot, behind)) => {
                fill(slot, wr_id, slices);
                behind.into()
            }
            None => FULL,
        }
    }
}

/// No index: they have 32 bits.
const FULL: u64 = u64::MAX;

/// Fills a free slot with at most `max_sge` slices.
#[inline(always)]
fn fill<E: Element>(slot: NonNull<u8>, wr_id: u64, slices: &[E]) {
    let wqe = slot.cast::<RecvWqe>().as_ptr();
    // SAFETY: the slot is free, so it is ours alone until it is published; it is aligned to 8 and holds
    // a `RecvWqe` and behind it `max_sge` slices, which `new` made sure of and the caller keeps to.
    unsafe {
        let bytes = write_sges(wqe.cast::<u8>().add(size_of::<RecvWqe>()), slices);
        // For the kernel a receive has 32 bits of bytes, and no message is as long. Cut off, as libibverbs
        // does, the sum would refuse messages that have room.
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
