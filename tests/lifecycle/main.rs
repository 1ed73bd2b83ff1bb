//! How objects end: destroyed or dropped in any order, with their process, and with the device or the network
//! under them. With soft-RoCE and with the adapter, in guests of `cargo vm test`; elsewhere every test is
//! ignored.
//!
//! The process that some tests start is this program again, in a [role](support::role).

mod removal;
mod resources;
mod unplug;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = support::role::play(&resources::ROLES) {
        return status;
    }
    support::run_all([resources::tests(), removal::tests(), unplug::tests()])
}
