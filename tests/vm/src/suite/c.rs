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

/// Compiles those of these suites against headers of another rdma-core as well, into this directory.
///
/// # Errors
/// If one does not compile; a C compiler is needed.
pub(crate) fn compile_with_headers(
    suites: &[Suite],
    tools: &Path,
    headers: &Path,
    directory: &Path,
) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let first = format!("-I{}", headers.display());
    for suite in suites {
        for source in &suite.c_programs {
            let source = suite.directory.join(source);
            let program = directory.join(source.file_stem().unwrap_or_default());
            c::compile_with_libibverbs(&source, &program, tools, &[&first])?;
        }
    }
    Ok(())
}

/// The program that a run of everything has with the thread sanitizer as well, and what it is called then.
const SANITIZED: (&str, &str) = ("tests/c_abi/threads.c", "threads-sanitized");

/// Compiles the program with threads with the sanitizer that watches them. The runtime is the Rust
/// compiler's, as the library that it is linked to needs it, and `directory` is where that has it.
///
/// # Errors
/// If there is no such runtime, or it does not compile.
pub(crate) fn compile_sanitized(store: &Store, tools: &Path, directory: &Path) -> Result<()> {
    let files =
        fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let runtime = files
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|file| file.to_string_lossy().ends_with("_rt.tsan.a"))
        .context("the Rust compiler has no thread sanitizer")?;
    let (source, name) = SANITIZED;
    let source = store.workspace().join(source);
    let program = store.directory("c-programs")?.join(name);
    let object = program.with_extension("o");
    c::compile_with_libibverbs(&source, &object, tools, &["-fsanitize=thread", "-g", "-c"])?;
    let runtime = runtime.display().to_string();
    let whole = ["-Wl,--whole-archive", &runtime, "-Wl,--no-whole-archive"];
    let others = ["-rdynamic", "-lpthread", "-ldl", "-lm", "-lrt"];
    c::compile_with_libibverbs(
        &object,
        &program,
        tools,
        &[whole.as_slice(), &others].concat(),
    )
}

/// Compiles a program beside its earlier version, and puts it into that one's place.
fn replace(source: &Path, program: &Path, tools: &Path) -> Result<()> {
    let half = program.with_extension(format!("half-{}", std::process::id()));
    c::compile_with_libibverbs(source, &half, tools, &[])?;
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
