//! What kind of node a device is.

use std::fmt;

/// The kind of a node, `enum ibv_node_type` in C, in the kernel's numbering (`RDMA_NODE_*` in
/// `include/uapi/rdma/rdma_netlink.h`).
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
        match number {
            1 => Self::ChannelAdapter,
            2 => Self::Switch,
            3 => Self::Router,
            4 => Self::Rnic,
            5 => Self::Usnic,
            6 => Self::UsnicUdp,
            7 => Self::Unspecified,
            other => Self::Other(other),
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
