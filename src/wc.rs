//! Work completions, read where they lie.
//!
//! A [`Completion`] borrows the completion queue's ring: only the fields that are asked for are read, and it
//! cannot outlive the batch that it came with. What is to be kept is copied out field by field.

use std::fmt;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::flags::WcFlags;

use crate::cq::Loan;
use crate::driver;
use crate::key::RemoteKey;

/// A completed work request.
///
/// If the request failed only [`wr_id`](Self::wr_id), [`status`](Self::status),
/// [`vendor_err`](Self::vendor_err) and [`qp_num`](Self::qp_num) have a meaning; [`result`](Self::result)
/// tells which it is. Manual page: `ibv_poll_cq(3)`.
pub struct Completion<'a> {
    raw: driver::Completion,
    _loan: Loan<'a>,
}

impl<'a> Completion<'a> {
    #[inline(always)]
    pub(crate) fn new(raw: driver::Completion, loan: Loan<'a>) -> Self {
        Self { raw, _loan: loan }
    }

    /// The id that the request was posted with.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.raw.wr_id()
    }

    /// How it went.
    #[inline(always)]
    pub fn status(&self) -> WcStatus {
        self.raw.status()
    }

    /// True if the request succeeded.
    #[inline(always)]
    pub fn is_ok(&self) -> bool {
        self.status() == WcStatus::SUCCESS
    }

    /// What was done, or why not.
    #[inline(always)]
    pub fn result(&self) -> Result<WcOpcode, CompletionError> {
        if self.is_ok() {
            Ok(self.opcode())
        } else {
            Err(self.error())
        }
    }

    #[cold]
    fn error(&self) -> CompletionError {
        CompletionError {
            status: self.status(),
            vendor_err: self.vendor_err(),
            wr_id: self.wr_id(),
            qp_num: self.qp_num(),
        }
    }

    /// What was done. Codes from [`WcOpcode::RECV`] on are receives.
    #[inline(always)]
    pub fn opcode(&self) -> WcOpcode {
        self.raw.opcode()
    }

    /// True if it is the completion of a receive.
    #[inline(always)]
    pub fn is_recv(&self) -> bool {
        self.opcode().0 & WcOpcode::RECV.0 != 0
    }

    /// The device's own code for the error; its meaning is the vendor's.
    #[inline(always)]
    pub fn vendor_err(&self) -> u32 {
        self.raw.vendor_err()
    }

    /// Bytes received, or read by an RDMA READ or atomic. For datagrams the 40 bytes of the GRH count.
    #[inline(always)]
    pub fn byte_len(&self) -> u32 {
        self.raw.byte_len()
    }

    /// The number of the local QP.
    #[inline(always)]
    pub fn qp_num(&self) -> u32 {
        self.raw.qp_num()
    }

    /// The number of the QP that sent the datagram.
    #[inline(always)]
    pub fn src_qp(&self) -> u32 {
        self.raw.src_qp()
    }

    /// Which of the other fields have a meaning.
    #[inline(always)]
    pub fn flags(&self) -> WcFlags {
        self.raw.flags()
    }

    /// The immediate data that came with the message, if any.
    #[inline(always)]
    pub fn imm(&self) -> Option<u32> {
        self.flags()
            .contains(WcFlags::WITH_IMM)
            .then(|| u32::from_be(self.raw.ex()))
    }

    /// The remote key that the message invalidated, if any.
    #[inline(always)]
    pub fn invalidated_rkey(&self) -> Option<RemoteKey> {
        self.flags()
            .contains(WcFlags::WITH_INV)
            .then(|| RemoteKey(self.raw.ex()))
    }

    /// True if a global route header lies before a datagram's payload.
    #[inline(always)]
    pub fn has_grh(&self) -> bool {
        self.flags().contains(WcFlags::GRH)
    }

    /// When it completed, in ticks of the device's clock
    /// ([`DeviceAttr::hca_core_clock`](crate::DeviceAttr::hca_core_clock)), for successes of a device that has one. Ask
    /// for it when the queue is made ([`CqBuilder::timestamps`](crate::CqBuilder::timestamps)).
    #[inline(always)]
    pub fn timestamp(&self) -> Option<u64> {
        self.raw.timestamp()
    }

    /// The index of the partition key that the message came with, for GSI QPs.
    #[inline(always)]
    pub fn pkey_index(&self) -> u16 {
        self.raw.pkey_index()
    }

    /// The sender's LID, for datagrams on InfiniBand.
    #[inline(always)]
    pub fn slid(&self) -> u16 {
        self.raw.slid()
    }

    /// The service level, for datagrams.
    #[inline(always)]
    pub fn sl(&self) -> u8 {
        self.raw.sl()
    }

    /// The low bits of the LID that the datagram was sent to, for datagrams on InfiniBand.
    #[inline(always)]
    pub fn dlid_path_bits(&self) -> u8 {
        self.raw.dlid_path_bits()
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Completion");
        fields
            .field("wr_id", &self.wr_id())
            .field("qp_num", &self.qp_num())
            .field("status", &self.status());
        match self.is_ok() {
            true => fields
                .field("opcode", &self.opcode())
                .field("byte_len", &self.byte_len()),
            false => fields.field("vendor_err", &self.vendor_err()),
        };
        fields.finish()
    }
}

