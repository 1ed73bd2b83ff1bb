//! What it costs a program to start: system calls of `ibv_devinfo`, those of the loader among them.

use libtest_mimic::Trial;
use support::{Result, device, fail, test};

use crate::library::Library;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("start_up::system_calls", system_calls)]
}

/// Catches a start that asks the kernel for more than that of libibverbs, which looks through directories of
/// providers and loads them.
fn system_calls() -> Result {
    let ours = count(&Library::ours()?)?;
    let theirs = count(&Library::Theirs)?;
    println!("system calls of ibv_devinfo: {ours} on ours, {theirs} on libibverbs");
    match ours < theirs {
        true => Ok(()),
        false => fail(format!("{ours} system calls, on libibverbs {theirs}")),
    }
}

/// Counts the system calls of a run. The library path is the program's alone: strace has its own libraries.
fn count(library: &Library) -> Result<usize> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let mut strace = std::process::Command::new("strace");
    strace.args(["-f", "-qq", "-e", "signal=none", "-o"]);
    strace.arg(&file);
    if let Library::Ours(directory) = library {
        let variable = format!("LD_LIBRARY_PATH={}", directory.display());
        strace.args(["-E", &variable]);
    }
    strace.args(["ibv_devinfo", "-d", device().name()]);
    let output = strace.output()?;
    if !output.status.success() {
        return fail(format!("{strace:?}: {output:?}"));
    }
    let text = std::fs::read_to_string(&file)?;
    let calls = text.lines().filter(|line| !line.contains("resumed>"));
    Ok(calls.count())
}
