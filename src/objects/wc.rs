//! Work completions.
//!
//! A [`Completion`] is a copy of what the device wrote; each method decodes one field. Its entry in the
//! completion queue returns to the device as soon as the completion has been taken.

use std::fmt;

pub use crate::work::CompletionError;
pub use uverbs_uapi::enums::{WcOpcode, WcStatus};
pub use uverbs_uapi::flags::WcFlags;

use crate::driver;
use crate::gid::Gid;
use crate::probes;
use crate::work::RemoteKey;

/// A completed work request.
///
/// If the request failed, only [`wr_id`](Self::wr_id), [`status`](Self::status),
/// [`vendor_err`](Self::vendor_err) and [`qp_num`](Self::qp_num) are valid; [`result`](Self::result) says
/// whether it failed. Manual page: `ibv_poll_cq(3)`.
///
/// ```no_run
/// use uverbs::WcOpcode;
/// # fn take(cq: &mut uverbs::Cq) -> Result<(), Box<dyn std::error::Error>> {
/// for completion in &mut cq.poll()? {
///     match completion.result() {
///         Ok(WcOpcode::RECV) => println!("{} bytes, {:?}", completion.byte_len(), completion.imm()),
///         Ok(opcode) => println!("request {}: {opcode:?}", completion.wr_id()),
///         // What failed and why, in words; `status` is for programs.
///         Err(failed) => eprintln!("{failed}"),
///     }
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "ibv_poll_cq")]
#[derive(Clone)]
pub struct Completion {
    raw: driver::Completion,
}

impl Completion {
    #[inline(always)]
    pub(crate) fn new(raw: driver::Completion) -> Self {
        Self { raw }
    }

    /// The id that the request was posted with.
    #[inline(always)]
    pub fn wr_id(&self) -> u64 {
        self.raw.wr_id()
    }

    /// The status.
    #[inline(always)]
    pub fn status(&self) -> WcStatus {
        self.raw.status()
    }

    /// True if the request succeeded.
    #[inline(always)]
    pub fn is_ok(&self) -> bool {
        self.status() == WcStatus::SUCCESS
    }

    /// The opcode of the completed request, or why it failed.
    ///
    /// # Errors
    ///
    /// The request failed.
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
        let error = CompletionError {
            status: self.status(),
            vendor_err: self.vendor_err(),
            wr_id: self.wr_id(),
            qp_num: self.qp_num(),
        };
        let CompletionError { qp_num, wr_id, .. } = error;
        probes::completion_error(qp_num, wr_id, error.status.0, error.vendor_err);
        error
    }

    /// The opcode of the completed request. Codes from [`WcOpcode::RECV`] on are receives.
    #[inline(always)]
    pub fn opcode(&self) -> WcOpcode {
        self.raw.opcode()
    }

    /// True if it is the completion of a receive.
    #[inline(always)]
    pub fn is_recv(&self) -> bool {
        self.opcode().0 & WcOpcode::RECV.0 != 0
    }

    /// The device's own code for the error; the vendor defines it.
    #[inline(always)]
    pub fn vendor_err(&self) -> u32 {
        self.raw.vendor_err()
    }

    /// The number of bytes received, or read by an RDMA READ or atomic. For datagrams it includes the 40
    /// bytes of the GRH.
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

    /// Which of the other fields are valid.
    #[inline(always)]
    pub fn flags(&self) -> WcFlags {
        self.raw.flags()
    }

    /// The immediate data of the message, if any: the number that the sender gave, in host byte order. It
    /// travels in network byte order, as with `htonl(3)` and `ntohl(3)` around C's `imm_data`.
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

    /// True if a global route header precedes a datagram's payload.
    #[inline(always)]
    pub fn has_grh(&self) -> bool {
        self.flags().contains(WcFlags::GRH)
    }

    /// When it completed, in ticks of the device's clock
    /// ([`DeviceAttr::hca_core_clock`](crate::query::DeviceAttr::hca_core_clock)), for successful requests on
    /// a device with a clock. Request timestamps when creating the queue
    /// ([`CqBuilder::timestamps`](crate::cq::CqBuilder::timestamps)).
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

    /// Whether it is the completion of a WRITE with immediate data that has consumed no receive
    /// ([`QpBuilder::unsolicited_writes`](crate::qp::QpBuilder::unsolicited_writes)). Its id is 0.
    #[inline(always)]
    pub fn is_unsolicited(&self) -> bool {
        self.raw.is_unsolicited()
    }

    /// The sender's GID, if the completion has it: on EFA for messages of senders for whom the protection
    /// domain has no address handle, but not for a WRITE with immediate data.
    #[inline(always)]
    pub fn sender_gid(&self) -> Option<Gid> {
        self.raw.sender_gid().map(Gid::new)
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

impl fmt::Debug for Completion {
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
