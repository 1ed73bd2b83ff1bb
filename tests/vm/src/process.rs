//! Running a program of the host to its end, with an error that names the command and shows its last words.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
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

/// Has the command's process killed when the thread that starts it ends, so that none is left behind by this
/// program, however it ends.
pub(crate) fn end_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only one system call is made, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?));
    }
}

/// Lets the command's process have this file under the number that it has here, and no other process that is
/// started meanwhile.
pub(crate) fn inherit(command: &mut Command, file: BorrowedFd<'_>) {
    let number = file.as_raw_fd();
    // SAFETY: between fork and exec only one system call is made, which is async-signal-safe. In the child
    // the number is that of the file, which the caller keeps open until the process is started.
    unsafe {
        command.pre_exec(move || {
            let file = BorrowedFd::borrow_raw(number);
            fcntl(file, FcntlArg::F_SETFD(FdFlag::empty()))?;
            Ok(())
        });
    }
}

/// How far the command's process steps back behind this one's threads.
const STEP_BACK: i32 = 5;

/// Has the command's process wait when one of this process's threads wants its CPU. An emulated CPU is always
/// busy, and the software adapter is asked by a driver that waits for 100 ms at most
/// (`TEST_WC_POLLING_MAX_TIME`).
pub(crate) fn step_back(command: &mut Command) {
    // SAFETY: as in `end_with_parent`.
    unsafe {
        command.pre_exec(|| {
            // The answer may be -1 without an error, and that it fails does no harm.
            nix::libc::nice(STEP_BACK);
            Ok(())
        });
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

/// A list of directories: this one, and those that the variable names.
pub(crate) fn behind(first: &Path, variable: &str) -> OsString {
    let mut list = first.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os(variable) {
        list.push(":");
        list.push(rest);
    }
    list
}
