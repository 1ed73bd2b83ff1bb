//! The connection manager's commands as values: each is built, printed and compared without a device.
//!
//! A command is one `write()` of a header and a payload of a fixed length; the kernel writes the answer to an
//! address in the payload. Pointers exist only while [`File`](super::file::File) sends the command.

use std::fmt::Debug;

use uverbs_uapi::enums::{QpState, QpType};
use uverbs_uapi::rdma_cm::{self as abi, cmd};
use uverbs_uapi::types::QpAttr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::address::Wire;
use crate::error::Verb;

/// One command with its arguments.
pub(crate) trait Command: Debug {
    /// What is sent after the header.
    type Payload: IntoBytes + Immutable;
    /// What the kernel answers; `()` for nothing.
    type Reply: FromBytes + IntoBytes;
    /// The number of the command.
    const NUMBER: u32;
    /// The verb, for errors and traces.
    const VERB: Verb;

    /// The payload, with the answer's address in it.
    fn payload(&self, response: u64) -> Self::Payload;
}

/// The longest payload, that of [`Accept`].
const LONGEST: usize = size_of::<abi::Accept>();

/// A command as the kernel reads it.
pub(crate) struct Frame {
    bytes: [u8; size_of::<abi::CmdHdr>() + LONGEST],
    length: usize,
}

impl Frame {
    /// The frame of a command whose answer is to be written to this address.
    pub(crate) fn new<C: Command>(command: &C, response: u64) -> Self {
        const {
            assert!(size_of::<C::Payload>() <= LONGEST);
        }
        let header = abi::CmdHdr {
            cmd: C::NUMBER,
            in_: size_of::<C::Payload>() as u16,
            out: size_of::<C::Reply>() as u16,
        };
        let payload = command.payload(response);
        let mut frame = Self {
            bytes: [0; _],
            length: size_of::<abi::CmdHdr>() + size_of::<C::Payload>(),
        };
        let (head, rest) = frame.bytes.split_at_mut(size_of::<abi::CmdHdr>());
        head.copy_from_slice(header.as_bytes());
        rest[..size_of::<C::Payload>()].copy_from_slice(payload.as_bytes());
        frame
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Makes an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreateId {
    pub(crate) uid: u64,
    pub(crate) space: abi::PortSpace,
    pub(crate) qp_type: QpType,
}

impl Command for CreateId {
    type Payload = abi::CreateId;
    type Reply = abi::CreateIdResp;
    const NUMBER: u32 = cmd::CREATE_ID;
    const VERB: Verb = Verb::CreateId;

    fn payload(&self, response: u64) -> abi::CreateId {
        abi::CreateId {
            uid: self.uid,
            response,
            ps: self.space.0 as u16,
            qp_type: self.qp_type.0 as u8,
            ..Default::default()
        }
    }
}

/// Destroys an identifier: one that a request brought and that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DestroyId {
    pub(crate) id: u32,
}

impl Command for DestroyId {
    type Payload = abi::DestroyId;
    type Reply = abi::DestroyIdResp;
    const NUMBER: u32 = cmd::DESTROY_ID;
    const VERB: Verb = Verb::GetRequest;

    fn payload(&self, response: u64) -> abi::DestroyId {
        abi::DestroyId {
            response,
            id: self.id,
            reserved: 0,
        }
    }
}

/// Binds an identifier to an own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) id: u32,
    pub(crate) address: Wire,
}

impl Command for Bind {
    type Payload = abi::Bind;
    type Reply = ();
    const NUMBER: u32 = cmd::BIND;
    const VERB: Verb = Verb::BindAddr;

    fn payload(&self, _: u64) -> abi::Bind {
        abi::Bind {
            id: self.id,
            addr_size: self.address.length,
            reserved: 0,
            addr: self.address.bytes,
        }
    }
}

/// Looks for the device and the neighbour on the way to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolveAddr {
    pub(crate) id: u32,
    pub(crate) timeout_ms: u32,
    pub(crate) source: Option<Wire>,
    pub(crate) peer: Wire,
}

impl Command for ResolveAddr {
    type Payload = abi::ResolveAddr;
    type Reply = ();
    const NUMBER: u32 = cmd::RESOLVE_ADDR;
    const VERB: Verb = Verb::ResolveAddr;

    fn payload(&self, _: u64) -> abi::ResolveAddr {
        let source = self.source.unwrap_or_default();
        abi::ResolveAddr {
            id: self.id,
            timeout_ms: self.timeout_ms,
            src_size: source.length,
            dst_size: self.peer.length,
            reserved: 0,
            src_addr: source.bytes,
            dst_addr: self.peer.bytes,
        }
    }
}

/// Looks for the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolveRoute {
    pub(crate) id: u32,
    pub(crate) timeout_ms: u32,
}

impl Command for ResolveRoute {
    type Payload = abi::ResolveRoute;
    type Reply = ();
    const NUMBER: u32 = cmd::RESOLVE_ROUTE;
    const VERB: Verb = Verb::ResolveRoute;

