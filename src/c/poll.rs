//! Polling: completions into an array (`ibv_poll_cq`).

use std::ffi::c_int;
use std::mem::offset_of;

use uverbs_uapi::types::Wc;

use super::abi::queue::ibv_cq;
use super::abi::work::ibv_wc;
use super::cq::CqObject;
use super::failure::number;
use super::object::object;
use crate::driver::contract;
use crate::driver::{self, Listed};
use crate::error::Error;
use crate::work::PollError;

/// The queue of a driver that is known.
///
/// # Safety
///
/// It is of a device of that driver's.
#[inline(always)]
pub(super) unsafe fn own<D: Listed>(ring: &mut driver::Cq) -> &mut D::Cq {
    // SAFETY: by this function's contract.
    unsafe { D::get_mut(ring).unwrap_unchecked() }
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

/// Takes at most `count` completions; tells how many there were.
///
/// # Safety
///
/// There is room for so many.
#[inline(always)]
unsafe fn take<Q: contract::Cq>(
    ring: &mut Q,
    count: c_int,
    to: *mut ibv_wc,
) -> Result<c_int, PollError> {
    let mut polled = ring.poll()?;
    let mut taken = 0;
    // SAFETY: by this function's contract; the two structs are the same.
    while taken < count && Q::next_wc(&mut polled, unsafe { &mut *to.add(taken as usize).cast() }) {
        taken += 1;
    }
    Ok(taken)
}

/// `ibv_poll_cq(3)`, of queues of a driver's devices. Programs call it by the queue's context, so there is a
/// queue.
pub(super) unsafe extern "C" fn poll_cq<D: Listed>(
    c: *mut ibv_cq,
    count: c_int,
    to: *mut ibv_wc,
) -> c_int {
    // SAFETY: the caller passes a completion queue, of a device of that driver's, and room.
    unsafe {
        let cq = object::<CqObject>(c).unwrap_unchecked();
        match take(own::<D>(&mut cq.ring.lock()), count, to) {
            Ok(taken) => taken,
            Err(error) => failed(error),
        }
    }
}

/// What `ibv_poll_cq` returns if something is wrong with the queue.
#[cold]
#[inline(never)]
fn failed(error: PollError) -> c_int {
    number(Err(Error::from(error).into()))
}
