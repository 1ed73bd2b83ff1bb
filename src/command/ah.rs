//! Address handles.

use uverbs_uapi::handle::{AhHandle, PdHandle};
use uverbs_uapi::types::AhAttr;
use uverbs_uapi::{cmd, write as abi};

use super::request::DriverReply;
use super::{Command, Decode, DriverData, Request, Undo, undo};
use crate::error::{Subject, Verb};

/// Creates an address handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateAh {
    pub(crate) pd: PdHandle,
    pub(crate) attributes: AhAttr,
    pub(crate) driver: DriverData,
}

/// A new address handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateAhReply {
    pub(crate) handle: AhHandle,
    pub(crate) driver: DriverReply,
}

impl Command for CreateAh {
    type Reply = CreateAhReply;
    const VERB: Verb = Verb::CreateAh;
    const UNDO: Option<Undo> = Some(undo::<AhHandle>);

    fn subject(&self) -> Subject {
        Subject::named("AH", format_args!("in PD {}", self.pd.0))
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::CreateAh {
            pd_handle: self.pd.0,
            attr: self.attributes,
            ..Default::default()
        };
        request
            .write_command::<_, abi::CreateAhResp>(cmd::CREATE_AH, &core)
            .driver(&self.driver);
        Some(|command, answer| {
            let response: abi::CreateAhResp = answer.response()?;
            Ok(CreateAhReply {
                handle: AhHandle(response.ah_handle),
                driver: answer.driver_reply(&command.driver),
            })
        })
    }
}
