//! Why bytes of device memory cannot be copied.

use std::fmt;

use super::OutOfBounds;

/// Bytes of device memory that the processor cannot copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyError {
    /// The bytes do not lie within the memory.
    OutOfBounds(OutOfBounds),
    /// The device takes only whole words, and the bytes begin or end within one.
    Unaligned {
        /// Where they start, in bytes.
        offset: u64,
        /// How many they are.
        length: usize,
        /// Bytes of a word.
        word: usize,
    },
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds(error) => fmt::Display::fmt(error, f),
            Self::Unaligned {
                offset,
                length,
                word,
            } => write!(
                f,
                "{length} bytes at {offset} are not whole words of {word} bytes, as the device takes them"
            ),
        }
    }
}

impl std::error::Error for CopyError {}

impl From<OutOfBounds> for CopyError {
    fn from(error: OutOfBounds) -> Self {
        Self::OutOfBounds(error)
    }
}
