//! The adapter made of software (`tests/connectx`) against programs that this project did not write: rdma-core's own, with
//! its libmlx5, on the kernel's own mlx5 driver. What holds here is ground that this library's driver can stand on.
//!
//! `cargo vm test` runs these in guests that have the adapter, once with InfiniBand ports and once with RoCE ports.

mod cm;
mod devices;
mod faults;
#[path = "../hca/mod.rs"]
mod hca;
mod netdev;
#[path = "../peers/mod.rs"]
mod peers;
mod perftest;
mod pingpong;
mod support;
mod tap;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let tests = [
        devices::tests(),
        pingpong::tests(),
        perftest::tests(),
        cm::tests(),
        netdev::tests(),
        faults::tests(),
        tap::tests(),
    ]
    .into_iter()
    .flatten()
    .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}
