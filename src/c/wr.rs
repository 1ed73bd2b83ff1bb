//! Posting with a function for each step (`ibv_wr_start`, `ibv_wr_send`, `ibv_wr_set_sge`, ...). The send
//! queue's lock is held from the start to the end.
//!
//! The operation of a request is kept, and the request is written at its last step: on a connected queue pair
//! that is the payload; for datagrams and XRC it is the payload or the address, whichever comes second. A
//! request without a payload is written when the next begins, or at the end. An error waits until the end,
//! and then nothing is posted.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::slice;

use smallvec::SmallVec;
use uverbs_uapi::enums::FlushLevel;
use uverbs_uapi::flags::{FlushPlacement, SendFlags};

use super::abi::queue::{ibv_ah, ibv_mw, ibv_qp, ibv_qp_ex};
use super::abi::work::{ibv_data_buf, ibv_mw_bind_info, ibv_sge};
use super::ah;
use super::failure::{Failure, Result, status};
use super::mw::binding;
use super::object::object;
use super::qp::QpObject;
use super::send::{bytes, check, remote};
use crate::driver::contract::methods::*;
use crate::driver::typed::ForDriver;
use crate::driver::{Listed, Position, SendQueue};
use crate::qp::transport::Addressing;
use crate::work::{Destination, Operation, Operations, Payload, PostError, RemoteKey, WorkRequest};

/// The requests since `ibv_wr_start`.
pub(super) struct Session {
    step: Step,
    /// The position of the next request.
    end: Position,
    /// The last request that has begun.
    request: Request,
    /// The destination of the request that has begun, if requests name one and it came before the payload.
    to: Option<Address>,
    /// The payload of such a request, if it came before the address.
    saved: Saved,
    /// A driver's data about a request of its own, until all its parts have come.
    #[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
    own: Option<Box<dyn Any + Send>>,
    /// The limits of a request. Lengths are compared with them before anything is read or written.
    max_sge: usize,
    max_inline: usize,
}

/// The state of a session.
#[derive(Clone, Copy)]
enum Step {
    /// No request has begun, or the last one is written.
    Between,
    /// A request has begun, and its operation is kept.
    Begun,
    /// A request of a driver's own has begun, and not all of its parts have come.
    Announced,
    /// Nothing will be posted.
    Failed(Failure),
}

impl Step {
    fn has_begun(self) -> bool {
        matches!(self, Step::Begun)
    }
}

/// The data from the first call of a request.
#[derive(Clone, Copy)]
struct Request {
    operation: Operation,
    wr_id: u64,
    flags: SendFlags,
}

impl Request {
    /// The request with all its parts.
    #[inline(always)]
    fn whole<'a, A>(
        &self,
        operation: Operation,
        to: Option<Destination<'a, A>>,
        payload: Payload<'a>,
    ) -> WorkRequest<'a, A> {
        WorkRequest {
            wr_id: self.wr_id,
            flags: self.flags,
            operation,
            to,
            payload,
        }
    }
}

#[derive(Clone, Copy)]
enum Address {
    Datagram {
        ah: *mut ibv_ah,
        qpn: u32,
        qkey: u32,
    },
    Srq(u32),
    Target {
        ah: *mut ibv_ah,
        number: u32,
        key: u64,
        stream: u16,
    },
}

impl Address {
    /// The destination in its driver's form.
    #[inline(always)]
    fn destination<D: Listed>(self) -> Result<Destination<'static, D::Ah>> {
        match self {
            Self::Srq(srqn) => Ok(Destination::Srq(srqn)),
            Self::Datagram { ah, qpn, qkey } => {
                // SAFETY: the program passed an address handle, which stays until the request has completed.
                unsafe { ah::ah(ah)? }.to::<D>(qpn, qkey)
            }
            Self::Target {
                ah,
                number,
                key,
                stream,
            } => {
                // SAFETY: as above.
                unsafe { ah::ah(ah)? }.to_target::<D>(number, key, stream)
            }
        }
    }
}

