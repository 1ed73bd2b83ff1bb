//! Posting by a function for each step (`ibv_wr_start`, `ibv_wr_send`, `ibv_wr_set_sge`, ...). The send queue's
//! lock is held from the start to the end.
//!
//! A request is written into the ring at its last step. That is the payload where the queue pair is connected,
//! and for datagrams the second of payload and address, whichever that is. An error waits until the end, and
//! then nothing is posted.

use std::ffi::{c_int, c_void};
use std::slice;

use uverbs_uapi::enums::FlushLevel;
use uverbs_uapi::flags::{FlushPlacement, SendFlags};

use super::abi::queue::{ibv_ah, ibv_mw, ibv_qp, ibv_qp_ex};
use super::abi::work::{ibv_data_buf, ibv_mw_bind_info, ibv_sge};
use super::ah::AhObject;
use super::failure::{Failure, Result, status};
use super::mw::binding;
use super::object::object;
use super::qp::{QpObject, qp};
use super::send::{FLAGS, Sender, check};
use crate::driver::SendBatch;
use crate::work::{Operation, Payload, Remote, RemoteKey};

/// What has been asked for since `ibv_wr_start`.
#[derive(Default)]
pub(super) struct Session {
    batch: Option<SendBatch<'static>>,
    failed: Option<Failure>,
    request: Option<Request>,
    /// Where a datagram goes, if that came before its payload.
    to: Option<Address>,
    /// A datagram's payload, if that came before its address.
    payload: Option<Saved>,
}

/// A request as far as its first step tells.
#[derive(Clone, Copy)]
struct Request {
    operation: Operation,
    wr_id: u64,
    flags: SendFlags,
}

#[derive(Clone, Copy)]
struct Address {
    ah: *mut ibv_ah,
    qpn: u32,
    qkey: u32,
}

enum Saved {
    Sges(Vec<ibv_sge>),
    Inline(Vec<u8>),
}

/// The extended struct of a queue pair, with the functions that programs call through it.
pub(super) fn extended(qp: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp,
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
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_atomic_write),
        wr_flush: Some(wr_flush),
    }
}

/// The queue pair of an extended struct, with its session.
///
/// # Safety
///
/// The pointer is to a queue pair, between `ibv_wr_start` and `ibv_wr_complete` of the caller's.
#[inline(always)]
unsafe fn session<'a>(c: *mut ibv_qp_ex) -> Option<(&'a QpObject, &'a mut Session)> {
    // SAFETY: by this function's contract the caller holds the lock. The reference is to the session alone: what
    // is open in it borrows the queue beside it.
    unsafe {
        let qp = object::<QpObject>(c.cast())?;
        Some((qp, &mut (*qp.send.pointer()).session))
    }
}

/// `ibv_wr_start(3)`.
unsafe extern "C" fn wr_start(c: *mut ibv_qp_ex) {
    // SAFETY: the caller passes a queue pair. The lock is held until the batch is gone.
    unsafe {
        if let Ok(qp) = qp(c.cast()) {
            qp.send.acquire();
            let sender = qp.send.pointer();
            let batch = Sender::open(sender);
            (*sender).session = Session {
                batch: Some(batch),
                ..Session::default()
            };
        }
    }
}

/// `ibv_wr_complete(3)`: posts all requests, or none if one is wrong.
unsafe extern "C" fn wr_complete(c: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the caller has started.
    unsafe {
        let Some((qp, session)) = session(c) else {
            return Failure::INVALID.tell();
        };
        let result = match (session.failed, session.batch.take()) {
            (None, Some(batch)) => batch.ring().map(drop).map_err(Failure::from),
            (failed, _) => Err(failed.unwrap_or(Failure::INVALID)),
        };
        qp.send.release();
        status(result)
    }
}

/// `ibv_wr_abort(3)`.
unsafe extern "C" fn wr_abort(c: *mut ibv_qp_ex) {
    // SAFETY: the caller has started.
    unsafe {
        if let Some((qp, session)) = session(c) {
            session.batch = None;
            qp.send.release();
        }
    }
}

