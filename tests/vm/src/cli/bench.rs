//! `cargo vm bench`.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::EXIT_RUNNER_FAILED;
use super::options::{self, Adapter, Kernel, Machine};
use crate::arch::Arch;
use crate::bench::{Measured, Programs, docs, table};
use crate::guest::protocol::{Ending, Network, Spec};
use crate::guest::{self, Guest, Outcome, Stream};
use crate::store::Store;

/// How long all measurements may take.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What the guest is given before: huge pages to register, and a processor for the kernel's workers, so that
/// a program that polls on the other one does not wait for the scheduler.
const PREPARE: &str = "echo 40 > /proc/sys/vm/nr_hugepages; \
     echo 2 > /sys/devices/virtual/workqueue/cpumask; exec taskset 1 \"$@\"";

/// Measure side by side with rdma-core, in one guest
///
/// Ours and rdma-core's programs do the same work and take turns. Numbers of instructions and system calls
/// are exact; times under emulation mean something only as ratios.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    cargo vm bench\n  \
    cargo vm bench instructions start-up --json target/bench.json\n  \
    cargo vm bench instructions --hca connectx --write-docs\n  \
    cargo vm bench --kernel 6.1 --quick")]
pub(crate) struct Bench {
    #[command(flatten)]
    kernel: Kernel,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    adapter: Adapter,
    /// Fewer rounds: counts stay exact, times get rougher
    #[arg(long)]
    quick: bool,
    /// Write the records to this file, as a JSON list
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write docs/benchmarks.md, or with an adapter docs/benchmarks-mlx5.md
    #[arg(long)]
    write_docs: bool,
    /// instructions, c-abi, awaited, start-up, control, transfer; everything if nothing is named
    #[arg(value_name = "GROUP", value_parser = ["instructions", "c-abi", "awaited", "start-up", "control", "transfer"])]
    groups: Vec<String>,
}

impl Bench {
    /// Builds, boots, measures, prints the tables.
    ///
    /// # Errors
    /// If a program does not build or fails, or the guest does.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let kernel = &self.kernel.kernel;
        let (parts, options) = match self.adapter.wanted() {
            Some(hca) => self
                .machine
                .prepare_with_adapter(&store, Arch::X86_64, kernel, hca)?,
            None => self
                .machine
                .prepare(&store, Arch::X86_64, kernel, Network::OneHost)?,
        };
        let programs = Programs::build(&store, &parts.tools.root)?;
        let mut words = vec!["sh".to_owned(), "-c".into(), PREPARE.into(), "sh".into()];
        words.extend(programs.measure());
        words.extend(self.quick.then(|| "--quick".to_owned()));
        if options.hca.is_some() {
            words.extend(["--device".to_owned(), "mlx5_0".to_owned()]);
        }
        words.extend(self.groups.iter().cloned());
        let mut environment = guest::environment(&parts.kernel.release, options.hca.as_ref(), &[]);
        // A backtrace reads symbols, which takes long under valgrind.
        environment.remove("RUST_BACKTRACE");
        let spec = Spec {
            words,
            environment,
            directory: options::current_directory()?,
            ..Spec::default()
        };
        let mut guest = Guest::boot(&store, &parts, &options)?;
        let lines = run(&mut guest, &spec)?;
        let clean = options::shut_down(guest)?;
        let measured = Measured {
            kernel: parts.kernel.release.clone(),
            accelerator: format!("{:?}", options.accelerator),
            command: std::env::args().skip(1).collect(),
            records: crate::bench::records(&lines)?,
        };
        print!("{}", table::all(&measured));
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&measured).context("making JSON")?;
            fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        if self.write_docs {
            let (page, device) = match options.hca {
                Some(_) => ("docs/benchmarks-mlx5.md", docs::MLX5),
                None => ("docs/benchmarks.md", docs::SOFT_ROCE),
            };
            let path = store.workspace().join(page);
            fs::write(&path, docs::page(&measured, device))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(if clean {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_RUNNER_FAILED)
        })
    }
}

/// Runs the measurements and gives what they print; a line of progress goes to standard error for each row.
fn run(guest: &mut Guest, spec: &Spec) -> Result<String> {
    let process = guest.start(spec)?;
    let mut output = Vec::new();
    let started = Instant::now();
    let show = |stream, bytes: &[u8]| match stream {
        Stream::Output => {
            let rows = bytes.iter().filter(|byte| **byte == b'\n').count();
            output.extend_from_slice(bytes);
            if rows > 0 {
                let all = output.iter().filter(|byte| **byte == b'\n').count();
                eprint!(
                    "\r{all} rows measured after {} s ",
                    started.elapsed().as_secs()
                );
            }
        }
        // Of no further interest if it is no longer read.
        Stream::Error => drop(io::stderr().write_all(bytes)),
    };
    let outcome = guest::to_end(guest, process, Some(Instant::now() + LIMIT), show)?;
    eprintln!();
    match outcome {
        Outcome::Ended(Ending::Exited(0)) => {
            String::from_utf8(output).context("the records are not UTF-8")
        }
        Outcome::Ended(ending) => bail!("measuring failed with status {}", ending.status()),
        Outcome::NotStarted(reason, _) => bail!("{reason}"),
        Outcome::TimedOut => bail!("not done after {} s", LIMIT.as_secs()),
    }
}
