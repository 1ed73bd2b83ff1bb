//! Import, sharing and hand-over between processes, with traffic over soft-RoCE or the adapter.
//!
//! They run inside a guest: `cargo vm test`. Elsewhere each reports itself as ignored. Other processes are this
//! program again, with a role as its argument ([`roles`]); parents and children speak by lines over pipes, so
//! nothing waits for time to pass.

#[path = "../device/mod.rs"]
mod device;
mod import;
mod model;
mod process;
#[path = "../random/mod.rs"]
mod random;
mod resources;
mod roles;
mod sharing;
mod traffic;
mod worker;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// What goes wrong in a test.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A test with its name.
type Test = (&'static str, fn() -> Outcome);

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some((role, arguments)) = process::role(&arguments) {
        roles::play(role, arguments);
    }
    let tests = [import::TESTS, sharing::TESTS, model::TESTS].concat();
    let trials = tests
        .into_iter()
        .map(|(name, test)| Trial::ignorable_test(name, move || run(test)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Runs a test where it can run, and looks that nothing stays in the kernel.
fn run(test: fn() -> Outcome) -> Result<Completion, Failed> {
    if std::env::var_os("VM_GUEST").is_none() {
        return Ok(Completion::ignored_with(
            "needs an RDMA device: run `cargo vm test`",
        ));
    }
    device::settle(device::device().name()).map_err(|error| error.to_string())?;
    let before = resources::count().map_err(|error| error.to_string())?;
    test().map_err(|error| error.to_string())?;
    resources::wait_for(&before).map_err(|error| error.to_string())?;
    Ok(Completion::Completed)
}
