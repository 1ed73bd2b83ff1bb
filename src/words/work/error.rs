//! Errors of posting, of polling, and of posted requests. They cost nothing on success.

use std::fmt;

use uverbs_uapi::enums::{QpState, QpType, WcStatus};
use uverbs_uapi::flags::DeviceCapFlags;

use super::key::OutOfBounds;
use crate::error::{Cause, Errno, Error, Subject, Verb};

/// Why a work request was not accepted. Requests accepted before it stay accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
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
    /// The slices add up to more than a message can have: 2 GiB, and for a datagram the MTU of the port.
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
    /// The device has no atomic operations ([`AtomicCap::NONE`](crate::query::AtomicCap::NONE)). The request
    /// would have broken the queue pair.
    NoAtomics,
    /// A memory window cannot be bound like this, which would have broken the queue pair; the text says why.
    Window(&'static str),
    /// A request of direct verbs that the queue does not take; the text says why.
    Direct(&'static str),
    /// A slice, a memory window or an address handle belongs to another protection domain than the queue.
    ForeignPd,
    /// A receive, or the target of a READ or an atomic operation, lies in a region that was registered
    /// without [`LOCAL_WRITE`](crate::Access::LOCAL_WRITE). It would have broken the queue pair.
    ReadOnly,
    /// The queue pair was connected with [`max_rd_atomic`](crate::ConnectOptions::max_rd_atomic) 0: it may
    /// have no READ or atomic operation in flight. Soft-RoCE would never complete the request.
    NoReadsInFlight,
    /// The queue pair belongs to another thread domain.
    ForeignDomain,
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
    /// A request on a datagram QP has no destination, or one of XRC names no shared receive queue of the peer
    /// ([`Request::to`](crate::Request::to)), or one on another QP has either.
    Destination,
    /// The queue pair receives from a shared receive queue: post there.
    SharedReceive,
    /// The shared receive queue is lost: changing its size failed when the kernel may have let go of its ring
    /// already. It can only be destroyed, after its queue pairs.
    QueueLost,
    /// A slice was requested that does not lie within its memory.
    OutOfBounds(OutOfBounds),
    /// The doorbell failed with this errno. The requests are in the ring all the same: the device works on
    /// them at the next doorbell that succeeds, or flushes them when the QP goes to the error state.
    Doorbell(Errno),
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::QueueFull { capacity } => write!(
                f,
                "the queue is full: it holds {capacity} requests, until completions are polled; an unsignaled one \
                 until a later signaled one has completed"
            ),
            Self::TooManySges { given, max } => {
                write!(f, "{given} slices, but a request of this queue has at most {max}")
            }
            Self::InlineTooLong { given, max } => {
                write!(
                    f,
                    "{given} inline bytes, but a request of this queue has at most {max}"
                )
            }
            Self::MessageTooLong { given, max } => {
                write!(f, "{given} bytes, but a message has at most {max}")
            }
            Self::BeyondRemote { local, remote } => {
                write!(f, "{local} bytes, but the peer's slice has only {remote}")
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
            Self::NoAtomics => f.write_str("the device has no atomic operations"),
            Self::Window(why) => write!(f, "the memory window cannot be bound: {why}"),
            Self::Direct(why) => write!(f, "the request of direct verbs cannot be posted: {why}"),
            Self::ForeignPd => f.write_str(
                "the memory, memory window or address handle belongs to another protection domain than the queue",
            ),
            Self::ReadOnly => f.write_str(
                "the request writes to a slice of a region without local write access: register it with \
                 Access::LOCAL_WRITE",
            ),
            Self::NoReadsInFlight => f.write_str(
                "the QP was connected with max_rd_atomic 0, so it may have no READ or atomic operation in flight",
            ),
            Self::ForeignDomain => f.write_str("the QP belongs to another thread domain"),
            Self::WrongState { state } => write!(
                f,
                "the QP is in state {state:?}, which does not take this request: connect it first (receives are \
                 taken from INIT on)"
            ),
            Self::NotInTransport { transport } => {
                write!(f, "{transport:?} does not have this operation")
            }
            Self::Destination => f.write_str(
                "a datagram needs a destination, an XRC request a shared receive queue of the peer, \
                 and other requests must have neither",
            ),
            Self::SharedReceive => {
                f.write_str("the queue pair receives from a shared receive queue: post there")
            }
            Self::QueueLost => f.write_str(
                "the shared receive queue is lost, since changing its size failed: destroy its queue pairs, and it",
            ),
            Self::OutOfBounds(error) => write!(f, "{error}"),
            Self::Doorbell(errno) => write!(
                f,
                "the doorbell failed ({errno}); the requests are in the ring"
            ),
        }
    }
}

/// The text, as for [`Error`]: it has all the fields.
impl fmt::Debug for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PostError {}

