//! The entries of a completion queue, as the directory looks at them: whether the device has written one, and
//! the number in it. The ring is so long that it does not wrap.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};

use crate::directory::Ring;

/// How many entries there are.
const COUNT: usize = 4;

/// No entry yet.
const NONE: u32 = u32::MAX;

/// The entries; clones share the ring.
#[derive(Clone, Debug)]
pub(crate) struct Entries(Arc<[AtomicU32; COUNT]>);

impl Entries {
    pub(crate) fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU32::new(NONE))))
    }

    /// What the device does.
    pub(crate) fn write(&self, index: u32, number: u32) {
        self.0[index as usize].store(number, Ordering::Release);
    }
}

impl Ring for Entries {
    const MOST: u32 = u32::MAX - 1;
    const CONSUMER: (usize, u32) = (0, u32::MAX);

    fn number(&self, index: u32) -> Option<u32> {
        let entry = self.0.get(index as usize)?;
        match entry.load(Ordering::Acquire) {
            NONE => None,
            number => Some(number),
        }
    }

    /// The entries of the models are of sends.
    fn received(&self, _: u32) -> Option<u16> {
        None
    }
}
