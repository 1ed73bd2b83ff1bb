//! Building test programs and examples with cargo, and finding out where it put them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Artifact, Message, TargetKind};
use clap::ValueEnum;

use super::Suite;
use crate::arch::Arch;
use crate::fetch::{self, Cross, TARGET};
use crate::process;
use crate::store::Store;

/// This machine's target, as Rust calls it.
const HERE: &str = "x86_64-unknown-linux-gnu";

/// What kind of program it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Kind {
    /// One with many tests.
    Tests,
    /// One that passes if it ends with status 0.
    Example,
}

/// A program for the guest.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// The target's name.
    pub(crate) name: String,
    /// What kind it is.
    pub(crate) kind: Kind,
    /// The executable.
    pub(crate) path: PathBuf,
    /// The package's directory.
    pub(crate) directory: PathBuf,
}

/// What a guest's devices are made of, by which the programs for it are chosen.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Ground {
    /// Soft-RoCE, on one host.
    SoftRoce,
    /// Soft-RoCE, on two hosts with a wire between them.
    TwoHosts,
    /// An adapter with the driver mlx5.
    Adapter,
    /// An adapter with the driver efa.
    Efa,
    /// An adapter that two guests share.
    Pair,
    /// Soft-RoCE or an adapter, under signals.
    Signals,
}

