//! Commands of users to the adapter: what they ask, what they create, and what is refused. The kernel's own
//! driver passes them on, and the adapter made of software executes them.
//!
//! In guests of `cargo vm test` that have the adapter; elsewhere every test is ignored.

mod asked;
mod gathered;
mod queue;
mod queues;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::run_all([asked::tests(), gathered::tests(), queues::tests()])
}
