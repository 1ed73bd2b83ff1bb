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
use crate::fetch::Parts;
use crate::guest::protocol::{Ending, Network, Spec};
use crate::guest::{self, Guest, Options, Outcome, Stream};
use crate::qemu::Accelerator;
use crate::store::Store;

/// How long all measurements of a guest may take.
const LIMIT: Duration = Duration::from_secs(90 * 60);

/// What the guest is given before: huge pages to register, and where there are two processors one of them for
/// the kernel's workers, so that a program that polls on the other one does not wait for the scheduler.
/// With three, each end of a connection has one, too.
const PREPARE: &str = "echo 40 > /proc/sys/vm/nr_hugepages; workers=/sys/devices/virtual/workqueue/cpumask; \
     case $(nproc) in \
     1) exec \"$@\" ;; \
     2) echo 2 > $workers; exec taskset 1 \"$@\" ;; \
     *) echo 4 > $workers; exec \"$@\" ;; esac";

/// What is measured.
const GROUPS: [&str; 10] = [
    "instructions",
    "c-abi",
    "awaited",
    "waits",
    "start-up",
    "control",
    "transfer",
    "perftest",
    "perf",
    "scale",
];

/// The groups that measure time. Unless something else is asked for they run where time is a count of
/// instructions.
const TIMED: [&str; 5] = ["waits", "control", "transfer", "perftest", "scale"];

/// The group whose programs poll at both ends of a connection. Each end has a processor where time is
/// counted, and the kernel's workers have one.
const POLLED: (&str, u32) = ("perf", 3);

/// How the line begins by which the program in the guest asks for other turns of processors.
const TURN: &str = "turn ";

/// Measure side by side with rdma-core, in one guest
///
/// Ours and rdma-core's programs do the same work and take turns. Numbers of instructions and system calls
/// are exact. The times of waits, control, transfer, perftest, perf and scale are counts of instructions, the
/// kernel's included, one nanosecond each, unless --accel chooses something else; those of start-up mean
/// something only as ratios.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    cargo vm bench\n  \
    cargo vm bench instructions start-up --json target/bench.json\n  \
    cargo vm bench instructions --hca connectx --write-docs\n  \
    cargo vm bench transfer --accel kvm\n  \
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
    /// Of transfers, measure only those that wait like this
    #[arg(long, value_name = "HOW", value_parser = ["polling", "events"])]
    wait: Option<String>,
    /// Write the records to this file, as JSON: a list with an object for each guest
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measure nothing; show what --json wrote, of one run or of several
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "groups")]
    from: Vec<PathBuf>,
    /// Replace the tables of what was measured in docs/benchmarks.md and docs/transfer.md, and its plots;
    /// with an adapter in docs/benchmarks-mlx5.md and docs/transfer-mlx5.md
    #[arg(long)]
    write_docs: bool,
    /// Fail if a row misses its goal that does not miss it in those tables
    #[arg(long)]
    held: bool,
    /// instructions, c-abi, awaited, waits, start-up, control, transfer, perftest, perf, scale; all if none
    /// is named
    #[arg(value_name = "GROUP", value_parser = GROUPS)]
    groups: Vec<String>,
}

