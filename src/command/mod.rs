//! Talking to the kernel: one typed command in, one typed reply out.
//!
//! A verb is a value of a type that implements [`Command`]. It can spell itself as a [`Request`]: as its
//! *native* ioctl method, as a *write command*, or as both, best first. [`CommandFd::execute`] sends it the
//! best way that the kernel has: the native method, else the write command inside the ioctl
//! `INVOKE_WRITE`, else the write command by write(2). What a kernel lacks is found once for each open
//! file and remembered.
//!
//! Nothing here knows devices, rings or lifetimes; driver-private data travels as bytes.

mod ah;
mod bytes;
mod counters;
mod cq;
mod destroy;
mod device;
mod dm;
mod dmah;
mod fd;
mod flow;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod info;
mod mcast;
mod mr;
mod mw;
mod pd;
mod qp;
mod request;
mod routes;
#[cfg(any(test, feature = "fuzz"))]
mod samples;
mod srq;
#[cfg(test)]
mod tests;
mod wq;
mod write;
mod xrcd;

pub(crate) use ah::{CreateAh, CreateAhReply};
pub(crate) use counters::{CreateCounters, DestroyCounters, ReadCounters};
pub(crate) use cq::{CreateCompChannel, CreateCq, CreateCqReply, ModifyCq, ReqNotifyCq, ResizeCq};
pub(crate) use destroy::{DeallocPd, DeregMr, DestroyAh, DestroyCq, DestroyQp, DestroySrq};
pub(crate) use device::{
    AllocAsyncFd, GetContext, GetContextReply, QueryDevice, QueryGid, QueryGidTable, QueryPort,
};
pub(crate) use dm::{AllocDm, FreeDm, RegDmMr};
pub(crate) use dmah::{AllocDmah, FreeDmah, RegMrDmah};
pub(crate) use fd::CommandFd;
#[allow(
    unused_imports,
    reason = "not every driver has a doorbell that is a system call"
)]
pub(crate) use fd::Prepared;
pub(crate) use flow::{CreateFlow, DestroyFlow, Specs};
pub(crate) use info::{InfoHandles, QueryContext};
pub(crate) use mcast::{AttachMcast, DetachMcast};
pub(crate) use mr::{AdviseMr, QueryMr, QueryMrReply, RegDmabufMr, RegMr, ReregMr};
pub(crate) use mw::{AllocMw, DeallocMw};
pub(crate) use pd::AllocPd;
pub(crate) use qp::{CreateQp, CreateQpReply, CreateRssQp, ModifyQp, QueryQp};
pub(crate) use request::{DriverData, DriverReply, Malformed, Request, driver_reply};
pub use routes::Route;
pub(crate) use srq::{CreateSrq, CreateSrqReply, ModifySrq, QuerySrq, SrqKind};
pub(crate) use wq::{CreateRwqIndTable, CreateWq, DestroyRwqIndTable, DestroyWq, ModifyWq};
pub(crate) use xrcd::{CloseXrcd, CreateXrcTarget, OpenQp, OpenXrcd};

use std::fmt::Debug;

use crate::error::{Subject, Verb};

/// How a command is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// The verb's own ioctl method.
    Native,
    /// The verb's write command, whether `INVOKE_WRITE` or write(2) carries it.
    Write,
}

/// One verb with its arguments.
pub(crate) trait Command: Debug {
    /// What the kernel answers.
    type Reply: Debug;

    /// The verb, for errors and traces.
    const VERB: Verb;

    /// Whether the kernel's ABI has the verb as an ioctl method.
    const NATIVE: bool;

    /// The object that the verb is called on or is to create.
    fn subject(&self) -> Subject;

    /// Writes the command in one spelling into an empty request, which stays empty if the kernel's ABI has no such
    /// spelling of it, as [`Self::NATIVE`] tells of one.
    fn encode(&self, spelling: Spelling, request: &mut Request);

    /// Reads the kernel's answer out of the request that was sent.
    fn decode(&self, spelling: Spelling, answer: &Request) -> Result<Self::Reply, Malformed>;
}
