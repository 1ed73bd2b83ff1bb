//! The C ABI: what programs that are linked to libibverbs call.
//!
//! The functions have the names, the signatures and the contracts of the manual pages `ibv_*(3)`, and the
//! structs in [`abi`] the layout of `<infiniband/verbs.h>`. The package in `library/` gives the functions
//! their versioned names and makes the shared library; nothing else uses this module, and it is no part of
//! the crate's interface. `docs/c-abi.md` tells what works and how to build it.
//!
//! Every object is one [`Box`], with the C struct that programs see at its start ([`object`]). Programs own
//! the objects and may call everything from every thread, so queues have locks here ([`lock`]). A failure is
//! an errno ([`failure`]). Nothing unwinds into C: a panic in an `extern "C"` function ends the process.

#![allow(
    clippy::missing_safety_doc,
    reason = "the callers are C programs, and the manual pages are their contract"
)]

pub mod abi;
mod context;
mod device;
mod failure;
mod gid;
pub mod missing;
mod object;
mod pd;
mod query;

pub use context::{ibv_close_device, ibv_open_device};
pub use device::{
    ibv_free_device_list, ibv_get_device_guid, ibv_get_device_index, ibv_get_device_list,
    ibv_get_device_name,
};
pub use gid::{_ibv_query_gid_ex, _ibv_query_gid_table, ibv_query_gid, ibv_query_gid_type};
pub use pd::{ibv_alloc_pd, ibv_dealloc_pd};
pub use query::{ibv_get_pkey_index, ibv_query_device, ibv_query_pkey, ibv_query_port};
