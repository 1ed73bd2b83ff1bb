//! Peers by address: connections by IP address and port, through the kernel's connection manager
//! (`/dev/infiniband/rdma_cm`), without librdmacm.
//!
//! One side listens ([`listen`]), takes requests from its [`Listener`] and accepts each with a queue pair.
//! The other side resolves the address ([`resolve`]), creates a queue pair on the device that leads there,
//! and connects. Both get a [`Connection`], which derefs to the queue pair.
//!
//! ```no_run
//! use std::time::Duration;
//! use uverbs::{Caps, Inline, Rc, cm::{self, Params, Pending}};
//!
//! let limit = Duration::from_secs(5);
//! let resolved = cm::resolve::<Rc>("10.9.0.2:4420")?.start()?.within(limit)?;
//! let context = resolved.device()?.open()?;
//! let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(64)?);
//! let qp = pd.create_qp(&cq, Caps::default())?;
//! let mut connection = resolved.connect(qp, &Params::default(), b"hello")?.within(limit)?;
//! connection.one(1).send(Inline(b"first"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Datagrams: a peer is looked up ([`Resolved::look_up`]); its listener answers with a queue pair
//! ([`Request::answer_with`]), and the asking side gets the path to it. Multicast groups are joined by
//! address ([`join`]).
//!
//! Dynamic connections: a target is looked up in the same way, with its access key. A connection is made only
//! when an initiator has a request for it, and the server keeps no state of the peers that looked it up.
//!
//! ```no_run
//! use uverbs::{Caps, ConnectOptions, DcTarget, Inline, cm::{self, Pending}, transport::Dc};
//!
//! # fn serve(target: &DcTarget) -> Result<(), Box<dyn std::error::Error>> {
//! let listener = cm::listen::<Dc>("10.9.0.2:4420")?.start()?;
//! loop {
//!     listener.next()?.answer_with(target, b"")?;
//! }
//! # }
//! # fn ask() -> Result<(), Box<dyn std::error::Error>> {
//! // The other.
//! let way = cm::resolve::<Dc>("10.9.0.2:4420")?.start()?.wait()?;
//! let context = way.device()?.open()?;
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
//! let mut qp = pd.create_qp::<Dc>(&cq, Caps::default())?;
//! qp.activate_initiator(&ConnectOptions { port: way.port(), ..ConnectOptions::default() })?;
//! let found = way.look_up(b"")?.wait()?;
//! let ah = pd.create_ah(found.path())?;
//! qp.one(1).to(ah.to_target(found.qpn(), found.key())).send(Inline(b"first"))?;
//! # Ok(()) }
//! ```
//!
//! On InfiniBand a port can also be addressed by its GID instead of an IP address ([`IbAddr`],
//! [`resolve_ib`], [`listen_ib`]).
//!
//! XRC: an initiator, a queue pair of the transport [`Xrc`](crate::transport::Xrc), connects; the side with
//! an [`XrcTarget`](crate::xrcd::XrcTarget) listens. The number of the shared receive queue travels in the
//! private data of the acceptance.
//!
//! ```no_run
//! use uverbs::{Caps, Inline, PeerSrq, cm::{self, Params, Pending}, transport::Xrc, xrcd::XrcTarget};
//!
//! # fn receive() -> Result<(), Box<dyn std::error::Error>> {
//! let request = cm::listen::<XrcTarget>("10.9.0.2:4420")?.start()?.next()?;
//! let context = request.device()?.open()?;
//! let (pd, cq, domain) = (context.alloc_pd()?, context.create_cq(64)?, context.open_xrcd()?);
//! let srq = pd.srq(64).xrc(&domain, &cq).create()?;
//! let number = srq.srqn().unwrap_or_default().to_be_bytes();
//! let target = request.accept(domain.create_target()?, &Params::default(), &number)?.wait()?;
//! # drop(target); Ok(()) }
//! # fn send() -> Result<(), Box<dyn std::error::Error>> {
//! // The other.
//! let way = cm::resolve::<Xrc>("10.9.0.2:4420")?.start()?.wait()?;
//! let context = way.device()?.open()?;
//! let (pd, cq) = (context.alloc_pd()?, context.create_cq(64)?);
//! let qp = pd.create_qp(&cq, Caps::default())?;
//! let mut initiator = way.connect(qp, &Params::default(), b"")?.wait()?;
//! let number = initiator.private_data().first_chunk().copied().unwrap_or_default();
//! let number = u32::from_be_bytes(number);
//! initiator.one(1).to(PeerSrq(number)).send(Inline(b"first"))?;
//! # Ok(()) }
//! ```
//!
//! The caller creates the queue pair, on any protection domain of the device, including a parent domain or an
//! imported one. It goes into each step by value and comes back if the step fails ([`Failed`]). A step that
//! takes time is a [`Pending`], which can be waited for with a limit, checked without blocking, or cancelled.
//! Each state has only the methods that are possible in it.
//!
//! Every kernel identifier has a file of its own, which is readable when there may be events. Events need no
//! acknowledgement. Dropping destroys the identifier, also while a forked process still has its file, and
//! never waits for a peer.

pub(crate) mod address;
mod attributes;
pub(crate) mod command;
mod connect;
mod connection;
mod data;
mod event;
pub(crate) mod file;
mod first;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod id;
mod listen;
mod look_up;
mod multicast;
mod params;
pub(crate) mod pending;
mod queue_pair;
mod readable;
mod request;
mod resolve;
mod route;
mod space;

pub use address::IbAddr;
pub use connect::Connecting;
pub use connection::{Connection, Disconnecting, Link};
pub use event::Event;
pub use first::First;
pub use listen::{Listen, Listener, listen, listen_ib};
pub use look_up::{Found, LookingUp};
pub use multicast::{Group, Join, Joining, Membership, join};
pub use params::Params;
pub use pending::{Failed, Pending, Step};
pub use queue_pair::QueuePair;
pub use readable::Finish;
pub use request::{Accepting, Request};
pub use resolve::{Resolve, Resolved, Resolving, resolve, resolve_ib};
pub use route::Route;
pub use space::{End, Initiates, Listens, LookedUp, Space};

pub use crate::error::{Refusal, RejectReason};
pub use crate::readable::Readable;
