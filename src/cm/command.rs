//! The connection manager's commands as values: each is built, printed and compared without a device.
//!
//! A command is one `write()` of a header and a struct of the ABI; the kernel writes the answer to an address
//! in the struct, which is filled in when the command is sent. So a command is that struct itself. Where one
//! struct has several uses, each is a type of its own around it.

use std::fmt::Debug;

use uverbs_uapi::rdma_cm::{self as abi, cmd};
use uverbs_uapi::types::QpAttr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) use uverbs_uapi::rdma_cm::{
    Accept, Bind, Connect, CreateId, DestroyId, Disconnect, GetEvent, InitQpAttr, JoinMcast,
    Listen, MigrateId, Notify, Reject, ResolveAddr, ResolveRoute, SetOption,
};

use super::address::Wire;
use crate::error::Verb;

/// One command with its arguments, as it is sent after the header.
pub(crate) trait Command: Clone + Debug + IntoBytes + Immutable {
    /// What the kernel answers; `()` for nothing.
    type Reply: FromBytes + IntoBytes;
    /// The number of the command.
    const NUMBER: u32;
    /// The verb, for errors and traces.
    const VERB: Verb;

    /// Makes the kernel write the answer to this address; a command without an answer has no field for it.
    fn answer_at(&mut self, address: u64) {
        let _ = address;
    }
}

/// The longest command, which only C programs send.
const LONGEST: usize = size_of::<abi::WriteCmEvent>();

/// A command as the kernel reads it.
pub(crate) struct Frame {
    bytes: [u8; size_of::<abi::CmdHdr>() + LONGEST],
    length: usize,
}

impl Frame {
    /// The frame of a command whose answer the kernel writes to this address.
    pub(crate) fn new<C: Command>(command: &C, response: u64) -> Self {
        const {
            assert!(size_of::<C>() <= LONGEST);
        }
        let header = abi::CmdHdr {
            cmd: C::NUMBER,
            in_: size_of::<C>() as u16,
            out: size_of::<C::Reply>() as u16,
        };
        let mut command = command.clone();
        command.answer_at(response);
        let mut frame = Self {
            bytes: [0; _],
            length: size_of::<abi::CmdHdr>() + size_of::<C>(),
        };
        let (head, rest) = frame.bytes.split_at_mut(size_of::<abi::CmdHdr>());
        head.copy_from_slice(header.as_bytes());
        rest[..size_of::<C>()].copy_from_slice(command.as_bytes());
        frame
    }

    /// The bytes of the frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Makes an identifier.
impl Command for CreateId {
    type Reply = abi::CreateIdResp;
    const NUMBER: u32 = cmd::CREATE_ID;
    const VERB: Verb = Verb::CreateId;

    fn answer_at(&mut self, address: u64) {
        self.response = address;
    }
}

/// Destroys an identifier.
impl Command for DestroyId {
    type Reply = abi::DestroyIdResp;
    const NUMBER: u32 = cmd::DESTROY_ID;
    const VERB: Verb = Verb::DestroyId;

    fn answer_at(&mut self, address: u64) {
        self.response = address;
    }
}

/// Binds an identifier to an own address.
impl Command for Bind {
    type Reply = ();
    const NUMBER: u32 = cmd::BIND;
    const VERB: Verb = Verb::BindAddr;
}

/// Binds an identifier to this address.
pub(crate) fn bind(id: u32, own: Wire) -> Bind {
    Bind {
        id,
        addr_size: own.length,
        addr: own.bytes,
        ..Bind::default()
    }
}

/// Finds the device and the neighbour on the route to a peer.
impl Command for ResolveAddr {
    type Reply = ();
    const NUMBER: u32 = cmd::RESOLVE_ADDR;
    const VERB: Verb = Verb::ResolveAddr;
}

/// Finds the route to a peer, from this own address or from any.
pub(crate) fn resolve_addr(
    id: u32,
    timeout_ms: u32,
    source: Option<Wire>,
    peer: Wire,
) -> ResolveAddr {
    let source = source.unwrap_or_default();
    ResolveAddr {
        id,
        timeout_ms,
        src_size: source.length,
        dst_size: peer.length,
        src_addr: source.bytes,
        dst_addr: peer.bytes,
        ..ResolveAddr::default()
    }
}

/// Finds the path to the peer.
impl Command for ResolveRoute {
    type Reply = ();
    const NUMBER: u32 = cmd::RESOLVE_ROUTE;
    const VERB: Verb = Verb::ResolveRoute;
}

/// Queries the addresses, the device and the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoBytes, Immutable)]
#[repr(transparent)]
pub(crate) struct QueryAddr(abi::Query);

impl QueryAddr {
    /// The query for this identifier.
    pub(crate) fn of(id: u32) -> Self {
        Self(query(id, abi::QueryOption::ADDR))
    }
}

impl Command for QueryAddr {
    type Reply = abi::QueryAddrResp;
    const NUMBER: u32 = cmd::QUERY;
    const VERB: Verb = Verb::QueryId;

