//! Errors: a kind that callers tell apart, and a text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What failed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Memory could not be allocated.
    AllocMemoryFailed,
    /// The devices could not be listed.
    IBGetDeviceListFail,
    /// There is no device.
    IBDeviceNotFound,
    /// A device could not be opened.
    IBOpenDeviceFail,
    /// A device did not tell its attributes.
    IBQueryDeviceFail,
    /// A GID could not be had.
    IBQueryGidFail,
    /// A GID's type could not be had.
    IBQueryGidTypeFail,
    /// A port did not tell its attributes.
    IBQueryPortFail,
    /// No protection domain.
    IBAllocPDFail,
    /// No completion channel.
    IBCreateCompChannelFail,
    /// A descriptor would not do without blocking.
    IBSetNonBlockFail,
    /// No event of a completion queue, or none yet.
    IBGetCompQueueEventFail,
    /// No completion queue.
    IBCreateCompQueueFail,
    /// A completion queue must have room for one entry at least.
    InvalidCompletionQueueConfig,
    /// A completion queue could not be armed.
    IBReqNotifyCompQueueFail,
    /// A completion queue could not be polled.
    IBPollCompQueueFail,
    /// Memory could not be registered, or is not.
    IBRegMemoryRegionFail,
    /// No queue pair.
    IBCreateQueuePairFail,
    /// Parameters of a queue pair contradict each other or the protocol.
    InvalidQueuePairConfig,
    /// A queue pair of that number is still accounted for.
    CompletionIdentityInUse,
    /// No sequence number is left.
    WorkRequestIdsExhausted,
    /// Twice as many requests as the queue takes have not been completed by `QueuePair::complete`.
    WorkRequestSlotsExhausted,
    /// A completion of another queue or queue pair.
    InvalidCompletion,
    /// A READ names memory that its buffers do not have.
    InvalidReadPlan,
    /// A queue pair could not be changed.
    IBModifyQueuePairFail,
    /// A receive could not be posted.
    IBPostRecvFail,
    /// A send could not be posted.
    IBPostSendFail,
    /// A buffer is too small.
    InsufficientBuffer,
    /// poll(2) failed.
    PollFdFail,
    /// What a peer calls by another name.
    #[serde(untagged)]
    Unknown(String),
}

/// An error with its text.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct Error {
    /// What failed.
    pub kind: ErrorKind,
    /// Why.
    pub msg: String,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of that kind.
    pub fn new(kind: ErrorKind, msg: String) -> Self {
        Self { kind, msg }
    }
}

impl ErrorKind {
    /// An error of this kind, with the last error of the system as its text.
    pub fn with_errno(self) -> Error {
        Error::new(self, std::io::Error::last_os_error().to_string())
    }

    /// What turns an error into one of this kind.
    pub(crate) fn because<E: std::fmt::Display>(self) -> impl FnOnce(E) -> Error {
        move |error| Error::new(self, error.to_string())
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind, String::new())
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.kind)?;
        match self.msg.as_str() {
            "" => Ok(()),
            msg => write!(f, ": {msg}"),
        }
    }
}

impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
