//! The command line: one file for each subcommand.

mod bench;
mod c_abi;
mod clean;
mod clients;
mod demo;
mod fetch;
mod linked;
mod llama;
mod mooncake;
mod options;
mod package;
mod pip;
mod run;
mod shell;
mod soak;
mod test;
mod valkey;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// The status if this program or the guest fails, and not the command; the same as that of timeout(1) and
/// env(1).
pub(crate) const EXIT_RUNNER_FAILED: u8 = 125;

/// The status if the command was killed at its time limit, as that of timeout(1).
const EXIT_TIMED_OUT: u8 = 124;

/// Boots a stock kernel in QEMU and runs programs of the host in it, with soft-RoCE
///
/// Everything that is needed is fetched as distribution packages into target/vm, without root.
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
    Demo(demo::Demo),
    Test(test::Test),
    Bench(bench::Bench),
    CAbi(c_abi::CAbi),
    Package(package::Package),
    Clients(clients::Clients),
    Fetch(fetch::Fetch),
    Run(run::Run),
    Shell(shell::Shell),
    Soak(soak::Soak),
    Clean(clean::Clean),
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
        Command::Demo(demo) => demo.run(),
        Command::Test(test) => test.run(),
        Command::Bench(bench) => bench.run(),
        Command::CAbi(c_abi) => c_abi.run(),
        Command::Package(package) => package.run(),
        Command::Clients(clients) => clients.run(),
        Command::Fetch(fetch) => fetch.run(),
        Command::Run(run) => run.run(),
        Command::Shell(shell) => shell.run(),
        Command::Soak(soak) => soak.run(),
        Command::Clean(clean) => clean.run(),
    }
}
