//! The C programs that tests run beside this project's own.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Suite;
use crate::c;
use crate::store::Store;

/// The variable by which a test in the guest finds their directory.
pub(crate) const VARIABLE: &str = "VM_C_PROGRAMS";

/// The directory of them all.
pub(crate) fn directory(store: &Store) -> PathBuf {
    store.path("c-programs")
}

/// Compiles those of these suites against the libibverbs that the guest has. Where there is no compiler there are none, and
/// the tests that need them say so.
///
/// # Errors
/// If one does not compile.
pub(crate) fn compile(store: &Store, suites: &[Suite], tools: &Path) -> Result<()> {
    let directory = directory(store);
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", directory.display()));
        }
        _ => {}
    }
    if !c::is_there() {
        return Ok(());
    }
    store.directory("c-programs")?;
    for suite in suites {
        for source in &suite.c_programs {
            let source = suite.directory.join(source);
            let name = source.file_stem().unwrap_or_default();
            c::compile_with_libibverbs(&source, &directory.join(name), tools)?;
        }
    }
    Ok(())
}
