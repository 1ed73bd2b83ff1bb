//! Connections by address: the module `cm` against itself and against rdma-core's programs, and what becomes
//! of it when peers, addresses or time run out.

mod connect;
mod datagrams;
mod faults;
mod ground;
mod listen;
mod programs;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(status) = support::role::play(&faults::ROLES) {
        return status;
    }
    support::run_all([
        connect::tests(),
        listen::tests(),
        faults::tests(),
        datagrams::tests(),
        programs::tests(),
    ])
}