/// A payload that waits for its address. All requests of the queue pair reuse its memory.
#[derive(Default)]
struct Saved {
    form: Option<Form>,
    sges: Vec<ibv_sge>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Form {
    /// Most payloads are one slice: for these there is code without loops.
    Slice(ibv_sge),
    Sges,
    Inline,
}

impl Saved {
    #[inline(always)]
    fn save(&mut self, payload: Payload<'_>) {
        match payload {
            Payload::Sges([one]) => self.form = Some(Form::Slice(*one)),
            Payload::Sges(sges) => {
                self.form = Some(Form::Sges);
                self.sges.clear();
                self.sges.extend_from_slice(sges);
            }
            Payload::Inline(bytes) => {
                self.form = Some(Form::Inline);
                self.bytes.clear();
                self.bytes.extend_from_slice(bytes);
            }
            // The C interface has no such payloads.
            Payload::Gather(_) | Payload::InlineSges(_) => self.form = None,
        }
    }
}

/// Makes the extended struct of a queue pair, with its functions, which programs call through it. The
/// functions for a queue pair of one thread take no lock.
pub(super) struct Extended {
    pub(super) qp: ibv_qp,
    pub(super) single_threaded: bool,
}

/// `wr_start`, `wr_complete` and `wr_abort`.
type Ends = (
    unsafe extern "C" fn(*mut ibv_qp_ex),
    unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    unsafe extern "C" fn(*mut ibv_qp_ex),
);

impl ForDriver for Extended {
    type Output = ibv_qp_ex;

    fn run<D: Listed>(self) -> ibv_qp_ex {
        let (start, complete, abort): Ends = match self.single_threaded {
            true => (
                wr_start::<D, true>,
                wr_complete::<D, true>,
                wr_abort::<D, true>,
            ),
            false => (
                wr_start::<D, false>,
                wr_complete::<D, false>,
                wr_abort::<D, false>,
            ),
        };
        ibv_qp_ex {
            qp: self.qp,
            comp_mask: 0,
            wr_id: 0,
            wr_flags: 0,
            wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp::<D>),
            wr_atomic_fetch_add: Some(wr_atomic_fetch_add::<D>),
            wr_bind_mw: Some(wr_bind_mw::<D>),
            wr_local_inv: Some(wr_local_inv::<D>),
            wr_rdma_read: Some(wr_rdma_read::<D>),
            wr_rdma_write: Some(wr_rdma_write::<D>),
            wr_rdma_write_imm: Some(wr_rdma_write_imm::<D>),
            wr_send: Some(wr_send::<D>),
            wr_send_imm: Some(wr_send_imm::<D>),
            wr_send_inv: Some(wr_send_inv::<D>),
            wr_send_tso: Some(wr_send_tso::<D>),
            wr_set_ud_addr: Some(wr_set_ud_addr::<D>),
            wr_set_xrc_srqn: Some(wr_set_xrc_srqn::<D>),
            wr_set_inline_data: Some(wr_set_inline_data::<D>),
            wr_set_inline_data_list: Some(wr_set_inline_data_list::<D>),
            wr_set_sge: Some(wr_set_sge::<D>),
            wr_set_sge_list: Some(wr_set_sge_list::<D>),
            wr_start: Some(start),
            wr_complete: Some(complete),
            wr_abort: Some(abort),
            wr_atomic_write: Some(wr_atomic_write::<D>),
            wr_flush: Some(wr_flush::<D>),
        }
    }
}

/// The queue pair of an extended struct. Programs call these functions through the struct, so it exists.
///
/// # Safety
///
/// The pointer is to a queue pair.
#[inline(always)]
unsafe fn queue_pair<'a>(c: *mut ibv_qp_ex) -> &'a QpObject {
    // SAFETY: by this function's contract, it is not NULL.
    unsafe { object::<QpObject>(c.cast()).unwrap_unchecked() }
}

