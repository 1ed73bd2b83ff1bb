//! Queue pairs, and the doorbell of drivers whose doorbell is a system call.

use std::mem::offset_of;
use std::os::fd::RawFd;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::flags::QpCreateFlags;
use uverbs_uapi::handle::{CqHandle, PdHandle, QpHandle, SrqHandle};
use uverbs_uapi::types::QpCap;
use uverbs_uapi::write::CmdHdr;
use uverbs_uapi::{attr, cmd, method, object, write as abi};
use zerocopy::{Immutable, IntoBytes};

use super::request::DriverReply;
use super::{
    Command, CommandFd, Decode, DriverData, Malformed, Request, Undo, nothing, response, undo,
};
use crate::error::{Result, Subject, Verb};

/// The properties of a queue pair to create, without the driver's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpSpec {
    pub(crate) pd: PdHandle,
    pub(crate) send_cq: CqHandle,
    pub(crate) recv_cq: CqHandle,
    pub(crate) srq: Option<SrqHandle>,
    pub(crate) qp_type: QpType,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: bool,
    /// Flags other than `SQ_SIG_ALL`.
    pub(crate) flags: QpCreateFlags,
    /// The number that asynchronous events carry.
    pub(crate) user_handle: u64,
    /// The file for asynchronous events, if it is not the context's first one.
    pub(crate) event_fd: Option<RawFd>,
}

/// Creates a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateQp {
    pub(crate) spec: QpSpec,
    pub(crate) driver: DriverData,
}

/// A new queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateQpReply {
    pub(crate) handle: QpHandle,
    pub(crate) qpn: u32,
    pub(crate) cap: QpCap,
    pub(crate) driver: DriverReply,
}

impl QpSpec {
    /// Its name in errors before it has a number.
    pub(crate) fn subject(&self) -> Subject {
        Subject::named("QP", format_args!("in PD {}", self.pd.0))
    }

    /// Whether it has a completion queue for receives: an XRC initiator receives nothing.
    fn receives(&self) -> bool {
        self.qp_type != QpType::XRC_SEND
    }

    /// The core of the extended write command.
    fn core(&self) -> abi::ExCreateQp {
        abi::ExCreateQp {
            user_handle: self.user_handle,
            pd_handle: self.pd.0,
            send_cq_handle: self.send_cq.0,
            recv_cq_handle: match self.receives() {
                true => self.recv_cq.0,
                false => 0,
            },
            srq_handle: self.srq.map_or(0, |srq| srq.0),
            max_send_wr: self.cap.max_send_wr,
            max_recv_wr: self.cap.max_recv_wr,
            max_send_sge: self.cap.max_send_sge,
            max_recv_sge: self.cap.max_recv_sge,
            max_inline_data: self.cap.max_inline_data,
            sq_sig_all: self.sq_sig_all.into(),
            qp_type: self.qp_type.0 as u8,
            is_srq: self.srq.is_some().into(),
            create_flags: self.flags.bits(),
            ..Default::default()
        }
    }
}

/// The core of the ordinary write command: a pointer, and the fields of the extended one up to its mask.
fn ordinary(core: &abi::ExCreateQp) -> abi::CreateQp {
    const SAME: usize = offset_of!(abi::ExCreateQp, comp_mask);
    const START: usize = offset_of!(abi::CreateQp, user_handle);
    const { assert!(START + SAME == size_of::<abi::CreateQp>()) };
    let mut ordinary = abi::CreateQp::default();
    ordinary.as_mut_bytes()[START..].copy_from_slice(&core.as_bytes()[..SAME]);
    ordinary
}

/// Adds the attributes that every queue pair has in addition to the handles of its parents.
#[inline(always)]
pub(super) fn common<'r>(
    request: &'r mut Request,
    user_handle: u64,
    cap: &QpCap,
    qp_type: QpType,
) -> &'r mut Request {
    use attr::create_qp as id;
    request
        .u64(id::USER_HANDLE, user_handle)
        .input(id::CAP, cap)
        .constant(id::TYPE, qp_type.0.into())
        .output(id::RESP_CAP, size_of::<QpCap>())
        .output(id::RESP_QP_NUM, size_of::<u32>())
}

/// The queue pair and its number, from the method's answer.
#[inline(always)]
pub(super) fn by_method(answer: &Request) -> Result<(QpHandle, u32), Malformed> {
    let handle = answer.new_handle(attr::create_qp::HANDLE)?;
    Ok((
        QpHandle(handle),
        answer.answer(attr::create_qp::RESP_QP_NUM)?,
    ))
}

/// The queue pair and its number, from the write commands' answer: the extended response starts with the
/// ordinary one.
#[inline(always)]
pub(super) fn by_write(answer: &Request) -> Result<(QpHandle, u32), Malformed> {
    let response: abi::CreateQpResp = answer.response()?;
    Ok((QpHandle(response.qp_handle), response.qpn))
}

impl Command for CreateQp {
    type Reply = CreateQpReply;
    const VERB: Verb = Verb::CreateQp;
    const UNDO: Option<Undo> = Some(undo::<QpHandle>);

