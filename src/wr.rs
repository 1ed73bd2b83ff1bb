//! Work requests in the one form that all drivers take.
//!
//! The typed interface of a QP builds these values and passes them down inlined, so that a driver's match on
//! the operation is decided at compile time. They borrow and are small: turning a foreign caller's struct
//! into one allocates nothing.

use std::fmt;

use uverbs_uapi::enums::WrOpcode;

use crate::error::{Errno, Error, Subject, Verb};
use crate::key::{LocalSlice, PdTag, RemoteKey};
use crate::qp::{QpState, QpType};

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    SendImm {
        imm: u32,
    },
    Write {
        remote: Remote,
    },
    WriteImm {
        remote: Remote,
        imm: u32,
    },
    Read {
        remote: Remote,
    },
    CompareSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: Remote,
        add: u64,
    },
}

/// The start of a piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) rkey: RemoteKey,
}

impl Operation {
    /// The kernel's number of the operation.
    #[inline(always)]
    pub(crate) const fn opcode(&self) -> WrOpcode {
        match self {
            Operation::Send => WrOpcode::SEND,
            Operation::SendImm { .. } => WrOpcode::SEND_WITH_IMM,
            Operation::Write { .. } => WrOpcode::RDMA_WRITE,
            Operation::WriteImm { .. } => WrOpcode::RDMA_WRITE_WITH_IMM,
            Operation::Read { .. } => WrOpcode::RDMA_READ,
            Operation::CompareSwap { .. } => WrOpcode::ATOMIC_CMP_AND_SWP,
            Operation::FetchAdd { .. } => WrOpcode::ATOMIC_FETCH_AND_ADD,
        }
    }
}

/// What goes out, or where what comes in lands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'a> {
    /// Registered memory, read or written by the device after posting.
    Gather(&'a [LocalSlice]),
    /// Bytes that are copied into the work request.
    Inline(&'a [u8]),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// The driver's number of the address handle.
    pub(crate) ah: u32,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) pd: PdTag,
}

/// Why a work request was not accepted. Requests accepted before it stay accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// The queue holds as many requests as it can; poll the CQ until some are completed.
    QueueFull {
        /// Requests that it holds.
        capacity: u32,
    },
    /// The request has more slices than the queue was created for.
    TooManySges {
        /// Slices given.
        given: usize,
        /// Slices that the queue takes.
        max: u32,
    },
    /// The request has more inline bytes than the queue was created for.
    InlineTooLong {
        /// Bytes given.
        given: usize,
        /// Bytes that the queue takes.
        max: u32,
    },
    /// The slices add up to more than a message can have.
    MessageTooLong {
        /// Bytes given.
        given: u64,
        /// Bytes that a message can have.
        max: u64,
    },
    /// The slices add up to more than the peer's slice has.
    BeyondRemote {
        /// Bytes of the local slices.
        local: u64,
        /// Bytes of the peer's slice.
        remote: u64,
    },
    /// An atomic operation works on 8 bytes at an address that is a multiple of 8.
    NotAtomic {
        /// The peer's address.
        address: u64,
        /// Bytes of the local slice, which receives the old value.
        length: u64,
    },
    /// A slice or an address handle belongs to another protection domain than the QP.
    ForeignPd,
    /// The QP is in a state that does not take this kind of request.
    WrongState {
        /// The state, as last set through this QP.
        state: QpState,
    },
    /// The QP's transport does not have the operation.
    NotInTransport {
        /// The transport.
        transport: QpType,
    },
    /// A request on a datagram QP has no destination, or one on another QP has one.
    Destination,
    /// The queue pair receives from a shared receive queue: post there.
    SharedReceive,
    /// The doorbell failed with this errno. The requests are in the ring all the same: the device works
    /// on them at the next doorbell that succeeds, or flushes them when the QP goes to the error state.
    Doorbell(Errno),
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::QueueFull { capacity } => write!(f, "the queue is full with {capacity} requests"),
            Self::TooManySges { given, max } => {
                write!(f, "{given} slices, but the queue takes {max} a request")
            }
            Self::InlineTooLong { given, max } => {
                write!(
                    f,
                    "{given} inline bytes, but the queue takes {max} a request"
                )
            }
            Self::MessageTooLong { given, max } => {
                write!(f, "{given} bytes, but a message has at most {max}")
            }
            Self::BeyondRemote { local, remote } => {
                write!(f, "{local} bytes, but the peer's slice has {remote}")
            }
            Self::NotAtomic { address, length } => write!(
                f,
                "an atomic operation needs 8 local bytes and an address that is a multiple of 8, \
                 not {length} bytes and {address:#x}"
            ),
            Self::ForeignPd => {
                f.write_str("memory or address handle of another protection domain than the QP's")
            }
            Self::WrongState { state } => write!(
                f,
                "the QP is in state {state:?}, which does not take this request"
            ),
            Self::NotInTransport { transport } => {
                write!(f, "{transport:?} does not have this operation")
            }
            Self::Destination => f.write_str(
                "a datagram needs a destination, and a connected QP's request must have none",
            ),
            Self::SharedReceive => {
                f.write_str("the queue pair receives from a shared receive queue: post there")
            }
            Self::Doorbell(errno) => write!(
                f,
                "the doorbell failed ({errno}); the requests are in the ring"
            ),
        }
    }
}

impl std::error::Error for PostError {}

impl From<PostError> for Error {
    /// For callers that have one error type for posting and for the control path.
    fn from(error: PostError) -> Self {
        let subject = Subject::the("QP");
        match error {
            PostError::Doorbell(errno) => Error::os(Verb::PostSend, subject, errno),
            other => Error::invalid(Verb::PostSend, subject, other.to_string()),
        }
    }
}
