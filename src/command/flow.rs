//! Flow rules.

use smallvec::SmallVec;
use uverbs_uapi::handle::{FlowHandle, QpHandle};
use uverbs_uapi::{cmd, write as abi};
use zerocopy::IntoBytes;

use super::{Command, Decode, DriverData, Request, Undo, undo};
use crate::error::{Subject, Verb};

/// The bytes of a rule's specifications, one after the other.
pub(crate) type Specs = SmallVec<[u8; 256]>;

/// Creates a rule that leads packets to a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CreateFlow {
    pub(crate) qp: QpHandle,
    /// The rule; its size is that of the specifications.
    pub(crate) rule: abi::FlowAttr,
    pub(crate) specs: Specs,
    pub(crate) driver: DriverData,
}

impl Command for CreateFlow {
    type Reply = FlowHandle;
    const VERB: Verb = Verb::CreateFlow;
    const UNDO: Option<Undo> = Some(undo::<FlowHandle>);

    fn subject(&self) -> Subject {
        Subject::named("flow rule", format_args!("for QP {}", self.qp.0))
    }

    #[inline]
    fn write(&self, request: &mut Request) -> Option<Decode<Self>> {
        let core = abi::CreateFlow {
            comp_mask: 0,
            qp_handle: self.qp.0,
            flow_attr: self.rule,
        };
        let mut bytes = Specs::from_slice(core.as_bytes());
        bytes.extend_from_slice(&self.specs);
        request
            .write_command::<[u8], abi::CreateFlowResp>(cmd::EX_CREATE_FLOW, &bytes)
            .driver(&self.driver);
        Some(|_, answer| {
            let response: abi::CreateFlowResp = answer.response()?;
            Ok(FlowHandle(response.flow_handle))
        })
    }
}
