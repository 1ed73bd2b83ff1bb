//! Flow rules.

use smallvec::SmallVec;
use uverbs_uapi::handle::{FlowHandle, QpHandle};
use uverbs_uapi::{attr, cmd, method, object, write as abi};
use zerocopy::IntoBytes;

use super::{Command, DriverData, Malformed, Request, Spelling};
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
    const NATIVE: bool = false;
    const VERB: Verb = Verb::CreateFlow;

    fn subject(&self) -> Subject {
        Subject::named("flow rule", format_args!("for QP {}", self.qp.0))
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        let core = abi::CreateFlow {
            comp_mask: 0,
            qp_handle: self.qp.0,
            flow_attr: self.rule,
        };
        match spelling {
            Spelling::Native => {}
            Spelling::Write => {
                let mut bytes = Specs::from_slice(core.as_bytes());
                bytes.extend_from_slice(&self.specs);
                request
                    .write_command::<[u8], abi::CreateFlowResp>(cmd::EX_CREATE_FLOW, &bytes)
                    .driver(&self.driver);
            }
        }
    }

    #[inline]
    fn decode(&self, _: Spelling, answer: &Request) -> Result<FlowHandle, Malformed> {
        let response: abi::CreateFlowResp = answer.response()?;
        Ok(FlowHandle(response.flow_handle))
    }
}

/// Destroys a flow rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyFlow(pub(crate) FlowHandle);

impl Command for DestroyFlow {
    type Reply = ();
    const NATIVE: bool = true;
    const VERB: Verb = Verb::DestroyFlow;

    fn subject(&self) -> Subject {
        Subject::numbered("flow rule", self.0.0.into())
    }

    #[inline]
    fn encode(&self, spelling: Spelling, request: &mut Request) {
        match spelling {
            Spelling::Native => request
                .method(object::FLOW, method::flow::DESTROY)
                .handle(attr::destroy_flow::HANDLE, self.0.0),
            Spelling::Write => request.write_command::<_, ()>(
                cmd::EX_DESTROY_FLOW,
                &abi::DestroyFlow {
                    comp_mask: 0,
                    flow_handle: self.0.0,
                },
            ),
        };
    }

    #[inline]
    fn decode(&self, _: Spelling, _: &Request) -> Result<(), Malformed> {
        Ok(())
    }
}
