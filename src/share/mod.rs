//! Sharing a protection domain between unrelated processes, by an id and a key.
//!
//! The model is Oracle's shared PD (`ibv_alloc_shpd`, `ibv_share_pd`), which needs a patched kernel; this
//! module needs only Unix sockets. An exporter makes an [`Offer`] of a [`Pd`](crate::Pd) at an [`Address`],
//! with a [`ShareKey`], and [serves](Offer::serve_once) it. A joiner [connects](Join) there with the key and
//! gets the command file (by `SCM_RIGHTS`) and the handles, which it [imports](crate::Context::import).
//! Nothing here is on the data path, and there is no runtime: an offer is served when its owner calls, or by
//! one thread.
//!
//! # Who may join
//!
//! Processes of the same user, and of users that the exporter allows; the kernel identifies the connecting
//! user (`SO_PEERCRED`). Conversely, a joiner sends the key only to an exporter of its own user, of root, or
//! of a user that it names. Joining also takes the key. A joiner is fully trusted: the kernel knows no rights
//! *within* a command file, so a joiner can use and destroy all objects of the context. `docs/security.md`
//! says what is promised against whom.
//!
//! # Who destroys what
//!
//! Each process owns what it creates in the protection domain; its drops destroy that and nothing else. When
//! a process ends abruptly, its objects stay with the file: the kernel destroys them, and the protection
//! domain, when the last process that holds the file closes it or ends. The exporter counts joiners by their
//! connections, so [`Offer::withdraw`] knows whether the protection domain may be freed before that.

mod address;
mod broker;
mod connection;
mod counters;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod join;
mod key;
mod listener;
mod message;
mod offer;
mod request;
#[cfg(test)]
mod tests;
mod throttle;
mod user;
mod wait;

use std::time::Duration;

/// A limit that is never reached. It fits in the range of clocks, unlike `Duration::MAX`.
const FOREVER: Duration = Duration::from_secs(1 << 32);

pub use address::Address;
pub use counters::OfferStats;
pub use join::{Join, Joined, SharedMr};
pub use key::ShareKey;
pub use offer::{Offer, OfferBuilder, Serving};
