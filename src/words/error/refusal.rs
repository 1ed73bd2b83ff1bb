//! Why a peer refused a connection.

use std::fmt;

#[cfg(feature = "cm")]
use uverbs_uapi::rdma_cm as abi;

/// A peer's refusal of a connection.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// Why it refused.
    pub reason: RejectReason,
    /// The private data of the refusal: the whole field of the message, padded with zeros.
    pub private_data: Vec<u8>,
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal")
            .field("reason", &self.reason)
            .field("bytes", &self.private_data.len())
            .finish()
    }
}

/// Why a connection was refused (InfiniBand specification, 12.6.7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectReason {
    /// No program listens on that port.
    NoListener,
    /// The program refused; or it listens on that port, but on another address.
    Consumer,
    /// The peer has no resources left.
    NoResources,
    /// This side or the peer waited too long for an answer.
    TimedOut,
    /// For the peer, the last connection of the queue pair is not over yet.
    Stale,
    /// The options of the two devices do not fit together.
    Ece,
    /// For datagrams: the peer has no queue pair for them.
    NoQp,
    /// Another reason, by its number.
    Other(u16),
}

#[cfg(feature = "cm")]
impl RejectReason {
    /// The reason of the peer of a connected queue pair.
    pub(crate) fn of_connection(number: u16) -> Self {
        match abi::RejectReason(number.into()) {
            abi::RejectReason::INVALID_SERVICE_ID => Self::NoListener,
            abi::RejectReason::CONSUMER_DEFINED => Self::Consumer,
            abi::RejectReason::NO_QP | abi::RejectReason::NO_RESOURCES => Self::NoResources,
            abi::RejectReason::TIMEOUT => Self::TimedOut,
            abi::RejectReason::STALE_CONN => Self::Stale,
            abi::RejectReason::VENDOR_OPTION_NOT_SUPPORTED => Self::Ece,
            _ => Self::Other(number),
        }
    }

    /// The reason of the peer of a datagram lookup (InfiniBand specification, 12.11.1.1: the status of
    /// SIDR_REP).
    pub(crate) fn of_look_up(number: u16) -> Self {
        match number {
            1 => Self::NoListener,
            2 => Self::Consumer,
            3 => Self::NoQp,
            _ => Self::Other(number),
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoListener => "nobody listens on that port",
            Self::Consumer => "the program refused or has ended, or it listens on another address, or for connections of another kind",
            Self::NoResources => "it has no resources left",
            Self::TimedOut => "an answer came too late",
            Self::Stale => "the queue pair's last connection is not over yet",
            Self::Ece => "the options of the two devices do not fit together",
            Self::NoQp => "it has no queue pair for datagrams there",
            Self::Other(number) => return write!(f, "reason {number}"),
        })
    }
}