    fn payload(&self, _: u64) -> abi::ResolveRoute {
        abi::ResolveRoute {
            id: self.id,
            timeout_ms: self.timeout_ms,
        }
    }
}

/// Asks for the addresses, the device and the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueryAddr {
    pub(crate) id: u32,
}

impl Command for QueryAddr {
    type Payload = abi::Query;
    type Reply = abi::QueryAddrResp;
    const NUMBER: u32 = cmd::QUERY;
    const VERB: Verb = Verb::QueryId;

    fn payload(&self, response: u64) -> abi::Query {
        query(self.id, abi::QueryOption::ADDR, response)
    }
}

/// What is sent to ask for something that the kernel knows of an identifier.
pub(crate) fn query(id: u32, option: abi::QueryOption, response: u64) -> abi::Query {
    abi::Query {
        response,
        id,
        option: option.0,
    }
}

/// Sets an option of one byte or of an `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetOption {
    pub(crate) id: u32,
    pub(crate) option: abi::IdOption,
    pub(crate) value: [u8; 4],
    pub(crate) length: u32,
}

impl SetOption {
    /// An option of one byte.
    pub(crate) fn byte(id: u32, option: abi::IdOption, value: u8) -> Self {
        Self {
            id,
            option,
            value: [value, 0, 0, 0],
            length: 1,
        }
    }

    /// An option that is on or off.
    pub(crate) fn switch(id: u32, option: abi::IdOption, on: bool) -> Self {
        Self {
            id,
            option,
            value: i32::from(on).to_ne_bytes(),
            length: 4,
        }
    }
}

impl Command for SetOption {
    type Payload = abi::SetOption;
    type Reply = ();
    const NUMBER: u32 = cmd::SET_OPTION;
    const VERB: Verb = Verb::SetOption;

    fn payload(&self, _: u64) -> abi::SetOption {
        abi::SetOption {
            optval: self.value.as_ptr() as u64,
            id: self.id,
            level: abi::OptionLevel::ID.0,
            optname: self.option.0,
            optlen: self.length,
        }
    }
}

/// Asks the peer for a connection, or looks up a datagram peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connect {
    pub(crate) id: u32,
    pub(crate) param: abi::ConnParam,
    pub(crate) ece: abi::Ece,
}

impl Command for Connect {
    type Payload = abi::Connect;
    type Reply = ();
    const NUMBER: u32 = cmd::CONNECT;
    const VERB: Verb = Verb::Connect;

    fn payload(&self, _: u64) -> abi::Connect {
        abi::Connect {
            conn_param: self.param,
            id: self.id,
            reserved: 0,
            ece: self.ece,
        }
    }
}

/// Awaits requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) id: u32,
    pub(crate) backlog: u32,
}

impl Command for Listen {
    type Payload = abi::Listen;
    type Reply = ();
    const NUMBER: u32 = cmd::LISTEN;
    const VERB: Verb = Verb::Listen;

    fn payload(&self, _: u64) -> abi::Listen {
        abi::Listen {
            id: self.id,
            backlog: self.backlog,
        }
    }
}

/// Accepts a request; without parameters, confirms a connection that the peer has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) id: u32,
    pub(crate) uid: u64,
    pub(crate) param: Option<abi::ConnParam>,
    pub(crate) ece: abi::Ece,
}

impl Command for Accept {
    type Payload = abi::Accept;
    type Reply = ();
    const NUMBER: u32 = cmd::ACCEPT;
    const VERB: Verb = Verb::Accept;

    fn payload(&self, _: u64) -> abi::Accept {
        abi::Accept {
            uid: self.uid,
            conn_param: self.param.unwrap_or_default(),
            id: self.id,
            reserved: 0,
            ece: self.ece,
        }
    }
}

/// Refuses a request, or a connection that the peer has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reject {
    pub(crate) id: u32,
    pub(crate) reason: abi::RejectReason,
    pub(crate) data: abi::PrivateData,
    pub(crate) length: u8,
}

impl Command for Reject {
    type Payload = abi::Reject;
    type Reply = ();
    const NUMBER: u32 = cmd::REJECT;
    const VERB: Verb = Verb::Reject;

    fn payload(&self, _: u64) -> abi::Reject {
        abi::Reject {
            id: self.id,
            private_data_len: self.length,
            reason: self.reason.0 as u8,
            reserved: [0; 2],
            private_data: self.data,
        }
    }
}

/// Ends a connection, or confirms its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disconnect {
    pub(crate) id: u32,
}

impl Command for Disconnect {
    type Payload = abi::Disconnect;
    type Reply = ();
    const NUMBER: u32 = cmd::DISCONNECT;
    const VERB: Verb = Verb::Disconnect;

    fn payload(&self, _: u64) -> abi::Disconnect {
        abi::Disconnect { id: self.id }
    }
}

