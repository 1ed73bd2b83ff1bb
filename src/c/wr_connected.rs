//! Posting by functions on connected queue pairs. A request is written into the ring at once, but for its
//! payload, and that when it comes. Where there is more to do it is kept until then ([`super::wr`]).

use std::ffi::c_void;
use std::slice;

use uverbs_uapi::flags::SendFlags;

use super::abi::queue::ibv_qp_ex;
use super::abi::work::{ibv_data_buf, ibv_sge};
use super::failure::Failure;
use super::send::{FLAGS, bytes, check, remote};
use super::wr::{self as kept, Copied, Step, session};
use crate::driver::Listed;
use crate::driver::contract::methods::*;
use crate::work::{Operation, Payload, RemoteKey};

/// The struct with these functions in the places of those that keep requests.
pub(super) fn with_functions<D: Listed>(c: ibv_qp_ex) -> ibv_qp_ex {
    ibv_qp_ex {
        wr_rdma_read: Some(wr_rdma_read::<D>),
        wr_rdma_write: Some(wr_rdma_write::<D>),
        wr_rdma_write_imm: Some(wr_rdma_write_imm::<D>),
        wr_send: Some(wr_send::<D>),
        wr_send_imm: Some(wr_send_imm::<D>),
        wr_send_inv: Some(wr_send_inv::<D>),
        wr_set_inline_data: Some(wr_set_inline_data::<D>),
        wr_set_inline_data_list: Some(wr_set_inline_data_list::<D>),
        wr_set_sge: Some(wr_set_sge::<D>),
        wr_set_sge_list: Some(wr_set_sge_list::<D>),
        ..c
    }
}

/// Writes a request but for its payload, with its id and flags as they are now. False, and nothing is done,
/// if it has to be kept.
///
/// # Safety
///
/// As of [`session`], and the queue pair is of a device of that driver's.
#[inline(always)]
unsafe fn open<D: Listed>(c: *mut ibv_qp_ex, operation: Operation) -> bool {
    // SAFETY: by this function's contract. Between requests there is a batch.
    unsafe {
        let (qp, session) = session(c);
        if !matches!(session.step, Step::Between) || check(qp, operation).is_err() {
            return false;
        }
        let flags = SendFlags::from_bits_retain((*c).wr_flags).intersection(FLAGS);
        let batch = session.batch_of::<D>();
        let Some(opened) = batch.open(operation, (*c).wr_id, flags) else {
            return false;
        };
        (session.opened, session.step) = (opened, Step::Open);
    }
    true
}

/// Writes the payload of the request that was opened last. False, and nothing is done, if there is none.
///
/// # Safety
///
/// As of [`open`]. There is one slice, or there are at most as many slices and bytes as the session says.
#[inline(always)]
unsafe fn close<D: Listed>(c: *mut ibv_qp_ex, payload: Payload<'_>) -> bool {
    // SAFETY: by this function's contract. The step is that of a request which the batch has opened, and
    // nothing has used the batch since.
    unsafe {
        let (_, session) = session(c);
        if !matches!(session.step, Step::Open) {
            return false;
        }
        let opened = session.opened;
        match session.batch_of::<D>().close(opened, payload) {
            true => session.step = Step::Between,
            false => session.fail(Failure::INVALID),
        }
    }
    true
}

/// `ibv_wr_send(3)`.
unsafe extern "C" fn wr_send<D: Listed>(c: *mut ibv_qp_ex) {
    // SAFETY: the caller has started, on a queue pair of that driver's, here as in the functions below.
    unsafe {
        if !open::<D>(c, Operation::Send) {
            kept::wr_send(c);
        }
    }
}

/// `ibv_wr_send_imm(3)`; the immediate data are in network byte order.
unsafe extern "C" fn wr_send_imm<D: Listed>(c: *mut ibv_qp_ex, imm: u32) {
    let operation = Operation::SendImm {
        imm: u32::from_be(imm),
    };
    // SAFETY: as in `wr_send`.
    unsafe {
        if !open::<D>(c, operation) {
            kept::wr_send_imm(c, imm);
        }
    }
}

/// `ibv_wr_send_inv(3)`.
unsafe extern "C" fn wr_send_inv<D: Listed>(c: *mut ibv_qp_ex, rkey: u32) {
    let operation = Operation::SendInv {
        rkey: RemoteKey(rkey),
    };
    // SAFETY: as in `wr_send`.
    unsafe {
        if !open::<D>(c, operation) {
            kept::wr_send_inv(c, rkey);
        }
    }
}

/// `ibv_wr_rdma_write(3)`.
unsafe extern "C" fn wr_rdma_write<D: Listed>(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe {
        if !open::<D>(c, Operation::Write { remote }) {
            kept::wr_rdma_write(c, rkey, address);
        }
    }
}

/// `ibv_wr_rdma_write_imm(3)`; the immediate data are in network byte order.
unsafe extern "C" fn wr_rdma_write_imm<D: Listed>(
    c: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    imm: u32,
) {
    let operation = Operation::WriteImm {
        remote: remote(address, rkey),
        imm: u32::from_be(imm),
    };
    // SAFETY: as in `wr_send`.
    unsafe {
        if !open::<D>(c, operation) {
            kept::wr_rdma_write_imm(c, rkey, address, imm);
        }
    }
}

/// `ibv_wr_rdma_read(3)`.
unsafe extern "C" fn wr_rdma_read<D: Listed>(c: *mut ibv_qp_ex, rkey: u32, address: u64) {
    let remote = remote(address, rkey);
    // SAFETY: as in `wr_send`.
    unsafe {
        if !open::<D>(c, Operation::Read { remote }) {
            kept::wr_rdma_read(c, rkey, address);
        }
    }
}

/// `ibv_wr_set_sge(3)`.
unsafe extern "C" fn wr_set_sge<D: Listed>(c: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let slice = ibv_sge { addr, length, lkey };
    // SAFETY: as in `wr_send`.
    unsafe {
        if !close::<D>(c, Payload::Sges(slice::from_ref(&slice))) {
            kept::wr_set_sge(c, lkey, addr, length);
        }
    }
}

/// `ibv_wr_set_sge_list(3)`.
unsafe extern "C" fn wr_set_sge_list<D: Listed>(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: as in `wr_send`, and the caller passes a list of that length, unless that cannot be.
    unsafe {
        let is_too_long = count > session(c).1.max_sge;
        if is_too_long || !close::<D>(c, Payload::Sges(kept::slices(list, count))) {
            kept::wr_set_sge_list(c, count, list);
        }
    }
}

/// `ibv_wr_set_inline_data(3)`.
unsafe extern "C" fn wr_set_inline_data<D: Listed>(
    c: *mut ibv_qp_ex,
    from: *mut c_void,
    length: usize,
) {
    // SAFETY: as in `wr_send`, and the caller passes so many bytes, unless that cannot be.
    unsafe {
        let is_too_long = length > session(c).1.max_inline;
        if is_too_long || !close::<D>(c, Payload::Inline(bytes(from, length))) {
            kept::wr_set_inline_data(c, from, length);
        }
    }
}

/// `ibv_wr_set_inline_data_list(3)`.
unsafe extern "C" fn wr_set_inline_data_list<D: Listed>(
    c: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: as in `wr_send`, and the caller passes a list of that length, each element with its bytes,
    // unless these are more than can be.
    unsafe {
        let mut gathered = Copied::new();
        if kept::gather(c, &mut gathered, count, list) {
            wr_set_inline_data::<D>(c, gathered.as_mut_ptr().cast(), gathered.len());
        }
    }
}
