//! The library of the C ABI (`cargo vm c-abi`) under programs that are not this project's, and under C
//! programs beside this file: each runs on the distribution's libibverbs and on ours in the same guest. What
//! it does there it must do here.
//!
//! `cargo vm test` runs these with soft-RoCE, with the adapter and with the EFA. The C programs are compiled
//! by the host.

mod alike;
mod ceph;
mod crates;
mod differences;
mod efa;
mod exec;
mod llama;
mod migration;
mod mooncake;
mod mpi;
mod newer;
mod programs;
mod pyverbs;
mod runs;
mod start_up;
mod ucx;
mod valkey;

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
        llama::tests(),
        ceph::tests(),
        ucx::tests(),
        mooncake::tests(),
        valkey::tests(),
        pyverbs::tests(),
        start_up::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    if device() == Device::Efa {
        elsewhere = elsewhere.into_iter().map(on_efa).collect();
    }
    support::run_all([elsewhere, efa::tests(), pyverbs::tests_on_efa()])
}

/// What an EFA lacks for these tests, by how their names begin.
const NOT_ON_EFA: &[(&str, &str)] = &[
    (
        "perftest::",
        "it connects queue pairs; efa::perftest_* are on reliable datagrams",
    ),
    (
        "pingpong::",
        "it connects queue pairs, and an EFA has no connections",
    ),
    (
        "libfabric::",
        "it connects queue pairs; efa::libfabric_* are on libfabric's provider for an EFA",
    ),
    (
        "crates::ibverbs_loopback",
        "it connects queue pairs, and an EFA has no connections",
    ),
    (
        "crates::sideway",
        "it connects queue pairs, and an EFA has no connections",
    ),
    (
        "engines::",
        "it connects queue pairs, and an EFA has no connections",
    ),
    (
        "newer::trixie",
        "it connects queue pairs; efa::* are of the same suite",
    ),
    (
        "newer::pyverbs_",
        "newer::pyverbs_of_efa has those of rdma-core's tests that are for an EFA",
    ),
    (
        "newer::sid",
        "it connects queue pairs, and an EFA has no connections",
    ),
    ("ucx::", "Debian's UCX has no transport over an EFA"),
    (
        "alike::ucx_info",
        "Debian's UCX has no transport over an EFA",
    ),
    (
        "alike::fi_info",
        "it asks for libfabric's provider of connections; efa::libfabric_* are on that of an EFA",
    ),
    (
        "mpi::",
        "Debian's Open MPI and MPICH go over UCX, or over connections",
    ),
    ("rdmacm::", NO_ADDRESS),
    ("start_up::installed", NO_ADDRESS),
    ("fio::", NO_ADDRESS),
    ("qperf::", NO_ADDRESS),
    ("migration::", NO_ADDRESS),
    ("programs::connection", NO_ADDRESS),
    ("programs::attributes", CHECKS),
    ("programs::domains", CHECKS),
    ("programs::events", CHECKS),
    ("programs::extended", CHECKS),
    ("programs::lifetime", CHECKS),
    ("programs::oldest", CHECKS),
    ("programs::posting", CHECKS),
    ("programs::sanitized", CHECKS),
    ("programs::threads", CHECKS),
    ("programs::dm", "an EFA has no device memory"),
    ("programs::windows", "an EFA has no memory windows"),
    ("programs::xrc", "an EFA has no XRC"),
    ("programs::removal", "its queue pair is a connected one"),
    (
        "pyverbs::",
        "pyverbs::of_efa has those of rdma-core's tests that are for an EFA",
    ),
];

const CHECKS: &str = "its checks are of connected queue pairs; efa::fields_as_libefa_has_them is of reliable datagrams";
const NO_ADDRESS: &str = "it connects by an IP address, and an EFA has no network device";

/// The test as it is on an EFA.
fn on_efa(it: Trial) -> Trial {
    let name = it.name().to_owned();
    match NOT_ON_EFA.iter().find(|(start, _)| name.starts_with(start)) {
        Some((_, reason)) => test(name, move || skip(*reason)),
        None => it,
    }
}
