//! The rings of rxe over plain memory, with a test in the kernel's place.
//!
//! The property tests here are the project's fuzzers of ring contents. Only the tests of the send queue make
//! system calls, since its doorbell is one; all others are pure memory, so that Miri can run them.

mod cq;
mod memory;
mod model;
mod recv;
mod ring;
mod send;
mod srq;
mod threads;
mod watch;

pub(crate) use self::send::sample_send_queue;
