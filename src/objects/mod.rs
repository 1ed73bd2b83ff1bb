//! The objects of the library: one noun a file, with its lifetime, its states and its methods.
//!
//! Users find each as a module at the crate's root. An object owns its parents; [`owned`] says how the
//! kernel's object ends, [`flight`] how long a region waits for its requests.

pub mod ah;
pub mod channel;
pub mod context;
pub mod cq;
pub mod dc;
pub mod dm;
pub mod domain;
pub mod event;
pub(crate) mod event_file;
#[cfg(test)]
pub(crate) mod first_day;
pub(crate) mod flight;
pub mod import;
pub mod mr;
pub mod mw;
pub(crate) mod owned;
pub mod pd;
pub mod qp;
pub mod query;
#[cfg(feature = "cm")]
pub(crate) mod readable;
#[cfg(feature = "serde")]
mod serial;
pub mod srq;
pub mod wc;
pub mod xrcd;
