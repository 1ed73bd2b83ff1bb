//! uverbs measured side by side with rdma-core.
//!
//! `measure` runs the groups that are named and prints a record of JSON for each row; it starts this program and the C
//! programs beside it again and again, in turn, so that both see the same machine. `cargo vm bench` builds
//! everything, runs this in a guest and prints the records as a table. Numbers of instructions and system calls are exact;
//! times mean something only as ratios of paired runs.

mod instructions;
mod pair;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Do each operation of the data path some times, for callgrind
    Instructions {
        /// The RDMA device
        device: String,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Instructions { device } => instructions::run(&device),
    }
}
