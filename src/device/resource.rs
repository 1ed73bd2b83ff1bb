//! The objects on a device, of all processes: what `rdma resource` of iproute2 shows, with types.
//!
//! The kernel reports them by netlink, to every user: the objects of processes in the caller's PID namespace,
//! and its own objects in the initial one. Data that a kernel or driver does not report is `None`.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use uverbs_uapi::enums::{MigState, QpState, QpType, SrqType};

use super::Device;
use super::failure::Failure;
use super::netlink::Netlink;
use crate::error::{Error, Result, Verb};

/// The creator of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResourceOwner {
    /// A process, by the id of the thread that created it: the process's id if that was its first thread.
    Process(u32),
    /// A part of the kernel, by its name.
    Kernel(String),
    /// A process that is not in the caller's PID namespace, or that has ended.
    Unknown,
}

impl ResourceOwner {
    /// The process, if it is one.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Kernel(_) | Self::Unknown => None,
        }
    }
}

/// How many objects of a kind a device has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ResourceCount {
    /// The kernel's name of the kind: `pd`, `cq`, `qp`, `cm_id`, `mr`, `ctx`, `srq`, and any later ones.
    pub kind: String,
    /// Objects.
    pub count: u64,
}

/// A protection domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PdResource {
    /// The kernel's number for it on the device.
    pub pdn: u32,
    /// The number of its users that the kernel counts.
    pub users: u64,
    /// The local key of all memory, for the kernel's domains; only administrators see it.
    pub local_dma_lkey: Option<u32>,
    /// The remote key of all memory, for the kernel's domains that have one; only administrators see it.
    pub unsafe_global_rkey: Option<u32>,
    /// The number of the context that it was created in; `None` for the kernel's objects.
    pub ctxn: Option<u32>,
    /// The creator.
    pub owner: ResourceOwner,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MrResource {
    /// The kernel's number for it on the device.
    pub mrn: u32,
    /// Bytes.
    pub length: u64,
    /// The local key; only administrators see it.
    pub lkey: Option<u32>,
    /// The remote key; only administrators see it.
    pub rkey: Option<u32>,
    /// The number of its protection domain; `None` for the kernel's objects.
    pub pdn: Option<u32>,
    /// The creator.
    pub owner: ResourceOwner,
}

/// A completion queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CqResource {
    /// The kernel's number for it on the device.
    pub cqn: u32,
    /// Entries.
    pub cqe: u32,
    /// The number of objects that report to it.
    pub users: u64,
    /// How the kernel polls it, if it belongs to the kernel: 0 directly, 1 in a soft interrupt, 2 and 3 in a
    /// work queue.
    pub poll_context: Option<u8>,
    /// Whether its moderation adapts itself.
    pub adaptive_moderation: Option<bool>,
    /// The number of the context that it was created in; `None` for the kernel's objects.
    pub ctxn: Option<u32>,
    /// The creator.
    pub owner: ResourceOwner,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QpResource {
    /// Its port, counted from 1; `None` before it is bound to one.
    pub port: Option<u32>,
    /// Its number on the wire.
    pub lqpn: u32,
    /// The peer's number, if it is connected.
    pub rqpn: Option<u32>,
    /// The packet sequence number that is expected next, if it is connected.
    pub rq_psn: Option<u32>,
    /// The packet sequence number that is sent next.
    pub sq_psn: Option<u32>,
    /// The state of path migration, if it is connected.
    pub path_mig_state: Option<MigState>,
    /// The transport. The kernel has two of its own: 0 is SMI, 1 is GSI.
    pub transport: QpType,
    /// The state.
    pub state: QpState,
    /// The number of its protection domain; `None` for the kernel's objects.
    pub pdn: Option<u32>,
    /// The creator.
    pub owner: ResourceOwner,
}

/// A shared receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SrqResource {
    /// The kernel's number for it on the device.
    pub srqn: u32,
    /// The type.
    pub kind: Option<SrqType>,
    /// Its protection domain, by its number.
    pub pdn: Option<u32>,
    /// The number of the completion queue, for a type that has one.
    pub cqn: Option<u32>,
    /// The queue pairs that use it, as ranges of their numbers on the wire.
    pub qps: Vec<RangeInclusive<u32>>,
    /// The creator.
    pub owner: ResourceOwner,
}

/// An open device: a process's context.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ContextResource {
    /// The kernel's number for it on the device.
    pub ctxn: u32,
    /// The process that opened it.
    pub owner: ResourceOwner,
}

