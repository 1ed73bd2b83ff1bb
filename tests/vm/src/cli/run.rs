//! `cargo vm run`.

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;

use super::options::{self, Adapter, Architecture, Environment, Kernel, Machine};
use super::{EXIT_RUNNER_FAILED, EXIT_TIMED_OUT};
use crate::fetch::Parts;
use crate::guest::protocol::{Ending, Network, Spec};
use crate::guest::{self, Guest, Input, Options, Outcome, Stream};
use crate::hca::Hca;
use crate::store::Store;

/// Run a command of the host in a guest, and end with its status
///
/// The command finds the host's file system, read-only, with rdma-core's programs added; /tmp, /run and
/// /dev/shm are fresh. There is one soft-RoCE device, rxe0, on the netdev d0 with the address 10.9.0.1. The
/// status is 128+N for signal N, 124 at the time limit, and 125 if the guest fails or its kernel complains.
/// With --hca the devices are mlx5_0 or efa_0 and so on, and there is no soft-RoCE.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    cargo vm run -- ibv_devinfo\n  \
    cargo vm run --kernel 6.1 -- target/debug/uverbs devices\n  \
    cargo vm run --hosts 2 -- sh -c 'ip netns exec h2 ibv_rc_pingpong -d rxe2 -g 1 & sleep 1; ibv_rc_pingpong -d rxe1 -g 1 10.9.0.2'")]
pub(crate) struct Run {
    #[command(flatten)]
    kernel: Kernel,
    #[command(flatten)]
    architecture: Architecture,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    adapter: Adapter,
    #[command(flatten)]
    environment: Environment,
    /// 2: network namespaces h1 (10.9.0.1, rxe1) and h2 (10.9.0.2, rxe2), joined by veth; the command runs in
    /// h1
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2), conflicts_with = "hca")]
    hosts: u8,
    /// 2: two guests share the adapter, each with N functions; the command runs in both, with VM_GUEST=1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=2), requires = "hca")]
    guests: u16,
    /// Kill the command after so many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Pass standard input on to the command
    #[arg(short, long)]
    interactive: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl Run {
    /// Boots, runs the command, ends the guest.
    ///
    /// # Errors
    /// If the guest fails.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let network = if self.hosts == 2 {
            Network::TwoHosts
        } else {
            Network::OneHost
        };
        let (kernel, arch) = (&self.kernel.kernel, self.architecture.arch);
        let (parts, options) = match self.adapter.wanted() {
            Some(hca) => {
                let hca = hca.shared_by(self.guests);
                self.machine
                    .prepare_with_adapter(&store, arch, kernel, hca)?
            }
            None => self.machine.prepare(&store, arch, kernel, network)?,
        };
        let spec = Spec {
            words: in_first_host(&self.command, network),
            environment: guest::environment(
                &parts.kernel.release,
                options.hca.as_ref(),
                &self.environment.variables,
            ),
            directory: options::current_directory()?,
            input: self.interactive,
            terminal: None,
        };
        let mut guest = Guest::boot(&store, &parts, &options)?;
        let process = guest.start(&spec)?;
        if self.interactive {
            feed(guest.input(process));
        }
        let deadline = self
            .timeout
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let second = match self.guests {
            1 => None,
            _ => Some(self.in_second(&store, &parts, &options, &guest, &spec, deadline)?),
        };
        let outcome = guest::to_end(&mut guest, process, deadline, pass_on)?;
        let (outcome, second_clean) = match second {
            None => (outcome, true),
            Some(second) => {
                let (of_second, clean) = second
                    .join()
                    .map_err(|_| anyhow!("watching the second guest panicked"))??;
                let failed = outcome != Outcome::Ended(Ending::Exited(0));
                (if failed { outcome } else { of_second }, clean)
            }
        };
        if outcome == Outcome::TimedOut {
            eprintln!(
                "vm: killed at the time limit of {} s; {}",
                self.timeout.unwrap_or_default(),
                guest.console()
            );
        }
        if let Some(seed) = options.hca.as_ref().and_then(Hca::seed)
            && outcome != Outcome::Ended(Ending::Exited(0))
        {
            eprintln!("vm: the order of things was that of --hca-seed {seed}");
        }
        let clean = options::shut_down(guest)? && second_clean;
        Ok(if clean {
            status(&outcome)
        } else {
            ExitCode::from(EXIT_RUNNER_FAILED)
        })
    }
}

/// How a second guest's command ended, and whether the guest was clean.
type Second = JoinHandle<Result<(Outcome, bool)>>;

impl Run {
    /// Boots a second guest and runs the command there, watched by a thread of its own.
    fn in_second(
        &self,
        store: &Store,
        parts: &Parts,
        options: &Options,
        first: &Guest,
        spec: &Spec,
        deadline: Option<Instant>,
    ) -> Result<Second> {
        let mut second = Guest::boot_second(store, parts, options, first)?;
        let mut spec = spec.clone();
        spec.environment
            .insert("VM_GUEST".to_owned(), "2".to_owned());
        let process = second.start(&spec)?;
        Ok(std::thread::spawn(move || {
            let outcome = guest::to_end(&mut second, process, deadline, pass_on)?;
            Ok((outcome, options::shut_down(second)?))
        }))
    }
}

/// The command, moved into the first of two hosts.
pub(super) fn in_first_host(command: &[String], network: Network) -> Vec<String> {
    let prefix: &[&str] = match network {
        Network::OneHost | Network::Adapter { .. } => &[],
        Network::TwoHosts => &["ip", "netns", "exec", "h1"],
    };
    prefix
        .iter()
        .map(|&word| word.to_owned())
        .chain(command.iter().cloned())
        .collect()
}

/// Writes what the command wrote to the stream of the same name. If nobody reads it any more, it is lost, as
/// in a pipe.
pub(super) fn pass_on(stream: Stream, bytes: &[u8]) {
    let _ = match stream {
        Stream::Output => io::stdout()
            .write_all(bytes)
            .and_then(|()| io::stdout().flush()),
        Stream::Error => io::stderr().write_all(bytes),
    };
}

/// Passes standard input on until its end, from a thread of its own, which ends with this program.
pub(super) fn feed(input: Input) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = io::stdin().read(&mut buffer).unwrap_or_default();
            if input.send(&buffer[..length]).is_err() || length == 0 {
                return;
            }
        }
    });
}

/// The status to end with.
pub(super) fn status(outcome: &Outcome) -> ExitCode {
    let status = match outcome {
        Outcome::Ended(ending) => ending.status(),
        Outcome::NotStarted(reason, status) => {
            eprintln!("vm: {reason}");
            *status
        }
        Outcome::TimedOut => EXIT_TIMED_OUT.into(),
    };
    ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX))
}
