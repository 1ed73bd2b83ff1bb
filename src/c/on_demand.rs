//! The regions of an open device that are on demand, by their keys. If the kernel does not check that advice
//! is about such a region, this library does.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The keys of all such regions.
#[derive(Clone, Debug, Default)]
pub(super) struct Regions(Arc<Mutex<HashSet<u32>>>);

impl Regions {
    /// Notes a region, until the returned value is dropped.
    pub(super) fn note(&self, lkey: u32) -> OnDemand {
        self.with(|keys| keys.insert(lkey));
        OnDemand {
            regions: self.clone(),
            lkey,
        }
    }

    /// Whether the region with this key is on demand.
    pub(super) fn has(&self, lkey: u32) -> bool {
        self.with(|keys| keys.contains(&lkey))
    }

    fn with(&self, what: impl FnOnce(&mut HashSet<u32>) -> bool) -> bool {
        // Nothing panics under this lock.
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A region on demand.
#[derive(Debug)]
pub(super) struct OnDemand {
    regions: Regions,
    lkey: u32,
}

impl OnDemand {
    /// Notes that its key has changed.
    pub(super) fn change(&mut self, lkey: u32) {
        self.regions.with(|keys| {
            keys.remove(&self.lkey);
            keys.insert(lkey)
        });
        self.lkey = lkey;
    }
}

impl Drop for OnDemand {
    fn drop(&mut self) {
        self.regions.with(|keys| keys.remove(&self.lkey));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_known_by_its_key_of_now() {
        let regions = Regions::default();
        let mut one = regions.note(7);
        assert!(regions.has(7));
        one.change(8);
        assert!(!regions.has(7) && regions.has(8));
        drop(one);
        assert!(!regions.has(8));
    }
}
