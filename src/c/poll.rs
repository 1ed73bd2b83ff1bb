//! Polling: completions into an array (`ibv_poll_cq`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::offset_of;

use uverbs_uapi::types::Wc;

use super::abi::queue::ibv_cq;
use super::abi::work::ibv_wc;
use super::cq::CqObject;
use super::failure::{Failure, number};
use super::object::object;
use crate::driver::contract::methods::*;
use crate::driver::typed::OnCq;
use crate::driver::{self, Completion, Completions, Listed};
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

/// Room for completions, and the queue, which is unlocked once they have been taken. There is room for so
/// many at the pointer.
struct Room<'a> {
    cq: &'a CqObject,
    count: c_int,
    to: *mut ibv_wc,
}

impl OnCq for Room<'_> {
    type Output = c_int;

    #[inline(always)]
    fn run<D: Listed>(self, ring: &mut D::Cq) -> c_int {
        // SAFETY: by what this value is.
        unsafe { take::<D>(self.cq, ring, self.count, self.to) }
    }
}

/// Takes completions, at most so many, and gives the lock back. Out of line for each driver, so that each
/// keeps what it needs alone; and so are several completions, so that none and one keep nothing for them.
///
/// # Safety
///
/// The ring is that of the queue, whose lock was taken, and there is room for so many.
#[inline(never)]
unsafe fn take<D: Listed>(cq: &CqObject, ring: &mut D::Cq, count: c_int, to: *mut ibv_wc) -> c_int {
    let Some(mut polled) = ring.poll_plainly() else {
        // SAFETY: by this function's contract.
        return unsafe { take_otherwise::<D>(cq, ring, count, to) };
    };
    // SAFETY: by this function's contract; nothing refers to the ring when the lock is given back.
    unsafe {
        if count <= 0 || polled.has_none() {
            cq.poller.release();
            return 0;
        }
        if !polled.takes_one(count as usize) {
            drop(polled);
            return take_several::<D>(cq, ring, count, to);
        }
        let taken = polled.take_one_into(to.cast());
        cq.poller.release();
        taken as c_int
    }
}

/// As [`take`], where there may be several.
///
/// # Safety
///
/// As of [`take`].
#[inline(never)]
unsafe fn take_several<D: Listed>(
    cq: &CqObject,
    ring: &mut D::Cq,
    count: c_int,
    to: *mut ibv_wc,
) -> c_int {
    let Some(mut polled) = ring.poll_plainly() else {
        // SAFETY: by this function's contract.
        return unsafe { take_otherwise::<D>(cq, ring, count, to) };
    };
    // SAFETY: by this function's contract; nothing refers to the ring when the lock is given back.
    unsafe {
        let taken = polled.take_into(count as usize, to.cast());
        cq.poller.release();
        taken as c_int
    }
}

/// As [`take`], where there is more to do.
///
/// # Safety
///
/// As of [`take`].
#[cold]
#[inline(never)]
unsafe fn take_otherwise<D: Listed>(
    cq: &CqObject,
    ring: &mut D::Cq,
    count: c_int,
    to: *mut ibv_wc,
) -> c_int {
    let polled = ring.poll();
    // SAFETY: by this function's contract; nothing refers to the ring when the lock is given back.
    unsafe {
        let taken = polled.map(|mut polled| polled.take_into(count.max(0) as usize, to.cast()));
        cq.poller.release();
        number(match taken {
            Ok(taken) => Ok(taken as c_int),
            Err(error) => Err(Error::from(error).into()),
        })
    }
}

/// `ibv_poll_cq(3)`.
pub(super) unsafe extern "C" fn poll_cq(c: *mut ibv_cq, count: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a completion queue and room. `Room` gives the lock back.
    unsafe {
        let Some(cq) = object::<CqObject>(c) else {
            return number(Err(Failure::INVALID));
        };
        if !cq.poller.try_acquire() {
            return poll_after(cq, count, to);
        }
        (*cq.poller.pointer()).ring().with(Room { cq, count, to })
    }
}

/// As [`poll_cq`], when the lock is free.
///
/// # Safety
///
/// As there.
#[cold]
#[inline(never)]
unsafe fn poll_after(cq: &CqObject, count: c_int, to: *mut ibv_wc) -> c_int {
    cq.poller.acquire_slowly();
    // SAFETY: by this function's contract.
    unsafe { (*cq.poller.pointer()).ring().with(Room { cq, count, to }) }
}
