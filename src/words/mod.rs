//! The vocabulary that all folders share: errors, memory that can be registered, requests and keys,
//! addresses.
//!
//! Nothing here uses a device, a driver or an object.

#[cfg(feature = "aio")]
pub(crate) mod callbacks;
pub mod error;
pub mod gid;
pub mod grh;
pub mod guid;
pub(crate) mod memory;
pub(crate) mod probes;
pub(crate) mod sync;
pub(crate) mod work;
