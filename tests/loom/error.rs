//! What `src/objects/flight.rs` has of errors.

use std::fmt;

/// What a message is about.
#[derive(Clone, Debug)]
pub(crate) struct Subject(&'static str, u64);

impl Subject {
    pub(crate) fn numbered(kind: &'static str, number: u64) -> Self {
        Self(kind, number)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}
