//! The agent of the example device_queue: a program without std or a C library, outside of the workspace.

use std::fs;

use anyhow::{Context, Result};

use super::build::binary_of_others;
use crate::store::Store;

/// Where it is in the repository, and what it is called.
const FOLDER: &str = "docs/examples/device_queue/agent";
const NAME: &str = "device-queue-agent";
/// The machine's own target: `x86_64-unknown-none` need not be installed.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds it, and puts it beside the C programs, where tests in the guest find it.
///
/// # Errors
/// If it does not build.
pub(crate) fn build(store: &Store) -> Result<()> {
    let folder = store.workspace().join(FOLDER);
    let arguments = ["build", "--release", "--quiet", "--target", TARGET];
    let built = binary_of_others(&folder, &arguments, NAME)?;
    let program = store.directory("c-programs")?.join(NAME);
    let half = program.with_extension(format!("half-{}", std::process::id()));
    // Another run in this tree may be using the earlier one.
    fs::copy(&built, &half)
        .and_then(|_| fs::rename(&half, &program))
        .with_context(|| format!("writing {}", program.display()))
}
