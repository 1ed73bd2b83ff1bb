//! Mooncake's transfer engine: a wheel for Python, as the registry has it.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::pip;
use crate::process;
use crate::store::Store;

/// Which wheel, with its checksum, in the workspace.
const WANTED: &str = "tests/clients/mooncake/requirements.txt";

/// Where it is unpacked, in the workspace: the tests look for it there.
const PLACE: &str = "target/clients/mooncake";

/// Fetches the wheel with the machine's pip and unpacks it; returns at once if it is there.
///
/// # Errors
/// If there is no Python with pip, or none of the version that the wheel is for, or no registry.
pub(super) fn fetch(store: &Store) -> Result<()> {
    let place = store.workspace().join(PLACE);
    if place.is_dir() {
        return Ok(());
    }
    let wheels = place.with_extension("wheels");
    let requirements = store.workspace().join(WANTED);
    let form = ["--only-binary", ":all:"];
    let wheel = pip::download("Mooncake's wheel", &requirements, form, &wheels)?;
    let half = place.with_extension("half");
    let mut unzip = Command::new("python3");
    unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&half);
    process::output("unpacking Mooncake's wheel", &mut unzip)?;
    fs::remove_dir_all(&wheels).with_context(|| format!("removing {}", wheels.display()))?;
    fs::rename(&half, &place).with_context(|| format!("writing {}", place.display()))
}
