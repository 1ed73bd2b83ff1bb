//! Polling: completions into an array (`ibv_poll_cq`).

use std::ffi::c_int;

use super::abi::queue::{ibv_cq, ibv_cq_ex};
use super::abi::work::ibv_wc;
use super::cq::cq;
use super::failure::number;
use crate::driver::{self, Completion};
use crate::error::Error;

/// What polls a completion queue.
pub(super) struct Poller {
    ring: driver::Cq,
}

impl Poller {
    pub(super) fn new(ring: driver::Cq) -> Self {
        Self { ring }
    }

    pub(super) fn queue(&self) -> &driver::Cq {
        &self.ring
    }

    pub(super) fn ring(&mut self) -> &mut driver::Cq {
        &mut self.ring
    }
}

/// A completion as C programs have it.
#[inline(always)]
fn c_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id(),
        status: completion.status().0,
        opcode: completion.opcode().0,
        vendor_err: completion.vendor_err(),
        byte_len: completion.byte_len(),
        ex: completion.ex(),
        qp_num: completion.qp_num(),
        src_qp: completion.src_qp(),
        wc_flags: completion.flags().bits(),
        pkey_index: completion.pkey_index(),
        slid: completion.slid(),
        sl: completion.sl(),
        dlid_path_bits: completion.dlid_path_bits(),
    }
}

/// `ibv_poll_cq(3)`.
pub(super) unsafe extern "C" fn poll_cq(c: *mut ibv_cq, room: c_int, to: *mut ibv_wc) -> c_int {
    // SAFETY: the caller passes a completion queue.
    number(unsafe { cq(c) }.and_then(|cq| {
        let mut poller = cq.poller.lock();
        let mut completions = poller.ring().poll().map_err(Error::from)?;
        let mut count = 0;
        while count < room {
            let Some(completion) = completions.take() else {
                break;
            };
            // SAFETY: there is room for that many.
            unsafe { to.add(count as usize).write(c_completion(&completion)) };
            count += 1;
        }
        Ok(count)
    }))
}

/// The larger struct of a queue, whose functions nobody may call.
pub(super) fn extended(cq: ibv_cq) -> ibv_cq_ex {
    ibv_cq_ex {
        cq,
        comp_mask: 0,
        status: 0,
        wr_id: 0,
        start_poll: None,
        next_poll: None,
        end_poll: None,
        read_opcode: None,
        read_vendor_err: None,
        read_byte_len: None,
        read_imm_data: None,
        read_qp_num: None,
        read_src_qp: None,
        read_wc_flags: None,
        read_slid: None,
        read_sl: None,
        read_dlid_path_bits: None,
        read_completion_ts: None,
        read_cvlan: None,
        read_flow_tag: None,
        read_tm_info: None,
        read_completion_wallclock_ns: None,
    }
}
