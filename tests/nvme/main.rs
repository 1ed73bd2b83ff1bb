//! Disks over RDMA, with Linux at the other end: its host on the target of `docs/examples/nvmet`, and that
//! example's host on Linux's target. What is written is compared with what the disk behind it holds.

mod disk;
mod linux_host;
mod linux_target;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::run_all([linux_host::tests(), linux_target::tests()])
}