/// What programs are built for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// This machine.
    Here,
    /// This machine, with a sanitizer's checks.
    Sanitized(&'a Sanitized),
    /// Guests of arm64, by what builds for them.
    Arm64(&'a Cross),
    /// This machine, with these variables.
    With(&'a Variables),
}

/// Variables for cargo and all that it runs.
pub(crate) type Variables = [(&'static str, OsString)];

/// A sanitizer of the compiler's: code that watches what programs do with memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// Accesses to memory that is not there any more, or beyond it.
    Address,
    /// Accesses of threads to the same memory that nothing orders.
    Thread,
}

impl Sanitizer {
    /// The compiler's name of it.
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }

    /// Whether the standard library has to be built with it as well: what it orders would not be seen.
    pub(crate) fn needs_library(self) -> bool {
        self == Self::Thread
    }

    /// The variable for programs that were built with it. Some tests leave memory behind on purpose, and some
    /// have a device of their own.
    pub(crate) fn variable(self, workspace: &Path) -> (&'static str, String) {
        match self {
            Self::Address => ("ASAN_OPTIONS", "detect_leaks=0".into()),
            Self::Thread => {
                let known = workspace.join("tests/vm/src/suite/races.txt");
                ("TSAN_OPTIONS", format!("suppressions={}", known.display()))
            }
        }
    }
}

/// A sanitizer, and what building with it takes.
#[derive(Clone, Debug)]
pub(crate) struct Sanitized {
    pub(crate) by: Sanitizer,
    /// The standard library's source, if the library has to be built.
    pub(crate) library: Option<PathBuf>,
}

/// What cargo has built, in which programs are looked up.
#[derive(Debug)]
pub(crate) struct Built(Vec<Artifact>);

impl Built {
    /// Builds the programs of these suites for guests of these kinds.
    ///
    /// # Errors
    /// If one does not build.
    pub(crate) fn some(
        workspace: &Path,
        target: Target<'_>,
        suites: &[Suite],
        grounds: &[Ground],
    ) -> Result<Self> {
        let mut wanted = BTreeSet::new();
        for suite in suites {
            // Tests run some of the examples where they do not run by themselves.
            wanted.extend(suite.examples.iter().map(|name| (Kind::Example, name)));
            for ground in grounds {
                let tests = names(suite, Kind::Tests, *ground);
                wanted.extend(tests.iter().map(|name| (Kind::Tests, name)));
            }
        }
        let named = wanted
            .into_iter()
            .flat_map(|(kind, name)| [flag(kind), name]);
        Self::build(workspace, target, named)
    }

    /// Builds all that `cargo test` runs on the host as well.
    ///
    /// # Errors
    /// If something does not build.
    pub(crate) fn all(workspace: &Path) -> Result<Self> {
        Self::build(workspace, Target::Here, ["--tests", "--examples"])
    }

    /// Builds these with the command line `uverbs`, which some tests run and look for beside themselves.
    ///
    /// In one command, and of the whole workspace, as the host's tests are: cargo would choose other features
    /// for a package or a program by itself, and build the library once more.
    fn build<'a>(
        workspace: &Path,
        target: Target<'_>,
        programs: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let command = ["build", "--workspace", "--bin", "uverbs"];
        let arguments = command.into_iter().chain(programs).map(str::to_owned);
        Ok(Self(cargo(workspace, target, arguments.collect())?))
    }

    /// The programs of these suites for guests of that kind.
    ///
    /// # Errors
    /// If cargo did not say where one is.
    pub(crate) fn programs(&self, suites: &[Suite], ground: Ground) -> Result<Vec<Program>> {
        let mut programs = Vec::new();
        for kind in [Kind::Tests, Kind::Example] {
            for suite in suites {
                for name in names(suite, kind, ground) {
                    programs.push(self.program(suite, name, kind)?);
                }
            }
        }
        Ok(programs)
    }

    fn program(&self, suite: &Suite, name: &str, kind: Kind) -> Result<Program> {
        let is_it = |artifact: &&Artifact| {
            let of_package = artifact
                .manifest_path
                .parent()
                .is_some_and(|path| path == suite.directory);
            of_package && artifact.target.name == name && is_of(artifact, kind)
        };
        let artifact = self.0.iter().find(is_it);
        let path = artifact.and_then(|artifact| artifact.executable.clone());
        let path = path.with_context(|| {
            format!(
                "cargo built no {} {name}",
                flag(kind).trim_start_matches('-')
            )
        })?;
        Ok(Program {
            name: name.to_owned(),
            kind,
            path: path.into(),
            directory: suite.directory.clone(),
        })
    }
}

/// Builds the command line `uverbs` by itself and gives its path: in release mode, but for arm64 as the tests
/// have it, since the standard library would be built once more.
///
/// # Errors
/// As of [`binary`].
pub(crate) fn command_line(store: &Store, arch: Arch) -> Result<PathBuf> {
    match arch {
        Arch::X86_64 => binary(store.workspace(), "uverbs-cli", "uverbs"),
        Arch::Arm64 => for_arm64(store, "uverbs"),
    }
}

/// Builds the agent for guests of this architecture, which is this program, and gives its path; none if it is
/// this executable.
///
/// # Errors
/// If it does not build, or what builds it cannot be fetched.
pub(crate) fn agent(store: &Store, arch: Arch) -> Result<Option<PathBuf>> {
    match arch {
        Arch::X86_64 => Ok(None),
        Arch::Arm64 => for_arm64(store, "vm").map(Some),
    }
}

/// Builds a binary for arm64 with the features that the tests have, so that little is built twice.
fn for_arm64(store: &Store, name: &str) -> Result<PathBuf> {
    let cross = fetch::cross(store)?;
    let arguments = ["build", "--workspace", "--bin", name].map(str::to_owned);
    let artifacts = cargo(store.workspace(), Target::Arm64(&cross), arguments.to_vec())?;
    executable(artifacts, name)
}

/// Builds a binary in release mode and gives its path.
///
/// # Errors
/// If it does not build, or cargo does not say where it is.
pub(crate) fn binary(workspace: &Path, package: &str, name: &str) -> Result<PathBuf> {
    binary_with(workspace, package, name, &[])
}

/// As [`binary`], linked statically.
///
/// # Errors
/// As of [`binary`].
pub(crate) fn static_binary(workspace: &Path, package: &str, name: &str) -> Result<PathBuf> {
    // A target is named so that build scripts and procedural macros stay dynamic.
    const OPTIONS: [&str; 4] = [
        "--target",
        HERE,
        "--config",
        "target.x86_64-unknown-linux-gnu.rustflags=[\"-Ctarget-feature=+crt-static\"]",
    ];
    binary_with(workspace, package, name, &OPTIONS)
}

fn binary_with(workspace: &Path, package: &str, name: &str, options: &[&str]) -> Result<PathBuf> {
    let arguments = ["build", "--release", "--package", package, "--bin", name];
    let arguments = arguments.iter().chain(options).map(|&word| word.to_owned());
    let artifacts = cargo(workspace, Target::Here, arguments.collect())?;
    executable(artifacts, name)
}

/// Builds shared libraries for C programs, each of which is all of its package, and gives their paths.
///
/// In one command, so that the library under them is built once.
///
/// # Errors
/// If one does not build.
pub(super) fn c_libraries(workspace: &Path, packages: &[&str]) -> Result<Vec<PathBuf>> {
    let named = packages.iter().flat_map(|package| ["--package", package]);
    let arguments = ["build", "--profile", "c-abi"].into_iter().chain(named);
    let arguments = arguments.map(str::to_owned).collect();
    let artifacts = cargo(workspace, Target::Here, arguments)?;
    Ok(shared_libraries(artifacts).collect())
}

/// Builds the library that interrupts programs (`tests/signals`), and gives its path.
///
/// # Errors
/// If it does not build, or cargo does not say where it is.
pub(super) fn signals(workspace: &Path) -> Result<PathBuf> {
    let arguments = ["build", "--package", "uverbs-test-signals"].map(str::to_owned);
    shared_library(cargo(workspace, Target::Here, arguments.to_vec())?)
}

/// Builds a library for C programs with a sanitizer, whose runtime is the program's.
///
/// # Errors
/// As of [`signals`].
pub(crate) fn sanitized_c_library(
    workspace: &Path,
    package: &str,
    sanitized: &Sanitized,
) -> Result<PathBuf> {
    let arguments = ["build", "--package", package].map(str::to_owned);
    let artifacts = cargo(workspace, Target::Sanitized(sanitized), arguments.to_vec())?;
    shared_library(artifacts)
}

fn shared_library(artifacts: Vec<Artifact>) -> Result<PathBuf> {
    shared_libraries(artifacts)
        .next()
        .context("cargo built no shared library")
}

fn shared_libraries(artifacts: Vec<Artifact>) -> impl Iterator<Item = PathBuf> {
    let built = artifacts.into_iter();
    let built = built.filter(|artifact| artifact.target.is_cdylib());
    built.filter_map(|artifact| Some(artifact.filenames.into_iter().next()?.into()))
}

/// Builds the test programs of a workspace that is not this one, and gives all of them.
///
/// # Errors
/// If one does not build.
pub(crate) fn tests_of_others(workspace: &Path, arguments: &[&str]) -> Result<Vec<Program>> {
    let arguments = [&["test", "--no-run"], arguments].concat();
    programs_of_others(workspace, &arguments, &[])
}

/// Has cargo build programs of a workspace that is not this one, with these arguments and variables, and
/// gives the test programs and examples.
///
/// # Errors
/// If one does not build.
pub(crate) fn programs_of_others(
    workspace: &Path,
    arguments: &[&str],
    variables: &Variables,
) -> Result<Vec<Program>> {
    let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
    let artifacts = cargo(workspace, Target::With(variables), arguments)?;
    let program = |artifact: Artifact| {
        let kind = match (artifact.profile.test, artifact.target.is_example()) {
            (true, _) if !artifact.target.is_bin() => Kind::Tests,
            (false, true) => Kind::Example,
            _ => return None,
        };
        Some(Program {
            name: artifact.target.name.clone(),
            kind,
            path: artifact.executable?.into(),
            directory: artifact.manifest_path.parent()?.into(),
        })
    };
    Ok(artifacts.into_iter().filter_map(program).collect())
}

/// Has cargo build a workspace that is not this one, with these arguments, and gives the binary of this name.
///
/// # Errors
/// If it does not build.
pub(crate) fn binary_of_others(
    workspace: &Path,
    arguments: &[&str],
    name: &str,
) -> Result<PathBuf> {
    let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
    executable(cargo(workspace, Target::Here, arguments)?, name)
}

/// Has cargo build a workspace that is not this one for arm64, whose binary of this name needs no std.
///
/// # Errors
/// If it does not build.
pub(super) fn binary_without_std(workspace: &Path, cross: &Cross, name: &str) -> Result<PathBuf> {
    let linker = cross.linker.display().to_string();
    let mut arguments = [
        "build",
        "--release",
        "--quiet",
        "--target",
        TARGET,
        "--config",
    ]
    .map(str::to_owned)
    .to_vec();
    arguments.push(format!("target.{TARGET}.linker={linker:?}"));
    let libraries = process::behind(&cross.libraries, "LD_LIBRARY_PATH");
    let mut variables = vec![("LD_LIBRARY_PATH", libraries)];
    if let Some(library) = &cross.library {
        arguments.push("-Zbuild-std=core".into());
        variables.push(("RUSTC_BOOTSTRAP", "1".into()));
        variables.push(("__CARGO_TESTS_ONLY_SRC_ROOT", library.into()));
    }
    executable(cargo(workspace, Target::With(&variables), arguments)?, name)
}

/// Where cargo put the binary of this name.
fn executable(artifacts: Vec<Artifact>, name: &str) -> Result<PathBuf> {
    let built = artifacts
        .into_iter()
        .find(|artifact| artifact.target.name == name && artifact.target.is_bin());
    let path = built.and_then(|artifact| artifact.executable);
    Ok(path
        .with_context(|| format!("cargo built no binary {name}"))?
        .into())
}

/// The option of cargo that names a program of that kind.
fn flag(kind: Kind) -> &'static str {
    match kind {
        Kind::Tests => "--test",
        Kind::Example => "--example",
    }
}

