//! Polling: completions into an array (`ibv_poll_cq`).

use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of};
use std::slice;

use uverbs_uapi::types::Wc;

use super::abi::queue::ibv_cq;
use super::abi::work::ibv_wc;
use super::cq::CqObject;
use super::failure::number;
use super::object::object;
use crate::driver::contract::methods::*;
use crate::driver::{self, Listed};
use crate::error::Error;
use crate::work::PollError;

/// The queue as its driver's type.
///
/// # Safety
///
/// The queue belongs to a device of this driver.
#[inline(always)]
pub(super) unsafe fn own<D: Listed>(ring: &mut driver::Cq) -> &mut D::Cq {
    // SAFETY: by this function's contract.
    unsafe { D::get_mut(ring).unwrap_unchecked() }
}

// A C program's completion has the kernel's form, without the kernel's fields at the end.
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

/// `ibv_poll_cq(3)`, for queues of a driver's devices. Programs call it through the queue's context, so the
/// queue exists.
pub(super) unsafe extern "C" fn poll_cq<D: Listed>(
    c: *mut ibv_cq,
    count: c_int,
    to: *mut ibv_wc,
) -> c_int {
    if count <= 0 {
        return 0;
    }
    // SAFETY: the caller passes a completion queue of a device of this driver, and room. The lock is held,
    // and the completions of the two structs have the same layout.
    unsafe {
        let cq = object::<CqObject>(c).unwrap_unchecked();
        let places = slice::from_raw_parts_mut(to.cast(), count as usize);
        if !cq.ring.acquire_at_once() {
            return poll_after_others::<D>(cq, places);
        }
        let Some(taken) = own::<D>(cq.ring.held()).take_into(places) else {
            return poll_held::<D>(cq, places);
        };
        match cq.ring.release_at_once() {
            true => taken as c_int,
            false => wake_others(cq, taken),
        }
    }
}

/// Wakes other threads that wait for the lock; returns how many completions there were.
#[cold]
#[inline(never)]
fn wake_others(cq: &CqObject, taken: usize) -> c_int {
    cq.ring.wake();
    taken as c_int
}

/// Like [`poll_cq`], for a queue that another thread polls.
///
/// # Safety
///
/// The queue belongs to a device of this driver.
#[cold]
#[inline(never)]
unsafe fn poll_after_others<D: Listed>(cq: &CqObject, places: &mut [MaybeUninit<Wc>]) -> c_int {
    cq.ring.acquire_slowly();
    // SAFETY: by this function's contract; the lock has been taken.
    unsafe { poll_held::<D>(cq, places) }
}

/// Like [`poll_cq`], for all cases. Releases the lock.
///
/// # Safety
///
/// The queue belongs to a device of this driver, and the caller holds its lock.
#[inline(never)]
unsafe fn poll_held<D: Listed>(cq: &CqObject, places: &mut [MaybeUninit<Wc>]) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        let taken = match own::<D>(cq.ring.held()).poll() {
            Ok(completions) => {
                let taken = places.iter_mut().zip(completions);
                taken
                    .map(|(place, completion)| place.write(completion.to_wc()))
                    .count() as c_int
            }
            Err(error) => failed(error),
        };
        cq.ring.release();
        taken
    }
}

/// The result of `ibv_poll_cq` if the queue has an error.
#[cold]
#[inline(never)]
fn failed(error: PollError) -> c_int {
    number(Err(Error::from(error).into()))
}
