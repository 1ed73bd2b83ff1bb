//! The entries of a completion queue, as the directory looks at them: whether the device has written one, and
//! the number in it.

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering};

use crate::barrier;
use crate::directory::Ring;

/// How many entries there are.
const COUNT: u32 = 2;

/// Where an entry has the lap in which it was written, counted from 1. Its number is below.
const LAP: u32 = 1 << 16;

/// The entries; clones share the ring.
#[derive(Clone, Debug)]
pub(crate) struct Entries(Arc<[AtomicU32; COUNT as usize]>);

impl Entries {
    pub(crate) fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU32::new(0))))
    }

    /// What the device does.
    pub(crate) fn write(&self, index: u32, number: u32) {
        let (entry, lap) = self.at(index);
        entry.store(lap | number, Ordering::Release);
    }

    /// The entry at an index, and its lap.
    fn at(&self, index: u32) -> (&AtomicU32, u32) {
        let (lap, at) = (index / COUNT + 1, index % COUNT);
        (&self.0[at as usize], lap * LAP)
    }
}

impl Ring for Entries {
    const MOST: u32 = LAP - 1;
    const CONSUMER: (usize, u32) = (0, u32::MAX);

    /// As the drivers do, with a barrier only if there is an entry.
    fn number(&self, index: u32) -> Option<u32> {
        let (entry, lap) = self.at(index);
        let number = entry.load(Ordering::Relaxed).checked_sub(lap)?;
        if number > Self::MOST {
            return None;
        }
        barrier::owner_before_entry();
        Some(number)
    }

    /// The entries of the models are of sends.
    fn received(&self, _: u32) -> Option<u16> {
        None
    }
}
