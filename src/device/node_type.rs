//! The kind of node that a device is.

use std::fmt;

use uverbs_uapi::enums;

/// The kind of a node, `enum ibv_node_type` in C.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum NodeType {
    /// A channel adapter: InfiniBand or RoCE.
    ChannelAdapter,
    /// An InfiniBand switch.
    Switch,
    /// An InfiniBand router.
    Router,
    /// An iWARP adapter.
    Rnic,
    /// A Cisco usNIC over its own protocol.
    Usnic,
    /// A Cisco usNIC over UDP.
    UsnicUdp,
    /// A device of no transport that verbs define, such as EFA.
    Unspecified,
    /// A kind that this library does not know, by its number.
    Other(u8),
}

impl From<u8> for NodeType {
    fn from(number: u8) -> Self {
        match enums::NodeType::from(number) {
            enums::NodeType::CA => Self::ChannelAdapter,
            enums::NodeType::SWITCH => Self::Switch,
            enums::NodeType::ROUTER => Self::Router,
            enums::NodeType::RNIC => Self::Rnic,
            enums::NodeType::USNIC => Self::Usnic,
            enums::NodeType::USNIC_UDP => Self::UsnicUdp,
            enums::NodeType::UNSPECIFIED => Self::Unspecified,
            _ => Self::Other(number),
        }
    }
}

impl fmt::Display for NodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ChannelAdapter => "channel adapter",
            Self::Switch => "switch",
            Self::Router => "router",
            Self::Rnic => "RNIC",
            Self::Usnic => "usNIC",
            Self::UsnicUdp => "usNIC UDP",
            Self::Unspecified => "unspecified",
            Self::Other(number) => return write!(f, "node type {number}"),
        })
    }
}
