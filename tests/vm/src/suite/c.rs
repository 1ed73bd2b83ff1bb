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

/// Compiles those of these suites against the libibverbs that the guest has. Where there is no compiler there
/// are none, and the tests that need them say so.
///
/// A program takes the place of its earlier version whole: another run in this tree may be using that one.
///
/// # Errors
/// If one does not compile.
pub(crate) fn compile(store: &Store, suites: &[Suite], tools: &Path) -> Result<()> {
    let directory = store.directory("c-programs")?;
    let compiler = c::is_there();
    for suite in suites {
        for source in &suite.c_programs {
            let source = suite.directory.join(source);
            let program = directory.join(source.file_stem().unwrap_or_default());
            if compiler {
                replace(&source, &program, tools)?;
            } else {
                remove(&program)?;
            }
        }
    }
    Ok(())
}

/// Compiles a program beside its earlier version, and puts it into that one's place.
fn replace(source: &Path, program: &Path, tools: &Path) -> Result<()> {
    let half = program.with_extension(format!("half-{}", std::process::id()));
    c::compile_with_libibverbs(source, &half, tools)?;
    fs::rename(&half, program).with_context(|| format!("writing {}", program.display()))
}

fn remove(program: &Path) -> Result<()> {
    match fs::remove_file(program) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", program.display()))
        }
        _ => Ok(()),
    }
}
