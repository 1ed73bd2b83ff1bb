//! Packages from the registry of Python, by the machine's pip.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// Downloads the one package that this file of requirements names with its checksum, into a directory that is
/// made for it, and gives its file. `form` is the option of pip that says in which form it is taken.
///
/// # Errors
/// If there is no Python with pip, or none that the package is for, or no registry.
pub(super) fn download(
    what: &str,
    requirements: &Path,
    form: [&str; 2],
    into: &Path,
) -> Result<PathBuf> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(form)
        .args(["--require-hashes", "--dest"])
        .arg(into)
        .arg("--requirement")
        .arg(requirements);
    process::output(&format!("fetching {what}"), &mut pip)?;
    let read = || format!("reading {}", into.display());
    let mut found = fs::read_dir(into).with_context(read)?;
    let package = found.next().context("pip has fetched nothing")?;
    Ok(package.with_context(read)?.path())
}
