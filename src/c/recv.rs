//! Posting receive requests, to queue pairs and to shared queues.

use std::ffi::c_int;
use std::slice;

use super::abi::queue::{ibv_qp, ibv_srq};
use super::abi::work::{ibv_recv_wr, ibv_sge};
use super::failure::{Failure, status};
use super::lock::Locked;
use super::object::object;
use super::qp::QpObject;
use super::srq::SrqObject;
use crate::driver::{Listed, contract};

/// `ibv_post_recv(3)`, on queue pairs of a driver's devices. Programs call it by the queue pair's context, so
/// there is a queue pair.
pub(super) unsafe extern "C" fn post_recv<D: Listed>(
    c: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a queue pair, a list of requests, and room for a pointer. `post` gives the
    // lock back.
    unsafe {
        let qp = object::<QpObject>(c).unwrap_unchecked();
        if qp.recv.is_skipped() {
            return post_alone::<D>(qp, first, bad);
        }
        if !qp.recv.try_acquire_through(&qp.receives) {
            return post_after::<D>(qp, first, bad);
        }
        post_own::<D, true>(qp, first, bad)
    }
}

/// As [`post_recv`], in a thread domain. By itself, so that there is no detour for others.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn post_alone<D: Listed>(
    qp: &QpObject,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by this function's contract; the lock is nobody's.
    unsafe {
        match qp.receives.is_shut() {
            true => refuse(first, bad),
            false => post_own::<D, false>(qp, first, bad),
        }
    }
}

/// As [`post_recv`], when the lock is free, or in the state RESET, which takes no requests.
///
/// # Safety
///
/// As there.
#[cold]
#[inline(never)]
unsafe fn post_after<D: Listed>(
    qp: &QpObject,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    if qp.receives.is_shut() {
        // SAFETY: by this function's contract.
        return unsafe { refuse(first, bad) };
    }
    qp.recv.acquire_slowly();
    // SAFETY: by this function's contract.
    unsafe { post_own::<D, false>(qp, first, bad) }
}

/// Refuses a list of requests, unless it is empty.
///
/// # Safety
///
/// As of [`post_recv`].
unsafe fn refuse(first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    if first.is_null() {
        return 0;
    }
    // SAFETY: by this function's contract.
    unsafe { tell_bad(bad, first) };
    Failure::INVALID.tell()
}

/// Posts to the receive queue of a queue pair, if it has one, and gives its lock back. One request is looked
/// for if `ONE` says so.
///
/// # Safety
///
/// As of [`post_recv`], the lock was taken, and is not one that is skipped if `ONE` says so, and the queue
/// pair is of a device of that driver's.
#[inline(always)]
unsafe fn post_own<D: Listed, const ONE: bool>(
    qp: &QpObject,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        match &mut *qp.recv.pointer() {
            Some(queue) => {
                let queue = D::get_mut(queue).unwrap_unchecked();
                match ONE {
                    true => post_one::<D, _, _>(&qp.recv, queue, first, bad),
                    false => post::<D, _, _>(&qp.recv, queue, first, bad),
                }
            }
            None => no_queue(qp, first, bad),
        }
    }
}

/// Refuses a request for a queue pair that receives from a shared queue.
///
/// # Safety
///
/// As of [`post_own`].
#[cold]
#[inline(never)]
unsafe fn no_queue(qp: &QpObject, first: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        tell_bad(bad, first);
        qp.recv.release();
    }
    Failure::INVALID.tell()
}

/// `ibv_post_srq_recv(3)`, as [`post_recv`].
pub(super) unsafe extern "C" fn post_srq_recv<D: Listed>(
    c: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller passes a shared receive queue, a list of requests, and room for a pointer. `post`
    // gives the lock back.
    unsafe {
        let srq = object::<SrqObject>(c).unwrap_unchecked();
        if srq.queue.is_skipped() {
            return post_shared::<D>(srq, first, bad);
        }
        if !srq.queue.try_acquire_surely() {
            return post_shared_after::<D>(srq, first, bad);
        }
        let lock = &srq.queue;
        let queue = D::get_mut(&mut *lock.pointer()).unwrap_unchecked();
        post_one::<D, _, _>(lock, queue, first, bad)
    }
}