/// The queue pair of an extended struct, with its session and its queue.
///
/// # Safety
///
/// The pointer is to a queue pair, and the caller is between `ibv_wr_start` and `ibv_wr_complete`. References
/// that an earlier call returned are not used any more.
#[inline(always)]
unsafe fn session<'a, D: Listed>(
    c: *mut ibv_qp_ex,
) -> (&'a QpObject, &'a mut Session, &'a mut D::SendQueue) {
    // SAFETY: by this function's contract the caller holds the lock; a queue pair with a session has a queue,
    // of the driver for which the functions were made.
    unsafe {
        let qp = queue_pair(c);
        let sender = qp.send.held();
        let queue = sender.queue.as_mut().and_then(D::get_mut);
        let queue = queue.unwrap_unchecked();
        (qp, &mut sender.session, queue)
    }
}

/// `ibv_wr_start(3)`. A target of XRC has no such functions (`ibv_qp_to_qp_ex` refuses it).
unsafe extern "C" fn wr_start<D: Listed, const SINGLE_THREADED: bool>(c: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a queue pair. The lock is held until the session ends.
    unsafe {
        queue_pair(c).send.acquire_known::<SINGLE_THREADED>();
        let (qp, session, queue) = session::<D>(c);
        qp.batch.begin();
        session.end = queue.position();
        // The rest is left from the last request, and is set when the next begins.
        session.step = Step::Between;
    }
}

/// `ibv_wr_complete(3)`: posts all requests, or none if one is wrong.
unsafe extern "C" fn wr_complete<D: Listed, const SINGLE_THREADED: bool>(
    c: *mut ibv_qp_ex,
) -> c_int {
    // SAFETY: the caller has started.
    unsafe {
        let (qp, session, queue) = session::<D>(c);
        if session.step.has_begun() {
            return end_and_complete::<D, SINGLE_THREADED>(c);
        }
        let result = match session.step {
            _ if qp.sends.is_shut() => Err(Failure::INVALID),
            Step::Failed(failure) => Err(failure),
            Step::Announced => Err(Failure::INVALID),
            Step::Between | Step::Begun => queue
                .ring(queue.position(), session.end)
                .map(drop)
                .map_err(Failure::from),
        };
        qp.batch.end();
        qp.send.release_known::<SINGLE_THREADED>();
        status(result)
    }
}

/// Like [`wr_complete`], for a request to which no payload came.
///
/// # Safety
///
/// As for [`session`].
#[cold]
#[inline(never)]
unsafe fn end_and_complete<D: Listed, const SINGLE_THREADED: bool>(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session, queue) = session::<D>(c);
        session.end_bare::<D>(qp, queue);
        wr_complete::<D, SINGLE_THREADED>(c)
    }
}

/// `ibv_wr_abort(3)`. What was written is overwritten when the next session begins.
unsafe extern "C" fn wr_abort<D: Listed, const SINGLE_THREADED: bool>(c: *mut ibv_qp_ex) {
    // SAFETY: the caller has started.
    unsafe {
        let (qp, session, _) = session::<D>(c);
        session.forget();
        qp.batch.end();
        qp.send.release_known::<SINGLE_THREADED>();
    }
}

/// Keeps the operation of a request, with its present id and flags. The operation is made where it is kept.
///
/// # Safety
///
/// As for [`session`].
#[inline(always)]
unsafe fn begin<D: Listed>(c: *mut ibv_qp_ex, operation: impl Fn() -> Operation) {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session, _) = session::<D>(c);
        let is_next = matches!(session.step, Step::Between);
        match is_next && check(qp, operation()).is_ok() {
            true => session.begin::<D>(c, operation()),
            false => begin_closely::<D>(c, operation()),
        }
    }
}

/// Like [`begin`], whatever came before.
///
/// # Safety
///
/// As for [`session`].
#[inline(never)]
unsafe fn begin_closely<D: Listed>(c: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: by this function's contract.
    let (qp, session, queue) = unsafe { session::<D>(c) };
    session.end_bare::<D>(qp, queue);
    if let Err(failure) = check(qp, operation) {
        return session.fail(failure);
    }
    if let Step::Announced = session.step {
        return session.fail(Failure::INVALID);
    }
    if let Step::Failed(_) = session.step {
        return;
    }
    // SAFETY: by this function's contract.
    unsafe { session.begin::<D>(c, operation) };
}

