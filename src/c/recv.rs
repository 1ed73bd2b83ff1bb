//! Posting receive requests, to queue pairs and to shared queues.

use std::ffi::c_int;
use std::slice;

use super::abi::queue::{ibv_qp, ibv_srq};
use super::abi::work::{ibv_recv_wr, ibv_sge};
use super::failure::{Failure, Result, status};
use super::qp::qp;
use super::srq::srq;
use crate::driver::RecvBatch;

/// `ibv_post_recv(3)`.
pub(super) unsafe extern "C" fn post_recv(
    c: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a queue pair, a list of requests, and room for a pointer.
    status(unsafe {
        qp(c).and_then(|qp| {
            let mut queue = qp.recv.lock();
            let queue = queue.as_mut().ok_or(Failure::INVALID);
            let batch = queue.inspect_err(|_| *bad = first)?.batch();
            post(batch, first, bad)
        })
    })
}

/// `ibv_post_srq_recv(3)`.
pub(super) unsafe extern "C" fn post_srq_recv(
    c: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a shared receive queue, a list of requests, and room for a pointer.
    status(unsafe {
        srq(c).and_then(|srq| {
            let mut queue = srq.queue.lock();
            post(queue.batch(), first, bad)
        })
    })
}

/// Posts the requests of a list up to the first that fails.
///
/// # Safety
///
/// The pointers are to a list of requests and to room for a pointer.
#[inline(always)]
unsafe fn post(
    mut batch: RecvBatch<'_>,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Result<()> {
    let (mut next, mut result) = (first, Ok(()));
    // SAFETY: by this function's contract.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        let sges = unsafe { list(request.sg_list, request.num_sge) };
        if let Err(error) = batch.push(request.wr_id, sges) {
            // SAFETY: as above.
            unsafe { *bad = next };
            result = Err(error.into());
            break;
        }
        next = request.next;
    }
    batch.ring();
    result
}

/// A list of a request's, which may be at NULL if it is empty.
///
/// # Safety
///
/// There are so many elements at `list`, for as long as the slice is used.
#[inline(always)]
pub(super) unsafe fn list<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    match count > 0 {
        // SAFETY: by this function's contract.
        true => unsafe { slice::from_raw_parts(list, count as usize) },
        false => &[],
    }
}
