//! Rings of shared receive queues, of which an element has a link and the key of one slice.

use crate::backings::Keys;
use crate::memory::Record;
use crate::sync::{AtomicU32, Ordering};
use crate::work::LocalKey;

/// How many elements it has.
pub(crate) const ELEMENTS: u32 = 4;

/// The ring, with its record.
pub(crate) struct SrqRing {
    links: [AtomicU32; ELEMENTS as usize],
    keys: Keys<{ ELEMENTS as usize }>,
    record: Record,
}

impl SrqRing {
    pub(crate) fn new() -> Self {
        Self {
            links: [0; ELEMENTS as usize].map(AtomicU32::new),
            keys: Keys::new(),
            record: Record::new(),
        }
    }

    /// What the poster writes.
    pub(crate) fn put(&self, index: u32, next: u32, key: LocalKey) {
        self.lead_to(index, next);
        self.keys.write(index, key);
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn copy_of(&self, index: u32) -> Vec<u8> {
        let words = [self.link(index), self.key(index).0];
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    pub(crate) fn write(&self, index: u32, copy: &[u8]) {
        let word = |at: usize| u32::from_le_bytes(copy[at..at + 4].try_into().unwrap());
        self.put(index, word(0), LocalKey(word(4)));
    }

    pub(crate) fn lead_to(&self, index: u32, next: u32) {
        self.links[index as usize].store(next, Ordering::Relaxed);
    }

    pub(crate) fn link(&self, index: u32) -> u32 {
        self.links[index as usize].load(Ordering::Relaxed)
    }

    /// The key in an element.
    pub(crate) fn key(&self, index: u32) -> LocalKey {
        self.keys.get(index)
    }
}
