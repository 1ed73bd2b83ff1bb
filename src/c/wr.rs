//! Posting by a function for each step (`ibv_wr_start`, `ibv_wr_send`, `ibv_wr_set_sge`, ...). The send
//! queue's lock is held from the start to the end.
//!
//! A request that goes to where its queue pair is connected is written into the ring as it is told of, which
//! [`super::wr_connected`] does. Others are kept, and written at their last step: that is for datagrams and
//! XRC the second of payload and address, whichever that is, and elsewhere the payload. A request to which no
//! payload comes has none, which is known when the next begins, or at the end. An error waits until the end,
//! and then nothing is posted.

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::NonNull;

use smallvec::SmallVec;
use uverbs_uapi::enums::FlushLevel;
use uverbs_uapi::flags::{FlushPlacement, SendFlags};

use super::abi::queue::{ibv_ah, ibv_mw, ibv_qp, ibv_qp_ex};
use super::abi::work::{ibv_data_buf, ibv_mw_bind_info, ibv_sge};
use super::ah::AhObject;
use super::failure::{Failure, Result, status};
use super::mw::binding;
use super::object::object;
use super::qp::QpObject;
use super::send::{FLAGS, Sender, bytes, check, remote};
use super::wr_connected as connected;
use crate::driver::contract::Opened;
use crate::driver::contract::methods::*;
use crate::driver::typed::{BatchOf, ForDriver};
use crate::driver::{Listed, SendBatch, SendQueue};
use crate::error::Errno;
use crate::qp::transport::Addressing;
use crate::work::{Destination, Operation, Operations, Payload, RemoteKey};

/// What has been asked for since `ibv_wr_start`.
pub(super) struct Session {
    batch: Option<SendBatch<'static>>,
    pub(super) step: Step,
    /// The request that is in the ring but for its payload, if one is.
    pub(super) opened: Opened,
    /// The last request that has begun and is kept.
    request: Request,
    /// Where a request goes that names it, if that came before its payload.
    to: Option<Address>,
    /// The payload of such a request, if that came before its address.
    payload: Option<Saved>,
    /// What a request can have. Lengths are compared with it before anything is read or written.
    pub(super) max_sge: usize,
    pub(super) max_inline: usize,
}

/// Where a session is.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// No request has begun, or the last one is written.
    Between,
    /// A request is in the ring but for its payload.
    Open,
    /// A request has begun, and is kept.
    Begun,
    /// Nothing will be posted.
    Failed(Failure),
    /// It has not been started, or is complete. In all others there is a batch.
    Over,
}

/// A request as far as its first step tells.
#[derive(Clone, Copy)]
struct Request {
    operation: Operation,
    wr_id: u64,
    flags: SendFlags,
}

#[derive(Clone, Copy)]
enum Address {
    Datagram {
        ah: *mut ibv_ah,
        qpn: u32,
        qkey: u32,
    },
    Srq(u32),
}

enum Saved {
    Sges(SmallVec<[ibv_sge; 4]>),
    Inline(Copied),
}

/// The extended struct of a queue pair to which nobody posts.
pub(super) fn without_functions(qp: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: None,
        wr_atomic_fetch_add: None,
        wr_bind_mw: None,
        wr_local_inv: None,
        wr_rdma_read: None,
        wr_rdma_write: None,
        wr_rdma_write_imm: None,
        wr_send: None,
        wr_send_imm: None,
        wr_send_inv: None,
        wr_send_tso: None,
        wr_set_ud_addr: None,
        wr_set_xrc_srqn: None,
        wr_set_inline_data: None,
        wr_set_inline_data_list: None,
        wr_set_sge: None,
        wr_set_sge_list: None,
        wr_start: None,
        wr_complete: None,
        wr_abort: None,
        wr_atomic_write: None,
        wr_flush: None,
    }
}

/// The extended struct of a queue pair, with its driver's functions, which programs call through it.
pub(super) struct Extended {
    pub(super) qp: ibv_qp,
    /// Its requests name where they go.
    pub(super) names_destination: bool,
    /// Nothing is posted at first.
    pub(super) closed: bool,
}