fn names(suite: &Suite, kind: Kind, ground: Ground) -> &[String] {
    match (ground, kind) {
        (Ground::SoftRoce, Kind::Tests) => &suite.tests,
        (Ground::SoftRoce, Kind::Example) => &suite.examples,
        (Ground::TwoHosts, Kind::Tests) => &suite.two_hosts_tests,
        (Ground::Adapter, Kind::Tests) => &suite.hca_tests,
        (Ground::Efa, Kind::Tests) => &suite.efa_tests,
        (Ground::Pair, Kind::Tests) => &suite.pair_tests,
        (Ground::Signals, Kind::Tests) => &suite.signal_tests,
        (_, Kind::Example) => &[],
    }
}

fn is_of(artifact: &Artifact, kind: Kind) -> bool {
    let wanted = match kind {
        Kind::Tests => TargetKind::Test,
        Kind::Example => TargetKind::Example,
    };
    artifact.target.kind.contains(&wanted)
}

/// Has cargo build for arm64, statically linked: the guest has no need of a C library then.
fn to_arm64(command: &mut Command, cross: &Cross) {
    let target = format!("target.{TARGET}");
    let linker = format!("{target}.linker={:?}", cross.linker.display().to_string());
    let flags = format!("{target}.rustflags=[\"-Ctarget-feature=+crt-static\"]");
    command
        .args(["--target", TARGET, "--config", &linker, "--config", &flags])
        // Nobody reads backtraces with lines there, and without them the build is shorter.
        .args(["--config", "profile.dev.debug=false"])
        .arg("--target-dir")
        .arg(&cross.target_directory)
        .env(
            "LD_LIBRARY_PATH",
            process::behind(&cross.libraries, "LD_LIBRARY_PATH"),
        )
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    if let Some(library) = &cross.library {
        build_library(command, library);
    }
}

