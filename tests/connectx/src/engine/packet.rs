//! What travels between functions: whole messages and their answers. The model does not cut messages into
//! packets.

use crate::engine::cqe::Source;
use crate::engine::header::Header;
use crate::engine::syndrome::Syndrome;

/// What a message asks for.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Data for a receive request.
    Send { data: Vec<u8>, tail: Tail },
    /// Data for the peer's memory; with immediate data also a completion.
    Write {
        address: u64,
        key: u32,
        data: Vec<u8>,
        immediate: Option<[u8; 4]>,
    },
    /// A request for the peer's memory.
    Read { address: u64, key: u32, length: u64 },
    /// Compare and swap.
    CompareSwap {
        address: u64,
        key: u32,
        swap: u64,
        compare: u64,
    },
    /// Fetch and add.
    FetchAdd { address: u64, key: u32, add: u64 },
}

impl Operation {
    /// Whether it takes a receive request.
    pub(crate) fn takes_receive(&self) -> bool {
        match self {
            Self::Send { .. } => true,
            Self::Write { immediate, .. } => immediate.is_some(),
            Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. } => false,
        }
    }
}

/// What comes with a message that was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Tail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Immediate([u8; 4]),
    /// A key to take away.
    Invalidate([u8; 4]),
}

/// A message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) operation: Operation,
    pub(crate) solicited: bool,
    /// The peer's shared receive queue, for XRC.
    pub(crate) shared_queue: Option<u32>,
    /// Where it comes from.
    pub(crate) source: Source,
    /// The network layer's header, for datagrams.
    pub(crate) header: Option<Header>,
    /// The datagram's key, for datagrams.
    pub(crate) q_key: Option<u32>,
    /// The target's access key, from DC initiators.
    pub(crate) access_key: Option<u64>,
    /// How it travels, on a reliable connection.
    pub(crate) travels: Option<Travels>,
}

/// What the two ends of a reliable connection must agree on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Travels {
    /// The number of its first packet.
    pub(crate) psn: u32,
    /// How many packets it has, or its answer.
    pub(crate) packets: u32,
    /// Most bytes of a packet.
    pub(crate) mtu: u64,
    /// How many READs and atomic operations its sender has in flight, if it is one.
    pub(crate) reads: u32,
}

impl Travels {
    /// The number of the packet behind its last.
    pub(crate) fn end(self) -> u32 {
        self.psn.wrapping_add(self.packets) & 0xff_ffff
    }
}

/// What the peer says to a message.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Done, with the data that was asked for.
    Done(Vec<u8>),
    /// There is no receive request; try again.
    NotReady,
    /// It cannot be done, for this reason.
    Refused(Syndrome),
    /// Nothing.
    Silence,
}
