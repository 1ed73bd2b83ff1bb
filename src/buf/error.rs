//! Why a pool has no buffer, or a buffer no room.

use std::fmt;

use crate::error::{Cause, Error, Subject, Verb};

/// Why a pool gave no buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GetError {
    /// No buffer of the pool is that large.
    TooLarge {
        /// Requested bytes.
        asked: usize,
        /// Bytes of the pool's largest buffers.
        largest: usize,
    },
    /// All buffers of the size are in use, and the pool has reached its limit.
    Empty {
        /// Bytes of a buffer of the size.
        size: usize,
    },
    /// The pool could not grow: memory could not be allocated or registered.
    Memory(Error),
}

impl fmt::Display for GetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { asked, largest } => write!(
                f,
                "{asked} bytes, but the pool's largest buffers have {largest}"
            ),
            Self::Empty { size } => write!(f, "all buffers of {size} bytes are in use"),
            Self::Memory(error) => write!(f, "the pool cannot grow: {error}"),
        }
    }
}

impl std::error::Error for GetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

impl From<GetError> for Error {
    fn from(error: GetError) -> Self {
        let text = error.to_string();
        let cause = match error {
            GetError::Memory(error) => return error,
            GetError::Empty { .. } => Cause::Busy(text.into()),
            GetError::TooLarge { .. } => Cause::Invalid(text.into()),
        };
        Error::new(Verb::AllocBuffer, Subject::the("pool"), cause)
    }
}

/// Bytes that do not fit into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferFull {
    /// Bytes that should fit into it.
    pub wanted: usize,
    /// Bytes that it holds.
    pub capacity: usize,
}

impl fmt::Display for BufferFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wanted, capacity } = self;
        write!(f, "{wanted} bytes do not fit into a buffer of {capacity}")
    }
}

impl std::error::Error for BufferFull {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch an empty pool that is told as a wrong argument: later it has a buffer.
    #[test]
    fn an_empty_pool_is_busy() {
        let cause = |error: GetError| Error::from(error).cause().clone();
        let empty = cause(GetError::Empty { size: 64 });
        assert!(matches!(empty, Cause::Busy(_)), "{empty:?}");
        let (asked, largest) = (65, 64);
        let large = cause(GetError::TooLarge { asked, largest });
        assert!(matches!(large, Cause::Invalid(_)), "{large:?}");
    }
}
