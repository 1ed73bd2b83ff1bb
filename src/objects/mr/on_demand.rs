//! The regions of a context that are on demand, by their keys: where the kernel does not check that advice is
//! about such a region, this library does.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The keys of all such regions that this process has registered.
#[derive(Debug, Default)]
pub(crate) struct OnDemand(Mutex<HashSet<u32>>);

impl OnDemand {
    /// Notes a region that has been registered.
    pub(crate) fn note(&self, lkey: u32) {
        self.with(|keys| keys.insert(lkey));
    }

    /// Forgets a region that is about to be deregistered: afterwards another one may get the key.
    pub(crate) fn forget(&self, lkey: u32) {
        self.with(|keys| keys.remove(&lkey));
    }

    /// Whether the region with this key is on demand.
    pub(crate) fn has(&self, lkey: u32) -> bool {
        self.with(|keys| keys.contains(&lkey))
    }

    fn with(&self, what: impl FnOnce(&mut HashSet<u32>) -> bool) -> bool {
        // Nothing panics under this lock.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_until_it_is_forgotten() {
        let regions = OnDemand::default();
        regions.note(7);
        assert!(regions.has(7) && !regions.has(8));
        regions.forget(7);
        assert!(!regions.has(7));
    }
}
