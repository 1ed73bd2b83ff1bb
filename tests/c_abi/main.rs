//! The library of the C ABI (`cargo vm c-abi`) under programs that are not this project's, and under C
//! programs beside this file: each runs on the distribution's libibverbs and on ours in the same guest. What
//! it does there it must do here.
//!
//! `cargo vm test` runs these with soft-RoCE, with the adapter and with the EFA. The C programs are compiled
//! by the host.

mod alike;
mod crates;
mod differences;
mod efa;
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

use libtest_mimic::Trial;
use support::{Device, device, skip, test};

fn main() -> ExitCode {
    let mut elsewhere: Vec<Trial> = [
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
    ]
    .into_iter()
    .flatten()
    .collect();
    if device() == Device::Efa {
        let reason = "an EFA has no connections, on which this stands";
        let skipped = elsewhere
            .iter()
            .map(|it| test(it.name(), move || skip(reason)));
        elsewhere = skipped.collect();
    }
    support::run_all([elsewhere, efa::tests(), pyverbs::tests_on_efa()])
}