impl From<PostError> for Error {
    /// For callers that use one error type for posting and for the control path.
    fn from(error: PostError) -> Self {
        let qp = Subject::the("QP");
        match error {
            // Receives have no doorbell that can fail.
            PostError::Doorbell(errno) => Error::os(Verb::PostSend, qp, errno),
            PostError::MissingCapability { .. } | PostError::NoAtomics => {
                Error::unsupported(Verb::PostSend, qp, error.to_string())
            }
            PostError::OutOfBounds(error) => error.into(),
            // Only sends have what these are about.
            PostError::InlineTooLong { .. }
            | PostError::MessageTooLong { .. }
            | PostError::BeyondRemote { .. }
            | PostError::NotAtomic { .. }
            | PostError::Window(_)
            | PostError::Direct(_)
            | PostError::NoReadsInFlight
            | PostError::ForeignDomain
            | PostError::NotInTransport { .. }
            | PostError::Destination => Error::invalid(Verb::PostSend, qp, error.to_string()),
            PostError::SharedReceive => Error::invalid(Verb::PostRecv, qp, error.to_string()),
            PostError::QueueLost => {
                Error::invalid(Verb::PostSrqRecv, Subject::the("SRQ"), error.to_string())
            }
            PostError::QueueFull { .. } => {
                let full = Cause::Busy(error.to_string().into());
                Error::new(Verb::Post, Subject::the("queue"), full)
            }
            PostError::TooManySges { .. }
            | PostError::ForeignPd
            | PostError::ReadOnly
            | PostError::WrongState { .. } => {
                Error::invalid(Verb::Post, Subject::the("queue"), error.to_string())
            }
        }
    }
}

/// For functions that make slices and post them.
impl From<OutOfBounds> for PostError {
    fn from(error: OutOfBounds) -> Self {
        Self::OutOfBounds(error)
    }
}

/// A completion queue that has lost completions or is lost, or whose contents make no sense.
// Aligned like the other result of a poll: it is copied in whole words where the two share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(align(8))]
pub enum PollError {
    /// The producer's index lies beyond the ring.
    Index {
        /// The index.
        index: u32,
        /// The highest that there is.
        highest: u32,
    },
    /// A completion names a queue that does not report to this completion queue.
    Stray {
        /// The number of the queue that it names.
        number: u32,
    },
    /// A completion has a kind that this library does not know or has not requested, or reports a request
    /// that was not posted.
    Unknown {
        /// The device's code of the kind.
        code: u8,
    },
    /// The queue had no room for a completion, which is lost: more requests could complete than it holds.
    /// soft-RoCE continues with the next completion. A ConnectX writes none any more, and the queue and the
    /// queues that report to it can only be destroyed. An EFA writes over the oldest completions, and their
    /// requests stay in flight until their queue pair is reset or destroyed.
    ///
    /// On an EFA a poll finds it, unless the device is two rounds of the ring or more ahead, and the next
    /// poll reports it once. On the others it is reported once, when its event
    /// ([`AsyncEventType::CQ_ERR`](crate::event::AsyncEventType::CQ_ERR)) has been read from
    /// [`Context::async_events`](crate::Context::async_events), so a program that may overrun a queue must
    /// read events. There a poll cannot find it by itself: in the ring, an overrun looks like a full queue,
    /// or, once it has been emptied, like an idle one. Only the event reports it, and a poll must not read
    /// events: then the descriptor would not be readable for a program that waits for events.
    Overrun,
    /// The completion queue is lost: the kernel has given it another size, and the new ring could not be
    /// mapped ([`Cq::resize`](crate::Cq::resize) on soft-RoCE). Each poll reports it. The queue can only be
    /// destroyed, after the queues that report to it.
    QueueLost,
}

impl fmt::Display for PollError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PollError::Index { index, highest } => {
                write!(
                    f,
                    "the completion ring's producer index is {index}, beyond the highest, {highest}"
                )
            }
            PollError::Stray { number } => {
                write!(
                    f,
                    "a completion names queue {number}, which does not report to this CQ"
                )
            }
            PollError::Unknown { code } => {
                write!(
                    f,
                    "a completion of kind {code:#x} belongs to no posted request"
                )
            }
            PollError::Overrun => f.write_str(
                "the CQ has overrun and lost a completion: it must have room for all requests of the queues that report \
                 to it",
            ),
            PollError::QueueLost => f.write_str(
                "the CQ is lost, since changing its size failed: destroy the queues that report to it, and it",
            ),
        }
    }
}

impl std::error::Error for PollError {}

impl From<PollError> for Error {
    fn from(error: PollError) -> Self {
        let (cq, text) = (Subject::the("CQ"), error.to_string());
        match error {
            PollError::Overrun | PollError::QueueLost => {
                Error::new(Verb::PollCq, cq, Cause::Failed(text.into()))
            }
            PollError::Index { .. } | PollError::Stray { .. } | PollError::Unknown { .. } => {
                Error::malformed(Verb::PollCq, cq, text)
            }
        }
    }
}