/// Makes all that was started fail.
///
/// # Safety
///
/// As for [`session`].
#[cold]
pub(super) unsafe fn refuse<D: Listed>(c: *mut ibv_qp_ex, failure: Failure) {
    // SAFETY: by this function's contract.
    let (qp, session, queue) = unsafe { session::<D>(c) };
    // The request before it keeps its place in the order of failures.
    session.end_bare::<D>(qp, queue);
    session.fail(failure);
}

/// The progress of a request of a driver's own.
#[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
pub(super) enum Own<T> {
    /// More parts will come.
    Announced(T),
    /// It is written, and this is the position of the next one.
    Written(Position),
}

/// Begins a request of a driver's own: `make` gets the queue, the position of the request, its id and its
/// flags.
///
/// # Safety
///
/// As for [`session`].
#[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
pub(super) unsafe fn begin_own<D: Listed, T: Any + Send>(
    c: *mut ibv_qp_ex,
    make: impl FnOnce(&mut D::SendQueue, Position, (u64, SendFlags)) -> Result<Own<T>>,
) {
    // SAFETY: by this function's contract.
    let (qp, session, queue) = unsafe { session::<D>(c) };
    session.end_bare::<D>(qp, queue);
    match session.step {
        Step::Failed(_) => return,
        Step::Announced => return session.fail(Failure::INVALID),
        Step::Between | Step::Begun => {}
    }
    // SAFETY: the pointer is to the queue pair's extended struct.
    let (wr_id, flags) = unsafe { ((*c).wr_id, (*c).wr_flags) };
    let flags = SendFlags::from_bits_retain(flags);
    let made = make(queue, session.end, (wr_id, flags));
    session.take_own(qp, made);
}

/// Continues a request of a driver's own that waits for more parts.
///
/// # Safety
///
/// As for [`session`].
#[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
pub(super) unsafe fn go_on_own<D: Listed, T: Any + Send>(
    c: *mut ibv_qp_ex,
    make: impl FnOnce(&mut D::SendQueue, Position, T) -> Result<Own<T>>,
) {
    // SAFETY: by this function's contract.
    let (qp, session, queue) = unsafe { session::<D>(c) };
    match session.step {
        Step::Failed(_) => return,
        Step::Announced => {}
        Step::Between | Step::Begun => return session.fail(Failure::INVALID),
    }
    let own = session.own.take().and_then(|own| own.downcast::<T>().ok());
    let made = match own {
        Some(own) => make(queue, session.end, *own),
        None => Err(Failure::INVALID),
    };
    session.take_own(qp, made);
}

/// The payload of a request without one.
const NOTHING: Payload<'static> = Payload::Sges(&[]);

/// A request that is complete with this payload.
///
/// # Safety
///
/// As for [`session`].
unsafe fn begin_and_carry<D: Listed>(
    c: *mut ibv_qp_ex,
    operation: Operation,
    payload: Payload<'_>,
) {
    // SAFETY: by this function's contract.
    unsafe {
        begin::<D>(c, || operation);
        let (qp, session, queue) = session::<D>(c);
        session.carry::<D>(qp, queue, || payload);
    }
}

/// A request that changes what a key refers to. It has no payload and no destination.
///
/// # Safety
///
/// As for [`session`].
unsafe fn begin_and_end<D: Listed>(c: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: by this function's contract.
    unsafe {
        begin::<D>(c, || operation);
        let (qp, session, queue) = session::<D>(c);
        session.end_bare::<D>(qp, queue);
    }
}

