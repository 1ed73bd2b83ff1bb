//! What `src/objects/flight.rs` has of drivers.

pub(crate) use crate::backings::{QpBacking, SrqBacking};