/// Has cargo build the standard library from this source: a stable compiler builds the one that it was
/// released with as a nightly one does.
fn build_library(command: &mut Command, source: &Path) {
    command
        .arg("-Zbuild-std=std,panic_unwind,test")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("__CARGO_TESTS_ONLY_SRC_ROOT", source);
}

/// Has cargo build with a sanitizer, beside what it builds without.
pub(super) fn sanitize(command: &mut Command, Sanitized { by, library }: &Sanitized) {
    // With a target named, build scripts and procedural macros go without.
    let flags = format!("target.{HERE}.rustflags=[\"-Zsanitizer={}\"]", by.name());
    command
        .args(["--target", HERE, "--config", &flags])
        .args(["--target-dir", "target/sanitized"])
        // A stable compiler has it as a nightly one does.
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS");
    if let Some(library) = library {
        build_library(command, library);
    }
}

/// Runs cargo, with its messages for people on standard error, and gives what it built.
fn cargo(workspace: &Path, target: Target<'_>, arguments: Vec<String>) -> Result<Vec<Artifact>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace);
    match target {
        Target::Here => {}
        Target::Sanitized(sanitizer) => sanitize(&mut command, sanitizer),
        Target::Arm64(cross) => to_arm64(&mut command, cross),
        Target::With(variables) => {
            command.envs(variables.iter().map(|(name, value)| (name, value)));
        }
    }
    let failed = || format!("building: `{}`", process::describe(&command));
    let step = failed();
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| step.clone())?;
    let mut artifacts = Vec::new();
    if let Some(output) = child.stdout.take() {
        for message in Message::parse_stream(BufReader::new(output)) {
            if let Message::CompilerArtifact(artifact) = message.with_context(|| step.clone())? {
                artifacts.push(artifact);
            }
        }
    }
    let status = child.wait().with_context(|| step.clone())?;
    if !status.success() {
        bail!("{step} ended with {status}");
    }
    Ok(artifacts)
}
