//! `cargo vm`: boots a stock kernel in QEMU and runs programs of the host in it.
//!
//! What it needs comes as distribution packages into `target/vm`, without root. The guest's root file system
//! is the host's own, read-only, so a program that runs here runs there. `tests/vm/README.md` says how the
//! parts fit.
//!
//! This is a tool of the project's own tests: no stable interface, nothing for other hosts than x86-64
//! Linux.

mod accel;
mod agent;
mod arch;
mod bench;
mod c;
mod cli;
mod fetch;
mod guest;
mod hca;
mod initramfs;
mod kernel;
mod klog;
mod modules;
mod process;
mod qemu;
mod results;
mod store;
mod suite;
mod support;
mod tsc;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vm: {error:#}");
            ExitCode::from(cli::EXIT_RUNNER_FAILED)
        }
    }
}
