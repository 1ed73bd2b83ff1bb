//! What the library does against a real kernel: every test here talks to soft-RoCE, in the guest that `cargo vm test`
//! boots, and most talk to the adapter too, where there is one. Elsewhere every test is ignored, with the reason.
//!
//! The programs that some tests start are this one again, in a [role](common::role).

mod beside;
mod common;
mod data;
#[path = "../device/mod.rs"]
mod device;
mod errors;
mod events;
mod interop;
mod limits;
mod load;
#[path = "../peers/mod.rs"]
mod peers;
#[path = "../random/mod.rs"]
mod random;
mod removal;
mod resources;
mod routes;
mod syscalls;
mod talk;

use std::process::ExitCode;

use libtest_mimic::Arguments;

use common::role;

fn main() -> ExitCode {
    if let Some(status) = role::play(&roles()) {
        return status;
    }
    let tests = [
        data::tests(),
        load::tests(),
        errors::tests(),
        events::tests(),
        limits::tests(),
        resources::tests(),
        removal::tests(),
        routes::tests(),
        syscalls::tests(),
        interop::tests(),
        beside::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// What this program does when a test starts it once more.
fn roles() -> Vec<role::Role> {
    [
        limits::ROLES.as_slice(),
        &resources::ROLES,
        &routes::ROLES,
        &syscalls::ROLES,
    ]
    .concat()
}
