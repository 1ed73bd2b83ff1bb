//! The RDMA verbs stack for Linux in pure Rust.
//!
//! The library opens `/dev/infiniband/uverbsN`, speaks the kernel's uverbs ABI itself and drives the device's
//! rings itself: no libibverbs, no provider plug-ins, no C. A first program, whole:
//!
//! ```no_run
#![doc = include_str!("../docs/examples/first.rs")]
//! ```
//!
//! # How it is built
//!
//! * An object owns its parents: a queue pair keeps its protection domain and completion queues alive, they
//!   the open device. So there are no lifetimes in the types, and objects may go in any order. `destroy`
//!   and its like tell of failure and give the object back; dropping does the same in silence.
//! * Posting and polling borrow exclusively instead of locking. A queue pair comes apart in halves for two
//!   threads ([`Qp::split`]); who needs more sharing wraps it in a lock of their choice.
//! * Work requests are written straight into the ring, a batch of them is handed over by one doorbell
//!   ([`Batch::ring`]), completions are read where they lie ([`Cq::poll`]).
//! * Posting is safe. A slice borrows its region ([`LocalSlice`]), and a region that is dropped while
//!   requests are in flight stays registered until they have completed ([`Mr`]). `unsafe` is for memory of
//!   which the library does not know whose it is.
//! * Every error says which verb failed on which object and what that means ([`Error`]). What a kernel or
//!   device lacks is [`Cause::Unsupported`].
//!
//! # Drivers
//!
//! | cargo feature | devices |
//! |---|---|
//! | `rxe` | soft-RoCE, the kernel's software device over any network interface |
//! | `mlx5` | NVIDIA ConnectX from Connect-IB on, and BlueField, with InfiniBand and Ethernet ports |
//!
//! What a driver does not have is refused by name, as [`Cause::Unsupported`]. Other devices are found and
//! listed; opening one says that it has no driver here.

pub mod ah;
pub mod aio;
pub mod alloc;
pub mod buf;
#[cfg(feature = "c-abi")]
#[doc(hidden)]
pub mod c;
pub mod channel;
pub mod cm;
mod command;
pub mod context;
pub mod counters;
pub mod cq;
pub mod device;
pub mod dm;
pub mod dmah;
pub mod domain;
mod driver;
pub mod error;
pub mod event;
mod event_file;
mod flight;
pub mod flow;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
pub mod gid;
pub mod grh;
pub mod guid;
pub mod import;
mod memory;
pub mod mr;
pub mod mw;
mod owned;
pub mod pd;
pub mod qp;
pub mod query;
mod readable;
#[cfg(feature = "serde")]
mod serial;
pub mod share;
pub mod srq;
mod sync;
pub mod wc;
mod work;
pub mod wq;
pub mod xrcd;

pub use device::resource;
pub use qp::transport;
pub use uverbs_uapi as uapi;

pub use ah::{AddressVector, Ah, UdPeer};
pub use channel::CompletionChannel;
pub use context::{Context, OpenOptions, open};
pub use cq::{Completions, Cq, Notify};
pub use device::{Device, devices};
pub use domain::{ParentDomain, ThreadDomain};
pub use error::{Cause, Error, Result};
pub use gid::Gid;
pub use mr::Mr;
pub use pd::Pd;
pub use qp::{
    Batch, Caps, ConnectOptions, Endpoint, InDomain, NoDomain, One, Qp, QpState, Rc, RecvHalf,
    SendHalf, Uc, Ud,
};
pub use srq::Srq;
pub use uverbs_uapi::enums::{WcOpcode, WcStatus};
pub use uverbs_uapi::flags::AccessFlags as Access;
pub use wc::Completion;
pub use work::{LocalSlice, PostError, RemoteSlice};

/// The guide's snippets, compiled as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
mod guide {}
