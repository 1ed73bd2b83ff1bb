//! How the switch in the device sees a port.

use uverbs_uapi::mlx5::{QueryPort, attr, method};
use uverbs_uapi::object;

use super::Direct;
use crate::command::{Command, Decode, Request};
use crate::error::{Result, Subject, Verb};

/// Queries how the switch in the device sees a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask(u8);

impl Command for Ask {
    type Reply = QueryPort;
    const VERB: Verb = Verb::QueryPortSwitch;

    fn subject(&self) -> Subject {
        Subject::numbered("port", self.0.into())
    }

    fn native(&self, request: &mut Request) -> Option<Decode<Self>> {
        use attr::query_port as id;
        request
            .method(object::DEVICE, method::device::QUERY_PORT)
            .u32(id::PORT_NUM, self.0.into())
            .output(id::RESP, size_of::<QueryPort>());
        Some(|_, answer| answer.answer(id::RESP))
    }
}

impl Direct {
    /// How the switch in the device sees a port, for programs that direct its packets: the port's number
    /// there, and the registers that say where packets come from. The flags say which of these exist: none if
    /// the device does not switch (`switchdev`).
    ///
    /// # Errors
    ///
    /// There is no such port. Manual page: `mlx5dv_query_port(3)`.
    #[doc(alias = "mlx5dv_query_port")]
    pub fn query_port(&self, port: u8) -> Result<QueryPort> {
        self.context().fd().execute(&Ask(port))
    }
}
