//! The library of the C ABI (`cargo vm c-abi`) under programs that are not this project's, and under C
//! programs beside this file: each runs on the distribution's libibverbs and on ours in the same guest. What
//! it does there it must do here.
//!
//! `cargo vm test` runs these with soft-RoCE and with the adapter. The C programs are compiled by the host.

mod alike;
mod crates;
mod differences;
mod exec;
mod library;
mod migration;
mod mooncake;
mod mpi;
mod newer;
mod programs;
mod pyverbs;
mod runs;
mod start_up;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::run_all([
        programs::tests(),
        alike::tests(),
        exec::tests(),
        runs::tests(),
        mpi::tests(),
        newer::tests(),
        crates::tests(),
        migration::tests(),
        mooncake::tests(),
        pyverbs::tests(),
        start_up::tests(),
    ])
}
