//! Shared receive queues.

use std::os::fd::RawFd;

use uverbs_uapi::enums::SrqType;
use uverbs_uapi::handle::{PdHandle, SrqHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::request::DriverReply;
use super::{Command, DriverData, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Creates a shared receive queue of the basic type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateSrq {
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
    pub(crate) driver: DriverReply,
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
        let request = match spelling {
            Spelling::Native => {
                let request = request
                    .method(object::SRQ, method::srq::CREATE)
                    .new_object(attr::create_srq::HANDLE)
                    .handle(attr::create_srq::PD_HANDLE, self.pd.0)
                    .u64(attr::create_srq::USER_HANDLE, self.user_handle)
                    .u32(attr::create_srq::MAX_WR, self.max_wr)
                    .u32(attr::create_srq::MAX_SGE, self.max_sge)
                    .u32(attr::create_srq::LIMIT, self.limit)
                    .constant(attr::create_srq::TYPE, SrqType::BASIC.0.into())
                    .output(attr::create_srq::RESP_MAX_WR, size_of::<u32>())
                    .output(attr::create_srq::RESP_MAX_SGE, size_of::<u32>());
                match self.event_fd {
                    Some(fd) => request.fd(attr::create_srq::EVENT_FD, fd),
                    None => request,
                }
            }
            Spelling::Write => {
                let core = abi::CreateSrq {
                    user_handle: self.user_handle,
                    pd_handle: self.pd.0,
                    max_wr: self.max_wr,
                    max_sge: self.max_sge,
                    srq_limit: self.limit,
                    ..Default::default()
                };
                request.write_command::<_, abi::CreateSrqResp>(cmd::CREATE_SRQ, &core)
            }
        };
        request.driver(&self.driver);
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        let (handle, max_sge) = match spelling {
            Spelling::Native => (
                answer.new_handle(attr::create_srq::HANDLE)?,
                answer.answer(attr::create_srq::RESP_MAX_SGE)?,
            ),
            Spelling::Write => {
                let response: abi::CreateSrqResp = answer.response()?;
                (response.srq_handle, response.max_sge)
            }
        };
        Ok(CreateSrqReply {
            handle: SrqHandle(handle),
            max_sge,
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