impl Session {
    /// A session on this queue, or on none.
    pub(super) fn new(queue: Option<&SendQueue>) -> Self {
        Self {
            step: Step::Between,
            end: Position::default(),
            request: Request {
                operation: Operation::Send,
                wr_id: 0,
                flags: SendFlags::empty(),
            },
            to: None,
            saved: Saved::default(),
            own: None,
            max_sge: queue.map_or(0, SendQueue::max_sge) as usize,
            max_inline: queue.map_or(0, SendQueue::max_inline) as usize,
        }
    }

    /// Continues after a step of a request of a driver's own.
    fn take_own<T: Any + Send>(&mut self, qp: &QpObject, made: Result<Own<T>>) {
        match made {
            _ if qp.sends.is_shut() => self.fail(Failure::INVALID),
            Ok(Own::Announced(own)) => {
                self.own = Some(Box::new(own));
                self.step = Step::Announced;
            }
            Ok(Own::Written(end)) => (self.end, self.step) = (end, Step::Between),
            Err(failure) => self.fail(failure),
        }
    }

    /// Makes all that was started fail. The first failure counts.
    #[cold]
    pub(super) fn fail(&mut self, failure: Failure) {
        if !matches!(self.step, Step::Failed(_)) {
            self.step = Step::Failed(failure);
        }
        self.forget();
    }

    /// Forgets the parts of a request that will not be written.
    fn forget(&mut self) {
        (self.to, self.saved.form) = (None, None);
    }

    /// Like [`Self::fail`], for a payload that is too long.
    #[cold]
    fn fail_too_long(&mut self, qp: &QpObject) {
        self.fail(Failure(qp.refusals.long_by_functions));
    }

    /// Whether a request has begun. If not, the call belongs to no request, and everything fails.
    fn has_begun(&mut self) -> bool {
        let has_begun = self.step.has_begun();
        if !has_begun {
            self.fail(Failure::INVALID);
        }
        has_begun
    }

    /// Ends a request that has begun without a payload, if there is one.
    #[inline(always)]
    fn end_bare<D: Listed>(&mut self, qp: &QpObject, queue: &mut D::SendQueue) {
        if self.step.has_begun() {
            self.end_any::<D>(qp, queue, NOTHING);
        }
    }

    /// Keeps the operation of a new request.
    ///
    /// # Safety
    ///
    /// The pointer is to the queue pair's extended struct.
    #[inline(always)]
    unsafe fn begin<D: Listed>(&mut self, c: *mut ibv_qp_ex, operation: Operation) {
        // SAFETY: by this function's contract.
        let (wr_id, flags) = unsafe { ((*c).wr_id, (*c).wr_flags) };
        self.request = Request {
            operation,
            wr_id,
            flags: SendFlags::from_bits_retain(flags).intersection(D::REFUSALS.flags),
        };
        self.step = Step::Begun;
    }

    /// Writes a request that has begun on a connected queue pair, if its operation is a usual one: for these
    /// there is code that writes only this operation. False if it is not.
    #[inline(always)]
    fn end_usual<D: Listed>(
        &mut self,
        qp: &QpObject,
        queue: &mut D::SendQueue,
        payload: Payload<'_>,
    ) -> bool {
        if !self.step.has_begun() || qp.names_destination() {
            return false;
        }
        match self.request.operation {
            Operation::Write { remote } => {
                self.write::<D>(qp, queue, Operation::Write { remote }, None, payload)
            }
            Operation::Send => self.write::<D>(qp, queue, Operation::Send, None, payload),
            _ => return false,
        }
        true
    }

    /// Writes the request that has begun, if its destination is known.
    #[inline(never)]
    fn end_any<D: Listed>(
        &mut self,
        qp: &QpObject,
        queue: &mut D::SendQueue,
        payload: Payload<'_>,
    ) {
        match self.destination::<D>(qp) {
            Ok(to) => self.write::<D>(qp, queue, self.request.operation, to, payload),
            Err(failure) => self.fail(failure),
        }
    }

