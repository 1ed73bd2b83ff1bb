//! Polling: completions into an array (`ibv_poll_cq`).

use std::cell::UnsafeCell;
use std::ffi::c_int;

use super::abi::queue::ibv_cq;
use super::abi::work::ibv_wc;
use super::cq::cq;
use super::failure::number;
use crate::driver::{self, Completion, Completions};
use crate::error::Error;

/// What polls a completion queue.
pub(super) struct Poller {
    /// Between `ibv_start_poll` and `ibv_end_poll`. It borrows the ring, and goes before it.
    pub(super) open: Option<Completions<'static>>,
    /// The completion that is looked at meanwhile.
    pub(super) current: Option<Completion>,
    ring: UnsafeCell<driver::Cq>,
}

impl Poller {
    pub(super) fn new(ring: driver::Cq) -> Self {
        Self {
            open: None,
            current: None,
            ring: UnsafeCell::new(ring),
        }
    }

    pub(super) fn queue(&self) -> &driver::Cq {
        // SAFETY: who holds the lock has the poller, and nothing is open.
        unsafe { &*self.ring.get() }
    }

    pub(super) fn ring(&mut self) -> &mut driver::Cq {
        self.ring.get_mut()
    }

    /// The ring, for what is open.
    ///
    /// # Safety
    ///
    /// The caller holds the lock, and nobody else uses the ring as long as what comes of this is there.
    #[allow(clippy::mut_from_ref, reason = "the lock makes it exclusive")]
    pub(super) unsafe fn ring_apart<'a>(&self) -> &'a mut driver::Cq {
        // SAFETY: by this function's contract.
        unsafe { &mut *self.ring.get() }
    }
}

/// A completion as C programs have it.
#[inline(always)]
fn c_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id(),
        status: completion.status().0,
        opcode: completion.opcode().0,
        vendor_err: completion.vendor_err(),
        byte_len: completion.byte_len(),
        ex: completion.ex(),
        qp_num: completion.qp_num(),
        src_qp: completion.src_qp(),
        wc_flags: completion.flags().bits(),
        pkey_index: completion.pkey_index(),
        slid: completion.slid(),
        sl: completion.sl(),
        dlid_path_bits: completion.dlid_path_bits(),
    }
}

/// `ibv_poll_cq(3)`.
pub(super) unsafe extern "C" fn poll_cq(c: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a completion queue.
    number(unsafe { cq(c) }.and_then(|cq| {
        let mut poller = cq.poller.lock();
        let mut completions = poller.ring().poll().map_err(Error::from)?;
        let mut count = 0;
        while count < room {
            let Some(completion) = completions.take() else {
                break;
            };
            // SAFETY: there is room for that many.
            unsafe { to.add(count as usize).write(c_completion(&completion)) };
            count += 1;
        }
        Ok(count)
    }))
}
