//! Protection domains. The kernel has no ioctl method to allocate one, only the write command.

use uverbs_uapi::handle::PdHandle;
use uverbs_uapi::{cmd, write as abi};

use super::request::DriverReply;
use super::{Command, DriverData, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Allocates a protection domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllocPd {
    pub(crate) driver: DriverData,
}

impl Command for AllocPd {
    type Reply = (PdHandle, DriverReply);
    const NATIVE: bool = false;
    const VERB: Verb = Verb::AllocPd;

    fn subject(&self) -> Subject {
        Subject::the("PD")
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                request
                    .write_command::<_, abi::AllocPdResp>(cmd::ALLOC_PD, &abi::AllocPd::default())
                    .driver(&self.driver);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        let response: abi::AllocPdResp = answer.response()?;
        Ok((
            PdHandle(response.pd_handle),
            answer.driver_reply(&self.driver),
        ))
    }
}
