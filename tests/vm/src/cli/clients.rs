//! `cargo vm clients`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use connectx::PortKind;

use super::options::{Kernel, Machine};
use super::{c_abi, linked, llama, mooncake, valkey};
use crate::arch::Arch;
use crate::fetch::{self, Parts};
use crate::guest::Options;
use crate::guest::protocol::Network;
use crate::hca::{self, Hca};
use crate::process;
use crate::qemu::Accelerator;
use crate::results::{self, Group};
use crate::store::Store;
use crate::suite::{self, Built, Ground, Job, Limits, Place, Program, Round, Suite, Target};

/// The crate that stands in for ruapc's, in the workspace.
const STAND_IN: &str = "tests/clients/ruapc-rdma";

/// Where the client's source and what is built of it lie, in the workspace.
const PLACE: &str = "target/clients";

/// The part of the C ABI's tests that runs crates which are linked to libibverbs.
const LINKED: &str = "crates::";

/// The part that runs engines and stores: Ceph's messenger and Mooncake as they were built by others, Valkey
/// and llama.cpp.
const ENGINES: &str = "engines::";

/// What fetches or builds an engine; returns at once if it is there.
type Get = fn(&Store) -> Result<()>;

/// How the names of each engine's tests begin, and what gets it.
const ENGINES_WANTED: [(&str, Get); 5] = [
    ("engines::ceph", fetch::ceph),
    ("engines::ucx", fetch::ucx),
    ("engines::mooncake", mooncake::fetch),
    ("engines::valkey", valkey::build),
    ("engines::llama", llama::build),
];

/// The name of the test of the host about packages that need those libraries.
const PACKAGES: &str = "packages::";

/// How the names of libraries begin that no program may get hold of.
const WITHOUT: &str = "libibverbs";

