//! The RDMA verbs stack for Linux in pure Rust.
//!
//! The library opens `/dev/infiniband/uverbsN`, speaks the kernel's uverbs ABI, and drives the device's rings
//! itself: no libibverbs, no provider plug-ins, no C. A complete first program:
//!
//! ```no_run
#![doc = include_str!("../docs/examples/first.rs")]
//! ```
//!
//! # Concepts
//!
//! * **Ownership.** An object owns its parents: a queue pair keeps its protection domain and its completion
//!   queues alive, and they keep the device open. So the types have no lifetimes, and objects may be dropped
//!   in any order. `destroy`, `dealloc` and `deregister` report errors and give the object back; dropping
//!   does the same silently.
//! * **Exclusive borrows instead of locks.** Posting and polling take `&mut`. A queue pair splits into two
//!   halves for two threads ([`Qp::split`]). To share a half further, wrap it in a lock of your choice. The
//!   library itself takes locks on the data path in few cases, which the [guide] lists.
//! * **Batches.** Work requests are written straight into the ring, and one doorbell hands a batch of them to
//!   the device ([`Batch::ring`]). [`Cq::poll`] reads completions without a system call.
//! * **Safe posting.** A slice borrows its region ([`LocalSlice`]). A region that is dropped while requests
//!   are in flight stays registered until they have completed ([`Mr`]). `unsafe` is needed only for memory
//!   whose ownership the library cannot know.
//! * **Errors.** Each error names the verb and the object, and says what the cause means for them
//!   ([`Error`]). What the kernel, the driver or the device lacks is [`Cause::Unsupported`].
//!
//! # Where to start
//!
//! The [guide] introduces everything in the order of use. If you know libibverbs, librdmacm, rust-ibverbs or
//! sideway, [migration] lists the name of each call here.
//!
//! | for | see |
//! |---|---|
//! | opening a device | [`open`], [`devices`], [`device::topology`] |
//! | memory | [`Pd::register`], [`Mr`] |
//! | queue pairs and connecting them | [`Pd::create_qp`], [`Qp::connect`]; by IP address: [`cm`] |
//! | posting | [`Qp::batch`], [`Qp::post`], [`Qp::one`], [`Qp::recv_batch`], [`Srq::batch`] |
//! | completions and waiting for them | [`Cq::poll`], [`Cq::wait`], [`CompletionChannel`] |
//! | datagrams and multicast | [`Qp::activate`], [`Ah`], [`Qp::attach_mcast`] |
//! | async programs | [`aio`], with buffers of [`buf`] |
//! | placing rings, and posting from one thread without locks | [`ParentDomain`], [`ThreadDomain`], [`alloc`] |
//! | several processes on one protection domain | [`share`], [`import`] |
//!
//! # Drivers
//!
//! | cargo feature | devices |
//! |---|---|
//! | `rxe` | soft-RoCE, the kernel's software device over any network interface |
//! | `mlx5` | NVIDIA ConnectX from Connect-IB on, and BlueField, with InfiniBand and Ethernet ports. It has run on a model of the adapter, and never on real hardware |
//! | `efa` | Amazon's Elastic Fabric Adapter: reliable datagrams ([`Srd`]) and datagrams. It has run on a model of the adapter, and never on real hardware |
//!
//! A driver refuses what it does not have with an error that names it ([`Cause::Unsupported`]). Devices of
//! other drivers are listed, but opening one fails with an error that says so.
//!
//! # Cargo features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `rxe`, `mlx5`, `efa` | yes | the drivers; at least one is required |
//! | `aio` | yes | [`aio`], asynchronous operations, and [`buf`], their buffers; brings `cm` |
//! | `cm` | yes | [`cm`], connections by address |
//! | `share` | yes | [`share`], a protection domain for several processes |
//! | `topology` | yes | [`device::topology`], where adapters lie |
//! | `memmap2` | yes | registration of memmap2's mappings |
//! | `mlx5-direct` | no | `direct::mlx5`, commands of users to ConnectX adapters (DEVX), queues and keys that these create; brings `mlx5` |
//! | `tokio`, `compio` | no | [`aio`] on these runtimes |
//! | `serde` | no | serialisation of endpoints, keys and remote slices |
//!
//! Without default features there are the drivers that you name, and the verbs. The library itself then
//! builds in about a quarter less time, and needs neither `nix` nor `memmap2`.
//!
// If a feature is off, its links lead to the table of features.
#![cfg_attr(not(feature = "aio"), doc = "[`aio`]: #cargo-features")]
#![cfg_attr(not(feature = "aio"), doc = "[`buf`]: #cargo-features")]
#![cfg_attr(not(feature = "cm"), doc = "[`cm`]: #cargo-features")]
#![cfg_attr(not(feature = "share"), doc = "[`share`]: #cargo-features")]
#![cfg_attr(
    not(feature = "topology"),
    doc = "[`device::topology`]: #cargo-features"
)]
// Lower folders have parts that only the optional folders above them use.
#![cfg_attr(
    not(all(feature = "aio", feature = "share", feature = "topology")),
    allow(dead_code, unused_imports)
)]