    fn answer_at(&mut self, address: u64) {
        self.0.response = address;
    }
}

/// The command that queries something that the kernel knows of an identifier.
pub(crate) fn query(id: u32, option: abi::QueryOption) -> abi::Query {
    abi::Query {
        id,
        option: option.0,
        ..abi::Query::default()
    }
}

/// Sets an option. The caller keeps the value in its place until the command has been sent.
impl Command for SetOption {
    type Reply = ();
    const NUMBER: u32 = cmd::SET_OPTION;
    const VERB: Verb = Verb::SetOption;
}

/// Requests a connection from the peer, or looks up a datagram peer.
impl Command for Connect {
    type Reply = ();
    const NUMBER: u32 = cmd::CONNECT;
    const VERB: Verb = Verb::Connect;
}

/// Awaits requests.
impl Command for Listen {
    type Reply = ();
    const NUMBER: u32 = cmd::LISTEN;
    const VERB: Verb = Verb::Listen;
}

/// Accepts a request; without parameters, confirms a connection that the peer has accepted.
impl Command for Accept {
    type Reply = ();
    const NUMBER: u32 = cmd::ACCEPT;
    const VERB: Verb = Verb::Accept;
}

/// Refuses a request, or a connection that the peer has accepted.
impl Command for Reject {
    type Reply = ();
    const NUMBER: u32 = cmd::REJECT;
    const VERB: Verb = Verb::Reject;
}

/// Ends a connection, or confirms its end.
impl Command for Disconnect {
    type Reply = ();
    const NUMBER: u32 = cmd::DISCONNECT;
    const VERB: Verb = Verb::Disconnect;
}

/// Queries the attributes for a transition of the queue pair.
impl Command for InitQpAttr {
    type Reply = QpAttr;
    const NUMBER: u32 = cmd::INIT_QP_ATTR;
    const VERB: Verb = Verb::InitQpAttr;

    fn answer_at(&mut self, address: u64) {
        self.response = address;
    }
}

/// Notifies the kernel of an event of the queue pair.
impl Command for Notify {
    type Reply = ();
    const NUMBER: u32 = cmd::NOTIFY;
    const VERB: Verb = Verb::Notify;
}

/// Takes the next event.
impl Command for GetEvent {
    type Reply = abi::EventResp;
    const NUMBER: u32 = cmd::GET_EVENT;
    const VERB: Verb = Verb::GetCmEvent;

    fn answer_at(&mut self, address: u64) {
        self.response = address;
    }
}

/// Moves an identifier from another file to the file that the command is sent on.
impl Command for MigrateId {
    type Reply = abi::MigrateResp;
    const NUMBER: u32 = cmd::MIGRATE_ID;
    const VERB: Verb = Verb::GetRequest;

    fn answer_at(&mut self, address: u64) {
        self.response = address;
    }
}

/// Joins a multicast group.
impl Command for JoinMcast {
    type Reply = abi::CreateIdResp;
    const NUMBER: u32 = cmd::JOIN_MCAST;
    const VERB: Verb = Verb::JoinMulticast;

    fn answer_at(&mut self, address: u64) {
        self.response = address;
    }
}

#[cfg(test)]
mod tests {
    use uverbs_uapi::enums::QpType;

    use super::*;

    /// Catches a command that is sent shorter than the kernel's struct, an answer that does not fit, and
    /// arguments in the wrong place.
    #[test]
    fn commands_are_framed_as_the_kernel_reads_them() {
        let create = CreateId {
            uid: 0x0102_0304_0506_0708,
            ps: abi::PortSpace::TCP.0 as u16,
            qp_type: QpType::RC.0 as u8,
            ..CreateId::default()
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
            ..Accept::default()
        };
        let frame = Frame::new(&accept, 0);
        assert_eq!(frame.bytes().len(), 8 + 296);
        assert_eq!(frame.bytes()[..8], [8, 0, 0, 0, 40, 1, 0, 0]);
        assert_eq!(frame.bytes()[8 + 280], 7);

        let migrate = MigrateId {
            id: 9,
            fd: 3,
            ..MigrateId::default()
        };
        let frame = Frame::new(&migrate, 1);
        let words = [18u32, 16 | 4 << 16, 1, 0, 9, 3];
        assert_eq!(frame.bytes(), words.as_bytes());
    }
}
