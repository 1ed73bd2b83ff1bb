//! Counts of a broker, readable while it serves on another thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows. Relaxed: it guards no other memory.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    /// Adds one; returns the new count.
    pub(super) fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of a broker.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) joined: Counter,
    pub(super) wrong_keys: Counter,
    pub(super) put_off: Counter,
    pub(super) refused_users: Counter,
    pub(super) malformed: Counter,
    pub(super) silent: Counter,
}

/// Counts of an offer's events since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferStats {
    /// Requests that were granted.
    pub joined: u64,
    /// Wrong keys.
    pub wrong_keys: u64,
    /// Requests that were deferred, because a wrong key of the same user had come shortly before.
    pub put_off: u64,
    /// Connections of users who are not allowed.
    pub refused_users: u64,
    /// Requests that were malformed.
    pub malformed: u64,
    /// Connections that were closed because they sent no request: in time, or before others needed their
    /// place.
    pub silent: u64,
}

impl Counters {
    pub(super) fn snapshot(&self) -> OfferStats {
        OfferStats {
            joined: self.joined.get(),
            wrong_keys: self.wrong_keys.get(),
            put_off: self.put_off.get(),
            refused_users: self.refused_users.get(),
            malformed: self.malformed.get(),
            silent: self.silent.get(),
        }
    }
}
