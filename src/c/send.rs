//! Posting send requests in lists (`ibv_post_send`).

use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance;
use std::slice;

use smallvec::SmallVec;
use uverbs_uapi::enums::WrOpcode;
use uverbs_uapi::flags::SendFlags;

use super::abi::queue::ibv_qp;
use super::abi::work::{ibv_send_wr, ibv_sge};
use super::ah::ah;
use super::failure::{Failure, Result, status};
use super::mw::binding;
use super::object::object;
use super::qp::QpObject;
use super::recv::{list, tell_bad};
use super::wr::Session;
use crate::driver::contract::methods::*;
use crate::driver::{Listed, Position, SendQueue};
use crate::qp::transport::Addressing;
use crate::work::{Destination, Operation, Payload, Pieces, Remote, RemoteKey, WorkRequest};

/// The parts that post to a send queue.
pub(super) struct Sender {
    /// For the calls between `ibv_wr_start` and `ibv_wr_complete`.
    pub(super) session: Session,
    /// `None` for a target of XRC.
    pub(super) queue: Option<SendQueue>,
}

impl Sender {
    pub(super) fn new(queue: Option<SendQueue>) -> Self {
        Self {
            session: Session::new(queue.as_ref()),
            queue,
        }
    }
}

/// `ibv_post_send(3)`, for queue pairs of a driver's devices: the requests before a failing one are posted.
/// Programs call it through the queue pair's context, so the queue pair exists.
pub(super) unsafe extern "C" fn post_send<D: Listed>(
    c: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a queue pair, a list of requests, and room for a pointer.
    unsafe {
        let qp = object::<QpObject>(c).unwrap_unchecked();
        let mut sender = qp.send.lock();
        // Under the lock, under which a reset shuts the gate.
        if qp.sends.is_shut() {
            return refuse(first, bad, Failure(qp.refusals.long_request));
        }
        match sender.queue.as_mut().and_then(D::get_mut) {
            Some(queue) => status(post::<D>(qp, queue, first, bad)),
            None => refuse(first, bad, Failure::INVALID),
        }
    }
}

/// Refuses a list of requests, unless it is empty.
///
/// # Safety
///
/// As for [`post_send`].
#[cold]
unsafe fn refuse(first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr, failure: Failure) -> c_int {
    if first.is_null() {
        return 0;
    }
    // SAFETY: by this function's contract.
    unsafe { tell_bad(bad, first) };
    failure.tell()
}

/// Posts the requests of a list up to the first that fails.
///
/// # Safety
///
/// The pointers are to a list of requests and to room for a pointer.
#[inline(always)]
unsafe fn post<D: Listed>(
    qp: &QpObject,
    queue: &mut D::SendQueue,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> Result<()> {
    let start = queue.position();
    let mut end = start;
    let (mut next, mut result) = (first, Ok(()));
    // SAFETY: by this function's contract.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: by this function's contract.
        match unsafe { push::<D>(qp, queue, end, request) } {
            Ok(behind) => end = behind,
            Err(failure) => {
                // SAFETY: by this function's contract.
                unsafe { tell_bad(bad, next) };
                result = Err(failure);
                break;
            }
        }
        next = request.next;
    }
    let rung = queue.ring(start, end).map_err(|error| {
        // SAFETY: by this function's contract.
        unsafe { tell_bad(bad, first) };
        Failure::from(error)
    });
    // What the device does not know of comes before what was not written.
    rung.and(result)
}

/// Writes a request at `at` and returns the position after it. For the usual operations of a connected queue
/// pair there is code that writes only this operation.
///
/// # Safety
///
/// The request is as `ibv_post_send(3)` describes.
#[inline(always)]
unsafe fn push<D: Listed>(
    qp: &QpObject,
    queue: &mut D::SendQueue,
    at: Position,
    request: &ibv_send_wr,
) -> Result<Position> {
    // SAFETY: all variants of the union are integers and pointers; the program has filled the one of the
    // operation.
    let rdma = unsafe { request.wr.rdma };
    let remote = remote(rdma.remote_addr, rdma.rkey);
    // SAFETY: by this function's contract.
    unsafe {
        match (qp.addressing, WrOpcode(request.opcode)) {
            (Addressing::Connection, WrOpcode::RDMA_WRITE) => {
                write::<D>(qp, queue, at, request, Operation::Write { remote }, None)
            }
            (Addressing::Connection, WrOpcode::SEND) => {
                write::<D>(qp, queue, at, request, Operation::Send, None)
            }
            (Addressing::Connection, WrOpcode::RDMA_READ) => {
                write::<D>(qp, queue, at, request, Operation::Read { remote }, None)
            }
            (Addressing::EachRequest, _) => push_datagram::<D>(qp, queue, at, request),
            _ => push_any::<D>(qp, queue, at, request),
        }
    }
}

