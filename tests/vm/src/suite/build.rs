//! Building test programs and examples with cargo, and finding out where it put them.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Artifact, Message, TargetKind};

use super::Suite;
use crate::process;

/// What kind of program it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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

/// Builds all programs of these suites.
///
/// # Errors
/// If one does not build, or cargo does not say where it is.
pub(crate) fn programs(workspace: &Path, suites: &[Suite]) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for suite in suites {
        programs.extend(build(workspace, suite, Kind::Tests, &suite.tests)?);
        programs.extend(build(workspace, suite, Kind::Example, &suite.examples)?);
    }
    Ok(programs)
}

/// Builds a binary in release mode and gives its path.
///
/// # Errors
/// If it does not build, or cargo does not say where it is.
pub(crate) fn binary(workspace: &Path, package: &str, name: &str) -> Result<PathBuf> {
    let arguments = ["build", "--release", "--package", package, "--bin", name];
    let artifacts = cargo(workspace, arguments.map(str::to_owned).to_vec())?;
    let built = artifacts
        .into_iter()
        .find(|artifact| artifact.target.name == name && artifact.target.is_bin());
    let path = built.and_then(|artifact| artifact.executable);
    Ok(path
        .with_context(|| format!("cargo built no binary {name}"))?
        .into())
}

fn build(workspace: &Path, suite: &Suite, kind: Kind, names: &[String]) -> Result<Vec<Program>> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let (command, flag) = match kind {
        Kind::Tests => (["test", "--no-run"].as_slice(), "--test"),
        Kind::Example => (["build"].as_slice(), "--example"),
    };
    let mut arguments: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    arguments.extend(["--package".to_owned(), suite.package.clone()]);
    arguments.extend(
        names
            .iter()
            .flat_map(|name| [flag.to_owned(), name.clone()]),
    );
    let artifacts = cargo(workspace, arguments)?;
    let program = |name: &String| {
        let is_it = |artifact: &&Artifact| artifact.target.name == *name && is_of(artifact, kind);
        let path = artifacts
            .iter()
            .find(is_it)
            .and_then(|artifact| artifact.executable.clone());
        let path = path
            .with_context(|| format!("cargo built no {} {name}", flag.trim_start_matches('-')))?;
        Ok(Program {
            name: name.clone(),
            kind,
            path: path.into(),
            directory: suite.directory.clone(),
        })
    };
    names.iter().map(program).collect()
}

fn is_of(artifact: &Artifact, kind: Kind) -> bool {
    let wanted = match kind {
        Kind::Tests => TargetKind::Test,
        Kind::Example => TargetKind::Example,
    };
    artifact.target.kind.contains(&wanted)
}

/// Runs cargo, with its messages for people on standard error, and gives what it built.
fn cargo(workspace: &Path, arguments: Vec<String>) -> Result<Vec<Artifact>> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace);
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
