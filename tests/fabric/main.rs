//! The EFA made of software (`tests/efa`) against programs that this project did not write: rdma-core's and
//! libfabric's, with rdma-core's own libefa, on the kernel's own efa driver. What holds here is ground that
//! this library's driver can stand on.
//!
//! `srd` is that driver: what its requests do. `awaited` is `uverbs::aio` over it, and `transfer` is a
//! program.
//!
//! The programs are those of Debian 13, which know more of an EFA than those of Debian 12. They are started
//! by their own loader.

mod awaited;
mod faults;
mod newer;
mod programs;
mod srd;
mod transfer;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::run_all([
        programs::tests(),
        faults::tests(),
        srd::tests(),
        awaited::tests(),
        transfer::tests(),
    ])
}
