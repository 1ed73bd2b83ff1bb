//! What is asked of the kernel, as strace sees it, and by which of the ways to it. With soft-RoCE and with
//! the adapter, in guests of `cargo vm test`; elsewhere every test is ignored.
//!
//! The programs that strace looks at are this one again, in a [role](support::role).

mod quiet;
mod routes;
mod syscalls;

use std::process::ExitCode;

fn main() -> ExitCode {
    let roles = [routes::ROLES.as_slice(), &syscalls::ROLES, &quiet::ROLES];
    if let Some(status) = support::role::play(&roles.concat()) {
        return status;
    }
    support::run_all([routes::tests(), syscalls::tests(), quiet::tests()])
}
