//! XRC domains, and queue pairs opened through them.

use std::os::fd::RawFd;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::{QpHandle, XrcdHandle};
use uverbs_uapi::types::QpCap;
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::{Command, Decode, DriverData, Malformed, Request, Undo, qp, undo};
use crate::error::{Subject, Verb};

/// Opens an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenXrcd {
    /// The file whose inode identifies the domain; `None` for one that cannot be shared.
    pub(crate) file: Option<RawFd>,
    /// `O_CREAT` and `O_EXCL`, as for open(2).
    pub(crate) oflags: u32,
}

impl Command for OpenXrcd {
    type Reply = XrcdHandle;
    const VERB: Verb = Verb::OpenXrcd;
    const UNDO: Option<Undo> = Some(undo::<XrcdHandle>);

    fn subject(&self) -> Subject {
        match self.file {
            Some(fd) => Subject::named("XRC domain", format_args!("of file {fd}")),
            None => Subject::the("XRC domain"),
        }
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::OpenXrcd {
            fd: self.file.unwrap_or(-1) as u32,
            oflags: self.oflags,
            ..Default::default()
        };
        request.write_command::<_, abi::OpenXrcdResp>(cmd::OPEN_XRCD, &core);
        Some(|_, answer| {
            let response: abi::OpenXrcdResp = answer.response()?;
            Ok(XrcdHandle(response.xrcd_handle))
        })
    }
}

/// Creates a queue pair that is the target of an XRC domain: it has no queues of its own, and no completions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateXrcTarget {
    pub(crate) xrcd: XrcdHandle,
    /// The number that asynchronous events carry.
    pub(crate) user_handle: u64,
    /// The file for asynchronous events, if it is not the context's first one.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

impl Command for CreateXrcTarget {
    /// The queue pair and its number on the wire.
    type Reply = (QpHandle, u32);
    const VERB: Verb = Verb::CreateQp;
    const UNDO: Option<Undo> = Some(undo::<QpHandle>);

    fn subject(&self) -> Subject {
        Subject::named("XRC target", format_args!("in XRC domain {}", self.xrcd.0))
    }

    #[inline]
    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::create_qp as id;
        request
            .method(object::QP, method::qp::CREATE)
            .new_object(id::HANDLE)
            .handle(id::XRCD_HANDLE, self.xrcd.0);
        let cap = QpCap::default();
        qp::common(request, self.user_handle, &cap, QpType::XRC_RECV)
            .fd_if_any(id::EVENT_FD, self.event_fd)
            .driver(&self.driver);
        Some(|_, answer| qp::by_method(answer))
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::CreateQp {
            user_handle: self.user_handle,
            pd_handle: self.xrcd.0,
            qp_type: QpType::XRC_RECV.0 as u8,
            ..Default::default()
        };
        request
            .write_command::<_, abi::CreateQpResp>(cmd::CREATE_QP, &core)
            .driver(&self.driver);
        Some(|_, answer| qp::by_write(answer))
    }
}

/// Opens a queue pair of an XRC domain that another process has created: an XRC target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenQp {
    pub(crate) xrcd: XrcdHandle,
    /// Its number on the wire.
    pub(crate) qpn: u32,
    /// The number that asynchronous events would carry: the kernel gives an opened queue pair no event file
    /// (`ib_uverbs_open_qp` in `uverbs_cmd.c`).
    pub(crate) user_handle: u64,
}

impl Command for OpenQp {
    type Reply = QpHandle;
    const VERB: Verb = Verb::OpenQp;
    const UNDO: Option<Undo> = Some(undo::<QpHandle>);

    fn subject(&self) -> Subject {
        Subject::named(
            "QP",
            format_args!("{:#x} in XRC domain {}", self.qpn, self.xrcd.0),
        )
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::OpenQp {
            user_handle: self.user_handle,
            pd_handle: self.xrcd.0,
            qpn: self.qpn,
            qp_type: QpType::XRC_RECV.0 as u8,
            ..Default::default()
        };
        request.write_command::<_, abi::CreateQpResp>(cmd::OPEN_QP, &core);
        Some(|command, answer| {
            let (handle, qpn) = qp::by_write(answer)?;
            match qpn == command.qpn {
                true => Ok(handle),
                false => Err(Malformed::Contradicts("another QP was opened")),
            }
        })
    }
}
