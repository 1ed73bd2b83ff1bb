//! A completion: the contents of a CQE, with the id of its request.

#[cfg(feature = "c-abi")]
use std::mem::MaybeUninit;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;
#[cfg(feature = "c-abi")]
use uverbs_uapi::types::Wc;

use super::format::{Cqe, NUMBER, cqe, opcode, syndrome};
use super::ledger::Does;
use crate::driver::contract;
#[cfg(feature = "c-abi")]
use crate::driver::contract::Completion as _;

/// A completion: a copy of its entry. The compiler copies only the fields that are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub(super) fields: Cqe,
    pub(super) wr_id: u64,
    pub(super) status: WcStatus,
    /// What the request did, if the entry does not say it.
    pub(super) does: Does,
}

/// The status of the request that a completion reports.
pub(super) fn status(fields: &Cqe) -> WcStatus {
    if fields.op_own & cqe::FAILED == 0 {
        return WcStatus::SUCCESS;
    }
    match fields.syndrome {
        syndrome::LOCAL_LENGTH => WcStatus::LOC_LEN_ERR,
        syndrome::LOCAL_QP_OP => WcStatus::LOC_QP_OP_ERR,
        syndrome::LOCAL_PROT => WcStatus::LOC_PROT_ERR,
        syndrome::WR_FLUSH => WcStatus::WR_FLUSH_ERR,
        syndrome::MW_BIND => WcStatus::MW_BIND_ERR,
        syndrome::BAD_RESP => WcStatus::BAD_RESP_ERR,
        syndrome::LOCAL_ACCESS => WcStatus::LOC_ACCESS_ERR,
        syndrome::REMOTE_INVAL_REQ => WcStatus::REM_INV_REQ_ERR,
        syndrome::REMOTE_ACCESS => WcStatus::REM_ACCESS_ERR,
        syndrome::REMOTE_OP => WcStatus::REM_OP_ERR,
        syndrome::TRANSPORT_RETRY => WcStatus::RETRY_EXC_ERR,
        syndrome::RNR_RETRY => WcStatus::RNR_RETRY_EXC_ERR,
        syndrome::REMOTE_ABORTED => WcStatus::REM_ABORT_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}

/// The opcode that a completion reports: by what the request does ([`Does`]), and by the opcode of its WQE.
const SENT: [[WcOpcode; 256]; 4] = [
    sent(WcOpcode::LOCAL_INV),
    sent(WcOpcode::BIND_MW),
    sent(WcOpcode::DRIVER1),
    [WcOpcode::DRIVER2; 256],
];

/// The reported opcodes of all opcodes, with this one for a change of a memory key.
const fn sent(changed_key: WcOpcode) -> [WcOpcode; 256] {
    let mut sent = [WcOpcode::SEND; 256];
    sent[opcode::RDMA_WRITE as usize] = WcOpcode::RDMA_WRITE;
    sent[opcode::RDMA_WRITE_IMM as usize] = WcOpcode::RDMA_WRITE;
    sent[opcode::RDMA_READ as usize] = WcOpcode::RDMA_READ;
    sent[opcode::ATOMIC_CS as usize] = WcOpcode::COMP_SWAP;
    sent[opcode::ATOMIC_FA as usize] = WcOpcode::FETCH_ADD;
    sent[opcode::UMR as usize] = changed_key;
    sent
}

impl Completion {
    #[inline(always)]
    fn code(&self) -> u8 {
        self.fields.op_own >> 4
    }

    #[inline(always)]
    fn sent(&self) -> WcOpcode {
        let opcode = (self.fields.sop_drop_qpn.get() >> 24) as u8;
        SENT[self.does as usize][usize::from(opcode)]
    }
}

impl Completion {
    /// The length of an atomic operation follows from its kind; libmlx5's `ibv_poll_cq` does not rely on the
    /// entry either.
    #[inline(always)]
    fn byte_len_of(&self, opcode: WcOpcode) -> u32 {
        match opcode {
            WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD => size_of::<u64>() as u32,
            _ => self.fields.byte_cnt.get(),
        }
    }
}

impl contract::Completion for Completion {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        self.status
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        match self.code() {
            cqe::RESP_WR_IMM => WcOpcode::RECV_RDMA_WITH_IMM,
            cqe::REQ | cqe::REQ_ERR => self.sent(),
            _ => WcOpcode::RECV,
        }
    }

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        self.fields.vendor_err_synd.into()
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        self.byte_len_of(self.opcode())
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.fields.sop_drop_qpn.get() & NUMBER
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        self.fields.flags_rqpn.get() & NUMBER
    }

    /// The immediate data in network byte order, or the rkey in the host's.
    #[inline(always)]
    fn ex(&self) -> u32 {
        let bytes = self.fields.imm_inval_pkey;
        if self.code() == cqe::RESP_SEND_INV {
            u32::from_be_bytes(bytes)
        } else {
            u32::from_ne_bytes(bytes)
        }
    }

    #[inline(always)]
    fn flags(&self) -> WcFlags {
        let mut flags = match self.code() {
            cqe::RESP_WR_IMM | cqe::RESP_SEND_IMM => WcFlags::WITH_IMM,
            cqe::RESP_SEND_INV => WcFlags::WITH_INV,
            _ => WcFlags::empty(),
        };
        flags.set(WcFlags::GRH, self.fields.flags_rqpn.get() >> 28 & 3 != 0);
        flags
    }

    /// The device writes it whether it was asked for or not. A failure has its error code in that field.
    #[inline(always)]
    fn timestamp(&self) -> Option<u64> {
        let fields = self.fields;
        let [a, b, c, d, e, f] = fields.timestamp;
        let ticks = u64::from_be_bytes([a, b, c, d, e, f, fields.vendor_err_synd, fields.syndrome]);
        (self.status() == WcStatus::SUCCESS).then_some(ticks)
    }

    #[inline(always)]
    fn pkey_index(&self) -> u16 {
        let [_, _, high, low] = self.fields.imm_inval_pkey;
        match self.code() {
            cqe::RESP_SEND => u16::from_be_bytes([high, low]),
            _ => 0,
        }
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        self.fields.slid.get()
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        (self.fields.flags_rqpn.get() >> 24) as u8 & 0xf
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        self.fields.ml_path & 0x7f
    }
}

#[cfg(feature = "c-abi")]
impl Completion {
    /// Writes it in the kernel's form. A completion of a send has fewer fields.
    #[inline(always)]
    pub(super) fn write_to(self, place: &mut MaybeUninit<Wc>) -> &mut Wc {
        let vendor_err = match self.status {
            WcStatus::SUCCESS => 0,
            _ => self.vendor_err(),
        };
        match self.code() {
            cqe::REQ | cqe::REQ_ERR => {
                let opcode = self.sent();
                place.write(Wc {
                    wr_id: self.wr_id,
                    status: self.status.0,
                    opcode: opcode.0,
                    vendor_err,
                    byte_len: self.byte_len_of(opcode),
                    qp_num: self.qp_num(),
                    ..Wc::default()
                })
            }
            _ => place.write(Wc {
                vendor_err,
                ..self.to_wc()
            }),
        }
    }
}