impl ForDriver for Extended {
    type Output = ibv_qp_ex;

    fn run<D: Listed>(self) -> ibv_qp_ex {
        let kept = ibv_qp_ex {
            qp: self.qp,
            comp_mask: 0,
            wr_id: 0,
            wr_flags: 0,
            wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
            wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
            wr_bind_mw: Some(wr_bind_mw),
            wr_local_inv: Some(wr_local_inv),
            wr_rdma_read: Some(wr_rdma_read),
            wr_rdma_write: Some(wr_rdma_write),
            wr_rdma_write_imm: Some(wr_rdma_write_imm),
            wr_send: Some(wr_send),
            wr_send_imm: Some(wr_send_imm),
            wr_send_inv: Some(wr_send_inv),
            wr_send_tso: Some(wr_send_tso),
            wr_set_ud_addr: Some(wr_set_ud_addr),
            wr_set_xrc_srqn: Some(wr_set_xrc_srqn),
            wr_set_inline_data: Some(wr_set_inline_data),
            wr_set_inline_data_list: Some(wr_set_inline_data_list),
            wr_set_sge: Some(wr_set_sge),
            wr_set_sge_list: Some(wr_set_sge_list),
            wr_start: Some(wr_start::<D>),
            wr_complete: Some(Completion(self.closed).run::<D>()),
            wr_abort: Some(wr_abort),
            wr_atomic_write: Some(wr_atomic_write),
            wr_flush: Some(wr_flush),
        };
        match self.names_destination {
            true => kept,
            false => connected::with_functions::<D>(kept),
        }
    }
}

/// The queue pair of an extended struct. Programs call these functions through the struct, so it is there.
///
/// # Safety
///
/// The pointer is to a queue pair.
#[inline(always)]
unsafe fn queue_pair<'a>(c: *mut ibv_qp_ex) -> &'a QpObject {
    // SAFETY: by this function's contract, it is not NULL.
    unsafe { object::<QpObject>(c.cast()).unwrap_unchecked() }
}

/// The queue pair of an extended struct, with its session.
///
/// # Safety
///
/// The pointer is to a queue pair, between `ibv_wr_start` and `ibv_wr_complete` of the caller's.
#[inline(always)]
pub(super) unsafe fn session<'a>(c: *mut ibv_qp_ex) -> (&'a QpObject, &'a mut Session) {
    // SAFETY: by this function's contract the caller holds the lock. The reference is to the session alone:
    // what is open in it borrows the queue beside it.
    unsafe {
        let qp = queue_pair(c);
        (qp, &mut (*qp.send.pointer()).session)
    }
}

/// `ibv_wr_start(3)`.
unsafe extern "C" fn wr_start<D: Listed>(c: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a queue pair. The lock is held until the batch is gone.
    unsafe {
        let qp = queue_pair(c);
        qp.send.acquire();
        let sender = qp.send.pointer();
        let batch = Sender::batch::<D>(sender);
        // The rest is as the last request has left it, and is set when the next begins.
        let session = &mut (*sender).session;
        session.batch = Some(SendBatch::of::<D>(batch));
        session.step = Step::Between;
    }
}

/// `ibv_wr_complete(3)`: posts all requests, or none if one is wrong.
unsafe extern "C" fn wr_complete<D: Listed>(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller has started.
    unsafe {
        let (qp, session) = session(c);
        if !matches!(session.step, Step::Between) {
            return complete_otherwise::<D>(c);
        }
        match session.batch_of::<D>().ring() {
            Ok(_) => {
                session.end_all();
                qp.send.release_with(0)
            }
            Err(errno) => complete_failed(c, errno),
        }
    }
}

/// The end of [`wr_complete`] if the doorbell has failed.
///
/// # Safety
///
/// As of [`session`].
#[cold]
#[inline(never)]
unsafe fn complete_failed(c: *mut ibv_qp_ex, errno: Errno) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session) = session(c);
        session.end_all();
        qp.send.release_with(Failure(errno).tell())
    }
}

