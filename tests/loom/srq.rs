//! Rings of shared receive queues: no poller of the models posts to one.

/// Not made.
#[derive(Debug)]
pub(crate) enum SrqRing {}