impl Bench {
    /// Builds, boots, measures, prints the tables.
    ///
    /// # Errors
    /// If a program does not build or fails, or the guest does.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let (measured, clean) = match &*self.from {
            [] => self.measure(&store)?,
            files => (Measured::read(files)?, true),
        };
        print!("{}", table::all(&measured));
        let missed = match self.held {
            true => docs::newly_missed(store.workspace(), &measured, self.has_adapter())?,
            false => Vec::new(),
        };
        for row in &missed {
            eprintln!("vm: it misses its goal, and met it in docs/: {row}");
        }
        self.write(&store, &measured)?;
        Ok(if !missed.is_empty() {
            ExitCode::FAILURE
        } else if clean {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_RUNNER_FAILED)
        })
    }

    /// Measures, and gives whether the guests' kernels had nothing to complain of.
    fn measure(&self, store: &Store) -> Result<(Vec<Measured>, bool)> {
        let mut programs = None;
        let mut measured = Vec::new();
        let mut clean = true;
        for (machine, groups) in self.grounds() {
            let (parts, options) = self.prepare(store, &machine)?;
            let programs = match &mut programs {
                Some(programs) => programs,
                none => none.insert(Programs::build(store, &parts.tools.root, |group| {
                    self.wants(group)
                })?),
            };
            let mut guest = Guest::boot(store, &parts, &options)?;
            let lines = run(&mut guest, &self.spec(programs, &parts, &options, &groups)?)?;
            clean &= options::shut_down(guest)?;
            measured.push(Measured {
                kernel: parts.kernel.release.clone(),
                accelerator: format!("{:?}", options.accelerator),
                command: told(std::env::args().skip(1)),
                records: crate::bench::records(&lines)?,
            });
        }
        Ok((measured, clean))
    }

    /// Whether the pages of the adapter are meant.
    fn has_adapter(&self) -> bool {
        self.adapter.wanted().is_some()
    }

    /// Whether a group is measured.
    fn wants(&self, group: &str) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|wanted| wanted == group)
    }

    /// The machines to measure on, each with its groups.
    fn grounds(&self) -> Vec<(Machine, Vec<&'static str>)> {
        let groups = GROUPS.into_iter().filter(|group| self.wants(group));
        if !self.machine.leaves_choice() {
            return vec![(self.machine.clone(), groups.collect())];
        }
        let (polled, groups): (Vec<_>, Vec<_>) = groups.partition(|group| *group == POLLED.0);
        let (timed, others): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| TIMED.contains(group));
        let grounds = [
            (self.machine.clone(), others),
            (self.machine.clone().counted(1), timed),
            (self.machine.clone().counted(POLLED.1), polled),
        ];
        let grounds = grounds.into_iter();
        grounds.filter(|(_, groups)| !groups.is_empty()).collect()
    }

    fn prepare(&self, store: &Store, machine: &Machine) -> Result<(Parts, Options)> {
        let kernel = &self.kernel.kernel;
        match self.adapter.wanted() {
            Some(hca) => machine.prepare_with_adapter(store, Arch::X86_64, kernel, hca),
            None => machine.prepare(store, Arch::X86_64, kernel, Network::OneHost),
        }
    }

    /// What the guest runs.
    fn spec(
        &self,
        programs: &Programs,
        parts: &Parts,
        options: &Options,
        groups: &[&str],
    ) -> Result<Spec> {
        let mut words = vec!["sh".to_owned(), "-c".into(), PREPARE.into(), "sh".into()];
        words.extend(programs.measure());
        words.extend(self.quick.then(|| "--quick".to_owned()));
        if let Some(wait) = &self.wait {
            words.extend(["--wait".to_owned(), wait.clone()]);
        }
        if let Some(hca) = &options.hca {
            let first = format!("{}0", hca.kind().device_prefix());
            words.extend(["--device".to_owned(), first]);
            // A processor that is idle waits in the host's time: there the adapter is another thread.
            if options.accelerator == Accelerator::Icount {
                words.push("--awake".to_owned());
            }
        }
        words.extend(groups.iter().map(|&group| group.to_owned()));
        let mut environment = guest::environment(&parts.kernel.release, options.hca.as_ref(), &[]);
        // A backtrace reads symbols, which takes long under valgrind.
        environment.remove("RUST_BACKTRACE");
        Ok(Spec {
            words,
            environment,
            directory: options::current_directory()?,
            ..Spec::default()
        })
    }

    /// Writes the files that were asked for.
    fn write(&self, store: &Store, measured: &[Measured]) -> Result<()> {
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(measured).context("making JSON")?;
            fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
        }
        if self.write_docs {
            docs::write(store.workspace(), measured, self.has_adapter())?;
        }
        Ok(())
    }
}

/// The arguments that say what was measured, and not what was done with it.
fn told(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut told = Vec::new();
    let mut is_file = false;
    for argument in arguments {
        let hidden = is_file
            || argument.starts_with("--json")
            || ["--write-docs", "--held"].contains(&&*argument);
        is_file = argument == "--json";
        if !hidden {
            told.push(argument);
        }
    }
    told
}

/// Runs the measurements and gives what they print; a line of progress goes to standard error for each row.
fn run(guest: &mut Guest, spec: &Spec) -> Result<String> {
    let process = guest.start(spec)?;
    let mut output = Vec::new();
    let started = Instant::now();
    let turns = guest.turns();
    let mut set = Ok(());
    let show = |stream, bytes: &[u8]| match stream {
        Stream::Output => {
            let rows = bytes.iter().filter(|byte| **byte == b'\n').count();
            let before = output.len();
            output.extend_from_slice(bytes);
            // A line comes as a whole: nobody writes less.
            let text = String::from_utf8_lossy(&output[before..]);
            let mut asked = text.lines().filter_map(|line| line.strip_prefix(TURN));
            if let Some(length) = asked.next_back()
                && let Some(turns) = &turns
            {
                set = turns.set(length);
            }
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
    set?;
    match outcome {
        Outcome::Ended(Ending::Exited(0)) => {
            let text = String::from_utf8(output).context("the records are not UTF-8")?;
            let records = text.lines().filter(|line| !line.starts_with(TURN));
            Ok(records.map(|line| format!("{line}\n")).collect())
        }
        Outcome::Ended(ending) => bail!("measuring failed with status {}", ending.status()),
        Outcome::NotStarted(reason, _) => bail!("{reason}"),
        Outcome::TimedOut => bail!("not done after {} s", LIMIT.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_told_without_its_files() {
        let command = "bench transfer --json a.json --quick --json=b.json --write-docs scale";
        let told = told(command.split(' ').map(str::to_owned));
        assert_eq!(told, ["bench", "transfer", "--quick", "scale"]);
    }
}
