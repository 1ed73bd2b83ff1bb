//! Protection domains. To allocate one the kernel has no ioctl method, only the write command.

use uverbs_uapi::handle::PdHandle;
use uverbs_uapi::{cmd, write as abi};

use super::request::DriverReply;
use super::{Command, Decode, DriverData, Request, Undo, undo};
use crate::error::{Subject, Verb};

/// Allocates a protection domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllocPd {
    pub(crate) driver: DriverData,
}

impl Command for AllocPd {
    type Reply = (PdHandle, DriverReply);
    const VERB: Verb = Verb::AllocPd;
    const UNDO: Option<Undo> = Some(undo::<PdHandle>);

    fn subject(&self) -> Subject {
        Subject::the("PD")
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        request
            .write_command::<_, abi::AllocPdResp>(cmd::ALLOC_PD, &abi::AllocPd::default())
            .driver(&self.driver);
        Some(|command, answer| {
            let response: abi::AllocPdResp = answer.response()?;
            Ok((
                PdHandle(response.pd_handle),
                answer.driver_reply(&command.driver),
            ))
        })
    }
}
