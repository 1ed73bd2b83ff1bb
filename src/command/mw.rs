//! Memory windows. Binding one is a work request, not a command.

use uverbs_uapi::enums::MwType;
use uverbs_uapi::handle::{MwHandle, PdHandle};
use uverbs_uapi::{cmd, write as abi};

use super::{Command, Decode, Request, Undo, undo};
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
    const VERB: Verb = Verb::AllocMw;
    const UNDO: Option<Undo> = Some(undo::<MwHandle>);

    fn subject(&self) -> Subject {
        Subject::named("MW", format_args!("in PD {}", self.pd.0))
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::AllocMw {
            pd_handle: self.pd.0,
            mw_type: self.kind.0 as u8,
            ..Default::default()
        };
        request.write_command::<_, abi::AllocMwResp>(cmd::ALLOC_MW, &core);
        Some(|_, answer| {
            let abi::AllocMwResp {
                mw_handle, rkey, ..
            } = answer.response()?;
            Ok((MwHandle(mw_handle), rkey))
        })
    }
}
