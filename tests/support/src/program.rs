//! Other programs, and this project's.

use std::path::PathBuf;
use std::process::Command;

use crate::{Result, fail};

/// Runs a program that must succeed, and gives what it printed.
///
/// # Errors
/// If it cannot be started or fails; the error has what it said.
pub fn run(command: &str) -> Result<String> {
    let mut words = command.split_whitespace();
    let program = words.next().ok_or("no program")?;
    let output = Command::new(program)
        .args(words)
        .output()
        .map_err(|error| format!("`{command}`: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        let status = output.status;
        return fail(format!(
            "`{command}` ended with {status}: {said}{complaint}"
        ));
    }
    Ok(said)
}

/// The command line `uverbs`. It is a package of its own, so cargo does not tell tests where it is: it lies
/// in the directory above that of the tests' programs (`target/debug`).
///
/// # Errors
/// If it has not been built. `cargo vm test` builds it.
pub fn uverbs() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let directory = own.parent().and_then(|deps| deps.parent());
    match directory.map(|directory| directory.join("uverbs")) {
        Some(program) if program.is_file() => Ok(program),
        _ => fail(format!(
            "no program `uverbs` above {}: `cargo build --package uverbs-cli` makes it",
            own.display()
        )),
    }
}

/// An example of the library, by its name. Examples lie beside the directory of the tests' programs
/// (`target/debug/examples`).
///
/// # Errors
/// If it has not been built. `cargo vm test` builds it.
pub fn example(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let directory = own.parent().and_then(|deps| deps.parent());
    match directory.map(|directory| directory.join("examples").join(name)) {
        Some(program) if program.is_file() => Ok(program),
        _ => fail(format!(
            "no example `{name}` for {}: `cargo build --example {name}` makes it",
            own.display()
        )),
    }
}
