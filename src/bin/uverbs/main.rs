//! The command line `uverbs`: which devices exist, what they can do, and how fast they are.
//!
//! Each subcommand is a module with its options and a `run`. Shared parts are here and in [`failure`] (exit
//! codes), [`output`] (text and JSON) and [`trace`]. Everything about devices uses the library's public
//! interface.

// These panic where the stream cannot be written; `output` does not.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod cm;
mod complete;
mod completions;
mod devices;
mod doctor;
mod exec;
mod failure;
mod files;
mod gids;
mod info;
mod link;
mod man;
mod number;
mod output;
mod owner;
mod perf;
mod pingpong;
mod resource;
mod rping;
mod select;
mod statistic;
mod trace;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::{Failure, Kind, Result};

const EXAMPLES: &str = "\
Examples:
  uverbs devices                       list the RDMA devices
  uverbs devices -v                    where they are: NUMA nodes, PCI switches, links
  uverbs doctor                        why RDMA does not work here, or will not
  uverbs doctor 10.9.0.1               and whether that host can be reached
  uverbs info -d rxe0 -v               all properties of rxe0
  uverbs gids -d rxe0 --json           the GID table, for a program
  uverbs resource qp -d rxe0           the queue pairs of all processes
  uverbs statistic -w                  what ports count, once a second
  uverbs pingpong rc                   wait for a peer (ours or ibv_rc_pingpong), then
  uverbs pingpong rc 10.9.0.1 -c       on the other host: exchange 1000 messages, checked
  uverbs perf serve                    be the peer of measurements, and on the other host:
  uverbs perf bandwidth write 10.9.0.1 how much goes through
  uverbs rping -c -a 10.9.0.1 -C 5 -v  ping an rping server, connected by address
  uverbs exec -- ibv_devinfo           run a libibverbs program on this project's library
  uverbs --trace info -d rxe0          show each command that goes to the kernel

";

/// RDMA devices and connections, without libibverbs.
#[derive(Debug, Parser)]
#[command(name = "uverbs", version, propagate_version = true, after_help = EXAMPLES.to_owned() + failure::EXIT_CODES)]
struct Cli {
    /// Show on standard error each command that the library sends to the kernel
    #[arg(long, global = true, display_order = 100)]
    trace: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Devices(devices::Options),
    Doctor(doctor::Options),
    Info(info::Options),
    Gids(gids::Options),
    Resource(resource::Options),
    Link(link::Options),
    Statistic(statistic::Options),
    Perf(perf::Options),
    Pingpong(pingpong::Options),
    Rping(rping::Options),
    Cm(cm::Options),
    Exec(exec::Options),
    Completions(completions::Options),
    Man(man::Options),
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Devices(options) => devices::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Info(options) => info::run(&options),
        Command::Gids(options) => gids::run(&options),
        Command::Link(options) => link::run(&options),
        Command::Resource(options) => resource::run(&options),
        Command::Statistic(options) => statistic::run(&options),
        Command::Perf(options) => perf::run(&options),
        Command::Pingpong(options) => pingpong::run(&options),
        Command::Rping(options) => rping::run(&options),
        Command::Cm(options) => cm::run(&options),
        Command::Exec(options) => exec::run(&options),
        Command::Completions(options) => completions::run(&options),
        Command::Man(options) => man::run(&options),
    }
}

fn main() -> ExitCode {
    complete::for_shell();
    let cli = Cli::parse();
    if cli.trace {
        if let Command::Exec(_) = cli.command {
            let text = "--trace shows the commands of this program, which exec replaces by another";
            return Failure::new(Kind::Usage, text).report();
        }
        trace::start();
    }
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    /// Catches a subcommand whose help does not list its exit codes.
    #[test]
    fn every_subcommand_tells_its_exit_codes() {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        for subcommand in command.get_subcommands_mut() {
            let help = subcommand.render_help().to_string();
            assert!(help.contains("xit code"), "{help}");
        }
    }
}
