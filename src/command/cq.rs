//! Completion queues and completion channels.

use std::os::fd::{OwnedFd, RawFd};

use uverbs_uapi::flags::CqAttrMask;
use uverbs_uapi::handle::CqHandle;
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::device::owned;
use super::request::DriverReply;
use super::{Command, Decode, DriverData, Request, Undo, nothing, undo};
use crate::error::{Subject, Verb};

/// Creates a completion channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateCompChannel;

impl Command for CreateCompChannel {
    type Reply = OwnedFd;
    const VERB: Verb = Verb::CreateCompChannel;

    fn subject(&self) -> Subject {
        Subject::the("completion channel")
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request.write_command::<_, abi::CreateCompChannelResp>(
            cmd::CREATE_COMP_CHANNEL,
            &abi::CreateCompChannel::default(),
        );
        Some(|_, answer| {
            let response: abi::CreateCompChannelResp = answer.response()?;
            owned(response.fd as i32 as i64, attr::invoke_write::CORE_OUT)
        })
    }
}

/// Creates a completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateCq {
    /// Requested entries; the kernel may provide more.
    pub(crate) cqe: u32,
    /// The number that completion and asynchronous events carry.
    pub(crate) user_handle: u64,
    /// The completion channel's file descriptor, if events are requested.
    pub(crate) channel: Option<RawFd>,
    pub(crate) comp_vector: u32,
    /// Bits of `CqCreateFlags`.
    pub(crate) flags: u32,
    /// The file for asynchronous events, if it is not the context's first one.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

/// A new completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateCqReply {
    pub(crate) handle: CqHandle,
    /// The actual number of entries.
    pub(crate) cqe: u32,
    pub(crate) driver: DriverReply,
}

impl Command for CreateCq {
    type Reply = CreateCqReply;
    const VERB: Verb = Verb::CreateCq;
    const UNDO: Option<Undo> = Some(undo::<CqHandle>);

    fn subject(&self) -> Subject {
        Subject::named("CQ", format_args!("of {} entries", self.cqe))
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::create_cq as id;
        request
            .method(object::CQ, method::cq::CREATE)
            .new_object(id::HANDLE)
            .u32(id::CQE, self.cqe)
            .u64(id::USER_HANDLE, self.user_handle)
            .u32(id::COMP_VECTOR, self.comp_vector)
            .output(id::RESP_CQE, size_of::<u32>())
            .fd_if_any(id::COMP_CHANNEL, self.channel);
        if self.flags != 0 {
            request.u32(id::FLAGS, self.flags);
        }
        request
            .fd_if_any(id::EVENT_FD, self.event_fd)
            .driver(&self.driver);
        Some(|command, answer| {
            Ok(CreateCqReply {
                handle: CqHandle(answer.new_handle(id::HANDLE)?),
                cqe: answer.answer(id::RESP_CQE)?,
                driver: answer.driver_reply(&command.driver),
            })
        })
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let comp_channel = self.channel.unwrap_or(-1);
        if self.flags == 0 {
            let core = abi::CreateCq {
                user_handle: self.user_handle,
                cqe: self.cqe,
                comp_vector: self.comp_vector,
                comp_channel,
                ..Default::default()
            };
            request.write_command::<_, abi::CreateCqResp>(cmd::CREATE_CQ, &core);
        } else {
            let core = abi::ExCreateCq {
                user_handle: self.user_handle,
                cqe: self.cqe,
                comp_vector: self.comp_vector,
                comp_channel,
                flags: self.flags,
                ..Default::default()
            };
            request.write_command::<_, abi::ExCreateCqResp>(cmd::EX_CREATE_CQ, &core);
        }
        request.driver(&self.driver);
        Some(|command, answer| {
            // The extended response starts with the ordinary one.
            let response: abi::CreateCqResp = answer.response()?;
            Ok(CreateCqReply {
                handle: CqHandle(response.cq_handle),
                cqe: response.cqe,
                driver: answer.driver_reply(&command.driver),
            })
        })
    }
}

/// Requests an event for the next completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReqNotifyCq {
    pub(crate) cq: CqHandle,
    pub(crate) solicited_only: bool,
}

impl Command for ReqNotifyCq {
    type Reply = ();
    const VERB: Verb = Verb::ReqNotifyCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.cq.0.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::ReqNotifyCq {
            cq_handle: self.cq.0,
            solicited_only: self.solicited_only.into(),
        };
        request.write_command::<_, ()>(cmd::REQ_NOTIFY_CQ, &core);
        Some(nothing)
    }
}

/// Changes the size of a completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResizeCq {
    pub(crate) cq: CqHandle,
    /// Requested entries; the kernel may provide more.
    pub(crate) cqe: u32,
    pub(crate) driver: DriverData,
}

impl Command for ResizeCq {
    /// The driver's private answer.
    type Reply = DriverReply;
    const VERB: Verb = Verb::ResizeCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.cq.0.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::ResizeCq {
            cq_handle: self.cq.0,
            cqe: self.cqe,
            ..Default::default()
        };
        request
            .write_command::<_, abi::ResizeCqResp>(cmd::RESIZE_CQ, &core)
            .driver(&self.driver);
        Some(|command, answer| Ok(answer.driver_reply(&command.driver)))
    }
}

/// Moderates completion events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModifyCq {
    pub(crate) cq: CqHandle,
    /// How many completions an event may wait for.
    pub(crate) count: u16,
    /// How many microseconds an event may wait.
    pub(crate) period: u16,
}

impl Command for ModifyCq {
    type Reply = ();
    const VERB: Verb = Verb::ModifyCq;

    fn subject(&self) -> Subject {
        Subject::numbered("CQ", self.cq.0.into())
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::ExModifyCq {
            cq_handle: self.cq.0,
            attr_mask: CqAttrMask::MODERATE.bits(),
            attr: abi::CqModeration {
                cq_count: self.count,
                cq_period: self.period,
            },
            reserved: 0,
        };
        request.write_command::<_, ()>(cmd::EX_MODIFY_CQ, &core);
        Some(nothing)
    }
}
