//! Posting send requests by lists of them (`ibv_post_send`).

use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance;
use std::slice;

use uverbs_uapi::enums::WrOpcode;
use uverbs_uapi::flags::SendFlags;

use super::abi::queue::ibv_qp;
use super::abi::work::{ibv_send_wr, ibv_sge};
use super::ah::AhObject;
use super::failure::{Failure, Result, status};
use super::lock::Locked;
use super::mw::binding;
use super::object::object;
use super::qp::QpObject;
use super::recv::{list, tell_bad};
use super::wr::Session;
use crate::driver::contract::methods::*;
use crate::driver::typed::BatchOf;
use crate::driver::{Listed, SendQueue};
use crate::work::{Destination, Operation, Payload, Pieces, Remote, RemoteKey};

/// What posts to a send queue.
pub(super) struct Sender {
    /// Between `ibv_wr_start` and `ibv_wr_complete`. What is open borrows the queue, and goes before it.
    pub(super) session: Session,
    /// None for a target of XRC alone.
    queue: Option<SendQueue>,
}

impl Sender {
    pub(super) fn new(queue: SendQueue) -> Self {
        Self {
            session: Session::new(Some(&queue)),
            queue: Some(queue),
        }
    }

    /// What has no send queue: nobody ever takes its lock.
    pub(super) fn closed() -> Locked<Self> {
        Locked::closed(Self {
            session: Session::new(None),
            queue: None,
        })
    }

    /// Starts a batch, which another call may ring.
    ///
    /// # Safety
    ///
    /// The pointer is to a sender whose lock the caller holds until the batch is gone, and nobody else uses
    /// the queue meanwhile. The queue is of a device of that driver's.
    pub(super) unsafe fn batch<'q, D: Listed>(sender: *mut Self) -> BatchOf<'q, D> {
        // SAFETY: by this function's contract; where there is no queue nobody takes the lock. The reference
        // is to the queue alone.
        unsafe {
            let queue = (*sender).queue.as_mut().unwrap_unchecked();
            D::get_mut(queue).unwrap_unchecked().batch()
        }
    }

    pub(super) fn queue_mut(&mut self) -> Option<&mut SendQueue> {
        self.queue.as_mut()
    }
}

/// `ibv_post_send(3)`, on queue pairs of a driver's devices: the requests before the one that fails are
/// posted. Programs call it by the queue pair's context, so there is a queue pair.
pub(super) unsafe extern "C" fn post_send<D: Listed>(
    c: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a queue pair, a list of requests, and room for a pointer. `post` gives the
    // lock back.
    unsafe {
        let qp = object::<QpObject>(c).unwrap_unchecked();
        if qp.send.is_skipped() {
            return post_alone::<D>(qp, first, bad);
        }
        if !qp.send.try_acquire_through(&qp.sends) {
            return post_after::<D>(qp, first, bad);
        }
        post::<D>(qp, first, bad)
    }
}

/// As [`post_send`], in a thread domain. By itself, so that there is no detour for others.
///
/// # Safety
///
/// As there.
#[inline(never)]
unsafe fn post_alone<D: Listed>(
    qp: &QpObject,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by this function's contract; the lock is nobody's.
    unsafe {
        match qp.sends.is_shut() {
            true => refuse(qp, first, bad),
            false => post::<D>(qp, first, bad),
        }
    }
}

/// As [`post_send`], when the lock is free, or where nothing can be posted.
///
/// # Safety
///
/// As there.
#[cold]
#[inline(never)]
unsafe fn post_after<D: Listed>(
    qp: &QpObject,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    if qp.is_target() || qp.sends.is_shut() {
        // SAFETY: by this function's contract.
        return unsafe { refuse(qp, first, bad) };
    }
    qp.send.acquire_slowly();
    // SAFETY: by this function's contract.
    unsafe { post::<D>(qp, first, bad) }
}

/// Refuses a list of requests, unless it is empty, for a queue pair that takes none, or none yet.
///
/// # Safety
///
/// As of [`post_send`].
unsafe fn refuse(qp: &QpObject, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    if first.is_null() {
        return 0;
    }
    // SAFETY: by this function's contract.
    unsafe { tell_bad(bad, first) };
    match qp.is_target() {
        true => Failure::INVALID.tell(),
        false => Failure(qp.refusals.long_request).tell(),
    }
}

