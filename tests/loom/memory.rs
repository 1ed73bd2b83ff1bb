//! Doorbell records.

use crate::sync::AtomicU32;

/// One of which a model looks at one word.
#[derive(Debug)]
pub(crate) struct Record(AtomicU32);

impl Record {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn word(&self, _: usize) -> &AtomicU32 {
        &self.0
    }

    pub(crate) fn counter(&self, index: usize) -> &AtomicU32 {
        self.word(index)
    }
}