/// As [`wr_complete`], behind a request without a payload or a failure.
///
/// # Safety
///
/// As of [`session`], and the queue pair is of a device of that driver's.
#[cold]
#[inline(never)]
unsafe fn complete_otherwise<D: Listed>(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session) = session(c);
        session.end_bare(qp);
        let result = match session.step {
            Step::Between => {
                let rung = session.batch_of::<D>().ring();
                rung.map(drop).map_err(Failure::from)
            }
            Step::Failed(failure) => Err(failure),
            Step::Open | Step::Begun | Step::Over => Err(Failure::INVALID),
        };
        session.end_all();
        qp.send.release_with(status(result))
    }
}

/// What posts all requests, or refuses them if nothing can be posted yet.
pub(super) struct Completion(pub(super) bool);

impl ForDriver for Completion {
    type Output = unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int;

    fn run<D: Listed>(self) -> Self::Output {
        match self.0 {
            true => wr_complete_early,
            false => wr_complete::<D>,
        }
    }
}

/// `ibv_wr_complete(3)` in a state in which nothing can be posted.
unsafe extern "C" fn wr_complete_early(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller has started.
    unsafe { wr_abort(c) };
    Failure::INVALID.tell()
}

/// `ibv_wr_abort(3)`.
unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: the caller has started.
    unsafe {
        let (qp, session) = session(c);
        session.end_all();
        qp.send.release();
    }
}

/// Keeps what a request does, with its id and flags as they are now.
///
/// # Safety
///
/// As of [`session`].
#[inline(always)]
unsafe fn begin(c: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session) = session(c);
        if !matches!(session.step, Step::Between) || check(qp, operation).is_err() {
            // A copy: where the operation is noted straight it stays in registers.
            return begin_otherwise(c, black_box(operation));
        }
        note(c, qp, session, operation);
    }
}

/// As [`begin`], behind a request without a payload or a failure, or with an operation that the queue pair
/// does not have.
///
/// # Safety
///
/// As of [`session`].
#[cold]
#[inline(never)]
unsafe fn begin_otherwise(c: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session) = session(c);
        session.end_bare(qp);
        match (session.step, check(qp, operation)) {
            (Step::Between, Ok(())) => note(c, qp, session, operation),
            (_, Err(failure)) => session.fail(failure),
            _ => {}
        }
    }
}

/// Notes a request that may begin.
///
/// # Safety
///
/// The queue pair and the session are of the extended struct.
#[inline(always)]
unsafe fn note(c: *mut ibv_qp_ex, qp: &QpObject, session: &mut Session, operation: Operation) {
    session.step = Step::Begun;
    // SAFETY: by this function's contract.
    let (wr_id, flags) = unsafe { ((*c).wr_id, (*c).wr_flags) };
    session.request = Request {
        operation,
        wr_id,
        flags: SendFlags::from_bits_retain(flags).intersection(FLAGS),
    };
    if qp.names_destination {
        session.forget();
    }
}

/// Has all that was started fail.
///
/// # Safety
///
/// As of [`session`].
#[cold]
unsafe fn refuse(c: *mut ibv_qp_ex, failure: Failure) {
    // SAFETY: by this function's contract.
    let (qp, session) = unsafe { session(c) };
    // The request before has its place in the order of failures.
    session.end_bare(qp);
    session.fail(failure);
}

/// The payload of a request that has none.
const NOTHING: Payload<'static> = Payload::Sges(&[]);

/// A request that is whole with this payload.
///
/// # Safety
///
/// As of [`session`].
unsafe fn begin_and_end(c: *mut ibv_qp_ex, operation: Operation, payload: Payload<'_>) {
    // SAFETY: by this function's contract.
    unsafe {
        begin(c, operation);
        let (qp, session) = session(c);
        session.carry(qp, payload);
    }
}