/// Posts the requests of a list up to the first that fails, and gives the lock back.
///
/// # Safety
///
/// The queue pair is of a device of that driver's, and its send queue's lock was taken. The pointers are to a
/// list of requests and to room for a pointer.
#[inline(never)]
unsafe fn post<D: Listed>(
    qp: &QpObject,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by this function's contract.
    let mut batch = unsafe { Sender::batch::<D>(qp.send.pointer()) };
    let (mut next, mut result) = (first, Ok(()));
    // SAFETY: by this function's contract.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: the program has filled the form of the union that the operation has.
        let rdma = unsafe { request.wr.rdma };
        let remote = remote(rdma.remote_addr, rdma.rkey);
        let is_usual = !qp.names_destination && request.num_sge == 1;
        // For each of the usual operations there is code that writes it and no other.
        // SAFETY: by this function's contract; there is one slice.
        let pushed = unsafe {
            match WrOpcode(request.opcode) {
                WrOpcode::RDMA_WRITE if is_usual => {
                    add_usual::<D>(qp, &mut batch, request, Operation::Write { remote })
                }
                WrOpcode::SEND if is_usual => {
                    add_usual::<D>(qp, &mut batch, request, Operation::Send)
                }
                WrOpcode::RDMA_READ if is_usual => {
                    add_usual::<D>(qp, &mut batch, request, Operation::Read { remote })
                }
                _ => {
                    let (same, pushed) = push::<D>(qp, batch, request);
                    batch = same;
                    pushed
                }
            }
        };
        if let Err(failure) = pushed {
            // SAFETY: by this function's contract.
            unsafe { tell_bad(bad, next) };
            result = Err(failure);
            break;
        }
        next = request.next;
    }
    let rung = batch.ring();
    // SAFETY: by this function's contract; nothing refers to the queue any more.
    unsafe { qp.send.release() };
    status(result.and(rung.map(drop).map_err(Failure::from)))
}

/// The flags that belong to a request whatever it carries.
pub(super) const FLAGS: SendFlags = SendFlags::FENCE
    .union(SendFlags::SIGNALED)
    .union(SendFlags::SOLICITED);

/// Adds a request to a batch, which comes back: what is lent for a call that is seldom made would lie in
/// memory throughout.
///
/// # Safety
///
/// The request is what `ibv_post_send(3)` says of it.
#[inline(never)]
unsafe fn push<'q, D: Listed>(
    qp: &QpObject,
    mut batch: BatchOf<'q, D>,
    request: &ibv_send_wr,
) -> (BatchOf<'q, D>, Result<()>) {
    // SAFETY: by this function's contract.
    let pushed = unsafe { push_any::<D>(qp, &mut batch, request) };
    (batch, pushed)
}

/// Adds a request of any operation to a batch.
///
/// # Safety
///
/// As of [`push`].
#[inline(always)]
unsafe fn push_any<D: Listed>(
    qp: &QpObject,
    batch: &mut BatchOf<'_, D>,
    request: &ibv_send_wr,
) -> Result<()> {
    // SAFETY: by this function's contract.
    let Some(operation) = (unsafe { operation(request) }) else {
        // SAFETY: by this function's contract.
        return unsafe { push_of_key::<D>(qp, batch, request) };
    };
    if !qp.names_destination {
        // SAFETY: by this function's contract.
        return unsafe { add::<D>(qp, batch, request, operation, None) };
    }
    if !qp.is_datagram() {
        let to = Destination::Srq(request.remote_srqn);
        // SAFETY: by this function's contract.
        return unsafe { add::<D>(qp, batch, request, operation, Some(to)) };
    }
    let pd = qp.pd.as_ref().ok_or(Failure::INVALID)?;
    // SAFETY: a request of a datagram queue pair has this form, and the handle is the program's.
    let (ud, ah) = unsafe { (request.wr.ud, object::<AhObject>(request.wr.ud.ah)) };
    let to = ah
        .ok_or(Failure::INVALID)?
        .to(ud.remote_qpn, ud.remote_qkey, pd.tag());
    // Another driver's is of another PD.
    let ah = D::get(to.ah).ok_or(Failure::INVALID)?;
    // SAFETY: by this function's contract.
    unsafe { add::<D>(qp, batch, request, operation, Some(to.with(ah))) }
}

/// Adds a request with one slice to a batch.
///
/// # Safety
///
/// As of [`push`], and there is one slice.
#[inline(always)]
unsafe fn add_usual<D: Listed>(
    qp: &QpObject,
    batch: &mut BatchOf<'_, D>,
    request: &ibv_send_wr,
    operation: Operation,
) -> Result<()> {
    check(qp, operation)?;
    let flags = SendFlags::from_bits_retain(request.send_flags);
    // SAFETY: by this function's contract.
    let sge = unsafe { &*request.sg_list };
    let pushed = match flags.contains(SendFlags::INLINE) {
        true => {
            // SAFETY: the program has the bytes there.
            let bytes = unsafe {
                bytes(
                    with_exposed_provenance(sge.addr as usize),
                    sge.length as usize,
                )
            };
            batch.push(operation, None, Payload::Inline(bytes))
        }
        false => batch.push(operation, None, Payload::Sges(slice::from_ref(sge))),
    };
    let mut slot = pushed.map_err(|error| Failure::of_request(error, &qp.refusals))?;
    slot.set_id(request.wr_id);
    slot.add_flags(flags.intersection(FLAGS));
    Ok(())
}

