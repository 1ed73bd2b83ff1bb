//! What tells regions that go how far queues are: the queues of the models, behind the names that drivers'
//! have.

use std::sync::Arc;

use crate::progress::Progress;
use crate::sync::{AtomicU32, Ordering};
use crate::work::LocalKey;

/// A queue, as whoever lets a region go asks it.
pub(crate) trait Line: Send + Sync {
    fn progress(&self) -> Progress;
    /// Whether one of the requests in flight may have this key in it.
    fn names(&self, in_flight: Progress, key: LocalKey) -> bool;
}

/// The queues of a queue pair.
#[derive(Clone, Default)]
pub(crate) struct QpBacking {
    pub(crate) sends: Option<Arc<dyn Line>>,
    pub(crate) receives: Option<Arc<dyn Line>>,
}

impl QpBacking {
    pub(crate) fn sends(&self) -> Progress {
        let none = Progress::new(0, 0, u32::MAX);
        self.sends.as_ref().map_or(none, |queue| queue.progress())
    }

    pub(crate) fn receives(&self) -> Option<Progress> {
        self.receives.as_ref().map(|queue| queue.progress())
    }

    pub(crate) fn sends_name(&self, in_flight: Progress, key: LocalKey) -> bool {
        let sends = self.sends.as_ref();
        sends.is_some_and(|queue| queue.names(in_flight, key))
    }

    pub(crate) fn receives_name(&self, in_flight: Progress, key: LocalKey) -> bool {
        let receives = self.receives.as_ref();
        receives.is_some_and(|queue| queue.names(in_flight, key))
    }
}

/// A shared receive queue.
#[derive(Clone)]
pub(crate) struct SrqBacking(pub(crate) Arc<dyn Line>);

impl SrqBacking {
    pub(crate) fn progress(&self) -> Progress {
        self.0.progress()
    }

    pub(crate) fn names(&self, in_flight: Progress, key: LocalKey) -> bool {
        self.0.names(in_flight, key)
    }
}

/// The keys in the requests of a ring. Who looks for one may look at a place that is being written.
pub(crate) struct Keys<const N: usize>([AtomicU32; N]);

impl<const N: usize> Keys<N> {
    /// Of no region.
    pub(crate) fn new() -> Self {
        Self([0; N].map(AtomicU32::new))
    }

    /// Writes the key of a request, whose index is taken modulo the ring.
    pub(crate) fn write(&self, index: u32, LocalKey(key): LocalKey) {
        // Release: machines do not move a poster's stores before its acquire of the count that made room.
        self.0[index as usize % N].store(key, Ordering::Release);
    }

    /// The key of a request.
    pub(crate) fn get(&self, index: u32) -> LocalKey {
        LocalKey(self.0[index as usize % N].load(Ordering::Relaxed))
    }

    /// Whether the request has this key.
    pub(crate) fn has(&self, index: u32, key: LocalKey) -> bool {
        self.get(index) == key
    }

    /// Whether one of all has it.
    pub(crate) fn have(&self, key: LocalKey) -> bool {
        (0..N as u32).any(|index| self.has(index, key))
    }
}

/// A ring of rxe: the two indices, and what is between them.
pub(crate) struct Ring {
    posted: AtomicU32,
    finished: AtomicU32,
    keys: Keys<4>,
}

impl Ring {
    pub(crate) fn new() -> Self {
        Self {
            posted: AtomicU32::new(0),
            finished: AtomicU32::new(0),
            keys: Keys::new(),
        }
    }

    /// Posts request `index` with this key.
    pub(crate) fn post(&self, index: u32, key: LocalKey) {
        self.keys.write(index, key);
        self.posted.store(index + 1, Ordering::Release);
    }

    /// What the kernel does when it has finished with all before `end`.
    pub(crate) fn finish(&self, end: u32) {
        self.finished.store(end, Ordering::Release);
    }
}

// As `src/driver/rxe/ring.rs` does it.
impl Line for Ring {
    fn progress(&self) -> Progress {
        let finished = || self.finished.load(Ordering::Acquire);
        let posted = || self.posted.load(Ordering::Acquire);
        Progress::look(3, posted, finished)
    }

    fn names(&self, in_flight: Progress, key: LocalKey) -> bool {
        in_flight.places().any(|at| self.keys.has(at, key))
    }
}
