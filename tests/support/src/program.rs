//! Other programs.

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