/// Notes what a request does, with its id and flags as they are now.
///
/// # Safety
///
/// As of [`session`].
#[inline(always)]
unsafe fn begin(c: *mut ibv_qp_ex, operation: Operation) {
    // SAFETY: by this function's contract.
    unsafe {
        let Some((qp, session)) = session(c) else {
            return;
        };
        if let Err(failure) = check(qp, operation) {
            session.failed = Some(failure);
        }
        session.request = Some(Request {
            operation,
            wr_id: (*c).wr_id,
            flags: SendFlags::from_bits_retain((*c).wr_flags).intersection(FLAGS),
        });
        (session.to, session.payload) = (None, None);
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
    if let Some((_, session)) = unsafe { session(c) } {
        session.failed.get_or_insert(failure);
    }
}

/// A request without a payload, which is whole.
///
/// # Safety
///
/// As of [`session`].
unsafe fn begin_and_end(c: *mut ibv_qp_ex, operation: Operation, payload: Payload<'_>) {
    // SAFETY: by this function's contract.
    unsafe {
        begin(c, operation);
        if let Some((qp, session)) = session(c) {
            session.end(qp, payload);
        }
    }
}

impl Session {
    /// Writes the request that has been begun into the ring, once it is known where it goes.
    #[inline(always)]
    fn end(&mut self, qp: &QpObject, payload: Payload<'_>) {
        if self.failed.is_none()
            && let Err(failure) = self.push(qp, payload)
        {
            self.failed = Some(failure);
        }
    }

    #[inline(always)]
    fn push(&mut self, qp: &QpObject, payload: Payload<'_>) -> Result<()> {
        let request = self.request.take().ok_or(Failure::INVALID)?;
        let batch = self.batch.as_mut().ok_or(Failure::INVALID)?;
        let to = match self.to.take() {
            None => None,
            Some(Address { ah, qpn, qkey }) => {
                // SAFETY: the program passed an address handle, which stays until the request has completed.
                let ah = unsafe { object::<AhObject>(ah) }.ok_or(Failure::INVALID)?;
                Some(ah.to(qpn, qkey, qp.pd.tag()))
            }
        };
        let pushed = batch.push(request.operation, to, payload);
        let mut slot = pushed.map_err(|error| Failure::of_function(error, &qp.refusals))?;
        slot.set_id(request.wr_id);
        slot.add_flags(request.flags);
        Ok(())
    }

    /// Takes a payload: writes the request, or saves it until the address comes.
    #[inline(always)]
    fn carry(&mut self, qp: &QpObject, payload: Payload<'_>) {
        if qp.is_datagram() && self.to.is_none() {
            self.payload = match payload {
                Payload::Sges(sges) => Some(Saved::Sges(sges.to_vec())),
                Payload::Inline(bytes) => Some(Saved::Inline(bytes.to_vec())),
                Payload::Gather(_) | Payload::InlineSges(_) => None,
            };
            return;
        }
        self.end(qp, payload);
    }
}

/// `ibv_wr_set_ud_addr(3)`.
unsafe extern "C" fn wr_set_ud_addr(c: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller has started.
    if let Some((qp, session)) = unsafe { session(c) } {
        session.to = Some(Address { ah, qpn, qkey });
        match session.payload.take() {
            None => {}
            Some(Saved::Sges(sges)) => session.end(qp, Payload::Sges(&sges)),
            Some(Saved::Inline(bytes)) => session.end(qp, Payload::Inline(&bytes)),
        }
    }
}

/// `ibv_wr_set_sge(3)`.
unsafe extern "C" fn wr_set_sge(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: the caller has started.
    if let Some((qp, session)) = unsafe { session(c) } {
        session.carry(qp, Payload::Sges(slice::from_ref(&sge)));
    }
}

/// `ibv_wr_set_sge_list(3)`.
unsafe extern "C" fn wr_set_sge_list(c: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the caller has started, and passes a list of that length.
    unsafe {
        if let Some((qp, session)) = session(c) {
            let sges = super::recv::list(list, c_int::try_from(count).unwrap_or(c_int::MAX));
            session.carry(qp, Payload::Sges(sges));
        }
    }
}

/// `ibv_wr_set_inline_data(3)`.
unsafe extern "C" fn wr_set_inline_data(c: *mut ibv_qp_ex, from: *mut c_void, length: usize) {
    // SAFETY: the caller has started, and passes so many bytes.
    unsafe {
        if let Some((qp, session)) = session(c) {
            let bytes = bytes(from, length);
            session.carry(qp, Payload::Inline(bytes));
        }
    }
}

/// `ibv_wr_set_inline_data_list(3)`.
unsafe extern "C" fn wr_set_inline_data_list(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller has started, and passes a list of that length, each element with its bytes.
    unsafe {
        if let Some((qp, session)) = session(c) {
            let pieces = (0..count).map(|at| &*list.add(at));
            let gathered: Vec<u8> = pieces
                .flat_map(|piece| bytes(piece.addr, piece.length))
                .copied()
                .collect();
            session.carry(qp, Payload::Inline(&gathered));
        }
    }
}

/// Bytes of a program's, which may be at NULL if there are none.
///
/// # Safety
///
/// There are so many bytes, for as long as the slice is used.
unsafe fn bytes<'a>(from: *const c_void, length: usize) -> &'a [u8] {
    match length {
        0 => &[],
        // SAFETY: by this function's contract.
        _ => unsafe { slice::from_raw_parts(from.cast(), length) },
    }
}

fn remote(rkey: u32, address: u64) -> Remote {
    Remote {
        address,
        rkey: RemoteKey(rkey),
    }
}

/// `ibv_wr_send(3)`.
unsafe extern "C" fn wr_send(c: *mut ibv_qp_ex) {
    // SAFETY: the caller has started, here as in the functions below.
    unsafe { begin(c, Operation::Send) }
}

/// `ibv_wr_send_imm(3)`; the immediate data are in network byte order.
unsafe extern "C" fn wr_send_imm(c: *mut ibv_qp_ex, imm: u32) {
    let imm = u32::from_be(imm);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::SendImm { imm }) }
}

