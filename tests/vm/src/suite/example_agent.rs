//! The agent of the example device_queue: a program without std or a C library, outside of the workspace.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::build::{binary_of_others, binary_without_std};
use super::job::Job;
use crate::arch::Arch;
use crate::fetch;
use crate::store::Store;

/// The variable by which the test in the guest finds it.
pub(super) const VARIABLE: &str = "VM_EXAMPLE_AGENT";

/// Where it is in the repository, and what it is called.
const FOLDER: &str = "docs/examples/device_queue/agent";
const NAME: &str = "device-queue-agent";
/// The machine's own target: `x86_64-unknown-none` need not be installed.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Whether a test runs it.
pub(crate) fn is_of(job: &Job) -> bool {
    job.name() == "share agent::the_example_has_one_without_std"
}

/// Where it is once it is built.
pub(super) fn path(store: &Store, arch: Arch) -> PathBuf {
    store.path(format!("example-agent{}", arch.suffix()))
}

/// Builds it, and puts it where the test in the guest finds it.
///
/// # Errors
/// If it does not build.
pub(crate) fn build(store: &Store, arch: Arch) -> Result<()> {
    let folder = store.workspace().join(FOLDER);
    let built = match arch {
        Arch::X86_64 => {
            let arguments = ["build", "--release", "--quiet", "--target", TARGET];
            binary_of_others(&folder, &arguments, NAME)?
        }
        Arch::Arm64 => binary_without_std(&folder, &fetch::cross(store)?, NAME)?,
    };
    let program = path(store, arch);
    let half = program.with_extension(format!("half-{}", std::process::id()));
    // Another run in this tree may be using the earlier one.
    fs::copy(&built, &half)
        .and_then(|_| fs::rename(&half, &program))
        .with_context(|| format!("writing {}", program.display()))
}