/// As [`post_srq_recv`], when the lock is free.
///
/// # Safety
///
/// As there.
#[cold]
#[inline(never)]
unsafe fn post_shared_after<D: Listed>(
    srq: &SrqObject,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    srq.queue.acquire_slowly();
    // SAFETY: by this function's contract.
    unsafe { post_shared::<D>(srq, first, bad) }
}

/// Posts to a shared receive queue, and gives its lock back.
///
/// # Safety
///
/// As of [`post_srq_recv`], the lock was taken, and the queue is of a device of that driver's.
#[cold]
#[inline(never)]
unsafe fn post_shared<D: Listed>(
    srq: &SrqObject,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let lock = &srq.queue;
    // SAFETY: by this function's contract.
    unsafe {
        let queue = D::get_mut(&mut *lock.pointer()).unwrap_unchecked();
        post::<D, _, _>(lock, queue, first, bad)
    }
}

/// As [`post`], which does what is more than one usual request with one slice.
///
/// # Safety
///
/// As there, and the lock is not one that is skipped.
#[inline(always)]
unsafe fn post_one<D: Listed, L, Q: contract::RecvQueue>(
    lock: &Locked<L>,
    queue: &mut Q,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by this function's contract; nothing refers to the queue when the lock is given back.
    unsafe {
        if let Some(request) = first.as_ref()
            && request.next.is_null()
            && request.num_sge == 1
            && queue.post_usual(request.wr_id, slice::from_ref(&*request.sg_list))
        {
            return lock.release_surely_with(0);
        }
        post::<D, _, _>(lock, queue, first, bad)
    }
}

/// Posts the requests of a list up to the first that fails, and gives the lock back.
///
/// # Safety
///
/// The queue is what the lock is of, which was taken, and of that driver's. The pointers are to a list of
/// requests and to room for a pointer.
#[inline(never)]
unsafe fn post<D: Listed, L, Q: contract::RecvQueue>(
    lock: &Locked<L>,
    queue: &mut Q,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let (mut at, mut is_usual) = (queue.begin(), true);
    let (mut next, mut result) = (first, Ok(()));
    // SAFETY: by this function's contract.
    while let Some(request) = unsafe { next.as_ref() } {
        // One slice is what most have: there is code that writes one and no list.
        let pushed = match request.num_sge {
            1 => {
                // SAFETY: as above.
                let sge = unsafe { &*request.sg_list };
                let slices = slice::from_ref(sge);
                match queue.push_usual(&mut at, request.wr_id, slices) {
                    true => Ok(None),
                    false => queue.push(at, request.wr_id, slices).map(Some),
                }
            }
            count if count < 0 && D::REFUSALS.negative_counts => {
                // SAFETY: as above.
                unsafe { tell_bad(bad, next) };
                result = Err(Failure::INVALID);
                break;
            }
            count => {
                // SAFETY: as above.
                let sges = unsafe { list(request.sg_list, count) };
                queue.push(at, request.wr_id, sges).map(Some)
            }
        };
        match pushed {
            Ok(None) => {}
            Ok(Some(behind)) => (at, is_usual) = (behind, false),
            Err(error) => {
                // SAFETY: as above.
                unsafe { tell_bad(bad, next) };
                result = Err(error.into());
                break;
            }
        }
        next = request.next;
    }
    match is_usual {
        true => queue.ring_usual(at),
        false => queue.ring(at),
    }
    // SAFETY: as above; nothing refers to the queue any more.
    unsafe { lock.release() };
    status(result)
}

/// Tells which request of a list fails, unless the program does not ask.
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