// From the ground up: no folder knows one that comes after it (`tests/rooms.rs`), but for `share`, `cm`,
// `buf` and `direct`, which stand side by side.
mod words;

pub mod device;

mod command;

pub mod alloc;

mod driver;

mod objects;

#[cfg(feature = "aio")]
pub mod buf;
#[cfg(feature = "cm")]
pub mod cm;
pub mod direct;
#[cfg(feature = "share")]
pub mod share;

#[cfg(feature = "aio")]
pub mod aio;
#[cfg(feature = "c-abi")]
#[doc(hidden)]
pub mod c;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;

pub use objects::{
    ah, channel, context, cq, dc, dm, domain, event, import, mr, mw, pd, qp, query, srq, wc, xrcd,
};
pub use words::{error, gid, grh, guid};

#[cfg(all(test, feature = "c-abi"))]
use objects::first_day;
#[cfg(feature = "cm")]
use objects::readable;
use objects::{event_file, flight, owned};
#[cfg(feature = "aio")]
use words::callbacks;
use words::{memory, probes, sync, work};

pub use device::resource;
pub use uverbs_queue::handover;
pub use uverbs_uapi as uapi;

pub use ah::{AddressVector, Ah, UdPeer};
pub use channel::CompletionChannel;
pub use context::{Context, OpenOptions, open};
pub use cq::{Completions, Cq, Notify};
pub use dc::{DcPeer, DcTarget};
pub use device::{Device, devices};
pub use domain::{ParentDomain, ThreadDomain};
pub use error::{Cause, Error, Result};
pub use gid::Gid;
pub use mr::Mr;
pub use pd::Pd;
pub use qp::{
    Batch, Caps, ConnectOptions, Endpoint, InDomain, Inline, NoDomain, Qp, QpState, RecvBatch,
    RecvHalf, Request, SendHalf,
};
pub use srq::Srq;
pub use transport::{Any, Dc, PeerSrq, Rc, Srd, Uc, Ud, Xrc};
pub use uverbs_uapi::enums::{WcOpcode, WcStatus};
pub use uverbs_uapi::flags::Access;
pub use wc::Completion;
pub use work::{LocalSlice, PostError, RemoteSlice};

/// Transports, and what each can do. An operation that a transport lacks does not compile.
pub mod transport {
    pub use crate::objects::qp::transport::{
        Any, Atomic, AtomicWrite, BindWindow, Connected, Datagram, Dc, DcPeer, Peer, PeerSrq, Rc,
        RdmaFlush, RdmaRead, RdmaWrite, Reaches, RemoteInvalidate, Srd, StaticTransport, Transport,
        Uc, Ud, Xrc,
    };
}

#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

#[doc = include_str!("../docs/migration.md")]
pub mod migration {}
