//! Memory windows. Binding one is a work request, not a command.

use uverbs_uapi::enums::MwType;
use uverbs_uapi::handle::{MwHandle, PdHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};

use super::{Command, Malformed, Request, Spelling};
use crate::error::{Subject, Verb};

/// Allocates a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllocMw {
    pub(crate) pd: PdHandle,
    pub(crate) kind: MwType,
}

impl Command for AllocMw {
    /// The window, and its key before the first bind.
    type Reply = (MwHandle, u32);
    const NATIVE: bool = false;
    const VERB: Verb = Verb::AllocMw;

    fn subject(&self) -> Subject {
        Subject::named("MW", format_args!("in PD {}", self.pd.0))
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                let core = abi::AllocMw {
                    pd_handle: self.pd.0,
                    mw_type: self.kind.0 as u8,
                    ..Default::default()
                };
                request.write_command::<_, abi::AllocMwResp>(cmd::ALLOC_MW, &core);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<Self::Reply, Malformed> {
        let abi::AllocMwResp {
            mw_handle, rkey, ..
        } = answer.response()?;
        Ok((MwHandle(mw_handle), rkey))
    }
}

/// Frees a memory window, bound or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeallocMw(pub(crate) MwHandle);

impl Command for DeallocMw {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DeallocMw;

    fn subject(&self) -> Subject {
        Subject::numbered("MW", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => request
                .method(object::MW, method::mw::DESTROY)
                .handle(attr::destroy_mw::HANDLE, self.0.0),
            Spelling::Write => request.write_command::<_, ()>(
                cmd::DEALLOC_MW,
                &abi::DeallocMw {
                    mw_handle: self.0.0,
                },
            ),
        };
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}
