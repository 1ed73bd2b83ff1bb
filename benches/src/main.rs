//! The command line of the measurements.
//!
//! `measure` runs the groups that are named and prints a record of JSON for each row. The other subcommands
//! are the work itself, which `measure` has this program and the C programs do in turn.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use uverbs_bench::control::Control;
use uverbs_bench::measure::{self, Group, Plan};
use uverbs_bench::{agent, awaited, connections, instructions, perf, scale, serve};

#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure, and print a record of JSON for each row
    Measure {
        /// The RDMA device
        #[arg(long, default_value = "rxe0")]
        device: String,
        /// The directory with the programs rdma_core, bare, start-up and start-up-static
        #[arg(long)]
        programs: PathBuf,
        /// Fewer rounds: numbers of instructions and calls stay exact, times get rougher
        #[arg(long)]
        quick: bool,
        /// Of the times of waiting for events, count only those at which the process did not sleep
        #[arg(long)]
        awake: bool,
        /// Of transfers, only those that wait like this
        #[arg(long, value_name = "HOW", value_parser = ["polling", "events"])]
        wait: Option<String>,
        /// What to measure; everything if nothing is named
        #[arg(value_enum)]
        groups: Vec<Group>,
    },
    /// Do each operation of the data path some times, for callgrind
    Instructions {
        /// The RDMA device
        device: String,
        /// Have the rings in an arena of a parent domain
        #[arg(long)]
        arena: bool,
        /// Do what an agent does of them, where queues can be handed over
        #[arg(long, conflicts_with = "arena")]
        agent: bool,
    },
    /// Await an operation some times, part by part, for callgrind
    AwaitedInstructions {
        /// The RDMA device
        device: String,
    },
    /// Make and destroy objects some times, for callgrind
    ControlInstructions {
        /// The RDMA device
        device: String,
    },
    /// Make many objects and print what each takes
    Scale {
        /// The RDMA device
        device: String,
        /// What is made
        #[arg(value_parser = ["qp", "mr"])]
        what: String,
        /// How many
        count: usize,
    },
    /// Accept connections by address, as the peer of `connect`
    Accept {
        /// The RDMA device
        device: String,
        /// The address and port to listen at
        address: SocketAddr,
        /// How many connections there will be
        count: usize,
    },
    /// Make connections by address and end them, and print what each phase takes
    Connect {
        /// The peer's address and port
        address: SocketAddr,
        /// How many
        count: usize,
    },
    /// Move messages between two processes that wait for events, and print what they take
    Perf {
        /// The RDMA device
        device: String,
        /// send-latency, read-latency, read-rate or send-rate
        work: String,
        /// Bytes of a message
        size: usize,
        /// How many
        count: u64,
    },
    /// The other process of `perf`
    PerfPeer {
        /// The RDMA device
        device: String,
        /// As of `perf`
        work: String,
        /// As of `perf`
        size: usize,
        /// As of `perf`
        count: u64,
    },
    /// Do timed work that is asked for on standard input
    Serve {
        /// The RDMA device
        device: String,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Measure {
            device,
            programs,
            quick,
            awake,
            wait,
            groups,
        } => {
            let mut plan = Plan::new(device, programs)?;
            (plan.quick, plan.awake, plan.wait) = (quick, awake, wait);
            measure::run(&plan, &groups)
        }
        Command::Instructions {
            device,
            agent: true,
            ..
        } => agent::run(&device),
        Command::Instructions { device, arena, .. } => instructions::run(&device, arena),
        Command::AwaitedInstructions { device } => awaited::run(&device),
        Command::ControlInstructions { device } => Control::instructions(&device),
        Command::Scale {
            device,
            what,
            count,
        } => match what.as_str() {
            "mr" => scale::regions(&device, count),
            _ => scale::queue_pairs(&device, count),
        },
        Command::Accept {
            device,
            address,
            count,
        } => connections::accept(&device, address, count),
        Command::Connect { address, count } => connections::connect(address, count),
        Command::Perf {
            device,
            work,
            size,
            count,
        } => perf::run(&device, &work, size, count),
        Command::PerfPeer {
            device,
            work,
            size,
            count,
        } => perf::peer(&device, &work, size, count),
        Command::Serve { device } => serve::run(&device),
    }
}
