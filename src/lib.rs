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
//! * Functions are `unsafe` where the caller must keep memory alive and untouched for the device, and only
//!   there. Bytes that are copied into a request ([`Batch::send_inline`]) need no promise.
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
//! What a driver does not have is refused by name, as [`Cause::Unsupported`]. Other devices are found and listed;
//! opening one says that it has no driver here.

mod ah;
mod alloc;
mod channel;
mod command;
mod context;
mod counters;
mod cq;
mod device;
mod dm;
mod dmah;
mod domain;
mod driver;
mod error;
mod event;
mod event_file;
mod flow;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod gid;
mod grh;
mod guid;
mod import;
mod memory;
mod mr;
mod mw;
mod owned;
mod pd;
mod qp;
mod query;
pub mod share;
mod srq;
mod wc;
mod work;
mod wq;
mod xrcd;

pub use uverbs_uapi as uapi;

pub use ah::{AddressVector, Ah, UdPeer};
pub use alloc::{
    Allocation, Allocator, Arena, BufferCounts, BufferRequest, Counting, GuardPages, HugePageSize,
    HugePages, NumaNode, Purpose, ResourceType, SharedMemfd,
};
pub use channel::{CompletionChannel, CqEvent};
pub use command::Route;
pub use context::{Context, OpenOptions, open};
pub use counters::Counters;
pub use cq::{CompletionIter, Completions, Cq, CqBuilder, Notify};
pub use device::{
    CmIdResource, ContextResource, CqResource, Device, Discovery, DriverId, GidTableEntry,
    MrResource, Netdev, NodeType, PdResource, PhysicalState, Port, PortState, QpResource,
    ResourceCount, ResourceOwner, Resources, SrqResource, devices, find,
};
pub use dm::{Dm, ImportedDm};
pub use dmah::{DmaHints, Dmah, HintedMemory};
pub use domain::{ParentDomain, ParentDomainBuilder, ThreadDomain};
pub use error::{AllocError, Cause, DestroyError, Errno, Error, Result, Subject, Verb};
pub use event::{AsyncEvent, AsyncEvents, EventSource};
pub use flow::{Flow, FlowMatch, FlowRule};
pub use gid::{Gid, GidType};
pub use grh::{GRH_LENGTH, Grh, GrhNetwork};
pub use guid::{Guid, ParseGuidError};
pub use import::{ImportedMr, ImportedPd};
pub use memory::{Memory, RawMemory, WritableMemory};
pub use mr::{
    AfterRereg, DmMr, DmabufMr, ImplicitMr, Mr, MrInfo, NullMr, RegisterError, Rereg, ReregError,
    ReregMemoryError, UnusableMr, WordError,
};
pub use mw::{Mw, MwKind, Type1, Type2, Window};
pub use pd::Pd;
pub use qp::{
    AltPath, Any, Atomic, AtomicWrite, Batch, BindWindow, Caps, ConnectOptions, Connected, Control,
    Datagram, Endpoint, ParseEndpointError, Posted, Qp, QpAttr, QpBuilder, QpInfo, Rc, RdmaFlush,
    RdmaRead, RdmaWrite, RecvBatch, RecvHalf, RemoteInvalidate, SendHalf, StaticTransport,
    Transport, Uc, Ud,
};
pub use query::{DeviceAttr, GidEntry, PortAttr};
pub use srq::{Srq, SrqBuilder, SrqInfo};
pub use uverbs_uapi::enums::{
    AdviseMrAdvice as Advice, AsyncEventType, AtomicCap, FlowAttrType, LinkLayer, MigState, Mtu,
    MwType, QpState, QpType, WcOpcode, WcStatus, WqState,
};
pub use uverbs_uapi::flags::{
    AccessFlags as Access, CoreSupport, DeviceCapFlags, FlowAttrFlags, PortCapFlags, PortCapFlags2,
    QpAttrMask, QpCreateFlags, QueryPortFlags, WcFlags, WqFlags,
};
pub use wc::Completion;
pub use work::{
    CompletionError, Ece, LocalKey, LocalSlice, OutOfBounds, ParseRemoteSliceError, Placement,
    PollError, PostError, RemoteKey, RemoteSlice,
};
pub use wq::{IndirectionTable, RssQp, Wq, WqBuilder};
pub use xrcd::{XrcTarget, Xrcd, XrcdFile};

/// The guide's snippets, compiled as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
mod guide {}
