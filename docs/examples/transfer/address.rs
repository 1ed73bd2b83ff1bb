//! What engines tell each other, by serde: where they are, where their memory is, and how to connect.

use serde::{Deserialize, Serialize};
use uverbs::{Endpoint, RemoteSlice};

/// Where an engine is: the datagram queue pair of each of its rails. Rail 0 of one engine talks to rail 0 of
/// another, and so on: the adapters of a rail are wired to the same switch.
pub(crate) type Address = Vec<Endpoint>;

/// Memory that peers write to: for each rail, whom to ask for a connection, and the same bytes by the address
/// and the key that hold there.
pub(crate) type RemoteRegion = Vec<(Endpoint, RemoteSlice)>;

/// The datagram by which rails connect: who sends it, and the queue pairs that it has made for the other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) from: Endpoint,
    pub(crate) messages: Endpoint,
    pub(crate) writes: Endpoint,
    /// Whether it answers another; if not, it wants an answer.
    pub(crate) is_answer: bool,
}

/// The key that datagrams to this queue pair carry. The PSN is random and means nothing else to senders of
/// datagrams; so what was meant for an earlier queue pair of the same number is kept out.
pub(crate) fn qkey(datagrams: &Endpoint) -> u32 {
    datagrams.psn
}
