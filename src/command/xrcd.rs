//! XRC domains, and queue pairs opened through them.

use std::os::fd::RawFd;

use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::{QpHandle, XrcdHandle};
use uverbs_uapi::types::QpCap;
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::{Command, DriverData, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Opens an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenXrcd {
    /// The file whose inode names the domain; None for one that cannot be shared.
    pub(crate) file: Option<RawFd>,
    /// `O_CREAT` and `O_EXCL`, as for open(2).
    pub(crate) oflags: u32,
}

impl Command for OpenXrcd {
    type Reply = XrcdHandle;
    const NATIVE: bool = false;
    const VERB: Verb = Verb::OpenXrcd;

    fn subject(&self) -> Subject {
        match self.file {
            Some(fd) => Subject::named("XRC domain", format_args!("of file {fd}")),
            None => Subject::the("XRC domain"),
        }
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::OpenXrcd {
            fd: self.file.unwrap_or(-1) as u32,
            oflags: self.oflags,
            ..Default::default()
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request.write_command::<_, abi::OpenXrcdResp>(cmd::OPEN_XRCD, &core);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<XrcdHandle, Malformed> {
        let response: abi::OpenXrcdResp = answer.response()?;
        Ok(XrcdHandle(response.xrcd_handle))
    }
}

/// Closes an XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CloseXrcd(pub(crate) XrcdHandle);

impl Command for CloseXrcd {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CloseXrcd;

    fn subject(&self) -> Subject {
        Subject::numbered("XRC domain", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => request
                .method(object::XRCD, method::xrcd::DESTROY)
                .handle(attr::destroy_xrcd::HANDLE, self.0.0),
            Spelling::Write => request.write_command::<_, ()>(
                cmd::CLOSE_XRCD,
                &abi::CloseXrcd {
                    xrcd_handle: self.0.0,
                },
            ),
        };
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}

/// Creates a queue pair that is the target of an XRC domain: it has no queues of its own, and no completions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateXrcTarget {
    pub(crate) xrcd: XrcdHandle,
    /// What asynchronous events carry.
    pub(crate) user_handle: u64,
    /// Where asynchronous events go, if not to the context's first such file.
    pub(crate) event_fd: Option<RawFd>,
    pub(crate) driver: DriverData,
}

impl Command for CreateXrcTarget {
    /// The queue pair and its number on the wire.
    type Reply = (QpHandle, u32);
    const NATIVE: bool = true;
    const VERB: Verb = Verb::CreateQp;

    fn subject(&self) -> Subject {
        Subject::named("XRC target", format_args!("in XRC domain {}", self.xrcd.0))
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        use attr::create_qp as id;
        let request = match spelling {
            Spelling::Native => {
                let request = request
                    .method(object::QP, method::qp::CREATE)
                    .new_object(id::HANDLE)
                    .handle(id::XRCD_HANDLE, self.xrcd.0)
                    .u64(id::USER_HANDLE, self.user_handle)
                    .input(id::CAP, &QpCap::default())
                    .constant(id::TYPE, QpType::XRC_RECV.0.into())
                    .output(id::RESP_CAP, size_of::<QpCap>())
                    .output(id::RESP_QP_NUM, size_of::<u32>());
                match self.event_fd {
                    Some(fd) => request.fd(id::EVENT_FD, fd),
                    None => request,
                }
            }
            Spelling::Write => {
                let core = abi::CreateQp {
                    user_handle: self.user_handle,
                    pd_handle: self.xrcd.0,
                    qp_type: QpType::XRC_RECV.0 as u8,
                    ..Default::default()
                };
                request.write_command::<_, abi::CreateQpResp>(cmd::CREATE_QP, &core)
            }
        };
        request.driver(&self.driver);
    }

    #[inline]
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        use attr::create_qp as id;
        let (handle, qpn) = match spelling {
            Spelling::Native => (
                answer.new_handle(id::HANDLE)?,
                answer.answer(id::RESP_QP_NUM)?,
            ),
            Spelling::Write => {
                let response: abi::CreateQpResp = answer.response()?;
                (response.qp_handle, response.qpn)
            }
        };
        Ok((QpHandle(handle), qpn))
    }
}

/// Opens a queue pair of an XRC domain that somebody else has created: an XRC target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenQp {
    pub(crate) xrcd: XrcdHandle,
    /// Its number on the wire.
    pub(crate) qpn: u32,
    /// What asynchronous events carry. They go to the context's first such file: the command has no other.
    pub(crate) user_handle: u64,
}

impl Command for OpenQp {
    type Reply = QpHandle;
    const NATIVE: bool = false;
    const VERB: Verb = Verb::OpenQp;

    fn subject(&self) -> Subject {
        Subject::named(
            "QP",
            format_args!("{:#x} in XRC domain {}", self.qpn, self.xrcd.0),
        )
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::OpenQp {
            user_handle: self.user_handle,
            pd_handle: self.xrcd.0,
            qpn: self.qpn,
            qp_type: QpType::XRC_RECV.0 as u8,
            ..Default::default()
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request.write_command::<_, abi::CreateQpResp>(cmd::OPEN_QP, &core);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<QpHandle, Malformed> {
        let response: abi::CreateQpResp = answer.response()?;
        if response.qpn != self.qpn {
            return Err(Malformed::Contradicts("another QP was opened"));
        }
        Ok(QpHandle(response.qp_handle))
    }
}