/// A work request that failed.
///
/// The queue pair is in the error state then, and the requests behind this one complete with
/// [`WcStatus::WR_FLUSH_ERR`]. Unconnected queue pairs (UD, and UC) go on receiving after a failed send on devices that
/// have the state [`SQE`](crate::QpState::SQE); rxe has not, and takes them to the error state like the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionError {
    /// Why it failed.
    pub status: WcStatus,
    /// The device's own code for the error.
    pub vendor_err: u32,
    /// The id that the request was posted with.
    pub wr_id: u64,
    /// The number of the local QP.
    pub qp_num: u32,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            status,
            vendor_err,
            wr_id,
            qp_num,
        } = self;
        write!(
            f,
            "work request {wr_id} of QP {qp_num:#x} failed: {} ({status:?}",
            meaning(*status)
        )?;
        if *vendor_err != 0 {
            write!(f, ", vendor error {vendor_err:#x}")?;
        }
        f.write_str(")")
    }
}

impl std::error::Error for CompletionError {}

/// What a status tells the user to look at.
fn meaning(status: WcStatus) -> &'static str {
    match status {
        WcStatus::SUCCESS => "success",
        WcStatus::LOC_LEN_ERR => {
            "a message was longer than the receive, or longer than a message can be"
        }
        WcStatus::LOC_QP_OP_ERR => "the QP cannot do what the request asks for",
        WcStatus::LOC_EEC_OP_ERR => "the end-to-end context cannot do what the request asks for",
        WcStatus::LOC_PROT_ERR => "a local slice is not registered, or not with the access needed",
        WcStatus::WR_FLUSH_ERR => "flushed, because the QP is in the error state",
        WcStatus::MW_BIND_ERR => "the memory window could not be bound",
        WcStatus::BAD_RESP_ERR => "the peer's answer makes no sense",
        WcStatus::LOC_ACCESS_ERR => {
            "what the peer sent could not be written to the receive's memory"
        }
        WcStatus::REM_INV_REQ_ERR => "the peer found the request invalid",
        WcStatus::REM_ACCESS_ERR => {
            "the peer's memory is not registered under that key, range or access"
        }
        WcStatus::REM_OP_ERR => "the peer could not carry the request out",
        WcStatus::RETRY_EXC_ERR => "the peer did not answer, retries are exhausted",
        WcStatus::RNR_RETRY_EXC_ERR => "the peer had no receive posted, retries are exhausted",
        WcStatus::REM_ABORT_ERR => "the peer aborted the request",
        WcStatus::RESP_TIMEOUT_ERR => "the answer did not come in time",
        WcStatus::FATAL_ERR => "the device failed",
        _ => "for a reason that this library does not know",
    }
}