    /// The destination of the request that has begun; `None` if it is the connected peer.
    fn destination<D: Listed>(
        &mut self,
        qp: &QpObject,
    ) -> Result<Option<Destination<'static, D::Ah>>> {
        match self.to.take() {
            Some(to) => to.destination::<D>().map(Some),
            None if !qp.names_destination() => Ok(None),
            // Requests that change keys have no destination.
            None if Operations::OF_KEYS.contains(self.request.operation.needs()) => Ok(None),
            None => Err(Failure::INVALID),
        }
    }

    /// Writes the request that has begun.
    #[inline(always)]
    fn write<D: Listed>(
        &mut self,
        qp: &QpObject,
        queue: &mut D::SendQueue,
        operation: Operation,
        to: Option<Destination<'_, D::Ah>>,
        payload: Payload<'_>,
    ) {
        let request = self.request.whole(operation, to, payload);
        let written = queue.write(self.end, request);
        self.go_on(qp, written);
    }

    /// Continues after a request, unless the queue has refused it.
    #[inline(always)]
    fn go_on(&mut self, qp: &QpObject, written: std::result::Result<Position, PostError>) {
        match written {
            Ok(end) => (self.end, self.step) = (end, Step::Between),
            Err(error) => self.step = Step::Failed(Failure::of_function(error, &qp.refusals)),
        }
    }

    /// Takes a payload: writes the request that has begun, or saves the payload until the address comes. The
    /// payload is made where it is used.
    #[inline(always)]
    fn carry<'p, D: Listed>(
        &mut self,
        qp: &QpObject,
        queue: &mut D::SendQueue,
        payload: impl Fn() -> Payload<'p>,
    ) {
        if !self.end_usual::<D>(qp, queue, payload()) {
            self.save_or_end::<D>(qp, queue, payload);
        }
    }

    /// Like [`Self::carry`], for any request.
    #[inline(always)]
    fn save_or_end<'p, D: Listed>(
        &mut self,
        qp: &QpObject,
        queue: &mut D::SendQueue,
        payload: impl Fn() -> Payload<'p>,
    ) {
        match self.step.has_begun() && qp.names_destination() && self.to.is_none() {
            true => self.saved.save(payload()),
            false => self.end_begun::<D>(qp, queue, payload()),
        }
    }

    /// Ends the request that has begun, if there is one, with a payload.
    #[inline(never)]
    fn end_begun<D: Listed>(
        &mut self,
        qp: &QpObject,
        queue: &mut D::SendQueue,
        payload: Payload<'_>,
    ) {
        if self.has_begun() {
            self.end_any::<D>(qp, queue, payload);
        }
    }
}

/// `ibv_wr_set_ud_addr(3)`.
unsafe extern "C" fn wr_set_ud_addr<D: Listed>(
    c: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
) {
    // SAFETY: the caller has started.
    unsafe {
        address::<D>(
            c,
            Addressing::EachRequest,
            Address::Datagram { ah, qpn, qkey },
        )
    }
}

/// Takes the address of a request of an initiator of dynamic connections.
///
/// # Safety
///
/// As for [`session`].
#[allow(dead_code, reason = "direct verbs need it, and may not be built in")]
pub(super) unsafe fn set_target<D: Listed>(
    c: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    (number, key, stream): (u32, u64, u16),
) {
    let to = Address::Target {
        ah,
        number,
        key,
        stream,
    };
    // SAFETY: by this function's contract.
    unsafe { address::<D>(c, Addressing::EachTarget, to) }
}

/// Takes the address of a request, on a queue pair whose requests have one: writes the request if its payload
/// came before.
///
/// # Safety
///
/// As for [`session`].
#[inline(always)]
unsafe fn address<D: Listed>(c: *mut ibv_qp_ex, addressing: Addressing, to: Address) {
    // SAFETY: by this function's contract.
    let (qp, session, queue) = unsafe { session::<D>(c) };
    if qp.addressing != addressing {
        return session.fail(Failure::INVALID);
    }
    if !session.has_begun() {
        return;
    }
    let Some(form) = session.saved.form.take() else {
        session.to = Some(to);
        return;
    };
    let to = match to.destination::<D>() {
        Ok(to) => Some(to),
        Err(failure) => return session.fail(failure),
    };
    let (request, end) = (&session.request, session.end);
    let with = |payload| request.whole(request.operation, to, payload);
    let written = match &form {
        Form::Slice(one) => queue.write(end, with(Payload::Sges(slice::from_ref(one)))),
        Form::Sges => queue.write(end, with(Payload::Sges(&session.saved.sges))),
        Form::Inline => queue.write(end, with(Payload::Inline(&session.saved.bytes))),
    };
    session.go_on(qp, written);
}

