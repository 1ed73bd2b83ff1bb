//! Polling: completions into an array (`ibv_poll_cq`).

use std::ffi::c_int;
use std::mem::offset_of;

use uverbs_uapi::types::Wc;

use super::abi::queue::ibv_cq;
use super::abi::work::ibv_wc;
use super::cq::CqObject;
use super::failure::number;
use super::object::object;
use crate::driver::contract::First;
use crate::driver::contract::methods::*;
use crate::driver::typed::{PolledOf, Shown, ShownOf};
use crate::driver::{self, Listed};
use crate::error::Error;

/// What polls a completion queue.
pub(super) struct Poller {
    /// What is looked at between `ibv_start_poll` and `ibv_end_poll`.
    pub(super) shown: Shown,
    pub(super) ring: driver::Cq,
}

impl Poller {
    pub(super) fn new(ring: driver::Cq) -> Self {
        Self {
            shown: ring.show_nothing(),
            ring,
        }
    }

    /// The ring, and what is looked at.
    ///
    /// # Safety
    ///
    /// The queue is of a device of that driver's, and so is what it shows.
    #[inline(always)]
    pub(super) unsafe fn parts<D: Listed>(&mut self) -> (&mut D::Cq, &mut ShownOf<D>) {
        // SAFETY: by this function's contract.
        unsafe {
            let ring = D::get_mut(&mut self.ring).unwrap_unchecked();
            (ring, D::lent(&mut self.shown).unwrap_unchecked())
        }
    }
}

// A completion of a C program's is one in the kernel's form, but for what the kernel has behind it.
const _: () = {
    assert!(size_of::<ibv_wc>() == size_of::<Wc>() && align_of::<ibv_wc>() == align_of::<Wc>());
    assert!(offset_of!(ibv_wc, status) == offset_of!(Wc, status));
    assert!(offset_of!(ibv_wc, opcode) == offset_of!(Wc, opcode));
    assert!(offset_of!(ibv_wc, vendor_err) == offset_of!(Wc, vendor_err));
    assert!(offset_of!(ibv_wc, byte_len) == offset_of!(Wc, byte_len));
    assert!(offset_of!(ibv_wc, ex) == offset_of!(Wc, ex));
    assert!(offset_of!(ibv_wc, qp_num) == offset_of!(Wc, qp_num));
    assert!(offset_of!(ibv_wc, src_qp) == offset_of!(Wc, src_qp));
    assert!(offset_of!(ibv_wc, wc_flags) == offset_of!(Wc, wc_flags));
    assert!(offset_of!(ibv_wc, pkey_index) == offset_of!(Wc, pkey_index));
    assert!(offset_of!(ibv_wc, slid) == offset_of!(Wc, slid));
    assert!(offset_of!(ibv_wc, sl) == offset_of!(Wc, sl));
    assert!(offset_of!(ibv_wc, dlid_path_bits) == offset_of!(Wc, dlid_path_bits));
};

/// Takes completions, at most so many, and gives the lock back. Several are out of line, so that none and one
/// keep nothing for them.
///
/// # Safety
///
/// The queue is of a device of that driver's, its lock was taken, and there is room for so many.
#[inline(always)]
unsafe fn take<D: Listed>(cq: &CqObject, count: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: by this function's contract; nothing refers to the ring when the lock is given back.
    unsafe {
        let ring = cq.poller.held().parts::<D>().0;
        match ring.take_first(count.max(0) as usize, to.cast()) {
            First::One => cq.poller.release_with(1),
            First::None => cq.poller.release_with(0),
            First::Several => take_several::<D>(cq, count, to),
            First::Raw => finish_one::<D>(cq, to),
            First::Otherwise => take_otherwise::<D>(cq, count, to),
        }
    }
}

/// The end of [`take`] for one that is not in its form yet.
///
/// # Safety
///
/// As of [`take`], and one was taken.
#[cold]
#[inline(never)]
unsafe fn finish_one<D: Listed>(cq: &CqObject, to: *mut ibv_wc) -> c_int {
    // SAFETY: by this function's contract; nothing refers to the ring when the lock is given back.
    unsafe {
        PolledOf::<D>::finish(to.cast());
        cq.poller.release_with(1)
    }
}

/// As [`take`], where there may be several.
///
/// # Safety
///
/// As of [`take`].
#[inline(never)]
unsafe fn take_several<D: Listed>(cq: &CqObject, count: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: by this function's contract; nothing refers to the ring when the lock is given back.
    unsafe {
        let Some(mut polled) = cq.poller.held().parts::<D>().0.poll_plainly() else {
            return take_otherwise::<D>(cq, count, to);
        };
        let taken = match count > 0 {
            true => polled.take_into(count as usize, to.cast()),
            false => 0,
        };
        cq.poller.release_with(taken as c_int)
    }
}

/// As [`take`], where there is more to do.
///
/// # Safety
///
/// As of [`take`].
#[cold]
#[inline(never)]
unsafe fn take_otherwise<D: Listed>(cq: &CqObject, count: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: by this function's contract; nothing refers to the ring when the lock is given back.
    unsafe {
        let polled = cq.poller.held().parts::<D>().0.poll();
        let taken = polled.map(|mut polled| polled.take_into(count.max(0) as usize, to.cast()));
        cq.poller.release();
        number(match taken {
            Ok(taken) => Ok(taken as c_int),
            Err(error) => Err(Error::from(error).into()),
        })
    }
}

/// `ibv_poll_cq(3)`, of queues of a driver's devices. Programs call it by the queue's context, so there is a
/// queue.
pub(super) unsafe extern "C" fn poll_cq<D: Listed>(
    c: *mut ibv_cq,
    count: c_int,
    to: *mut ibv_wc,
) -> c_int {
    // SAFETY: the caller passes a completion queue and room. `take` gives the lock back.
    unsafe {
        let cq = object::<CqObject>(c).unwrap_unchecked();
        if !cq.poller.try_acquire() {
            return poll_after::<D>(cq, count, to);
        }
        take::<D>(cq, count, to)
    }
}

/// As [`poll_cq`], when the lock is free.
///
/// # Safety
///
/// As there.
#[cold]
#[inline(never)]
unsafe fn poll_after<D: Listed>(cq: &CqObject, count: c_int, to: *mut ibv_wc) -> c_int {
    cq.poller.acquire_slowly();
    // SAFETY: by this function's contract.
    unsafe { take::<D>(cq, count, to) }
}