impl Session {
    /// A session on this queue, or on none.
    pub(super) fn new(queue: Option<&SendQueue>) -> Self {
        Self {
            batch: None,
            step: Step::Over,
            opened: Opened {
                request: NonNull::dangling(),
                payload: NonNull::dangling(),
            },
            request: Request {
                operation: Operation::Send,
                wr_id: 0,
                flags: SendFlags::empty(),
            },
            to: None,
            payload: None,
            max_sge: queue.map_or(0, SendQueue::max_sge) as usize,
            max_inline: queue.map_or(0, SendQueue::max_inline) as usize,
        }
    }

    /// The batch.
    ///
    /// # Safety
    ///
    /// It is not over, and its queue is of a device of that driver's.
    #[inline(always)]
    pub(super) unsafe fn batch_of<D: Listed>(&mut self) -> &mut BatchOf<'static, D> {
        // SAFETY: by this function's contract.
        unsafe {
            let batch = self.batch.as_mut().unwrap_unchecked();
            batch.get_mut::<D>().unwrap_unchecked()
        }
    }

    /// Ends it.
    #[inline(always)]
    fn end_all(&mut self) {
        (self.batch, self.step) = (None, Step::Over);
    }

    /// Lets go of what belonged to the request before. Out of line, so that who begins keeps nothing for it.
    #[inline(never)]
    fn forget(&mut self) {
        (self.to, self.payload) = (None, None);
    }

    /// Has all that was started fail. The first failure counts.
    #[cold]
    pub(super) fn fail(&mut self, failure: Failure) {
        if !matches!(self.step, Step::Failed(_)) {
            self.step = Step::Failed(failure);
        }
    }

    /// As [`Self::fail`], for a payload that is too long.
    #[cold]
    fn fail_too_long(&mut self, qp: &QpObject) {
        self.fail(Failure(qp.refusals.by_functions));
    }

    /// Whether a request has begun. If not, what has been called has nothing to belong to.
    fn has_begun(&mut self) -> bool {
        if let Step::Between = self.step {
            self.fail(Failure::INVALID);
        }
        matches!(self.step, Step::Begun)
    }

    /// Ends a request that has begun, if one has: no payload came to it.
    #[cold]
    #[inline(never)]
    fn end_bare(&mut self, qp: &QpObject) {
        match (self.step, &mut self.batch) {
            (Step::Begun, _) => self.end(qp, NOTHING),
            (Step::Open, Some(batch)) => {
                // SAFETY: the step is that of a request which the batch has opened, and nothing else has used
                // the batch since.
                unsafe { batch.close(self.opened, NOTHING) };
                self.step = Step::Between;
            }
            _ => {}
        }
    }

    /// Writes a request that has been begun into the ring, once it is known where it goes.
    #[inline(never)]
    fn end(&mut self, qp: &QpObject, payload: Payload<'_>) {
        self.step = match self.push(qp, payload) {
            Ok(()) => Step::Between,
            Err(failure) => Step::Failed(failure),
        };
    }

    fn push(&mut self, qp: &QpObject, payload: Payload<'_>) -> Result<()> {
        let request = &self.request;
        let batch = self.batch.as_mut().ok_or(Failure::INVALID)?;
        let goes_nowhere = !qp.names_destination || changes_keys(request.operation);
        let to = match self.to.take() {
            None if goes_nowhere => None,
            None => return Err(Failure::INVALID),
            Some(Address::Srq(srqn)) => Some(Destination::Srq(srqn)),
            Some(Address::Datagram { ah, qpn, qkey }) => {
                // SAFETY: the program passed an address handle, which stays until the request has completed.
                let ah = unsafe { object::<AhObject>(ah) }.ok_or(Failure::INVALID)?;
                let pd = qp.pd.as_ref().ok_or(Failure::INVALID)?;
                Some(Destination::Datagram(ah.to(qpn, qkey, pd.tag())))
            }
        };
        let pushed = batch.push(request.operation, to, payload);
        let mut slot = pushed.map_err(|error| Failure::of_function(error, &qp.refusals))?;
        slot.set_id(request.wr_id);
        slot.add_flags(request.flags);
        Ok(())
    }

    /// Takes a payload: writes the request that has begun, or saves it until its address comes. What changes
    /// keys goes nowhere.
    fn carry(&mut self, qp: &QpObject, payload: Payload<'_>) {
        if !self.has_begun() {
            return;
        }
        let goes_nowhere = !qp.names_destination || changes_keys(self.request.operation);
        if goes_nowhere || self.to.is_some() {
            return self.end(qp, payload);
        }
        self.payload = match payload {
            Payload::Sges(sges) => Some(Saved::Sges(sges.into())),
            Payload::Inline(bytes) => Some(Saved::Inline(bytes.into())),
            Payload::Gather(_) | Payload::InlineSges(_) => None,
        };
    }
}