/// Bytes of a program's, which may be at NULL if there are none.
///
/// # Safety
///
/// There are so many bytes, for as long as the slice is used.
#[inline(always)]
pub(super) unsafe fn bytes<'a>(from: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: by this function's contract.
        _ => unsafe { slice::from_raw_parts(from.cast(), length) },
    }
}

/// Adds a request that carries something to a batch.
///
/// # Safety
///
/// As of [`push`].
#[inline(always)]
unsafe fn add<D: Listed>(
    qp: &QpObject,
    batch: &mut BatchOf<'_, D>,
    request: &ibv_send_wr,
    operation: Operation,
    to: Option<Destination<'_, D::Ah>>,
) -> Result<()> {
    check(qp, operation)?;
    let flags = SendFlags::from_bits_retain(request.send_flags);
    let sges = match request.num_sge > 0 {
        // SAFETY: by this function's contract.
        true => unsafe { list(request.sg_list, request.num_sge) },
        false if is_refused_count(qp, request) => return Err(Failure::INVALID),
        false => &[],
    };
    if let Operation::CompareSwap { remote, .. } | Operation::FetchAdd { remote, .. } = operation
        && qp.refusals.bad_atomics
        && !is_atomic(remote, sges)
    {
        return Err(Failure::INVALID);
    }
    let pushed = match flags.contains(SendFlags::INLINE) {
        true => {
            // SAFETY: the program has the bytes there.
            let pieces = unsafe { Pieces::new(sges) };
            batch.push(operation, to, Payload::InlineSges(pieces))
        }
        false => batch.push(operation, to, Payload::Sges(sges)),
    };
    let mut slot = pushed.map_err(|error| Failure::of_request(error, &qp.refusals))?;
    slot.set_id(request.wr_id);
    slot.add_flags(flags.intersection(FLAGS));
    Ok(())
}

/// Whether a request has fewer than no slices, and the device's provider refuses that.
#[inline(always)]
fn is_refused_count(qp: &QpObject, request: &ibv_send_wr) -> bool {
    request.num_sge < 0 && qp.refusals.negative_counts
}

/// Whether an atomic operation can work on this word, with room for its old value in these slices.
fn is_atomic(remote: Remote, sges: &[ibv_sge]) -> bool {
    let room: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    room >= 8 && remote.address.is_multiple_of(8)
}

/// Adds a request that changes what a key stands for. It carries nothing.
///
/// # Safety
///
/// As of [`push`].
#[cold]
#[inline(never)]
unsafe fn push_of_key<D: Listed>(
    qp: &QpObject,
    batch: &mut BatchOf<'_, D>,
    request: &ibv_send_wr,
) -> Result<()> {
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
    if request.num_sge > 0 || is_refused_count(qp, request) {
        return Err(Failure::INVALID);
    }
    let mut slot = batch.push(operation, None, Payload::Sges(&[]))?;
    slot.set_id(request.wr_id);
    slot.add_flags(SendFlags::from_bits_retain(request.send_flags).intersection(FLAGS));
    Ok(())
}

/// Refuses an operation that would break the queue pair, or that it does not have.
#[inline(always)]
pub(super) fn check(qp: &QpObject, operation: Operation) -> Result<()> {
    match qp.operations.contains(operation.needs()) {
        true => Ok(()),
        false => Err(Failure::INVALID),
    }
}

/// The start of a piece of a peer's memory, as requests have it.
#[inline(always)]
pub(super) fn remote(address: u64, rkey: u32) -> Remote {
    Remote {
        address,
        rkey: RemoteKey(rkey),
    }
}

/// What a request does that carries something; None for all others.
///
/// # Safety
///
/// As of [`push`].
#[inline(always)]
unsafe fn operation(request: &ibv_send_wr) -> Option<Operation> {
    // In network byte order in the request.
    let imm = u32::from_be(request.ex);
    let rkey = RemoteKey(request.ex);
    // SAFETY: all forms of the union are integers and pointers, of which those are looked at that the
    // operation has; the program has filled these.
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
        WrOpcode::ATOMIC_WRITE => Operation::AtomicWrite { remote },
        _ => return None,
    })
}