/// `ibv_wr_set_sge(3)`.
unsafe extern "C" fn wr_set_sge<D: Listed>(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller has started.
    unsafe {
        let (qp, session, queue) = session::<D>(c);
        let slice = ibv_sge { addr, length, lkey };
        if !session.end_usual::<D>(qp, queue, Payload::Sges(&[slice])) {
            carry_slice::<D>(c, lkey, addr, length);
        }
    }
}

/// Like [`wr_set_sge`], for any request.
///
/// # Safety
///
/// As for [`session`].
#[inline(never)]
unsafe fn carry_slice<D: Listed>(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: by this function's contract.
    let (qp, session, queue) = unsafe { session::<D>(c) };
    let slice = ibv_sge { addr, length, lkey };
    session.save_or_end::<D>(qp, queue, || Payload::Sges(slice::from_ref(&slice)));
}

/// `ibv_wr_set_sge_list(3)`.
unsafe extern "C" fn wr_set_sge_list<D: Listed>(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: the caller has started, and passes a list of that length, unless it is longer than any queue
    // accepts.
    unsafe {
        let (qp, session, queue) = session::<D>(c);
        match count > session.max_sge {
            true => session.fail_too_long(qp),
            false => session.carry::<D>(qp, queue, || Payload::Sges(slices(list, count))),
        }
    }
}

/// A list of slices, which may be NULL if it is empty.
///
/// # Safety
/// There are `count` elements at `list`, for as long as the slice is used.
#[inline(always)]
unsafe fn slices<'a>(list: *const ibv_sge, count: usize) -> &'a [ibv_sge] {
    // SAFETY: by this function's contract; no queue accepts more than fit in the number.
    unsafe { super::recv::list(list, count as c_int) }
}

/// `ibv_wr_set_inline_data(3)`.
unsafe extern "C" fn wr_set_inline_data<D: Listed>(
    c: *mut ibv_qp_ex,
    from: *mut c_void,
    length: usize,
) {
    // SAFETY: the caller has started, and passes `length` bytes, unless that is more than a queue accepts.
    unsafe {
        let (qp, session, queue) = session::<D>(c);
        match length > session.max_inline {
            true => session.fail_too_long(qp),
            false => session.carry::<D>(qp, queue, || Payload::Inline(bytes(from, length))),
        }
    }
}

/// `ibv_wr_set_inline_data_list(3)`.
unsafe extern "C" fn wr_set_inline_data_list<D: Listed>(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller has started, and passes a list of that length, each element with its bytes, unless
    // these are more than any queue accepts.
    unsafe {
        let mut gathered = Copied::new();
        if gather::<D>(c, &mut gathered, count, list) {
            wr_set_inline_data::<D>(c, gathered.as_mut_ptr().cast(), gathered.len());
        }
    }
}

/// Inline bytes that were copied because they are not adjacent.
type Copied = SmallVec<[u8; 128]>;

