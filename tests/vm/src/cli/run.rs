//! `cargo vm run`.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

use super::options;
use crate::accel;
use crate::fetch;
use crate::guest::protocol::{Network, Spec};
use crate::guest::{self, Event, Guest, Stream};
use crate::store::Store;

/// Run a command of the host in a guest.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// The kernel: 6.1, 6.12, 7.2, latest, or the path of a system kernel.
    #[arg(
        long,
        value_name = "K",
        default_value = "latest",
        env = "VM_KERNEL_DEFAULT"
    )]
    kernel: String,
    #[command(flatten)]
    machine: options::Machine,
    /// 2 for two network namespaces, h1 and h2, joined by veth, with rxe1 and rxe2.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// End the command after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// A variable for the command.
    #[arg(long, value_name = "K=V")]
    env: Vec<String>,
    /// The command.
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    /// Runs it.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let parts = fetch::parts(&store, &self.kernel, self.machine.qemu.as_deref())?;
        let network = if self.hosts == 2 {
            Network::TwoHosts
        } else {
            Network::OneHost
        };
        let options = guest::Options {
            accelerator: accel::choose(),
            memory: self.machine.memory,
            cpus: self.machine.cpus,
            network,
        };
        let mut guest = Guest::boot(&store, &parts, &options)?;
        let extra: Vec<(String, String)> = self
            .env
            .iter()
            .map(|pair| {
                pair.split_once('=')
                    .map(|(k, v)| (k.to_owned(), v.to_owned()))
                    .context("--env wants NAME=VALUE")
            })
            .collect::<Result<_>>()?;
        let mut words = self.command.clone();
        if self.hosts == 2 {
            words.splice(0..0, ["ip", "netns", "exec", "h1"].map(str::to_owned));
        }
        let spec = Spec {
            words,
            environment: guest::environment(&parts.kernel.release, &extra),
            directory: std::env::current_dir()?.display().to_string(),
            ..Spec::default()
        };
        guest.start(&spec)?;
        let deadline = self
            .timeout
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let status = loop {
            match guest.next(deadline)? {
                Event::Wrote(_, Stream::Output, bytes) => std::io::stdout().write_all(&bytes)?,
                Event::Wrote(_, Stream::Error, bytes) => std::io::stderr().write_all(&bytes)?,
                Event::Ended(_, ending) => break ending.status(),
                Event::NotStarted(_, reason, status) => {
                    eprintln!("vm: {reason}");
                    break status;
                }
                Event::Deadline => {
                    eprintln!("vm: timeout\n{}", guest.console());
                    break 124;
                }
            }
        };
        guest.shut_down()?;
        Ok(ExitCode::from(u8::try_from(status).unwrap_or(255)))
    }
}