/// An identifier of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CmIdResource {
    /// The kernel's number for it on the device.
    pub cm_idn: u32,
    /// Its port, counted from 1, if it is bound to one.
    pub port: Option<u32>,
    /// Its queue pair's number on the wire, if it has one.
    pub lqpn: Option<u32>,
    /// Its queue pair's transport, if it has one.
    pub transport: Option<QpType>,
    /// The state: a number of `enum rdma_cm_state` of the kernel.
    pub state: u8,
    /// The port space: a number of `enum rdma_ucm_port_space`.
    pub port_space: u32,
    /// Its own address, if it is an IP address.
    pub source: Option<SocketAddr>,
    /// The peer's address, if it is an IP address.
    pub destination: Option<SocketAddr>,
    /// The creator.
    pub owner: ResourceOwner,
}

/// A set of counters that is bound to queue pairs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QpCounters {
    /// The port, counted from 1.
    pub port: u32,
    /// The kernel's number for the set on the port.
    pub id: u32,
    /// The queue pairs, by their numbers on the wire.
    pub qps: Vec<u32>,
    /// The counters: the driver's names for them, and their values.
    pub counters: Vec<(String, u64)>,
    /// The owner of these queue pairs, if the set belongs to a process.
    pub owner: ResourceOwner,
}

/// The objects on a device, of all processes. Each call queries the kernel again.
///
/// The kernel reports many objects in parts, and counts them to find where the next part starts. So a list
/// may lack an object, or have it twice, if others come or go meanwhile.
#[derive(Clone, Debug)]
pub struct Resources {
    device: Device,
    index: u32,
}

impl Device {
    /// The objects on the device, of all processes.
    ///
    /// # Errors
    ///
    /// [`Cause::Unsupported`](crate::Cause::Unsupported) if the device was found by sysfs: only netlink
    /// reports them.
    pub fn resources(&self) -> Result<Resources> {
        match self.index() {
            Some(index) => Ok(Resources {
                device: self.clone(),
                index,
            }),
            None => Err(Error::unsupported(
                Verb::QueryResources,
                self.subject(),
                "the kernel lists objects by RDMA netlink only, which could not be opened",
            )),
        }
    }
}

/// # Errors
///
/// `ENODEV` if the device has been removed, `EPERM`, `EOPNOTSUPP` or `EINVAL` if the kernel does not report
/// them, or its answer is malformed. Source: `drivers/infiniband/core/nldev.c`; manual page:
/// `rdma-resource(8)`.
impl Resources {
    /// How many objects there are of each kind that the kernel counts.
    pub fn summary(&self) -> Result<Vec<ResourceCount>> {
        self.ask(Netlink::summary)
    }

    /// The protection domains.
    pub fn pds(&self) -> Result<Vec<PdResource>> {
        self.ask(Netlink::pds)
    }

    /// The memory regions.
    pub fn mrs(&self) -> Result<Vec<MrResource>> {
        self.ask(Netlink::mrs)
    }

    /// The completion queues.
    pub fn cqs(&self) -> Result<Vec<CqResource>> {
        self.ask(Netlink::cqs)
    }

    /// The queue pairs.
    pub fn qps(&self) -> Result<Vec<QpResource>> {
        self.ask(Netlink::qps)
    }

    /// The shared receive queues.
    pub fn srqs(&self) -> Result<Vec<SrqResource>> {
        self.ask(Netlink::srqs)
    }

    /// The contexts: one for each process that has opened the device.
    pub fn contexts(&self) -> Result<Vec<ContextResource>> {
        self.ask(Netlink::contexts)
    }

    /// The identifiers of the connection manager.
    pub fn cm_ids(&self) -> Result<Vec<CmIdResource>> {
        self.ask(Netlink::cm_ids)
    }

    /// The counters that are bound to queue pairs, as `rdma statistic qp show` shows them. soft-RoCE has
    /// none, so the result is `EOPNOTSUPP` or an empty list; with other drivers an administrator binds them
    /// (`rdma-statistic(8)`).
    pub fn qp_counters(&self) -> Result<Vec<QpCounters>> {
        self.ask(Netlink::qp_counters)
    }

    fn ask<T>(&self, question: impl FnOnce(&mut Netlink, u32) -> Result<T, Failure>) -> Result<T> {
        let answer = Netlink::open()
            .map_err(Failure::from)
            .and_then(|mut netlink| question(&mut netlink, self.index));
        answer.map_err(|failure| failure.of(Verb::QueryResources, self.device.subject()))
    }
}
