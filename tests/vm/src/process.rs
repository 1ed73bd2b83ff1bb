//! Running a program of the host to its end, with an error that names the command and shows its last words.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// How many of a failed command's last lines the error shows.
const LAST_LINES: usize = 12;

/// Runs the command, and gives its standard output.
///
/// # Errors
/// If it cannot be started or does not end with status 0; `step` says what was being done.
pub(crate) fn output(step: &str, command: &mut Command) -> Result<String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .output()
        .with_context(|| format!("{step}: cannot start `{}`", describe(command)))?;
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    if !status.success() {
        let said = format!("{stdout}{}", String::from_utf8_lossy(&stderr));
        bail!(
            "{step}: `{}` ended with {status}\n{}",
            describe(command),
            last_lines(&said, LAST_LINES)
        );
    }
    Ok(stdout)
}

/// Has the command's process killed when the thread that starts it ends, so that none is left behind by this program,
/// however it ends.
pub(crate) fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
    }
}

/// The command as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The last lines of a text, indented for an error message.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let start = lines.len().saturating_sub(count);
    lines[start..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether a program of this name is on the PATH, or in one of the system's own directories.
pub(crate) fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(Into::into))
        .any(|directory| directory.join(program).is_file())
}