    fn subject(&self) -> Subject {
        self.spec.subject()
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::create_qp as id;
        let spec = &self.spec;
        request
            .method(object::QP, method::qp::CREATE)
            .new_object(id::HANDLE)
            .handle(id::PD_HANDLE, spec.pd.0)
            .handle(id::SEND_CQ_HANDLE, spec.send_cq.0);
        if spec.receives() {
            request.handle(id::RECV_CQ_HANDLE, spec.recv_cq.0);
        }
        common(request, spec.user_handle, &spec.cap, spec.qp_type);
        if let Some(srq) = spec.srq {
            request.handle(id::SRQ_HANDLE, srq.0);
        }
        let mut flags = spec.flags;
        flags.set(QpCreateFlags::SQ_SIG_ALL, spec.sq_sig_all);
        if !flags.is_empty() {
            request.u32(id::FLAGS, flags.bits());
        }
        request
            .fd_if_any(id::EVENT_FD, spec.event_fd)
            .driver(&self.driver);
        Some(|command, answer| {
            let (handle, qpn) = by_method(answer)?;
            Ok(CreateQpReply {
                handle,
                qpn,
                cap: answer.answer(id::RESP_CAP)?,
                driver: answer.driver_reply(&command.driver),
            })
        })
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = self.spec.core();
        match self.spec.flags.is_empty() {
            true => {
                let core = ordinary(&core);
                request.write_command::<_, abi::CreateQpResp>(cmd::CREATE_QP, &core)
            }
            false => request.write_command::<_, abi::ExCreateQpResp>(cmd::EX_CREATE_QP, &core),
        }
        .driver(&self.driver);
        Some(|command, answer| {
            let response: abi::CreateQpResp = answer.response()?;
            let (handle, qpn) = by_write(answer)?;
            Ok(CreateQpReply {
                handle,
                qpn,
                cap: QpCap {
                    max_send_wr: response.max_send_wr,
                    max_recv_wr: response.max_recv_wr,
                    max_send_sge: response.max_send_sge,
                    max_recv_sge: response.max_recv_sge,
                    max_inline_data: response.max_inline_data,
                },
                driver: answer.driver_reply(&command.driver),
            })
        })
    }
}

/// Changes a queue pair, without a part for the driver. The command is its own ABI struct: `attr_mask` says
/// which fields are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModifyQpAlone<'a>(pub(crate) &'a abi::ModifyQp);

impl Command for ModifyQpAlone<'_> {
    type Reply = ();
    const VERB: Verb = Verb::ModifyQp;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.0.qp_handle.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request.write_command::<_, ()>(cmd::MODIFY_QP, self.0);
        Some(nothing)
    }
}

/// A [`ModifyQpAlone`] in the form of write(2). It is built once for several changes.
#[derive(Clone, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct WrittenModifyQp {
    header: CmdHdr,
    pub(crate) core: abi::ModifyQp,
}

impl From<abi::ModifyQp> for WrittenModifyQp {
    #[inline(always)]
    fn from(core: abi::ModifyQp) -> Self {
        const WORD: usize = 4;
        let header = CmdHdr {
            command: cmd::MODIFY_QP,
            in_words: (size_of::<Self>() / WORD) as u16,
            out_words: 0,
        };
        Self { header, core }
    }
}

impl CommandFd {
    /// Changes a queue pair: by write(2) if this process may use it, which costs the kernel less than the
    /// ioctl `INVOKE_WRITE`; there is no other way to change one.
    pub(crate) fn modify_qp(&self, change: &WrittenModifyQp) -> Result<()> {
        let command = ModifyQpAlone(&change.core);
        match self.write_plain(&command, change.as_bytes()) {
            Some(result) => result,
            None => self.execute(&command),
        }
    }
}

/// Changes a queue pair like [`ModifyQpAlone`], with the fields that only the extended command has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModifyQp {
    pub(crate) base: abi::ModifyQp,
    pub(crate) driver: DriverData,
}

impl Command for ModifyQp {
    type Reply = DriverReply;
    const VERB: Verb = Verb::ModifyQp;

    fn subject(&self) -> Subject {
        ModifyQpAlone(&self.base).subject()
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        // Only the extended command has room for the driver's answer.
        if self.driver.is_empty() {
            ModifyQpAlone(&self.base).write(request)?;
        } else {
            let core = abi::ExModifyQp {
                base: self.base,
                ..Default::default()
            };
            request.write_command::<_, abi::ExModifyQpResp>(cmd::EX_MODIFY_QP, &core);
        }
        request.driver(&self.driver);
        Some(|command, answer| Ok(answer.driver_reply(&command.driver)))
    }
}

/// Queries a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryQp {
    pub(crate) qp: QpHandle,
    /// Bits of `QpAttrMask`: the requested attributes. Drivers may return more.
    pub(crate) attr_mask: u32,
}

impl Command for QueryQp {
    type Reply = abi::QueryQpResp;
    const VERB: Verb = Verb::QueryQp;

    fn subject(&self) -> Subject {
        Subject::numbered("QP", self.qp.0.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::QueryQp {
            qp_handle: self.qp.0,
            attr_mask: self.attr_mask,
            ..Default::default()
        };
        request.write_command::<_, abi::QueryQpResp>(cmd::QUERY_QP, &core);
        Some(response)
    }
}