/// Writes a request to a destination that an address handle names.
///
/// # Safety
///
/// As for [`push`].
#[inline(never)]
unsafe fn push_datagram<D: Listed>(
    qp: &QpObject,
    queue: &mut D::SendQueue,
    at: Position,
    request: &ibv_send_wr,
) -> Result<Position> {
    let operation = match WrOpcode(request.opcode) {
        WrOpcode::SEND => Operation::Send,
        WrOpcode::SEND_WITH_IMM => Operation::SendImm {
            imm: u32::from_be(request.ex),
        },
        // A list has no room for both a destination and the memory of a peer.
        _ => return Err(Failure::INVALID),
    };
    // SAFETY: the request has this form, and the handle is the program's.
    let (ud, ah) = unsafe { (request.wr.ud, ah(request.wr.ud.ah)?) };
    let to = ah.to::<D>(ud.remote_qpn, ud.remote_qkey)?;
    // SAFETY: by this function's contract.
    unsafe { write::<D>(qp, queue, at, request, operation, Some(to)) }
}

/// Writes a request with any operation, on a queue pair of the other kinds.
///
/// # Safety
///
/// As for [`push`].
#[inline(never)]
unsafe fn push_any<D: Listed>(
    qp: &QpObject,
    queue: &mut D::SendQueue,
    at: Position,
    request: &ibv_send_wr,
) -> Result<Position> {
    // SAFETY: by this function's contract.
    let Some(operation) = (unsafe { operation(request) }) else {
        // SAFETY: by this function's contract.
        return unsafe { push_of_key::<D>(qp, queue, at, request) };
    };
    let to = match qp.addressing {
        Addressing::Connection => None,
        Addressing::PeersSrq => Some(Destination::Srq(request.remote_srqn)),
        // Only functions can name targets, and datagrams have code of their own.
        Addressing::EachTarget | Addressing::EachRequest => return Err(Failure::INVALID),
    };
    // SAFETY: by this function's contract.
    unsafe { write::<D>(qp, queue, at, request, operation, to) }
}

/// Bytes of a program. The pointer may be NULL if there are none.
///
/// # Safety
/// There are `length` bytes at `from`, for as long as the slice is used.
#[inline(always)]
pub(super) unsafe fn bytes<'a>(from: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: by this function's contract.
        _ => unsafe { slice::from_raw_parts(from.cast(), length) },
    }
}

/// Writes a request that has a payload.
///
/// # Safety
///
/// As for [`push`].
#[inline(always)]
unsafe fn write<D: Listed>(
    qp: &QpObject,
    queue: &mut D::SendQueue,
    at: Position,
    request: &ibv_send_wr,
    operation: Operation,
    to: Option<Destination<'_, D::Ah>>,
) -> Result<Position> {
    check(qp, operation)?;
    let flags = SendFlags::from_bits_retain(request.send_flags);
    let sges = match request.num_sge {
        // SAFETY: by this function's contract.
        1 => unsafe { list(request.sg_list, 1) },
        count => {
            // Before any of them is read: there may be fewer than the request says.
            check_count::<D>(qp, queue, flags, count)?;
            // SAFETY: by this function's contract.
            unsafe { list(request.sg_list, count) }
        }
    };
    let words: SmallVec<[ibv_sge; 2]>;
    let sges = match operation {
        Operation::CompareSwap { remote, .. } | Operation::FetchAdd { remote, .. } => {
            if qp.refusals.bad_atomics && !is_atomic(remote, sges) {
                return Err(Failure::INVALID);
            }
            words = words_of(qp, sges);
            &words
        }
        _ => sges,
    };
    let with = |payload| WorkRequest {
        wr_id: request.wr_id,
        flags: flags.intersection(D::REFUSALS.flags),
        operation,
        to,
        payload,
    };
    // Most requests have one slice: for these there is code without loops.
    let written = match (flags.contains(SendFlags::INLINE), sges) {
        (false, [one]) => queue.write(at, with(Payload::Sges(slice::from_ref(one)))),
        (false, _) => queue.write(at, with(Payload::Sges(sges))),
        (true, [one]) => {
            let from = with_exposed_provenance::<c_void>(one.addr as usize);
            // SAFETY: the program has the bytes there.
            let bytes = unsafe { bytes(from, one.length as usize) };
            queue.write(at, with(Payload::Inline(bytes)))
        }
        // SAFETY: as above.
        (true, _) => queue.write(at, with(Payload::InlineSges(unsafe { Pieces::new(sges) }))),
    };
    written.map_err(|error| Failure::of_request(error, &qp.refusals))
}

