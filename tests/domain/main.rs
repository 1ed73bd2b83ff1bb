//! Protection domains, thread domains, parent domains and users' allocators. With soft-RoCE and with the
//! adapter, in guests of `cargo vm test`; elsewhere every test is ignored.

mod allocators;
mod busy;
mod dmabuf;
mod errors;
mod fork;
mod kinds;
mod model;
mod nested;
mod posting;
mod script;
mod traffic;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::run_all([
        kinds::tests(),
        busy::tests(),
        allocators::tests(),
        errors::tests(),
        nested::tests(),
        posting::tests(),
        fork::tests(),
        dmabuf::tests(),
        model::tests(),
    ])
}
