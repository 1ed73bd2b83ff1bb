//! `cargo vm clients`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use super::options::{Kernel, Machine};
use crate::arch::Arch;
use crate::fetch::Parts;
use crate::guest::Options;
use crate::guest::protocol::Network;
use crate::process;
use crate::qemu::Accelerator;
use crate::results;
use crate::store::Store;
use crate::suite::{self, Job, Limits, Place, Program, Round};

/// The crate that stands in for ruapc's, in the workspace.
const STAND_IN: &str = "tests/clients/ruapc-rdma";

/// Where the client's source and what is built of it lie, in the workspace.
const PLACE: &str = "target/clients";

/// How the names of libraries begin that no program may get hold of.
const WITHOUT: &str = "libibverbs";

/// Run the tests of a program that others wrote for libibverbs, on this library and without libibverbs
///
/// The program is ruapc, as the registry has it: a library for remote procedure calls over RDMA. Only the
/// crate by which it drives devices is another one (tests/clients/ruapc-rdma). Its unit tests about RDMA and
/// all its integration tests run on soft-RoCE in a guest that has no libibverbs. They are built in
/// target/clients, which takes minutes the first time, and needs the registry.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm clients\n  cargo vm clients --kernel 6.12 test_remote_read"
)]
pub(crate) struct Clients {
    #[command(flatten)]
    kernel: Kernel,
    #[command(flatten)]
    machine: Machine,
    /// The time limit of one test, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    test_timeout: u64,
    /// Only tests whose names contain one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Clients {
    /// Builds them, boots, runs them.
    ///
    /// # Errors
    /// If they cannot be run at all. Tests that fail are a status.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let programs = build(store.workspace())?;
        let (parts, mut options) = self.prepare(&store)?;
        options.without = Some(WITHOUT.to_owned());
        let round = Round {
            place: Place::One,
            kernel: 0,
            jobs: self.jobs(programs)?,
        };
        let limits = Limits {
            test: Duration::from_secs(self.test_timeout),
            full: true,
            beside_others: false,
            sanitizer: None,
        };
        let groups = [suite::run_in_guest(
            &store, &parts, &options, &round, limits,
        )?];
        print!(
            "\nslowest tests\n{}\n{}",
            results::slowest(&groups),
            results::summary(&groups)
        );
        Ok(if results::totals(&groups).clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// ruapc's tests have limits of seconds, for hardware. So time is a count of instructions where the guest
    /// is emulated: whatever else this machine does, they have the same time.
    fn prepare(&self, store: &Store) -> Result<(Parts, Options)> {
        let kernel = &self.kernel.kernel;
        let of = |machine: &Machine| machine.prepare(store, Arch::X86_64, kernel, Network::OneHost);
        let (parts, options) = of(&self.machine)?;
        if options.accelerator == Accelerator::Tcg && self.machine.leaves_choice() {
            return of(&self.machine.clone().counted());
        }
        Ok((parts, options))
    }

    fn jobs(&self, programs: Vec<Program>) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for program in programs.into_iter().map(Arc::new) {
            jobs.extend(Job::all(&program, &program)?);
        }
        jobs.retain(|job| is_about_rdma(job) && job.is_wanted(&self.names));
        Ok(jobs)
    }
}

/// Most unit tests of ruapc are about other transports.
fn is_about_rdma(job: &Job) -> bool {
    let test = job.test.as_deref().unwrap_or_default();
    job.program.name != "ruapc" || test.contains("rdma")
}

/// Builds the stand-in's tests and those of ruapc with it.
fn build(workspace: &Path) -> Result<Vec<Program>> {
    let stand_in = workspace.join(STAND_IN);
    let place = workspace.join(PLACE);
    let built = place.join("build").display().to_string();
    let to = ["--target-dir", &built];
    let client = unpack(&stand_in, &place)?;
    let of_stand_in = [["--locked", "--tests"].as_slice(), &to].concat();
    let of_client = ["--offline", "--features", "ruapc/rdma", "--lib", "--tests"];
    let of_client = [of_client.as_slice(), &to].concat();
    let mut programs = suite::tests_of_others(&stand_in, &of_stand_in)?;
    programs.extend(suite::tests_of_others(&client, &of_client)?);
    Ok(programs)
}

/// Makes a workspace of the client's source as the registry has it, and of the stand-in, with the versions
/// that the stand-in's Cargo.lock has; gives its directory.
fn unpack(stand_in: &Path, place: &Path) -> Result<PathBuf> {
    let source = source(stand_in)?;
    let name = source
        .file_name()
        .context("the registry has no directory for ruapc")?;
    let workspace = place.join("source");
    copy(&source, &workspace.join(name))?;
    let manifest = manifest(name.to_string_lossy().as_ref(), stand_in);
    fs::write(workspace.join("Cargo.toml"), manifest).context("writing the client's workspace")?;
    fs::copy(stand_in.join("Cargo.lock"), workspace.join("Cargo.lock"))
        .context("copying Cargo.lock")?;
    Ok(workspace)
}

/// Where cargo has the source of ruapc, which is fetched if need be.
fn source(stand_in: &Path) -> Result<PathBuf> {
    let mut fetch = Command::new(cargo());
    fetch.args(["fetch", "--locked"]).current_dir(stand_in);
    process::output("fetching ruapc", &mut fetch)?;
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(stand_in)
        .other_options(["--locked", "--offline"].map(str::to_owned))
        .exec()
        .context("reading the stand-in's dependencies (cargo metadata)")?;
    let mut packages = metadata.packages.into_iter();
    let ruapc = packages.find(|package| package.name.as_str() == "ruapc");
    let directory = ruapc.and_then(|package| Some(package.manifest_path.parent()?.into()));
    directory.context("the stand-in's Cargo.lock has no ruapc")
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The workspace's Cargo.toml. Its profile is the stand-in's, so that the two share what is built.
fn manifest(client: &str, stand_in: &Path) -> String {
    let stand_in = stand_in.display().to_string();
    format!(
        "[workspace]\nmembers = [{client:?}]\nresolver = \"2\"\n\n\
         [patch.crates-io]\nruapc-rdma = {{ path = {stand_in:?} }}\n\n\
         [profile.dev]\ndebug = \"line-tables-only\"\nopt-level = 1\n"
    )
}

/// Copies a directory, unless it has been copied whole before: what cargo built of it stays good then.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.is_dir() {
        return Ok(());
    }
    let half = to.with_extension("half");
    if half.is_dir() {
        fs::remove_dir_all(&half).with_context(|| format!("removing {}", half.display()))?;
    }
    copy_all(from, &half)
        .and_then(|()| fs::rename(&half, to))
        .with_context(|| format!("copying {} to {}", from.display(), to.display()))
}

fn copy_all(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_all(&entry.path(), &to)?,
            false => drop(fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}