/// Refuses a number of slices that the queue does not take, or that is negative.
#[inline(always)]
fn check_count<D: Listed>(
    qp: &QpObject,
    queue: &D::SendQueue,
    flags: SendFlags,
    count: c_int,
) -> Result<()> {
    let is_exempt = D::REFUSALS.inline_of_any_count && flags.contains(SendFlags::INLINE);
    match u32::try_from(count) {
        Ok(count) if count <= queue.max_sge() || is_exempt => Ok(()),
        Ok(_) => Err(Failure(qp.refusals.long_request)),
        Err(_) if is_refused_count(qp, count) => Err(Failure::INVALID),
        Err(_) => Ok(()),
    }
}

/// Whether this number of slices is negative, and the device's provider refuses that.
fn is_refused_count(qp: &QpObject, count: c_int) -> bool {
    count < 0 && qp.refusals.negative_counts
}

/// Whether an atomic operation can work on this word, with room for its old value in these slices.
fn is_atomic(remote: Remote, sges: &[ibv_sge]) -> bool {
    let room: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    room >= 8 && remote.address.is_multiple_of(8)
}

/// The slices of an atomic operation in the device's form. Some programs pass the length of their memory, and
/// the provider replaces it by 8 bytes, the only length that a device accepts.
fn words_of(qp: &QpObject, sges: &[ibv_sge]) -> SmallVec<[ibv_sge; 2]> {
    let word = |sge: &ibv_sge| match sge.length {
        0 => *sge,
        _ => ibv_sge { length: 8, ..*sge },
    };
    match qp.refusals.atomics_of_any_length {
        true => sges.iter().map(word).collect(),
        false => sges.iter().copied().collect(),
    }
}

/// Writes a request that changes what a key refers to. It has no payload.
///
/// # Safety
///
/// As for [`push`].
#[cold]
#[inline(never)]
unsafe fn push_of_key<D: Listed>(
    qp: &QpObject,
    queue: &mut D::SendQueue,
    at: Position,
    request: &ibv_send_wr,
) -> Result<Position> {
    let operation = match WrOpcode(request.opcode) {
        WrOpcode::LOCAL_INV => Operation::LocalInv {
            rkey: RemoteKey(request.ex),
        },
        WrOpcode::BIND_MW => {
            let bind = &request.bind_mw;
            // SAFETY: by this function's contract.
            unsafe { binding(bind.mw, bind.rkey, &bind.bind_info)? }
        }
        _ => return Err(Failure::INVALID),
    };
    check(qp, operation)?;
    if request.num_sge > 0 || is_refused_count(qp, request.num_sge) {
        return Err(Failure::INVALID);
    }
    let request = WorkRequest {
        wr_id: request.wr_id,
        flags: SendFlags::from_bits_retain(request.send_flags).intersection(D::REFUSALS.flags),
        operation,
        to: None,
        payload: Payload::Sges(&[]),
    };
    Ok(queue.write(at, request)?)
}

/// Refuses an operation that would break the queue pair, or that the queue pair does not have.
#[inline(always)]
pub(super) fn check(qp: &QpObject, operation: Operation) -> Result<()> {
    match qp.operations.contains(operation.needs()) {
        true => Ok(()),
        false => Err(Failure::INVALID),
    }
}

/// The start of a piece of a peer's memory, in the form of requests.
#[inline(always)]
pub(super) fn remote(address: u64, rkey: u32) -> Remote {
    Remote {
        address,
        rkey: RemoteKey(rkey),
    }
}

/// The operation of a request with a payload; `None` for all others.
///
/// # Safety
///
/// As for [`push`].
#[inline(always)]
unsafe fn operation(request: &ibv_send_wr) -> Option<Operation> {
    // It is in network byte order in the request.
    let imm = u32::from_be(request.ex);
    let rkey = RemoteKey(request.ex);
    // SAFETY: all variants of the union are integers and pointers. Only those of the operation are used, and
    // the program has filled these.
    let (rdma, atomic) = unsafe { (request.wr.rdma, request.wr.atomic) };
    let target = remote(atomic.remote_addr, atomic.rkey);
    let remote = remote(rdma.remote_addr, rdma.rkey);
    Some(match WrOpcode(request.opcode) {
        WrOpcode::SEND => Operation::Send,
        WrOpcode::SEND_WITH_IMM => Operation::SendImm { imm },
        WrOpcode::SEND_WITH_INV => Operation::SendInv { rkey },
        WrOpcode::RDMA_WRITE => Operation::Write { remote },
        WrOpcode::RDMA_WRITE_WITH_IMM => Operation::WriteImm { remote, imm },
        WrOpcode::RDMA_READ => Operation::Read { remote },
        WrOpcode::ATOMIC_CMP_AND_SWP => Operation::CompareSwap {
            remote: target,
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        WrOpcode::ATOMIC_FETCH_AND_ADD => Operation::FetchAdd {
            remote: target,
            add: atomic.compare_add,
        },
        // ATOMIC_WRITE is for functions alone, which have its 8 bytes.
        _ => return None,
    })
}
