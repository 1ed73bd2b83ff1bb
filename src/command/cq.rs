//! Completion queues and completion channels.

use std::os::fd::{OwnedFd, RawFd};

use uverbs_uapi::flags::CqAttrMask;
use uverbs_uapi::handle::CqHandle;
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::device::owned;
use super::request::DriverReply;
use super::{Command, DriverData, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Creates a completion channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateCompChannel;

impl Command for CreateCompChannel {
    type Reply = OwnedFd;
    const NATIVE: bool = false;
    const VERB: Verb = Verb::CreateCompChannel;

    fn subject(&self) -> Subject {
        Subject::the("completion channel")
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request.write_command::<_, abi::CreateCompChannelResp>(
                    cmd::CREATE_COMP_CHANNEL,
                    &abi::CreateCompChannel::default(),
                );
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<OwnedFd, Malformed> {
        let response: abi::CreateCompChannelResp = answer.response()?;
        owned(response.fd as i32 as i64, attr::invoke_write::CORE_OUT)
    }
}

/// Creates a completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateCq {
    /// Entries wanted; the kernel may give more.
    pub(crate) cqe: u32,
    /// What completion and asynchronous events carry.
    pub(crate) user_handle: u64,
    /// The completion channel's file descriptor, if events are wanted.
    pub(crate) channel: Option<RawFd>,
    pub(crate) comp_vector: u32,
    /// Bits of `CqCreateFlags`.
    pub(crate) flags: u32,
    /// Where asynchronous events go, if not to the context's first such file.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

/// A new completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateCqReply {
    pub(crate) handle: CqHandle,
    /// Entries that it really has.
    pub(crate) cqe: u32,
    pub(crate) driver: DriverReply,
}

impl CreateCq {
    #[inline]
    fn native(&self, request: &mut Request) {
        request
            .method(object::CQ, method::cq::CREATE)
            .new_object(attr::create_cq::HANDLE)
            .u32(attr::create_cq::CQE, self.cqe)
            .u64(attr::create_cq::USER_HANDLE, self.user_handle)
            .u32(attr::create_cq::COMP_VECTOR, self.comp_vector)
            .output(attr::create_cq::RESP_CQE, size_of::<u32>());
        if let Some(fd) = self.channel {
            request.fd(attr::create_cq::COMP_CHANNEL, fd);
        }
        if self.flags != 0 {
            request.u32(attr::create_cq::FLAGS, self.flags);
        }
        if let Some(fd) = self.event_fd {
            request.fd(attr::create_cq::EVENT_FD, fd);
        }
    }

    #[inline]
    fn legacy(&self, request: &mut Request) {
        if self.flags == 0 {
            let core = abi::CreateCq {
                user_handle: self.user_handle,
                cqe: self.cqe,
                comp_vector: self.comp_vector,
                comp_channel: self.channel.unwrap_or(-1),
                ..Default::default()
            };
            request.write_command::<_, abi::CreateCqResp>(cmd::CREATE_CQ, &core);
            return;
        }
        let core = abi::ExCreateCq {
            user_handle: self.user_handle,
            cqe: self.cqe,
            comp_vector: self.comp_vector,
            comp_channel: self.channel.unwrap_or(-1),
            flags: self.flags,
            ..Default::default()
        };
        request.write_command::<_, abi::ExCreateCqResp>(cmd::EX_CREATE_CQ, &core);
    }
}

impl Command for CreateCq {
    type Reply = CreateCqReply;
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CreateCq;

    fn subject(&self) -> Subject {
        Subject::named("CQ", format_args!("of {} entries", self.cqe))
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
        let (handle, cqe) = match spelling {
            Spelling::Native => (
                answer.new_handle(attr::create_cq::HANDLE)?,
                answer.answer(attr::create_cq::RESP_CQE)?,
            ),
            Spelling::Write => {
                // The extended response starts with the plain one.
                let response: abi::CreateCqResp = answer.response()?;
                (response.cq_handle, response.cqe)
            }
        };
        Ok(CreateCqReply {
            handle: CqHandle(handle),
            cqe,
            driver: answer.driver_reply(&self.driver),
        })
    }
}

/// Asks for an event when the next completion arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReqNotifyCq {
    pub(crate) cq: CqHandle,
    pub(crate) solicited_only: bool,
}

impl Command for ReqNotifyCq {
    type Reply = ();
    const NATIVE: bool = false;
    const VERB: Verb = Verb::ReqNotifyCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.cq.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::ReqNotifyCq {
            cq_handle: self.cq.0,
            solicited_only: self.solicited_only.into(),
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request.write_command::<_, ()>(cmd::REQ_NOTIFY_CQ, &core);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Gives a completion queue another size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResizeCq {
    pub(crate) cq: CqHandle,
    /// Entries wanted; the kernel may give more.
    pub(crate) cqe: u32,
    pub(crate) driver: DriverData,
}

impl Command for ResizeCq {
    /// The driver's private answer.
    type Reply = DriverReply;
    const NATIVE: bool = false;
    const VERB: Verb = Verb::ResizeCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.cq.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::ResizeCq {
            cq_handle: self.cq.0,
            cqe: self.cqe,
            ..Default::default()
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request
                    .write_command::<_, abi::ResizeCqResp>(cmd::RESIZE_CQ, &core)
                    .driver(&self.driver);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<DriverReply, Malformed> {
        Ok(answer.driver_reply(&self.driver))
    }
}

/// Lets completion events wait until there is more to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModifyCq {
    pub(crate) cq: CqHandle,
    /// Completions that an event may wait for.
    pub(crate) count: u16,
    /// Microseconds that an event may wait.
    pub(crate) period: u16,
}

impl Command for ModifyCq {
    type Reply = ();
    const NATIVE: bool = false;
    const VERB: Verb = Verb::ModifyCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.cq.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::ExModifyCq {
            cq_handle: self.cq.0,
            attr_mask: CqAttrMask::MODERATE.bits(),
            attr: abi::CqModeration {
                cq_count: self.count,
                cq_period: self.period,
            },
            reserved: 0,
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request.write_command::<_, ()>(cmd::EX_MODIFY_CQ, &core);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}
