//! Posting receive requests, to queue pairs and to shared queues.

use std::ffi::c_int;
use std::slice;

use super::abi::queue::{ibv_qp, ibv_srq};
use super::abi::work::{ibv_recv_wr, ibv_sge};
use super::failure::{Failure, Result, status};
use super::object::object;
use super::qp::QpObject;
use super::srq::SrqObject;
use crate::driver::{Listed, contract};

/// `ibv_post_recv(3)`, for queue pairs of a driver's devices. Programs call it through the queue pair's
/// context, so the queue pair exists.
pub(super) unsafe extern "C" fn post_recv<D: Listed>(
    c: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a queue pair, a list of requests, and room for a pointer.
    unsafe {
        let qp = object::<QpObject>(c).unwrap_unchecked();
        let mut queue = qp.recv.lock();
        // Under the lock, under which a reset shuts the gate.
        if qp.receives.is_shut() {
            return refuse(first, bad);
        }
        match queue.as_mut().and_then(D::get_mut) {
            Some(queue) => status(post::<D, _>(queue, first, bad)),
            None => refuse(first, bad),
        }
    }
}

/// `ibv_post_srq_recv(3)`: see [`post_recv`].
pub(super) unsafe extern "C" fn post_srq_recv<D: Listed>(
    c: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a shared receive queue, a list of requests, and room for a pointer.
    unsafe {
        let srq = object::<SrqObject>(c).unwrap_unchecked();
        let mut queue = srq.queue.lock();
        match D::get_mut(&mut queue) {
            Some(queue) => status(post::<D, _>(queue, first, bad)),
            None => refuse(first, bad),
        }
    }
}

/// Refuses a list of requests, unless it is empty.
///
/// # Safety
///
/// As for [`post_recv`].
#[cold]
unsafe fn refuse(first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    if first.is_null() {
        return 0;
    }
    // SAFETY: by this function's contract.
    unsafe { tell_bad(bad, first) };
    Failure::INVALID.tell()
}

/// Posts the requests of a list up to the first that fails.
///
/// # Safety
///
/// The pointers are to a list of requests and to room for a pointer.
#[inline(always)]
unsafe fn post<D: Listed, Q: contract::RecvQueue>(
    queue: &mut Q,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Result<()> {
    let mut written = 0;
    let (mut next, mut result) = (first, Ok(()));
    // SAFETY: by this function's contract.
    while let Some(request) = unsafe { next.as_ref() } {
        let outcome = match request.num_sge {
            count if count < 0 && D::REFUSALS.negative_counts => Err(Failure::INVALID),
            count => {
                // SAFETY: by this function's contract.
                let sges = unsafe { list(request.sg_list, count) };
                // Most requests have one slice: for these there is code without loops.
                let outcome = match sges {
                    [one] => queue.write(written, request.wr_id, slice::from_ref(one)),
                    _ => queue.write(written, request.wr_id, sges),
                };
                outcome.map_err(Failure::from)
            }
        };
        if let Err(failure) = outcome {
            // SAFETY: by this function's contract.
            unsafe { tell_bad(bad, next) };
            result = Err(failure);
            break;
        }
        written += 1;
        next = request.next;
    }
    if written > 0 {
        queue.ring(written);
    }
    result
}

/// Stores which request of a list failed, if the program passes room for it.
///
/// # Safety
///
/// The pointer is to room for a pointer, or NULL.
#[inline(always)]
pub(super) unsafe fn tell_bad<R>(bad: *mut *mut R, request: *mut R) {
    if !bad.is_null() {
        // SAFETY: by this function's contract.
        unsafe { *bad = request };
    }
}

/// The slices of a request. `list` may be NULL if there are none.
///
/// # Safety
/// There are `count` elements at `list`, for as long as the slice is used.
#[inline(always)]
pub(super) unsafe fn list<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    match count > 0 {
        // SAFETY: by this function's contract.
        true => unsafe { slice::from_raw_parts(list, count as usize) },
        false => &[],
    }
}
