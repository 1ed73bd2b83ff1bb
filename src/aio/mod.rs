//! Operations that are awaited, with buffers that travel.
//!
//! A [`Buf`](crate::buf::Buf) goes by value into an operation and comes back with its result. The operation
//! is posted at once, and what is awaited is its completion: several can be under way from one task, and from
//! many. No runtime is needed; any can be used.
//!
//! * [`Qp`] posts, as a [`Post`], or its halves do ([`Sender`], [`Receiver`]). [`Incoming`] is a stream of
//!   messages.
//! * [`Srq`] receives for many queue pairs. Queue pairs for datagrams have `send_to`, and what they receive
//!   tells the way back ([`Received::reply_to`]).
//! * [`Cq`] brings completions to those who wait: by a task ([`Cq::serve`]), by a thread
//!   ([`Cq::block_on`]), or whenever somebody says ([`Cq::pump`]).
//! * [`Op`] is an operation under way. Dropping it gives nothing up: its queue pair keeps the buffer until
//!   the device has done with it. [`Control::abort`] gets everything back.
//! * [`Connection`] is a connection by address; its steps are those of [`cm`](crate::cm). [`Channel`] sends
//!   messages of any length over one.
//!
//! # What an operation costs
//!
//! Nothing is allocated and no lock is taken for it. A queue pair has a table of slots, made with it. Who
//! posts takes one from a list of its own, since posting borrows exclusively, and the slot comes back by one
//! compare-and-swap. Its index and a generation are the request's id, by which the completion finds it. Who
//! takes completions holds the completion queue's lock, once for up to 33 tasks that are to be woken.

mod block_on;
mod cargo;
pub mod channel;
#[cfg(feature = "compio")]
pub mod compio;
mod connection;
mod control;
mod cq;
mod error;
mod free;
mod listener;
mod lock;
mod op;
mod pump;
mod qp;
mod recv;
mod send;
mod slot;
mod srq;
mod steps;
mod sync;
mod table;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(any(feature = "compio", feature = "tokio"))]
mod watched;

pub use cargo::Payload;
pub use channel::Channel;
pub use connection::{Accepting, Connecting, Connection, Establishing};
pub use control::Control;
pub use cq::{Cq, Wait};
pub use error::OpError;
pub use listener::Listener;
pub use op::{Fetched, Kind, Op, Read, Receive, Received, Sent, SentInline};
pub use qp::Qp;
pub use recv::{Incoming, IncomingError, Receiver};
pub use send::{Batch, Post, Sender};
pub use srq::Srq;

pub use crate::readable::Readable;
