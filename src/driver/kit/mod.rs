//! Parts that drivers of hardware share. No part knows a device.
//!
//! - [`unordered`]: which request a completion means, where requests finish in any order.

pub(crate) mod unordered;
