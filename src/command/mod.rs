//! Talking to the kernel: one typed command in, one typed reply out.
//!
//! A verb is a value of a type that implements [`Command`]. It can be encoded as a [`Request`] in two ways:
//! as its *native* ioctl method, and as a *write command*. [`CommandFd::execute`] sends it in the best way
//! that the kernel has: the native method, else the write command inside the ioctl `INVOKE_WRITE`, else the
//! write command by write(2). If a kernel lacks a way, that is detected once for each open file and
//! remembered.
//!
//! Nothing here uses devices, rings or lifetimes; driver-private data is passed as bytes.

mod ah;
mod bytes;
mod cq;
mod destroy;
mod device;
mod dm;
mod fd;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod info;
mod mcast;
mod mr;
mod mw;
mod pd;
mod qp;
mod quiet;
mod request;
mod routes;
#[cfg(any(test, feature = "fuzz"))]
mod samples;
mod srq;
#[cfg(test)]
mod tests;
mod write;
mod xrcd;

pub(crate) use ah::{CreateAh, CreateAhReply};
pub(crate) use cq::{CreateCompChannel, CreateCq, CreateCqReply, ModifyCq, ReqNotifyCq, ResizeCq};
#[cfg(feature = "c-abi")]
pub(crate) use destroy::DestroyCounting;
pub(crate) use destroy::{Destroy, Object};
#[cfg(feature = "c-abi")]
pub(crate) use device::QueryPortSpeed;
pub(crate) use device::{
    AllocAsyncFd, GetContext, GetContextReply, QueryDevice, QueryDeviceWith, QueryGid,
    QueryGidTable, QueryPort,
};
pub(crate) use dm::{AllocDm, ExportDmabuf, RegDmMr};
pub(crate) use fd::{CommandFd, File, Mapped, write};
#[allow(
    unused_imports,
    reason = "not every driver's doorbell is a system call"
)]
pub(crate) use fd::{Doorbell, Unread};
pub(crate) use info::{InfoHandles, QueryContext};
pub(crate) use mcast::{AttachMcast, DetachMcast};
pub(crate) use mr::{AdviseMr, QueryMr, QueryMrReply, RegDmabufMr, RegMr, RegMrReply, ReregMr};
pub(crate) use mw::AllocMw;
pub(crate) use pd::AllocPd;
pub(crate) use qp::{CreateQp, CreateQpReply, ModifyQp, QpSpec, QueryQp, WrittenModifyQp};
pub(crate) use quiet::{Quiet, quiet};
#[allow(unused_imports, reason = "not every driver has attributes of its own")]
pub(crate) use request::DriverAttr;
pub(crate) use request::{DriverData, DriverReply, Malformed, Request, driver_reply};
pub use routes::Route;
pub(crate) use srq::{CreateSrq, CreateSrqReply, ModifySrq, QuerySrq, SrqKind};
pub(crate) use xrcd::{CreateXrcTarget, OpenQp, OpenXrcd};

use std::fmt::Debug;

use zerocopy::FromBytes;

use crate::error::{Errno, Subject, Verb};

/// One verb with its arguments.
///
/// A command has a native encoding, a write encoding, or both. Each is one method: it writes the request and
/// returns how to read the kernel's answer.
pub(crate) trait Command: Debug + Sized {
    /// The kernel's answer.
    type Reply: Debug;

    /// The verb, for errors and traces.
    const VERB: Verb;

    /// How to destroy the object that the command has created if the rest of the answer is malformed. `None`
    /// for a command that creates nothing with a handle.
    const UNDO: Option<Undo> = None;

    /// The errno with which the kernel reports that the device has refused, and that its answer is there. The
    /// answer is then read as usual, but no object has been created.
    const REFUSED_BY_DEVICE: Option<Errno> = None;

    /// The object that the verb is called on or should create.
    fn subject(&self) -> Subject;

    /// Writes the command as the verb's own ioctl method into an empty request. `None` leaves the request
    /// empty: the kernel's ABI has no such method.
    #[inline]
    fn native(&self, _request: &mut Request) -> Option<Decode<Self>> {
        None
    }

    /// Writes the verb's write command, whether `INVOKE_WRITE` or write(2) carries it, into an empty request.
    /// `None` leaves the request empty: the kernel's ABI has no such command.
    #[inline]
    fn write(&self, _request: &mut Request) -> Option<Decode<Self>> {
        None
    }
}

/// Reads the kernel's answer to a command from the request that was sent.
pub(crate) type Decode<C> = fn(&C, &Request) -> Result<<C as Command>::Reply, Malformed>;

/// Destroys the object with this handle, and returns whether it is gone.
pub(crate) type Undo = fn(&CommandFd, u32) -> bool;

/// The [`Undo`] of commands that create such an object.
pub(crate) fn undo<H: Object>(fd: &CommandFd, handle: u32) -> bool {
    fd.destroy_patiently(H::from(handle)).is_ok()
}

/// Reads an answer that is empty or not needed.
#[inline]
fn nothing<C>(_: &C, _: &Request) -> Result<(), Malformed> {
    Ok(())
}

/// Reads the response of a write command as it is.
#[inline]
fn response<C, T: FromBytes>(_: &C, answer: &Request) -> Result<T, Malformed> {
    answer.response()
}