/// Whether a request changes what a key stands for.
fn changes_keys(operation: Operation) -> bool {
    Operations::OF_KEYS.contains(operation.needs())
}

/// `ibv_wr_set_ud_addr(3)`.
unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller has started.
    unsafe {
        address(
            c,
            Addressing::EachRequest,
            Address::Datagram { ah, qpn, qkey },
        )
    }
}

/// Takes the address of a request on a queue pair whose requests have such: writes the request if its payload was
/// there before.
///
/// # Safety
///
/// As of [`session`].
unsafe fn address(c: *mut ibv_qp_ex, addressing: Addressing, to: Address) {
    // SAFETY: by this function's contract.
    let (qp, session) = unsafe { session(c) };
    if Addressing::of(qp.transport) != addressing {
        return session.fail(Failure::INVALID);
    }
    if !session.has_begun() {
        return;
    }
    session.to = Some(to);
    match session.payload.take() {
        None => {}
        Some(Saved::Sges(sges)) => session.end(qp, Payload::Sges(&sges)),
        Some(Saved::Inline(bytes)) => session.end(qp, Payload::Inline(&bytes)),
    }
}

// What follows is called by the functions for connected queue pairs as well, as the last that they do. Out of
// line, so that they keep nothing for it.

/// `ibv_wr_set_sge(3)`.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller has started.
    let (qp, session) = unsafe { session(c) };
    session.carry(qp, Payload::Sges(&[ibv_sge { addr, length, lkey }]));
}

/// `ibv_wr_set_sge_list(3)`.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_set_sge_list(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: the caller has started, and passes a list of that length, unless that cannot be.
    unsafe {
        let (qp, session) = session(c);
        match count > session.max_sge {
            true => session.fail_too_long(qp),
            false => session.carry(qp, Payload::Sges(slices(list, count))),
        }
    }
}

/// A list of slices, which may be at NULL if it is empty.
///
/// # Safety
///
/// There are so many elements at `list`, for as long as the slice is used.
#[inline(always)]
pub(super) unsafe fn slices<'a>(list: *const ibv_sge, count: usize) -> &'a [ibv_sge] {
    // SAFETY: by this function's contract; no queue takes so many that the number would not fit.
    unsafe { super::recv::list(list, count as c_int) }
}

/// `ibv_wr_set_inline_data(3)`.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_set_inline_data(
    c: *mut ibv_qp_ex,
    from: *mut c_void,
    length: usize,
) {
    // SAFETY: the caller has started, and passes so many bytes, unless that cannot be.
    unsafe {
        let (qp, session) = session(c);
        match length > session.max_inline {
            true => session.fail_too_long(qp),
            false => session.carry(qp, Payload::Inline(bytes(from, length))),
        }
    }
}

/// `ibv_wr_set_inline_data_list(3)`.
pub(super) unsafe extern "C" fn wr_set_inline_data_list(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller has started, and passes a list of that length, each element with its bytes, unless
    // these are more than can be.
    unsafe {
        let mut gathered = Copied::new();
        if gather(c, &mut gathered, count, list) {
            wr_set_inline_data(c, gathered.as_mut_ptr().cast(), gathered.len());
        }
    }
}

/// Inline bytes that do not lie as a request needs them.
pub(super) type Copied = SmallVec<[u8; 128]>;

