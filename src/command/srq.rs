//! Shared receive queues.

use std::os::fd::RawFd;

use uverbs_uapi::enums::SrqType;
use uverbs_uapi::handle::{CqHandle, PdHandle, SrqHandle, XrcdHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::request::DriverReply;
use super::{Command, Decode, DriverData, Request, Undo, nothing, response, undo};
use crate::error::{Subject, Verb};

/// The type of a shared receive queue, with the type's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// For the queue pairs of its protection domain.
    Basic,
    /// For the XRC targets of a domain; this queue gets the completions.
    Xrc { xrcd: XrcdHandle, cq: CqHandle },
}

impl SrqKind {
    fn number(self) -> SrqType {
        match self {
            SrqKind::Basic => SrqType::BASIC,
            SrqKind::Xrc { .. } => SrqType::XRC,
        }
    }
}

/// Creates a shared receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateSrq {
    pub(crate) kind: SrqKind,
    pub(crate) pd: PdHandle,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// An event is raised when fewer requests than this wait; 0 means never.
    pub(crate) limit: u32,
    /// The number that asynchronous events carry.
    pub(crate) user_handle: u64,
    /// The file for asynchronous events, if it is not the context's first one.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

/// A new shared receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateSrqReply {
    pub(crate) handle: SrqHandle,
    pub(crate) max_sge: u32,
    /// Its number on the wire, for the type XRC.
    pub(crate) srqn: u32,
    pub(crate) driver: DriverReply,
}

impl CreateSrq {
    /// The core of the write command for the later types.
    fn extended(&self) -> abi::CreateXsrq {
        let (xrcd_handle, cq_handle) = match self.kind {
            SrqKind::Basic => (0, 0),
            SrqKind::Xrc { xrcd, cq } => (xrcd.0, cq.0),
        };
        abi::CreateXsrq {
            user_handle: self.user_handle,
            srq_type: self.kind.number().0,
            pd_handle: self.pd.0,
            max_wr: self.max_wr,
            max_sge: self.max_sge,
            srq_limit: self.limit,
            xrcd_handle,
            cq_handle,
            ..Default::default()
        }
    }
}

impl Command for CreateSrq {
    type Reply = CreateSrqReply;
    const VERB: Verb = Verb::CreateSrq;
    const UNDO: Option<Undo> = Some(undo::<SrqHandle>);

    fn subject(&self) -> Subject {
        Subject::named(
            "SRQ",
            format_args!("of {} requests in PD {}", self.max_wr, self.pd.0),
        )
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::create_srq as id;
        request
            .method(object::SRQ, method::srq::CREATE)
            .new_object(id::HANDLE)
            .handle(id::PD_HANDLE, self.pd.0)
            .u64(id::USER_HANDLE, self.user_handle)
            .u32(id::MAX_WR, self.max_wr)
            .u32(id::MAX_SGE, self.max_sge)
            .u32(id::LIMIT, self.limit)
            .constant(id::TYPE, self.kind.number().0.into())
            .output(id::RESP_MAX_WR, size_of::<u32>())
            .output(id::RESP_MAX_SGE, size_of::<u32>())
            .fd_if_any(id::EVENT_FD, self.event_fd);
        match self.kind {
            SrqKind::Basic => request,
            SrqKind::Xrc { xrcd, cq } => request
                .handle(id::XRCD_HANDLE, xrcd.0)
                .handle(id::CQ_HANDLE, cq.0)
                .output(id::RESP_SRQ_NUM, size_of::<u32>()),
        }
        .driver(&self.driver);
        Some(|command, answer| {
            Ok(CreateSrqReply {
                handle: SrqHandle(answer.new_handle(id::HANDLE)?),
                max_sge: answer.answer(id::RESP_MAX_SGE)?,
                srqn: match command.kind {
                    SrqKind::Xrc { .. } => answer.answer(id::RESP_SRQ_NUM)?,
                    SrqKind::Basic => 0,
                },
                driver: answer.driver_reply(&command.driver),
            })
        })
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        if self.kind == SrqKind::Basic {
            let core = abi::CreateSrq {
                user_handle: self.user_handle,
                pd_handle: self.pd.0,
                max_wr: self.max_wr,
                max_sge: self.max_sge,
                srq_limit: self.limit,
                ..Default::default()
            };
            request.write_command::<_, abi::CreateSrqResp>(cmd::CREATE_SRQ, &core);
        } else {
            let core = self.extended();
            request.write_command::<_, abi::CreateSrqResp>(cmd::CREATE_XSRQ, &core);
        }
        request.driver(&self.driver);
        Some(|command, answer| {
            let response: abi::CreateSrqResp = answer.response()?;
            Ok(CreateSrqReply {
                handle: SrqHandle(response.srq_handle),
                max_sge: response.max_sge,
                srqn: response.srqn,
                driver: answer.driver_reply(&command.driver),
            })
        })
    }
}

/// Changes a shared receive queue. The command is its own ABI struct: `attr_mask` says which fields are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModifySrq {
    pub(crate) core: abi::ModifySrq,
    pub(crate) driver: DriverData,
}

impl Command for ModifySrq {
    type Reply = ();
    const VERB: Verb = Verb::ModifySrq;

    fn subject(&self) -> Subject {
        Subject::numbered("SRQ", self.core.srq_handle.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .write_command::<_, ()>(cmd::MODIFY_SRQ, &self.core)
            .driver(&self.driver);
        Some(nothing)
    }
}

/// Queries a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuerySrq(pub(crate) SrqHandle);

impl Command for QuerySrq {
    type Reply = abi::QuerySrqResp;
    const VERB: Verb = Verb::QuerySrq;

    fn subject(&self) -> Subject {
        Subject::numbered("SRQ", self.0.0.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::QuerySrq {
            srq_handle: self.0.0,
            ..Default::default()
        };
        request.write_command::<_, abi::QuerySrqResp>(cmd::QUERY_SRQ, &core);
        Some(response)
    }
}
