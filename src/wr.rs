//! Work requests in the one form that all drivers take.
//!
//! The typed interface of a QP builds these values and passes them down inlined, so that a driver's match on
//! the operation is decided at compile time. They borrow and are small: turning a foreign caller's struct
//! into one allocates nothing.

use std::fmt;

use uverbs_uapi::enums::FlushLevel;
#[cfg(feature = "rxe")]
use uverbs_uapi::enums::WrOpcode;
use uverbs_uapi::flags::{AccessFlags, DeviceCapFlags, FlushPlacement};

use crate::driver::Ah;
use crate::error::{Errno, Error, Subject, Verb};
use crate::key::{LocalKey, LocalSlice, PdTag, RemoteKey};
use crate::qp::{QpState, QpType};

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Send,
    SendImm {
        imm: u32,
    },
    SendInv {
        rkey: RemoteKey,
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
    /// The payload is the word to write.
    AtomicWrite {
        remote: Remote,
    },
    /// Has no payload.
    Flush {
        remote: Remote,
        length: u32,
        placement: FlushPlacement,
        level: FlushLevel,
    },
    /// Has no payload.
    LocalInv {
        rkey: RemoteKey,
    },
    /// Has no payload.
    BindMw(Bind),
}

/// What a memory window is bound to, and the keys that it has before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bind {
    /// The window's key now.
    pub(crate) mw_rkey: RemoteKey,
    /// The window's key from then on.
    pub(crate) rkey: RemoteKey,
    /// The region under it.
    pub(crate) mr_lkey: LocalKey,
    pub(crate) address: u64,
    /// 0 takes the window away.
    pub(crate) length: u64,
    pub(crate) access: AccessFlags,
    /// The window is of type 2: it belongs to the queue pair.
    pub(crate) of_queue_pair: bool,
}

/// The start of a piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) rkey: RemoteKey,
}

#[cfg(feature = "rxe")]
impl Operation {
    /// The kernel's number of the operation, which only soft-RoCE's rings have.
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
            Operation::SendInv { .. } => WrOpcode::SEND_WITH_INV,
            Operation::AtomicWrite { .. } => WrOpcode::ATOMIC_WRITE,
            Operation::Flush { .. } => WrOpcode::FLUSH,
            Operation::LocalInv { .. } => WrOpcode::LOCAL_INV,
            Operation::BindMw(_) => WrOpcode::BIND_MW,
        }
    }
}

/// Where a flush takes what was written before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// To where everybody on the peer's side sees it.
    Global,
    /// To where it survives a loss of power.
    Persistent,
    /// To both.
    GlobalAndPersistent,
}

impl Placement {
    /// The placement as the wire has it.
    #[inline(always)]
    pub(crate) const fn bits(self) -> FlushPlacement {
        match self {
            Self::Global => FlushPlacement::GLOBAL,
            Self::Persistent => FlushPlacement::PERSISTENT,
            Self::GlobalAndPersistent => FlushPlacement::GLOBAL.union(FlushPlacement::PERSISTENT),
        }
    }

    /// What a device must be capable of for it.
    #[inline(always)]
    pub(crate) const fn needs(self) -> DeviceCapFlags {
        match self {
            Self::Global => DeviceCapFlags::FLUSH_GLOBAL,
            Self::Persistent => DeviceCapFlags::FLUSH_PERSISTENT,
            Self::GlobalAndPersistent => {
                DeviceCapFlags::FLUSH_GLOBAL.union(DeviceCapFlags::FLUSH_PERSISTENT)
            }
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'a> {
    pub(crate) ah: &'a Ah,
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
    /// The device does not have the operation. The request would have broken the queue pair.
    MissingCapability {
        /// What the device lacks of what the operation needs.
        capability: DeviceCapFlags,
    },
    /// The device could not be asked whether it has the operation; it may have been removed.
    QueryDevice(Errno),
    /// A memory window cannot be bound like this, which would have broken the queue pair; the text says why.
    Window(&'static str),
    /// A slice, a memory window or an address handle belongs to another protection domain than the QP.
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
            Self::MissingCapability { capability } => write!(
                f,
                "the device does not have this operation: it lacks {capability:?}"
            ),
            Self::QueryDevice(errno) => write!(
                f,
                "the device could not be asked whether it has this operation ({errno})"
            ),
            Self::Window(why) => write!(f, "the memory window cannot be bound: {why}"),
            Self::ForeignPd => {
                f.write_str("memory, memory window or address handle of another protection domain than the QP's")
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
            PostError::QueryDevice(errno) => Error::os(Verb::QueryDevice, subject, errno),
            PostError::MissingCapability { .. } => {
                Error::unsupported(Verb::PostSend, subject, error.to_string())
            }
            other => Error::invalid(Verb::PostSend, subject, other.to_string()),
        }
    }
}