/// Gathers the pieces of a payload; false if nothing is to come of it.
///
/// # Safety
///
/// As of [`session`], and there are so many pieces, each with its bytes, unless these are more than can be.
pub(super) unsafe fn gather(
    c: *mut ibv_qp_ex,
    gathered: &mut Copied,
    count: usize,
    list: *const ibv_data_buf,
) -> bool {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session) = session(c);
        if let Step::Failed(_) = session.step {
            return false;
        }
        for at in 0..count {
            let piece = &*list.add(at);
            if piece.length > session.max_inline - gathered.len() {
                session.fail_too_long(qp);
                return false;
            }
            gathered.extend_from_slice(bytes(piece.addr, piece.length));
        }
        true
    }
}

/// `ibv_wr_send(3)`.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_send(c: *mut ibv_qp_ex) {
    // SAFETY: the caller has started, here as in the functions below.
    unsafe { begin(c, Operation::Send) }
}

/// `ibv_wr_send_imm(3)`; the immediate data are in network byte order.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_send_imm(c: *mut ibv_qp_ex, imm: u32) {
    let imm = u32::from_be(imm);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::SendImm { imm }) }
}

/// `ibv_wr_send_inv(3)`.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_send_inv(c: *mut ibv_qp_ex, rkey: u32) {
    let rkey = RemoteKey(rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::SendInv { rkey }) }
}

/// `ibv_wr_rdma_write(3)`.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_rdma_write(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::Write { remote }) }
}

/// `ibv_wr_rdma_write_imm(3)`; the immediate data are in network byte order.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_rdma_write_imm(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    imm: u32,
) {
    let (remote, imm) = (remote(address, rkey), u32::from_be(imm));
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::WriteImm { remote, imm }) }
}

/// `ibv_wr_rdma_read(3)`.
#[inline(never)]
pub(super) unsafe extern "C" fn wr_rdma_read(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::Read { remote }) }
}

/// `ibv_wr_atomic_cmp_swp(3)`.
unsafe extern "C" fn wr_atomic_cmp_swp(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    let operation = Operation::CompareSwap {
        remote: remote(address, rkey),
        compare,
        swap,
    };
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, operation) }
}

/// `ibv_wr_atomic_fetch_add(3)`.
unsafe extern "C" fn wr_atomic_fetch_add(c: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::FetchAdd { remote, add }) }
}

/// `ibv_wr_local_inv(3)`.
unsafe extern "C" fn wr_local_inv(c: *mut ibv_qp_ex, rkey: u32) {
    let rkey = RemoteKey(rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin_and_end(c, Operation::LocalInv { rkey }, NOTHING) }
}

/// `ibv_wr_bind_mw(3)`.
unsafe extern "C" fn wr_bind_mw(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as in `wr_send`, and the caller passes a window and what to bind it to.
    unsafe {
        let bind = info.as_ref().ok_or(Failure::INVALID);
        match bind.and_then(|info| binding(mw, rkey, info)) {
            Ok(bind) => begin_and_end(c, bind, NOTHING),
            Err(failure) => refuse(c, failure),
        }
    }
}

/// `ibv_wr_send_tso(3)`. No queue pair is created for it.
unsafe extern "C" fn wr_send_tso(c: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: as in `wr_send`.
    unsafe { refuse(c, Failure::UNSUPPORTED) }
}

/// `ibv_wr_set_xrc_srqn(3)`.
unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: as in `wr_send`.
    unsafe { address(c, Addressing::PeersSrq, Address::Srq(srqn)) }
}

/// `ibv_wr_atomic_write(3)`: 8 bytes.
unsafe extern "C" fn wr_atomic_write(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    word: *const c_void,
) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`, and the caller passes 8 bytes.
    unsafe {
        let word = Payload::Inline(bytes(word, 8));
        begin_and_end(c, Operation::AtomicWrite { remote }, word);
    }
}

/// `ibv_wr_flush(3)`.
unsafe extern "C" fn wr_flush(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    let operation = Operation::Flush {
        remote: remote(address, rkey),
        length: length as u32,
        placement: FlushPlacement::from_bits_retain(placement),
        level: FlushLevel(level.into()),
    };
    // SAFETY: as in `wr_send`.
    unsafe { begin_and_end(c, operation, NOTHING) }
}
