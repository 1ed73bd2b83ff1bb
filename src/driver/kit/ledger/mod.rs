//! What distinguishes completions: the ids of the requests that a queue has posted.
//!
//! The device reports a request by its place in the ring, not by its id, and only those that asked for it. So
//! a queue notes the id of each request, and where its successor begins. The poller of the completion queue
//! looks these up and notes how far the queue has come. Poster and poller may be different threads and take
//! no lock:
//!
//! - the poster writes a note and then rings; the device writes the completion; the poller reads it and then
//!   the note. The barriers around doorbell and completion order the two ([`super::barrier`]).
//! - the poller reads a note and then stores `done` with release; the poster loads it with acquire before it
//!   uses the note's place again.
//!
//! Everything is an atomic, so that a device that reports nonsense spoils ids and not memory.

mod loose;
mod numbered;
mod receives;
mod sends;
mod shared;

pub(crate) use self::loose::LooseLedger;
pub(crate) use self::numbered::{About, NumberedLedger};
pub(crate) use self::receives::RecvLedger;
pub(crate) use self::sends::{Does, SendLedger, SendNote};
pub(crate) use self::shared::{SrqElement, SrqLedger};