/// A work request that failed.
///
/// The queue pair is in the error state then, and the requests after this one complete with
/// [`WcStatus::WR_FLUSH_ERR`]. Unconnected queue pairs (UD, and UC) keep receiving after a failed send on
/// devices that have the state [`SQE`](crate::QpState::SQE); rxe does not have it, and takes them to the
/// error state like the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionError {
    /// Why it failed.
    pub status: WcStatus,
    /// The device's own code for the error.
    pub vendor_err: u32,
    /// The id that the request was posted with.
    pub wr_id: u64,
    /// The number of the local QP.
    pub qp_num: u32,
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            status,
            vendor_err,
            wr_id,
            qp_num,
        } = self;
        write!(
            f,
            "work request {wr_id} of QP {qp_num:#x} failed: {} ({status:?}",
            meaning(*status)
        )?;
        if *vendor_err != 0 {
            write!(f, ", vendor error {vendor_err:#x}")?;
        }
        f.write_str(")")
    }
}

impl std::error::Error for CompletionError {}

/// What a status means, and what to check.
fn meaning(status: WcStatus) -> &'static str {
    match status {
        WcStatus::SUCCESS => "success",
        WcStatus::LOC_LEN_ERR => {
            "a message was longer than the receive, or longer than a message can be; receives of datagrams need 40 \
             bytes more, for the route header"
        }
        WcStatus::LOC_QP_OP_ERR => {
            "the QP cannot execute the request; soft-RoCE also reports this if a receive is too short, or its memory \
             may not be written"
        }
        WcStatus::LOC_EEC_OP_ERR => "the end-to-end context cannot execute the request",
        WcStatus::LOC_PROT_ERR => {
            "a local slice is not registered, or without the access that the request needs"
        }
        WcStatus::WR_FLUSH_ERR => {
            "flushed, because the QP is in the error state; if no earlier request failed, the peer may have ended the \
             connection, or a local key is wrong"
        }
        WcStatus::MW_BIND_ERR => "the memory window could not be bound",
        WcStatus::BAD_RESP_ERR => "the peer's response is malformed",
        WcStatus::LOC_ACCESS_ERR => {
            "the peer's message could not be written to the memory of the receive"
        }
        WcStatus::REM_INV_REQ_ERR => {
            "the peer considers the request invalid: longer than its receive, sent with another path MTU than the \
             peer's, or not of an operation that its QP serves"
        }
        WcStatus::REM_ACCESS_ERR => {
            "the peer has no memory with this key, range and access: its region is gone, or shorter, or the region or \
             the peer's QP does not allow the operation"
        }
        WcStatus::REM_OP_ERR => "the peer could not execute the request",
        WcStatus::RETRY_EXC_ERR => {
            "the peer did not answer, and the retries are exhausted: it has ended, is not connected to this QP, or has \
             another QPN, PSN or GID than it told, or packets are lost (RoCE v2: UDP port 4791)"
        }
        WcStatus::RNR_RETRY_EXC_ERR => {
            "the peer had no receive posted, and the retries are exhausted"
        }
        WcStatus::REM_ABORT_ERR => "the peer aborted the request",
        WcStatus::RESP_TIMEOUT_ERR => "the response did not arrive in time",
        WcStatus::FATAL_ERR => "the device failed",
        _ => "for a reason that this library does not know",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(error: impl Into<Error>) -> (Verb, String, bool) {
        let error: Error = error.into();
        let is_malformed = matches!(error.cause(), Cause::Malformed(_));
        (error.verb(), error.subject().to_string(), is_malformed)
    }

    /// Catches receives that are told as sends.
    #[test]
    fn posts_name_the_verb_that_they_may_be_of() {
        let verb = |error| told(error).0;
        for error in [
            PostError::QueueFull { capacity: 1 },
            PostError::TooManySges { given: 2, max: 1 },
            PostError::ForeignPd,
            PostError::ReadOnly,
            PostError::WrongState {
                state: QpState::RESET,
            },
        ] {
            assert_eq!(told(error), (Verb::Post, "queue".into(), false), "{error}");
        }
        assert_eq!(verb(PostError::SharedReceive), Verb::PostRecv);
        assert_eq!(verb(PostError::Doorbell(Errno::INVAL)), Verb::PostSend);
        assert_eq!(verb(PostError::NoReadsInFlight), Verb::PostSend);
        assert_eq!(verb(PostError::NoAtomics), Verb::PostSend);
    }

    /// Would catch a full queue that is told as a wrong argument: later it takes the request.
    #[test]
    fn a_full_queue_is_busy() {
        let full = Error::from(PostError::QueueFull { capacity: 1 });
        assert!(matches!(full.cause(), Cause::Busy(_)), "{full}");
    }

    /// Catches an overrun that is told as nonsense in the ring.
    #[test]
    fn an_overrun_is_no_nonsense() {
        let poll = |is_malformed| (Verb::PollCq, "CQ".to_owned(), is_malformed);
        assert_eq!(told(PollError::Overrun), poll(false));
        assert_eq!(told(PollError::Stray { number: 1 }), poll(true));
        let error = Error::from(PollError::Overrun).to_string();
        assert!(
            error.starts_with("poll_cq on CQ: the CQ has overrun"),
            "{error}"
        );
    }
}