/// Gathers the pieces of a payload; false if the request has failed.
///
/// # Safety
///
/// As for [`session`]. There are `count` pieces, each with its bytes, unless a queue accepts fewer.
unsafe fn gather<D: Listed>(
    c: *mut ibv_qp_ex,
    gathered: &mut Copied,
    count: usize,
    list: *const ibv_data_buf,
) -> bool {
    // SAFETY: by this function's contract.
    unsafe {
        let (qp, session, _) = session::<D>(c);
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
unsafe extern "C" fn wr_send<D: Listed>(c: *mut ibv_qp_ex) {
    // SAFETY: the caller has started, here as in the functions below.
    unsafe { begin::<D>(c, || Operation::Send) }
}

/// `ibv_wr_send_imm(3)`; the immediate data are in network byte order.
unsafe extern "C" fn wr_send_imm<D: Listed>(c: *mut ibv_qp_ex, imm: u32) {
    let imm = u32::from_be(imm);
    // SAFETY: as in `wr_send`.
    unsafe { begin::<D>(c, || Operation::SendImm { imm }) }
}

/// `ibv_wr_send_inv(3)`.
unsafe extern "C" fn wr_send_inv<D: Listed>(c: *mut ibv_qp_ex, rkey: u32) {
    let rkey = RemoteKey(rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin::<D>(c, || Operation::SendInv { rkey }) }
}

/// `ibv_wr_rdma_write(3)`.
unsafe extern "C" fn wr_rdma_write<D: Listed>(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin::<D>(c, || Operation::Write { remote }) }
}

/// `ibv_wr_rdma_write_imm(3)`; the immediate data are in network byte order.
unsafe extern "C" fn wr_rdma_write_imm<D: Listed>(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    imm: u32,
) {
    let (remote, imm) = (remote(address, rkey), u32::from_be(imm));
    // SAFETY: as in `wr_send`.
    unsafe { begin::<D>(c, || Operation::WriteImm { remote, imm }) }
}

/// `ibv_wr_rdma_read(3)`.
unsafe extern "C" fn wr_rdma_read<D: Listed>(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin::<D>(c, || Operation::Read { remote }) }
}

/// `ibv_wr_atomic_cmp_swp(3)`.
unsafe extern "C" fn wr_atomic_cmp_swp<D: Listed>(
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
    unsafe { begin::<D>(c, || operation) }
}

/// `ibv_wr_atomic_fetch_add(3)`.
unsafe extern "C" fn wr_atomic_fetch_add<D: Listed>(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    add: u64,
) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin::<D>(c, || Operation::FetchAdd { remote, add }) }
}

/// `ibv_wr_local_inv(3)`.
unsafe extern "C" fn wr_local_inv<D: Listed>(c: *mut ibv_qp_ex, rkey: u32) {
    let rkey = RemoteKey(rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin_and_end::<D>(c, Operation::LocalInv { rkey }) }
}

/// `ibv_wr_bind_mw(3)`.
unsafe extern "C" fn wr_bind_mw<D: Listed>(
    c: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: as in `wr_send`, and the caller passes a window and what to bind it to.
    unsafe {
        let bind = info.as_ref().ok_or(Failure::INVALID);
        match bind.and_then(|info| binding(mw, rkey, info)) {
            Ok(bind) => begin_and_end::<D>(c, bind),
            Err(failure) => refuse::<D>(c, failure),
        }
    }
}

/// `ibv_wr_send_tso(3)`. No queue pair is created for it.
unsafe extern "C" fn wr_send_tso<D: Listed>(c: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: as in `wr_send`.
    unsafe { refuse::<D>(c, Failure::UNSUPPORTED) }
}

/// `ibv_wr_set_xrc_srqn(3)`.
unsafe extern "C" fn wr_set_xrc_srqn<D: Listed>(c: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: as in `wr_send`.
    unsafe { address::<D>(c, Addressing::PeersSrq, Address::Srq(srqn)) }
}

/// `ibv_wr_atomic_write(3)`: 8 bytes.
unsafe extern "C" fn wr_atomic_write<D: Listed>(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    word: *const c_void,
) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`, and the caller passes 8 bytes.
    unsafe {
        let word = Payload::Inline(bytes(word, 8));
        begin_and_carry::<D>(c, Operation::AtomicWrite { remote }, word);
    }
}

/// `ibv_wr_flush(3)`.
unsafe extern "C" fn wr_flush<D: Listed>(
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
    unsafe { begin_and_carry::<D>(c, operation, NOTHING) }
}
