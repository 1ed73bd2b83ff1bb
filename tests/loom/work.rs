//! What `src/objects/flight.rs` has of requests.

pub(crate) use crate::progress::Progress;

/// The key by which requests name a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LocalKey(pub(crate) u32);