/// Asks for the attributes of a transition of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InitQpAttr {
    pub(crate) id: u32,
    pub(crate) state: QpState,
}

impl Command for InitQpAttr {
    type Payload = abi::InitQpAttr;
    type Reply = QpAttr;
    const NUMBER: u32 = cmd::INIT_QP_ATTR;
    const VERB: Verb = Verb::InitQpAttr;

    fn payload(&self, response: u64) -> abi::InitQpAttr {
        abi::InitQpAttr {
            response,
            id: self.id,
            qp_state: self.state.0,
        }
    }
}

/// Notifies the kernel of an event of the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notify {
    pub(crate) id: u32,
    pub(crate) event: uverbs_uapi::enums::AsyncEventType,
}

impl Command for Notify {
    type Payload = abi::Notify;
    type Reply = ();
    const NUMBER: u32 = cmd::NOTIFY;
    const VERB: Verb = Verb::Notify;

    fn payload(&self, _: u64) -> abi::Notify {
        abi::Notify {
            id: self.id,
            event: self.event.0,
        }
    }
}

/// Takes the next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GetEvent;

impl Command for GetEvent {
    type Payload = abi::GetEvent;
    type Reply = abi::EventResp;
    const NUMBER: u32 = cmd::GET_EVENT;
    const VERB: Verb = Verb::GetCmEvent;

    fn payload(&self, response: u64) -> abi::GetEvent {
        abi::GetEvent { response }
    }
}

/// Takes an identifier over from another file; it is sent to the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MigrateId {
    pub(crate) id: u32,
    pub(crate) from: i32,
}

impl Command for MigrateId {
    type Payload = abi::MigrateId;
    type Reply = abi::MigrateResp;
    const NUMBER: u32 = cmd::MIGRATE_ID;
    const VERB: Verb = Verb::GetRequest;

    fn payload(&self, response: u64) -> abi::MigrateId {
        abi::MigrateId {
            response,
            id: self.id,
            fd: self.from as u32,
        }
    }
}

/// Joins a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinMcast {
    pub(crate) id: u32,
    pub(crate) uid: u64,
    pub(crate) flags: abi::JoinFlags,
    pub(crate) group: Wire,
}

impl Command for JoinMcast {
    type Payload = abi::JoinMcast;
    type Reply = abi::CreateIdResp;
    const NUMBER: u32 = cmd::JOIN_MCAST;
    const VERB: Verb = Verb::JoinMulticast;

    fn payload(&self, response: u64) -> abi::JoinMcast {
        abi::JoinMcast {
            response,
            uid: self.uid,
            id: self.id,
            addr_size: self.group.length,
            join_flags: self.flags.0 as u16,
            addr: self.group.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a command that is sent shorter than the kernel's struct, an answer that does not fit, and
    /// arguments in the wrong place.
    #[test]
    fn commands_are_framed_as_the_kernel_reads_them() {
        let create = CreateId {
            uid: 0x0102_0304_0506_0708,
            space: abi::PortSpace::TCP,
            qp_type: QpType::RC,
        };
        let frame = Frame::new(&create, 0x1122_3344_5566_7788);
        let mut expected = Vec::new();
        expected.extend(0u32.to_ne_bytes());
        expected.extend(24u16.to_ne_bytes());
        expected.extend(4u16.to_ne_bytes());
        expected.extend(0x0102_0304_0506_0708u64.to_ne_bytes());
        expected.extend(0x1122_3344_5566_7788u64.to_ne_bytes());
        expected.extend(0x0106u16.to_ne_bytes());
        expected.extend([2, 0, 0, 0, 0, 0]);
        assert_eq!(frame.bytes(), expected);

        let accept = Accept {
            id: 7,
            uid: 1,
            param: None,
            ece: abi::Ece::default(),
        };
        let frame = Frame::new(&accept, 0);
        assert_eq!(frame.bytes().len(), 8 + 296);
        assert_eq!(frame.bytes()[..8], [8, 0, 0, 0, 40, 1, 0, 0]);
        assert_eq!(frame.bytes()[8 + 280], 7);

        let migrate = MigrateId { id: 9, from: 3 };
        let frame = Frame::new(&migrate, 1);
        let words = [18u32, 16 | 4 << 16, 1, 0, 9, 3];
        assert_eq!(frame.bytes(), words.as_bytes());
    }

    #[test]
    fn options_have_the_length_of_their_type() {
        let tos = SetOption::byte(1, abi::IdOption::TOS, 0x20).payload(0);
        assert_eq!((tos.optlen, tos.optname, tos.level), (1, 0, 0));
        let reuse = SetOption::switch(1, abi::IdOption::REUSEADDR, true);
        let sent = reuse.payload(0);
        assert_eq!((sent.optlen, sent.optname), (4, 1));
        assert_eq!(sent.optval, reuse.value.as_ptr() as u64);
        assert_eq!(reuse.value, 1i32.to_ne_bytes());
    }
}
