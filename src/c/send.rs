//! Posting send requests by lists of them (`ibv_post_send`).

use std::ffi::c_int;

use uverbs_uapi::enums::WrOpcode;
use uverbs_uapi::flags::SendFlags;

use super::abi::queue::ibv_qp;
use super::abi::work::ibv_send_wr;
use super::ah::AhObject;
use super::failure::{Failure, Result, status};
use super::mw::binding;
use super::object::object;
use super::qp::{QpObject, qp};
use super::recv::list;
use super::wr::Session;
use crate::driver::{SendBatch, SendQueue};
use crate::work::{Operation, Payload, Pieces, Remote, RemoteKey};

/// What posts to a send queue.
pub(super) struct Sender {
    /// Between `ibv_wr_start` and `ibv_wr_complete`. What is open borrows the queue, and goes before it.
    pub(super) session: Session,
    queue: SendQueue,
}

impl Sender {
    pub(super) fn new(queue: SendQueue) -> Self {
        Self {
            session: Session::default(),
            queue,
        }
    }

    pub(super) fn queue(&self) -> &SendQueue {
        &self.queue
    }

    /// Starts a batch that is rung by another call.
    ///
    /// # Safety
    ///
    /// The pointer is to a sender whose lock the caller holds until the batch is gone, and nobody else uses the
    /// queue meanwhile.
    pub(super) unsafe fn open(sender: *mut Self) -> SendBatch<'static> {
        // SAFETY: by this function's contract. The reference is to the queue alone.
        unsafe {
            let queue = &mut (*sender).queue;
            queue.batch()
        }
    }

    pub(super) fn queue_mut(&mut self) -> &mut SendQueue {
        &mut self.queue
    }
}

/// `ibv_post_send(3)`: the requests before the one that fails are posted.
pub(super) unsafe extern "C" fn post_send(
    c: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller passes a queue pair, a list of requests, and room for a pointer.
    status(unsafe { qp(c).and_then(|qp| post(qp, first, bad)) })
}

/// Posts the requests of a list up to the first that fails.
///
/// # Safety
///
/// The pointers are to a list of requests and to room for a pointer.
#[inline(always)]
unsafe fn post(qp: &QpObject, first: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> Result<()> {
    let mut sender = qp.send.lock();
    let mut batch = sender.queue.batch();
    let (mut next, mut result) = (first, Ok(()));
    // SAFETY: by this function's contract.
    while let Some(request) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        if let Err(failure) = unsafe { push(qp, &mut batch, request) } {
            // SAFETY: as above.
            unsafe { *bad = next };
            result = Err(failure);
            break;
        }
        next = request.next;
    }
    let rung = batch.ring();
    result?;
    rung?;
    Ok(())
}

/// The flags that belong to a request whatever it carries.
pub(super) const FLAGS: SendFlags = SendFlags::FENCE
    .union(SendFlags::SIGNALED)
    .union(SendFlags::SOLICITED);

/// Adds a request to a batch.
///
/// # Safety
///
/// The request is what `ibv_post_send(3)` says of it.
#[inline(always)]
unsafe fn push(qp: &QpObject, batch: &mut SendBatch<'_>, request: &ibv_send_wr) -> Result<()> {
    let flags = SendFlags::from_bits_retain(request.send_flags);
    // SAFETY: by this function's contract.
    let Some(operation) = (unsafe { operation(request) }) else {
        // SAFETY: by this function's contract.
        return unsafe { push_of_key(qp, batch, request) };
    };
    // SAFETY: by this function's contract.
    let sges = unsafe { list(request.sg_list, request.num_sge) };
    check(qp, operation)?;
    let payload = match flags.contains(SendFlags::INLINE) {
        // SAFETY: the program has the bytes there.
        true => Payload::InlineSges(unsafe { Pieces::new(sges) }),
        false => Payload::Sges(sges),
    };
    let to = match qp.is_datagram() {
        false => None,
        true => {
            // SAFETY: a request of a datagram queue pair has this form, and the handle is the program's.
            let (ud, ah) = unsafe { (request.wr.ud, object::<AhObject>(request.wr.ud.ah)) };
            let ah = ah.ok_or(Failure::INVALID)?;
            Some(ah.to(ud.remote_qpn, ud.remote_qkey, qp.pd.tag()))
        }
    };
    let pushed = batch.push(operation, to, payload);
    let mut slot = pushed.map_err(|error| Failure::of_request(error, &qp.refusals))?;
    slot.set_id(request.wr_id);
    slot.add_flags(flags.intersection(FLAGS));
    Ok(())
}

/// Adds a request that changes what a key stands for. It carries nothing.
///
/// # Safety
///
/// As of [`push`].
#[cold]
#[inline(never)]
unsafe fn push_of_key(
    qp: &QpObject,
    batch: &mut SendBatch<'_>,
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
    if request.num_sge > 0 {
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
    // SAFETY: all forms of the union are integers and pointers, of which those are looked at that the operation
    // has; the program has filled these.
    let (rdma, atomic) = unsafe { (request.wr.rdma, request.wr.atomic) };
    let remote = Remote {
        address: rdma.remote_addr,
        rkey: RemoteKey(rdma.rkey),
    };
    let target = Remote {
        address: atomic.remote_addr,
        rkey: RemoteKey(atomic.rkey),
    };
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
