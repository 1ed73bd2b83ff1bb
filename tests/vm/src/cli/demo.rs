//! `cargo vm demo`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use nix::libc::SIGTERM;

use super::EXIT_RUNNER_FAILED;
use super::options::{self, Architecture, Kernel, Machine};
use crate::guest::protocol::{Network, Spec};
use crate::guest::{self, Event, Guest};
use crate::store::Store;
use crate::suite;

/// How long the two processes may take.
const LIMIT: Duration = Duration::from_secs(120);

/// What both sides are told: an RC pingpong on rxe0 with 1000 messages of 4 KiB, each checked.
const PINGPONG: [&str; 11] = [
    "pingpong", "rc", "-d", "rxe0", "-g", "1", "-n", "1000", "-s", "4096", "-c",
];

/// Show it: two processes exchange messages over soft-RoCE, with no libibverbs
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm demo\n  cargo vm demo --kernel 6.1\n  cargo vm demo --arch arm64"
)]
pub(crate) struct Demo {
    #[command(flatten)]
    kernel: Kernel,
    #[command(flatten)]
    architecture: Architecture,
    #[command(flatten)]
    machine: Machine,
}

impl Demo {
    /// Builds, boots, runs both processes and shows what they say.
    ///
    /// # Errors
    /// If the build or the guest fails.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let arch = self.architecture.arch;
        let program = suite::command_line(&store, arch)?;
        let (parts, options) =
            self.machine
                .prepare(&store, arch, &self.kernel.kernel, Network::OneHost)?;
        let program = program.display().to_string();
        let common: Vec<String> = std::iter::once(program)
            .chain(PINGPONG.map(str::to_owned))
            .collect();
        let client = common
            .iter()
            .cloned()
            .chain(["127.0.0.1".to_owned()])
            .collect();
        let environment = guest::environment(&parts.kernel.release, None, &[]);
        let directory = options::current_directory()?;
        let spec = |words| Spec {
            words,
            environment: environment.clone(),
            directory: directory.clone(),
            ..Spec::default()
        };
        let started = Instant::now();
        let mut guest = Guest::boot(&store, &parts, &options)?;
        println!(
            "Linux {} in QEMU ({:?}), up in {:.1} s",
            parts.kernel.release,
            options.accelerator,
            started.elapsed().as_secs_f64()
        );
        let sides = [("server", spec(common)), ("client", spec(client))];
        let passed = both(&mut guest, &sides)?;
        let clean = options::shut_down(guest)?;
        if passed && clean {
            println!(
                "\n1000 messages of 4096 bytes went each way over soft-RoCE, every byte checked, without libibverbs."
            );
        }
        Ok(match (passed, clean) {
            (true, true) => ExitCode::SUCCESS,
            (false, _) => ExitCode::FAILURE,
            (true, false) => ExitCode::from(EXIT_RUNNER_FAILED),
        })
    }
}

/// One of the two processes.
struct Side {
    name: &'static str,
    process: u32,
    output: Vec<u8>,
    status: Option<i32>,
}

/// Starts both sides at once (the client waits for the server by itself) and shows their output, each when it
/// ends.
fn both(guest: &mut Guest, specs: &[(&'static str, Spec); 2]) -> Result<bool> {
    let mut sides = Vec::new();
    for (name, spec) in specs {
        println!("  {name}: uverbs {}", spec.words[1..].join(" "));
        sides.push(Side {
            name,
            process: guest.start(spec)?,
            output: Vec::new(),
            status: None,
        });
    }
    let deadline = Instant::now() + LIMIT;
    while sides.iter().any(|side| side.status.is_none()) {
        let (process, event) = match guest.next(Some(deadline))? {
            Event::Wrote(process, _, bytes) => (process, Ok(bytes)),
            Event::Ended(process, ending) => (process, Err(ending.status())),
            Event::NotStarted(_, reason, _) => bail!("{reason}"),
            Event::Deadline => bail!("not done after {} s\n{}", LIMIT.as_secs(), guest.console()),
        };
        let Some(side) = sides.iter_mut().find(|side| side.process == process) else {
            continue;
        };
        match event {
            Ok(bytes) => side.output.extend(bytes),
            Err(status) => {
                side.status = Some(status);
                show(side);
                if status != 0 {
                    end_others(guest, &sides)?;
                }
            }
        }
    }
    Ok(sides.iter().all(|side| side.status == Some(0)))
}

/// A side whose peer has failed would wait for it in vain.
fn end_others(guest: &mut Guest, sides: &[Side]) -> Result<()> {
    for side in sides.iter().filter(|side| side.status.is_none()) {
        guest.signal(side.process, SIGTERM)?;
    }
    Ok(())
}

fn show(side: &Side) {
    println!("\n{}", side.name);
    for line in String::from_utf8_lossy(&side.output).lines() {
        println!("  {line}");
    }
    match side.status {
        None | Some(0) => {}
        Some(status) => println!("  ended with status {status}"),
    }
}
