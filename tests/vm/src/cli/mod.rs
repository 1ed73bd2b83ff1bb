//! The command line: one file for each subcommand.

mod fetch;
mod options;
mod run;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The status with which this program ends if it fails itself; like env(1) and docker-run(1), away from what commands use.
pub(crate) const EXIT_RUNNER_FAILED: u8 = 125;

/// Boots a stock kernel in QEMU and runs programs of the host in it, with soft-RoCE.
#[derive(Debug, Parser)]
#[command(
    name = "cargo vm",
    bin_name = "cargo vm",
    version,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Fetch(fetch::Fetch),
    Run(run::Run),
}

/// Runs what the command line asks for.
///
/// # Errors
/// If it fails; a command in the guest that fails is not an error but a status.
pub(crate) fn main() -> Result<ExitCode> {
    match std::env::args().nth(1).as_deref() {
        Some("guest-init") => match crate::agent::init()? {},
        Some("guest-agent") => return crate::agent::main().map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    match Cli::parse().command {
        Command::Fetch(fetch) => fetch.run(),
        Command::Run(run) => run.run(),
    }
}
