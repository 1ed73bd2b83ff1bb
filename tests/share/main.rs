//! Import, sharing and hand-over between processes, with traffic over what was had. With soft-RoCE and with
//! the adapter, in guests of `cargo vm test`; elsewhere every test is ignored.
//!
//! Other processes are this program again, in a [role](roles); parents and children speak by lines over
//! pipes, so nothing waits for time to pass.

mod agent;
mod hand;
mod import;
mod killed;
mod model;
mod process;
mod roles;
mod sharing;
mod worker;

use std::process::ExitCode;

use support::role;

fn main() -> ExitCode {
    if let Some((role, arguments)) = role::own() {
        roles::play(&role, &arguments);
    }
    support::run_all([
        import::tests(),
        sharing::tests(),
        killed::tests(),
        model::tests(),
        agent::tests(),
    ])
}
