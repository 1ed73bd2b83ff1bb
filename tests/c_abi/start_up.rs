//! The library as it is installed, in the place of the distribution's; and what it costs a program to start:
//! system calls of `ibv_devinfo`, those of the loader among them.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{listens_by_address, play};
use support::{Result, device, fail, test};

use crate::runs::ADDRESS;
use support::library::Library;

/// Where README has it copied to.
const INSTALLED: &str = "/usr/lib/x86_64-linux-gnu";

/// How many times as many system calls libibverbs makes, at least.
const TIMES: usize = 4;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("start_up::system_calls", system_calls),
        test("start_up::installed", installed),
    ]
}

/// Catches a start that asks the kernel for more than a quarter of what libibverbs does, which looks through
/// directories of providers and loads them.
fn system_calls() -> Result {
    let ours = count(&Library::ours()?)?;
    let theirs = count(&Library::Theirs)?;
    println!("system calls of ibv_devinfo: {ours} on ours, {theirs} on libibverbs");
    match ours * TIMES <= theirs {
        true => Ok(()),
        false => fail(format!("{ours} system calls, on libibverbs {theirs}")),
    }
}

/// Catches a library that does not work in the place of the distribution's, where nobody names it.
fn installed() -> Result {
    let Library::OursWithRdmacm(verbs, rdmacm) = Library::ours_with_rdmacm()? else {
        return fail("no libraries of ours");
    };
    let both = [verbs.join("libibverbs.so.1"), rdmacm.join("librdmacm.so.1")];
    for library in &both {
        let place = place(library).display().to_string();
        let copy = library.display().to_string();
        let output = in_place(&both, &["cmp", &place, &copy]).output()?;
        let output = match output.status.success() {
            true => in_place(&both, &["ldd", "/usr/bin/rping"]).output()?,
            false => output,
        };
        // The directory has another name as well.
        let said = String::from_utf8_lossy(&output.stdout);
        if !said.contains(place.trim_start_matches("/usr")) {
            return fail(format!("rping does not get {copy}: {output:?}"));
        }
    }
    let mut server = in_place(&both, &["rping", "-s", "-a", ADDRESS, "-C", "5"]);
    let mut client = in_place(&both, &["rping", "-c", "-a", ADDRESS, "-C", "5", "-V"]);
    for command in [&mut server, &mut client] {
        command.env_remove("LD_LIBRARY_PATH");
    }
    play(server, client, listens_by_address).map(drop)
}

/// Where the distribution has the library.
fn place(library: &Path) -> PathBuf {
    Path::new(INSTALLED).join(library.file_name().unwrap_or_default())
}

/// A command for which these libraries lie in the place of the distribution's: the root is read-only, so they
/// are mounted there, for it alone.
fn in_place(libraries: &[PathBuf], words: &[&str]) -> Command {
    let mounts = libraries.iter().map(|library| {
        // A mount on the link is one on the file that it leads to.
        let place = place(library);
        format!("mount --bind {} {} && ", library.display(), place.display())
    });
    let script = format!("{}exec \"$@\"", mounts.collect::<String>());
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script, "sh"])
        .args(words);
    command
}

/// Counts the system calls of a run, with the library in its place.
fn count(library: &Library) -> Result<usize> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("trace");
    let libraries = match library {
        Library::Ours(directory) => vec![directory.join("libibverbs.so.1")],
        _ => Vec::new(),
    };
    let trace = file.display().to_string();
    let words = ["strace", "-f", "-qq", "-e", "signal=none", "-o", &trace];
    let words = [words.as_slice(), &["ibv_devinfo", "-d", device().name()]].concat();
    let mut command = in_place(&libraries, &words);
    let output = command.output()?;
    if !output.status.success() {
        return fail(format!("{command:?}: {output:?}"));
    }
    let text = std::fs::read_to_string(&file)?;
    // Whether it is the one that is meant: libibverbs reads its providers' directory.
    if text.contains("libibverbs.d") == (*library != Library::Theirs) {
        return fail(format!("{library:?} was not used: {text}"));
    }
    let calls = text.lines().filter(|line| !line.contains("resumed>"));
    Ok(calls.count())
}
