//! Protection domains, thread domains, parent domains and users' allocators, on soft-RoCE and on the adapter, in the guest
//! that `cargo vm test` boots. Elsewhere every test is ignored, with the reason.

mod allocators;
mod busy;
mod common;
#[path = "../device/mod.rs"]
mod device;
mod errors;
mod fork;
mod kinds;
mod model;
mod nested;
mod quiet;
#[path = "../random/mod.rs"]
mod random;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    if let Some(role) = std::env::args().nth(1).filter(|word| word == quiet::ROLE) {
        return quiet::play(&role);
    }
    let mut arguments = Arguments::from_args();
    // The tests compare the kernel's counts of objects before and after.
    arguments.test_threads = Some(1);
    let tests = [
        kinds::tests(),
        busy::tests(),
        quiet::tests(),
        allocators::tests(),
        errors::tests(),
        nested::tests(),
        fork::tests(),
        model::tests(),
    ];
    libtest_mimic::run(&arguments, tests.into_iter().flatten().collect()).exit_code()
}
