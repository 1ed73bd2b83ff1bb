//! Programs of Debian's newer suites: perftest, rdma-core's ping-pongs and libfabric's list, on all of our
//! libraries. Each runs with the C library and the loader of its suite.

use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;
use support::peers::{free_port, listens, play};
use support::{Device, Result, device, fail, says, skip, test};

use support::library::{Library, c_program, gid_index};

/// The suites, with the runs of each: the command of both sides.
const SUITES: [(&str, &[&str]); 2] = [
    (
        "trixie",
        &[
            "ib_write_bw -s 4096",
            "ib_send_lat -s 64",
            "ibv_rc_pingpong -s 4096",
        ],
    ),
    (
        "sid",
        &[
            "ib_write_bw -s 4096 -q 2",
            "ib_read_lat -s 64",
            "ibv_rc_pingpong -s 4096",
            "ibv_ud_pingpong -s 1024",
        ],
    ),
];

pub(crate) fn tests() -> Vec<Trial> {
    SUITES
        .map(|(suite, runs)| test(format!("newer::{suite}"), move || run(suite, runs)))
        .into_iter()
        .chain([test("newer::functions", functions)])
        .collect()
}

/// Catches a function that the machine's own libibverbs does not have yet and that does otherwise here than
/// in the newest one. The checks' lines are compared as they are.
fn functions() -> Result {
    let root = root("sid")?;
    let program = c_program("newer")?;
    let name = device().name();
    let gid_index = gid_index(name)?.map_or(-1, i16::from).to_string();
    let tell = |libraries: &[PathBuf]| -> Result<String> {
        let mut command = loader(&root, libraries);
        command.arg(&program).args([name, &gid_index]);
        let output = command.output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?),
            false => fail(format!("{command:?}: {output:?}")),
        }
    };
    // Providers lie in a directory of their own.
    let theirs = tell(&[libraries_of(&root).join("libibverbs")])?;
    // Where the kernel lacks the method, mlx5's provider hands on the kernel's own word for it.
    let theirs = theirs.replace("EPROTONOSUPPORT", "EOPNOTSUPP");
    let Library::OursWithRdmacm(verbs, rdmacm) = Library::ours_with_rdmacm()? else {
        return fail("no libraries of ours");
    };
    let ours = tell(&[verbs, rdmacm])?;
    let mut all = vec!["lookups", "buffers", "regions", "speed", "limits", "pages"];
    // An EFA has no shared receive queues.
    if device() != Device::Efa {
        all.push("numbers");
    }
    let whole = all
        .iter()
        .all(|check| theirs.contains(&format!("{check} ends: well")));
    match whole && ours == theirs {
        true => Ok(()),
        false => fail(format!("ours:\n{ours}\nlibibverbs of sid:\n{theirs}")),
    }
}

/// Catches programs that do not start on our libraries, or do not run to their ends.
fn run(suite: &str, runs: &[&str]) -> Result {
    let root = root(suite)?;
    let listed = command(&root, "fi_info")?.args(["-p", "verbs"]).output()?;
    if !listed.status.success() {
        return fail(format!("fi_info: {listed:?}"));
    }
    says(&String::from_utf8(listed.stdout)?, &[device().name()])?;
    for words in runs {
        let port = free_port()?;
        let server = side(&root, words, port)?;
        let mut client = side(&root, words, port)?;
        client.arg("127.0.0.1");
        if let Err(error) = play(server, client, || listens(port)) {
            return fail(format!("{words} of {suite}: {error}"));
        }
    }
    Ok(())
}

/// The tree of a suite, in cargo's directory.
///
/// # Errors
/// [`support::outcome::Skip`] if it has not been fetched.
pub(crate) fn root(suite: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let name = format!("vm/tools-{suite}");
    let found = own
        .ancestors()
        .map(|directory| directory.join(&name))
        .find(|root| root.join("usr/bin").is_dir());
    match found {
        Some(root) => Ok(root),
        None => skip(format!(
            "the programs of {suite} are not there: `cargo vm fetch` fetches them"
        )),
    }
}

/// A program of the suite. All names are bound when it starts: one that is not there ends it.
fn command(root: &Path, program: &str) -> Result<Command> {
    let Library::OursWithRdmacm(verbs, rdmacm) = Library::ours_with_rdmacm()? else {
        return fail("no libraries of ours");
    };
    let mut command = loader(root, &[verbs, rdmacm]);
    command.arg(root.join("usr/bin").join(program));
    Ok(command)
}

/// The suite's loader, with these directories before the suite's libraries.
pub(crate) fn loader(root: &Path, first: &[PathBuf]) -> Command {
    let mut path: Vec<String> = first
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    path.push(libraries_of(root).display().to_string());
    let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
    command
        .args(["--library-path", &path.join(":")])
        .env("LD_BIND_NOW", "1");
    command
}

pub(crate) fn libraries_of(root: &Path) -> PathBuf {
    root.join("usr/lib/x86_64-linux-gnu")
}

/// The command of one side, without the address of the other.
fn side(root: &Path, words: &str, port: u16) -> Result<Command> {
    let (program, words) = words.split_once(' ').unwrap_or((words, ""));
    let mut command = command(root, program)?;
    let device = device().name();
    command.args(["-d", device, "-p", &port.to_string(), "-n", "20"]);
    let is_perftest = program.starts_with("ib_");
    if let Some(index) = gid_index(device)? {
        command.args([if is_perftest { "-x" } else { "-g" }, &index.to_string()]);
    }
    if is_perftest {
        command.arg("-F");
    }
    command.args(words.split_whitespace());
    Ok(command)
}