/// `ibv_wr_send_inv(3)`.
unsafe extern "C" fn wr_send_inv(c: *mut ibv_qp_ex, rkey: u32) {
    let rkey = RemoteKey(rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::SendInv { rkey }) }
}

/// `ibv_wr_rdma_write(3)`.
unsafe extern "C" fn wr_rdma_write(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(rkey, address);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::Write { remote }) }
}

/// `ibv_wr_rdma_write_imm(3)`; the immediate data are in network byte order.
unsafe extern "C" fn wr_rdma_write_imm(c: *mut ibv_qp_ex, rkey: u32, address: u64, imm: u32) {
    let (remote, imm) = (remote(rkey, address), u32::from_be(imm));
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::WriteImm { remote, imm }) }
}

/// `ibv_wr_rdma_read(3)`.
unsafe extern "C" fn wr_rdma_read(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(rkey, address);
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
        remote: remote(rkey, address),
        compare,
        swap,
    };
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, operation) }
}

/// `ibv_wr_atomic_fetch_add(3)`.
unsafe extern "C" fn wr_atomic_fetch_add(c: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    let remote = remote(rkey, address);
    // SAFETY: as in `wr_send`.
    unsafe { begin(c, Operation::FetchAdd { remote, add }) }
}

/// `ibv_wr_local_inv(3)`.
unsafe extern "C" fn wr_local_inv(c: *mut ibv_qp_ex, rkey: u32) {
    let rkey = RemoteKey(rkey);
    // SAFETY: as in `wr_send`.
    unsafe { begin_and_end(c, Operation::LocalInv { rkey }, Payload::Sges(&[])) }
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
            Ok(bind) => begin_and_end(c, bind, Payload::Sges(&[])),
            Err(failure) => refuse(c, failure),
        }
    }
}

/// `ibv_wr_send_tso(3)`. No queue pair is created for it.
unsafe extern "C" fn wr_send_tso(c: *mut ibv_qp_ex, _: *mut c_void, _: u16, _: u16) {
    // SAFETY: as in `wr_send`.
    unsafe { refuse(c, Failure::UNSUPPORTED) }
}

/// `ibv_wr_set_xrc_srqn(3)`. No queue pair is created for it.
unsafe extern "C" fn wr_set_xrc_srqn(c: *mut ibv_qp_ex, _: u32) {
    // SAFETY: as in `wr_send`.
    unsafe { refuse(c, Failure::UNSUPPORTED) }
}

/// `ibv_wr_atomic_write(3)`: 8 bytes.
unsafe extern "C" fn wr_atomic_write(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    word: *const c_void,
) {
    let remote = remote(rkey, address);
    // SAFETY: as in `wr_send`, and the caller passes 8 bytes.
    unsafe {
        let word = bytes(word, 8);
        begin_and_end(c, Operation::AtomicWrite { remote }, Payload::Inline(word));
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
        remote: remote(rkey, address),
        length: length as u32,
        placement: FlushPlacement::from_bits_retain(placement),
        level: FlushLevel(level.into()),
    };
    // SAFETY: as in `wr_send`.
    unsafe { begin_and_end(c, operation, Payload::Sges(&[])) }
}
