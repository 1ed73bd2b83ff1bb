//! The adapter made of software (`tests/connectx`) against programs that this project did not write:
//! rdma-core's own, with its libmlx5, on the kernel's own mlx5 driver. What holds here is ground that this
//! library's driver can stand on.
//!
//! `cargo vm test` runs these in guests that have the adapter, once with InfiniBand ports and once with RoCE
//! ports.

mod cm;
mod devices;
mod faults;
mod netdev;
mod perftest;
mod pingpong;
mod tap;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::run_all([
        devices::tests(),
        pingpong::tests(),
        perftest::tests(),
        cm::tests(),
        netdev::tests(),
        faults::tests(),
        tap::tests(),
    ])
}
