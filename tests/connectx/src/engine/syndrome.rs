//! Why a request failed, as error completions say it (`MLX5_CQE_SYNDROME_*`).

use crate::translate::KeyError;

/// The syndrome of an error completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Syndrome {
    /// A message is longer than the buffers, or than is allowed.
    LocalLength = 0x01,
    /// The request itself is wrong.
    LocalQpOperation = 0x02,
    /// A local buffer may not be used like that.
    LocalProtection = 0x04,
    /// The queue pair was in the error state.
    Flushed = 0x05,
    /// A memory key may not be changed like that.
    MwBind = 0x06,
    /// The peer found the request invalid.
    RemoteInvalidRequest = 0x12,
    /// The peer's memory may not be used like that.
    RemoteAccess = 0x13,
    /// The peer could not carry the request out.
    RemoteOperation = 0x14,
    /// The peer did not answer.
    RetryExceeded = 0x15,
    /// The peer had no receive request.
    RnrRetryExceeded = 0x16,
    /// A page was missing of the memory of a shared receive queue's request; the peer tries again.
    PageFault = 0x22,
}

impl Syndrome {
    /// The device's own code for it.
    pub(crate) fn vendor(self) -> u8 {
        match self {
            Self::PageFault => 0x93,
            _ => 0,
        }
    }
}

impl From<KeyError> for Syndrome {
    /// A local key was refused.
    fn from(_: KeyError) -> Self {
        Self::LocalProtection
    }
}
