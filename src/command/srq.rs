//! Shared receive queues.

use std::os::fd::RawFd;

use uverbs_uapi::enums::SrqType;
use uverbs_uapi::handle::{CqHandle, PdHandle, SrqHandle, XrcdHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::request::DriverReply;
use super::{Command, DriverData, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// The type of a shared receive queue, with what belongs to the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SrqKind {
    /// For the queue pairs of its protection domain.
    Basic,
    /// For the XRC targets of a domain; completions go to the queue.
    Xrc { xrcd: XrcdHandle, cq: CqHandle },
    /// With matching of so many tags at once; completions go to the queue.
    TagMatching { cq: CqHandle, max_num_tags: u32 },
}

impl SrqKind {
    fn number(self) -> SrqType {
        match self {
            SrqKind::Basic => SrqType::BASIC,
            SrqKind::Xrc { .. } => SrqType::XRC,
            SrqKind::TagMatching { .. } => SrqType::TM,
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
    /// An event comes when fewer requests than this wait; 0 for none.
    pub(crate) limit: u32,
    /// What asynchronous events carry.
    pub(crate) user_handle: u64,
    /// Where asynchronous events go, if not to the context's first such file.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

/// A new shared receive queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateSrqReply {
    pub(crate) handle: SrqHandle,
    pub(crate) max_sge: u32,
    /// Its number on the wire, if it is of the type XRC.
    pub(crate) srqn: u32,
    pub(crate) driver: DriverReply,
}

impl CreateSrq {
    #[inline]
    fn native(&self, request: &mut Request) {
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
            .output(id::RESP_MAX_SGE, size_of::<u32>());
        if let Some(fd) = self.event_fd {
            request.fd(id::EVENT_FD, fd);
        }
        match self.kind {
            SrqKind::Basic => request,
            SrqKind::Xrc { xrcd, cq } => request
                .handle(id::XRCD_HANDLE, xrcd.0)
                .handle(id::CQ_HANDLE, cq.0)
                .output(id::RESP_SRQ_NUM, size_of::<u32>()),
            SrqKind::TagMatching { cq, max_num_tags } => request
                .handle(id::CQ_HANDLE, cq.0)
                .u32(id::MAX_NUM_TAGS, max_num_tags),
        };
    }

    #[inline]
    fn legacy(&self, request: &mut Request) {
        let (xrcd_handle, cq_handle, max_num_tags) = match self.kind {
            SrqKind::Basic => {
                let core = abi::CreateSrq {
                    user_handle: self.user_handle,
                    pd_handle: self.pd.0,
                    max_wr: self.max_wr,
                    max_sge: self.max_sge,
                    srq_limit: self.limit,
                    ..Default::default()
                };
                request.write_command::<_, abi::CreateSrqResp>(cmd::CREATE_SRQ, &core);
                return;
            }
            SrqKind::Xrc { xrcd, cq } => (xrcd.0, cq.0, 0),
            SrqKind::TagMatching { cq, max_num_tags } => (0, cq.0, max_num_tags),
        };
        let core = abi::CreateXsrq {
            user_handle: self.user_handle,
            srq_type: self.kind.number().0,
            pd_handle: self.pd.0,
            max_wr: self.max_wr,
            max_sge: self.max_sge,
            srq_limit: self.limit,
            max_num_tags,
            xrcd_handle,
            cq_handle,
            ..Default::default()
        };
        request.write_command::<_, abi::CreateSrqResp>(cmd::CREATE_XSRQ, &core);
    }
}

impl Command for CreateSrq {
    type Reply = CreateSrqReply;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CreateSrq;

    fn subject(&self) -> Subject {
        Subject::named(
            "SRQ",
            format_args!("of {} requests in PD {}", self.max_wr, self.pd.0),
        )
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => self.native(request),
            Spelling::Write => self.legacy(request),
        }
        request.driver(&self.driver);
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        use attr::create_srq as id;
        let (handle, max_sge, srqn) = match spelling {
            Spelling::Native => (
                answer.new_handle(id::HANDLE)?,
                answer.answer(id::RESP_MAX_SGE)?,
                match self.kind {
                    SrqKind::Xrc { .. } => answer.answer(id::RESP_SRQ_NUM)?,
                    SrqKind::Basic | SrqKind::TagMatching { .. } => 0,
                },
            ),
            Spelling::Write => {
                let response: abi::CreateSrqResp = answer.response()?;
                (response.srq_handle, response.max_sge, response.srqn)
            }
        };
        Ok(CreateSrqReply {
            handle: SrqHandle(handle),
            max_sge,
            srqn,
            driver: answer.driver_reply(&self.driver),
        })
    }
}

/// Changes a shared receive queue. The command is its own ABI struct: `attr_mask` says which fields count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModifySrq {
    pub(crate) core: abi::ModifySrq,
    pub(crate) driver: DriverData,
}

impl Command for ModifySrq {
    type Reply = ();
    const NATIVE: bool = false;
    const VERB: Verb = Verb::ModifySrq;

    fn subject(&self) -> Subject {
        Subject::numbered("SRQ", self.core.srq_handle.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request
                    .write_command::<_, ()>(cmd::MODIFY_SRQ, &self.core)
                    .driver(&self.driver);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Queries a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuerySrq(pub(crate) SrqHandle);

impl Command for QuerySrq {
    type Reply = abi::QuerySrqResp;
    const NATIVE: bool = false;
    const VERB: Verb = Verb::QuerySrq;

    fn subject(&self) -> Subject {
        Subject::numbered("SRQ", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::QuerySrq {
            srq_handle: self.0.0,
            ..Default::default()
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request.write_command::<_, abi::QuerySrqResp>(cmd::QUERY_SRQ, &core);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        answer.response()
    }
}
