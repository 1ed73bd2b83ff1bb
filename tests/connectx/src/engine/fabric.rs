//! The network between the functions: who is meant by an address, and the way there.

use crate::engine::cqe::{NetworkHeader, Source};
use crate::engine::header::{self, Header};
use crate::engine::packet::{Answer, Message, Operation, Tail};
use crate::engine::receive;
use crate::engine::wqe::{AddressVector, Request};
use crate::function::Function;
use crate::layout::qpc::{self, path};
use crate::object::qp::{QueuePair, Transport};
use crate::port::{Port, PortKind};
use crate::subnet::{FIRST_GROUP_LID, Host, MANAGER_LID};

/// The queue pair of the general services, to which the administrator of a subnet answers too.
const GENERAL_SERVICES: u32 = 1;
/// The key of datagrams to it.
const WELL_KNOWN_Q_KEY: u32 = 0x8001_0000;

/// The address of a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Address {
    /// On InfiniBand.
    Lid(u16),
    /// On Ethernet.
    Mac(u64),
}

impl Address {
    /// The address of that port.
    fn of(port: &Port) -> Self {
        match port.kind {
            PortKind::InfiniBand => Self::Lid(port.lid),
            PortKind::Roce => Self::Mac(port.mac),
        }
    }

    /// Where a connection leads.
    fn of_peer(port: &Port, queue_pair: &QueuePair) -> Self {
        match port.kind {
            PortKind::InfiniBand => Self::Lid(queue_pair.field(path::RLID) as u16),
            PortKind::Roce => Self::Mac(queue_pair.field(path::RMAC)),
        }
    }

    /// Where a datagram goes. The zero LID is the own one.
    fn of_vector(port: &Port, vector: &AddressVector) -> Self {
        match port.kind {
            PortKind::InfiniBand if vector.lid == 0 => Self::Lid(port.lid),
            PortKind::InfiniBand => Self::Lid(vector.lid),
            PortKind::Roce => Self::Mac(vector.mac),
        }
    }

    /// Whether it is a group's.
    fn is_multicast(self) -> bool {
        match self {
            Self::Lid(lid) => lid >= FIRST_GROUP_LID,
            Self::Mac(mac) => mac & (1 << 40) != 0,
        }
    }
}

/// The network header of a packet on Ethernet. It has the GIDs of both ends, and the version of RoCE, which
/// is that of the sender's GID.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Route {
    from: [u8; 16],
    to: [u8; 16],
    version: u8,
}

impl Route {
    /// The way from one of the own GIDs, by its index; none if the table has none there.
    fn new(function: &Function, index: u8, to: [u8; 16]) -> Option<Self> {
        let entry = function.objects.addresses.get(&index)?;
        (entry.gid != [0; 16]).then_some(Self {
            from: entry.gid,
            to,
            version: entry.version,
        })
    }

    /// Whether the packet is for a function, which has the GID in the packet's version.
    fn leads_to(&self, function: &Function) -> bool {
        let mut entries = function.objects.addresses.values();
        self.to != [0; 16]
            && entries.any(|entry| entry.gid == self.to && entry.version == self.version)
    }
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Target {
    /// To what has that number behind an address.
    Unicast {
        address: Address,
        qpn: u32,
        kind: Kind,
        /// How it goes there on Ethernet; none if it has no source, and so does not leave.
        route: Option<Route>,
    },
    /// To all that are attached to a group.
    Multicast { address: Address, gid: [u8; 16] },
}

/// What a number stands for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// The peer of a connection.
    Peer,
    /// A queue pair for datagrams.
    Datagrams,
    /// A DC target.
    DcTarget,
}

/// Whom a request is for: the peer of a connection, or whom it names.
pub(super) fn target(function: &Function, queue_pair: &QueuePair, request: &Request) -> Target {
    let port = &function.port;
    let Some(vector) = &request.vector else {
        return peer(function, queue_pair);
    };
    let address = Address::of_vector(port, vector);
    let route = Route::new(function, vector.source_index, vector.gid);
    if queue_pair.transport() == Transport::Dc {
        return Target::Unicast {
            address,
            qpn: vector.qpn,
            kind: Kind::DcTarget,
            route,
        };
    }
    match vector.gid_on(port.kind) {
        Some(gid) if address.is_multicast() => Target::Multicast { address, gid },
        _ => Target::Unicast {
            address,
            qpn: vector.qpn,
            kind: Kind::Datagrams,
            route,
        },
    }
}

/// The other end of a connection.
fn peer(function: &Function, queue_pair: &QueuePair) -> Target {
    let index = queue_pair.field(path::SRC_ADDR_INDEX) as u8;
    Target::Unicast {
        address: Address::of_peer(&function.port, queue_pair),
        qpn: queue_pair.field32(qpc::REMOTE_QPN),
        kind: Kind::Peer,
        route: Route::new(function, index, queue_pair.peer_gid()),
    }
}

/// The number under which peers know a queue pair: the special ones are 0 and 1.
pub(super) fn visible_qpn(queue_pair: &QueuePair, qpn: u32) -> u32 {
    match queue_pair.transport() {
        Transport::Smi => 0,
        Transport::Gsi => GENERAL_SERVICES,
        // The driver has queue pairs that send in the name of the special one.
        Transport::Ud => match queue_pair.field32(qpc::DETH_SQPN) {
            0 => qpn,
            other => other,
        },
        _ => qpn,
    }
}