/// Run the tests of programs that others wrote for libibverbs, on this library
///
/// The first is ruapc, as the registry has it: a library for remote procedure calls over RDMA. Only the crate
/// by which it drives devices is another one (tests/clients/ruapc-rdma). Its unit tests about RDMA and all
/// its integration tests run on soft-RoCE in a guest that has no libibverbs. With --full there are also
/// crates that are linked to libibverbs and know nothing of this library (tests/clients/linked): their own
/// tests run on soft-RoCE and on the adapter, on the library of the C ABI and on the distribution's
/// libibverbs side by side. So do Mooncake's transfer engine (tests/clients/mooncake), which comes as a
/// wheel for Python, Valkey over RDMA, which is built of Debian's source package, and llama.cpp's backend for
/// remote procedure calls (tests/clients/llama), built of Python's, and the measurement of Ceph's messenger,
/// in Debian's package, and a newer UCX (Debian 13's, 310 MB unpacked). All programs in packages of Debian's
/// newer suites that need libibverbs or librdmacm are started, in a tree of their own, for which 3 GB are
/// fetched and unpacked. The clients are built in target/clients, which takes minutes the first time, and
/// needs the registries.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm clients\n  cargo vm clients --kernel 6.12 test_remote_read\n  \
                  cargo vm clients --full --kernel 6.12 crates::\n  \
                  cargo vm clients --full engines::\n  \
                  cargo vm clients --full --kernel 6.12 engines::valkey\n  \
                  cargo vm clients --full packages::"
)]
pub(crate) struct Clients {
    #[command(flatten)]
    kernel: Kernel,
    #[command(flatten)]
    machine: Machine,
    /// Also crates that are linked to libibverbs, Ceph's messenger, UCX, Mooncake, Valkey and llama.cpp
    #[arg(long)]
    full: bool,
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
        let mut names = self.names.iter();
        let parts = [LINKED, ENGINES, PACKAGES];
        let is_for_c = |name: &str| parts.iter().any(|part| name.starts_with(part));
        let jobs = match !self.names.is_empty() && names.all(|name| is_for_c(name)) {
            // None of ruapc's is meant, so it need not be built.
            true => Vec::new(),
            false => self.jobs(build(store.workspace())?)?,
        };
        let mut groups = Vec::new();
        if !jobs.is_empty() {
            let (parts, mut options) = self.prepare(&store)?;
            options.without = Some(WITHOUT.to_owned());
            groups.push(self.in_guest(&store, &(parts, options), Place::One, jobs)?);
        }
        if self.full {
            groups.extend(self.linked(&store)?);
        }
        let looks = self.full && self.is_meant(PACKAGES);
        let starts = !looks || users_start(&store)?;
        print!(
            "\nslowest tests\n{}\n{}",
            results::slowest(&groups),
            results::summary(&groups)
        );
        Ok(match results::totals(&groups).clean() && starts {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// Whether tests whose names begin so are to be run: all are if none is named.
    fn is_meant(&self, part: &str) -> bool {
        let mut names = self.names.iter();
        let is_of = |name: &String| name.starts_with(part) || part.starts_with(name.as_str());
        self.names.is_empty() || names.any(is_of)
    }

    /// Runs jobs in one boot.
    fn in_guest(
        &self,
        store: &Store,
        (parts, options): &(Parts, Options),
        place: Place,
        jobs: Vec<Job>,
    ) -> Result<Group> {
        let round = Round {
            place,
            kernel: 0,
            jobs,
        };
        let limits = Limits {
            test: Duration::from_secs(self.test_timeout),
            full: true,
            beside_others: false,
            sanitizer: None,
            signals: None,
        };
        suite::run_in_guest(store, parts, options, &round, limits)
    }

    /// Builds the crates that are linked to libibverbs, and runs the tests that run them, on each device.
    fn linked(&self, store: &Store) -> Result<Vec<Group>> {
        let suites: Vec<Suite> = suite::read(store.workspace())?
            .into_iter()
            .filter_map(|suite| suite.with_test(c_abi::TESTS))
            .collect();
        // What is not meant need not be built.
        if self.is_meant(LINKED) {
            linked::build(store, &suites)?;
        }
        for (engine, get) in ENGINES_WANTED {
            if self.is_meant(engine) {
                get(store)?;
            }
        }
        if !self.is_meant(LINKED) && !self.is_meant(ENGINES) {
            return Ok(Vec::new());
        }
        c_abi::build(store)?;
        let grounds = [Ground::SoftRoce, Ground::Pair];
        let built = Built::some(store.workspace(), Target::Here, &suites, &grounds)?;
        let is_for_c = |name: &str| name.contains(LINKED) || name.contains(ENGINES);
        let of_ground = |ground| -> Result<Vec<Job>> {
            let mut jobs = Vec::new();
            for program in built.programs(&suites, ground)? {
                let program = Arc::new(program);
                jobs.extend(Job::all(&program, &program)?);
            }
            jobs.retain(|job| is_for_c(&job.name()) && job.is_wanted(&self.names));
            Ok(jobs)
        };
        let [of_one, of_pair] = [of_ground(Ground::SoftRoce)?, of_ground(Ground::Pair)?];
        let mut groups = Vec::new();
        for place in places() {
            let jobs = match place.ground() {
                Ground::Pair => &of_pair,
                _ => &of_one,
            };
            if jobs.is_empty() {
                continue;
            }
            let kernel = &self.kernel.kernel;
            let machine = &self.machine;
            let prepared = match place.hca() {
                None => machine.prepare(store, Arch::X86_64, kernel, Network::OneHost)?,
                Some(hca) => {
                    machine.prepare_with_adapter(store, Arch::X86_64, kernel, hca.clone())?
                }
            };
            suite::compile_c_programs(store, &suites, &prepared.0.tools.root)?;
            groups.push(self.in_guest(store, &prepared, place, jobs.clone())?);
        }
        Ok(groups)
    }

    /// ruapc's tests have limits of seconds, for hardware. So time is a count of instructions where the guest
    /// is emulated: whatever else this machine does, they have the same time.
    fn prepare(&self, store: &Store) -> Result<(Parts, Options)> {
        let kernel = &self.kernel.kernel;
        let of = |machine: &Machine| machine.prepare(store, Arch::X86_64, kernel, Network::OneHost);
        let (parts, options) = of(&self.machine)?;
        if options.accelerator == Accelerator::Tcg && self.machine.leaves_choice() {
            return of(&self.machine.clone().counted(1));
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

/// Where the programs of others run that are linked to libibverbs: soft-RoCE, and adapters with ports of
/// either kind, in one guest and shared by two.
fn places() -> impl Iterator<Item = Place> {
    let ports = [PortKind::InfiniBand, PortKind::Roce];
    let adapters = ports.map(|port| Hca::for_tests(hca::Kind::ConnectX(port)));
    let alone = adapters.clone().into_iter();
    let shared = adapters.into_iter().map(|hca| hca.shared_by(2));
    [Place::One]
        .into_iter()
        .chain(alone.chain(shared).map(Place::Adapter))
}

/// Fetches all packages of newer suites that need the libraries for C programs, and has a test of the host
/// look at what they are linked to, and start them.
fn users_start(store: &Store) -> Result<bool> {
    fetch::users(store)?;
    let mut test = Command::new(cargo());
    test.args(["test", "--package", "uverbs", "--test", "newer"])
        .args(["--", "what_needs_the_libraries"])
        .current_dir(store.workspace());
    let status = test.status().context("starting cargo")?;
    Ok(status.success())
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
    let [source] = sources(stand_in, ["ruapc"])?;
    let name = source
        .file_name()
        .context("the registry has no directory for ruapc")?;
    let workspace = place.join("source");
    copy(&source, &workspace.join(name), |_| {})?;
    let manifest = manifest(name.to_string_lossy().as_ref(), stand_in);
    fs::write(workspace.join("Cargo.toml"), manifest).context("writing the client's workspace")?;
    fs::copy(stand_in.join("Cargo.lock"), workspace.join("Cargo.lock"))
        .context("copying Cargo.lock")?;
    Ok(workspace)
}

/// Where cargo has the sources of packages that this one needs, which are fetched if need be.
///
/// # Errors
/// If they cannot be fetched, or the package's Cargo.lock lacks one.
pub(super) fn sources<const N: usize>(of: &Path, names: [&str; N]) -> Result<[PathBuf; N]> {
    let mut fetch = Command::new(cargo());
    fetch.args(["fetch", "--locked"]).current_dir(of);
    process::output("fetching clients", &mut fetch)?;
    let metadata = cargo_metadata::MetadataCommand::new()
        .current_dir(of)
        .other_options(["--locked", "--offline"].map(str::to_owned))
        .exec()
        .context("reading a client's dependencies (cargo metadata)")?;
    let source = |name: &str| {
        let mut packages = metadata.packages.iter();
        let package = packages.find(|package| package.name.as_str() == name)?;
        Some(package.manifest_path.parent()?.into())
    };
    let found: Option<Vec<PathBuf>> = names.into_iter().map(source).collect();
    found
        .and_then(|found| found.try_into().ok())
        .with_context(|| format!("the Cargo.lock in {} lacks one of {names:?}", of.display()))
}

/// The cargo that this one was started by.
pub(super) fn cargo() -> std::ffi::OsString {
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

/// Copies a package's directory, with a change to its manifest, unless it has been copied whole before: what
/// cargo built of it stays good then.
///
/// # Errors
/// If it cannot be read or written.
pub(super) fn copy(from: &Path, to: &Path, change: impl FnOnce(&mut String)) -> Result<()> {
    if to.is_dir() {
        return Ok(());
    }
    // The version is a part of the name, with a dot in it.
    let mut half = to.as_os_str().to_owned();
    half.push(".half");
    let half = PathBuf::from(half);
    if half.is_dir() {
        fs::remove_dir_all(&half).with_context(|| format!("removing {}", half.display()))?;
    }
    let copied = || {
        copy_all(from, &half)?;
        let manifest = half.join("Cargo.toml");
        let mut text = fs::read_to_string(&manifest)?;
        change(&mut text);
        fs::write(&manifest, text)?;
        fs::rename(&half, to)
    };
    copied().with_context(|| format!("copying {} to {}", from.display(), to.display()))
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
