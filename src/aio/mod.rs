//! Asynchronous operations, with owned buffers.
//!
//! A [`Buf`](crate::buf::Buf) goes by value into an operation and comes back with its result. The operation
//! is posted at once; awaiting it waits for its completion. So one task, or many, can have several operations
//! in flight. No runtime is needed, and any can be used.
//!
//! * [`Qp`] posts, as a [`Post`], or its halves do ([`Sender`], [`Receiver`]). [`Incoming`] is a stream of
//!   messages.
//! * [`Srq`] receives for many queue pairs. Datagram queue pairs name a peer with [`Post::to`], and
//!   [`Received::reply_to`] is the path back to a sender.
//! * [`Cq`] delivers completions to waiting futures: from a task ([`Cq::serve`]), on a thread
//!   ([`Cq::block_on`]), or whenever [`Cq::pump`] is called.
//! * [`Op`] is an operation in flight. Dropping it does not cancel the operation: its queue pair keeps the
//!   buffer until the device has finished with it. [`Control::abort`] ends all operations and returns every
//!   buffer.
//! * [`Connection`] is a connection by address; its steps are those of [`cm`](crate::cm). [`Channel`] sends
//!   messages of any length over one.
//!
//! # What an operation costs
//!
//! An operation allocates nothing and takes no lock. A queue pair has a table of slots, allocated with it. A
//! slot is taken by one compare-and-swap, and given back by another. Its index and a generation are the
//! request's id, by which the completion finds the slot. The pump holds the completion queue's lock, once for
//! up to 33 tasks that it wakes.

mod block_on;
mod cargo;
pub mod channel;
#[cfg(feature = "compio")]
pub mod compio;
mod connection;
mod control;
mod cq;
mod error;
mod listener;
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
pub use send::{Batch, Post, Sender, Towards};
pub use srq::Srq;

pub use crate::readable::Readable;