/// Carries a message to its target, and brings the answer back.
pub(super) fn carry(
    functions: &mut [Function],
    from: usize,
    from_qpn: u32,
    target: Target,
    message: &Message,
) -> Answer {
    let Some(sender) = functions.get(from).map(|from| &from.port) else {
        return Answer::Silence;
    };
    let (source, has_link) = (Address::of(sender), sender.is_up);
    match target {
        Target::Unicast {
            address,
            qpn,
            kind,
            route,
        } => {
            if address == Address::Lid(MANAGER_LID) {
                if kind == Kind::Datagrams && qpn == GENERAL_SERVICES && has_link {
                    administrate(functions, from, message);
                }
                return Answer::Silence;
            }
            let Some(function) = functions
                .iter_mut()
                .find(|function| Address::of(&function.port) == address)
            else {
                return Answer::Silence;
            };
            if !has_link || !function.port.is_up || function.faults.loses_messages() {
                return Answer::Silence;
            }
            if let Address::Mac(_) = address
                && !route.is_some_and(|route| route.leads_to(function))
            {
                return Answer::Silence;
            }
            if kind == Kind::DcTarget {
                return receive::deliver_to_target(function, qpn, message);
            }
            let Some(qpn) = addressed(function, qpn) else {
                return Answer::Silence;
            };
            let accepted = match kind {
                Kind::Peer => is_peer(function, qpn, (source, route), from_qpn),
                Kind::Datagrams => takes_datagram(function, qpn, message),
                Kind::DcTarget => false,
            };
            if accepted {
                receive::deliver(function, qpn, message)
            } else {
                Answer::Silence
            }
        }
        Target::Multicast { address, gid } => {
            let reached = |function: &&mut Function| {
                let is_routed = match address {
                    Address::Lid(lid) => function.subnet.reaches(lid, gid, &function.port),
                    Address::Mac(_) => true,
                };
                has_link && is_routed && function.port.is_up && !function.faults.loses_messages()
            };
            for function in functions.iter_mut().filter(reached) {
                let members: Vec<u32> = function
                    .objects
                    .multicast
                    .iter()
                    .filter(|(group, _)| *group == gid)
                    .map(|(_, qpn)| *qpn)
                    .collect();
                for qpn in members {
                    if takes_datagram(function, qpn, message) {
                        receive::deliver(function, qpn, message);
                    }
                }
            }
            Answer::Done(Vec::new())
        }
    }
}

/// Hands a datagram to the administrator of the subnet, and its answer to where it came from.
fn administrate(functions: &mut [Function], from: usize, message: &Message) {
    let Operation::Send { data, .. } = &message.operation else {
        return;
    };
    if message.q_key != Some(WELL_KNOWN_Q_KEY) {
        return;
    }
    let hosts: Vec<Host> = functions
        .iter()
        .map(|function| &function.port)
        .filter(|port| port.is_up)
        .map(Host::of)
        .collect();
    let Some(function) = functions.get_mut(from) else {
        return;
    };
    let answer = function.subnet.answer(&hosts, message.source.lid, data);
    let (Some(answer), false) = (answer, function.faults.loses_messages()) else {
        return;
    };
    let answer = Message {
        operation: Operation::Send {
            data: answer.to_vec(),
            tail: Tail::Plain,
        },
        solicited: false,
        shared_queue: None,
        source: Source {
            qpn: GENERAL_SERVICES,
            lid: MANAGER_LID,
            service_level: message.source.service_level,
            header: NetworkHeader::None,
        },
        header: Some(Header {
            bytes: [0; header::LENGTH],
            kind: NetworkHeader::None,
        }),
        q_key: Some(WELL_KNOWN_Q_KEY),
        access_key: None,
        travels: None,
    };
    if let Some(qpn) = addressed(function, message.source.qpn)
        && takes_datagram(function, qpn, &answer)
    {
        receive::deliver(function, qpn, &answer);
    }
}

/// The real number of a queue pair that peers name.
fn addressed(function: &Function, qpn: u32) -> Option<u32> {
    let special = match qpn {
        0 => Transport::Smi,
        GENERAL_SERVICES => Transport::Gsi,
        _ => return Some(qpn),
    };
    let mut queue_pairs = function.objects.qps.iter();
    let found = queue_pairs.find(|(_, queue_pair)| queue_pair.transport() == special);
    found.map(|(qpn, _)| qpn)
}

/// Whether a queue pair is connected to that one, by the address and the GID that it has.
fn is_peer(
    function: &Function,
    qpn: u32,
    (source, route): (Address, Option<Route>),
    peer: u32,
) -> bool {
    function.objects.qps.get(qpn).is_ok_and(|queue_pair| {
        matches!(
            queue_pair.transport(),
            Transport::Rc | Transport::Uc | Transport::Xrc
        ) && queue_pair.field32(qpc::REMOTE_QPN) == peer
            && Address::of_peer(&function.port, queue_pair) == source
            && (function.port.kind == PortKind::InfiniBand
                || route.is_some_and(|route| route.from == queue_pair.peer_gid()))
    })
}

/// Whether a queue pair is for datagrams, and the message has its key.
fn takes_datagram(function: &Function, qpn: u32, message: &Message) -> bool {
    function.objects.qps.get(qpn).is_ok_and(|queue_pair| {
        // The special queue pairs have well-known keys, which the driver does not set.
        queue_pair.transport() == Transport::Ud
            && message.q_key == Some(queue_pair.field32(qpc::Q_KEY))
            || matches!(queue_pair.transport(), Transport::Smi | Transport::Gsi)
    })
}

#[cfg(test)]
mod tests;
