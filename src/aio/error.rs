//! How operations end.

use std::fmt;

use crate::ah::Way;
use crate::error::{Cause, Error, Subject, Verb};
use crate::wc::Completion;
use crate::work::{CompletionError, PostError};

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpError {
    /// It was not posted. [`PostError::QueueFull`] means that as many operations are in flight as the queue
    /// pair was created for: an operation counts until its result has been taken.
    Post(PostError),
    /// It was posted, and the device reports a failure, or a flush because the queue pair is in the state
    /// ERR.
    Completion(CompletionError),
    /// Its batch was dropped before it was rung. Nothing was posted.
    NotRung,
    /// The queue pair was dropped while the operation was in flight, and the device did not complete it. If
    /// the kernel has not destroyed the queue pair yet, because another call on it was running, the buffer
    /// returns to its pool once it has.
    Gone,
    /// The device has been removed, or its completion queue has failed. The buffer returns to its pool when
    /// the queue pair is dropped.
    Broken,
    /// Its result was reclaimed ([`Control::reclaim`](super::Control::reclaim)).
    Reclaimed,
}

impl OpError {
    /// Whether it was flushed: another cause took the queue pair to the state ERR.
    pub fn is_flushed(&self) -> bool {
        use uverbs_uapi::enums::WcStatus;
        matches!(self, Self::Completion(error) if error.status == WcStatus::WR_FLUSH_ERR)
    }
}

impl OpError {
    /// Whether the end of the connection alone may explain it: it was flushed, could no longer be posted, was
    /// not acknowledged, or found the peer's memory gone.
    pub(super) fn may_be_an_end(&self) -> bool {
        use uverbs_uapi::enums::WcStatus;
        match self {
            Self::Completion(error) => matches!(
                error.status,
                WcStatus::WR_FLUSH_ERR
                    | WcStatus::RETRY_EXC_ERR
                    | WcStatus::REM_OP_ERR
                    | WcStatus::REM_ACCESS_ERR
            ),
            Self::Post(error) => matches!(error, PostError::WrongState { .. }),
            Self::Gone | Self::Broken => true,
            Self::NotRung | Self::Reclaimed => false,
        }
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Post(error) => write!(f, "not posted: {error}"),
            Self::Completion(error) => fmt::Display::fmt(error, f),
            Self::NotRung => f.write_str("not posted: its batch was dropped before it was rung"),
            Self::Gone => f.write_str("the queue pair was dropped while it was under way"),
            Self::Broken => {
                f.write_str("the device has been removed, or its completion queue has failed")
            }
            Self::Reclaimed => f.write_str("its result was reclaimed"),
        }
    }
}

impl std::error::Error for OpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Post(error) => Some(error),
            Self::Completion(error) => Some(error),
            _ => None,
        }
    }
}

impl From<PostError> for OpError {
    fn from(error: PostError) -> Self {
        Self::Post(error)
    }
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Post(error) => error.into(),
            OpError::NotRung => {
                Error::invalid(Verb::Post, Subject::the("queue"), error.to_string())
            }
            OpError::Completion(_) | OpError::Gone | OpError::Broken | OpError::Reclaimed => {
                let failed = Cause::Failed(error.to_string().into());
                Error::new(Verb::PollCq, Subject::the("CQ"), failed)
            }
        }
    }
}

/// The error of a wait that was too long.
#[cfg(any(feature = "compio", feature = "tokio"))]
pub(super) fn timed_out(verb: Verb, subject: Subject, limit: std::time::Duration) -> Error {
    Error::new(verb, subject, crate::error::Cause::nothing_within(limit))
}

/// What the device reports about an operation that succeeded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Completed {
    pub(super) byte_len: u32,
    pub(super) imm: Option<u32>,
    /// It was a message, not a WRITE with immediate data.
    pub(super) is_message: bool,
    /// Only meaningful for a receive.
    pub(super) origin: Origin,
}

/// The queue pair that received a message, and the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) qpn: u32,
    pub(super) src_qpn: u32,
    pub(super) way: Way,
}

impl Origin {
    #[inline]
    pub(super) fn of(completion: &Completion) -> Self {
        Self {
            qpn: completion.qp_num(),
            src_qpn: completion.src_qp(),
            way: Way::of(completion),
        }
    }
}
