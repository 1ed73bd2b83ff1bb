//! Crates from the registry that are linked to libibverbs, or load it: their own tests and examples, on both
//! libraries. `cargo vm clients --full` builds them and runs this.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::Trial;
use support::peers::{free_port, listens, listens_by_address, play};
use support::{Result, device, fail, skip, test};

use crate::runs::ADDRESS;
use support::library::{Library, client, gid_index};

/// Where the programs lie, in the directory of clients.
const DIRECTORY: &str = "linked/programs";

/// What limits a program's time: some do not end on libibverbs.
const LIMIT: [&str; 4] = ["timeout", "-k", "5", "100"];

/// Programs of tests.
const SIDEWAY: [&str; 6] = [
    "sideway",
    "test_atomic",
    "test_cq",
    "test_mr_and_cq",
    "test_post_send",
    "test_qp",
];

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("crates::sideway_tests", || {
            SIDEWAY.into_iter().try_for_each(compare)
        }),
        test("crates::sideway_shows", sideway_shows),
        test("crates::sideway_pingpong", || pingpong("rc_pingpong")),
        test("crates::sideway_split_pingpong", || {
            pingpong("rc_pingpong_split")
        }),
        test("crates::sideway_connections", connections),
        test("crates::ibverbs_loopback", loopback),
    ]
}

/// A program.
///
/// # Errors
/// [`support::outcome::Skip`] if it has not been built.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    client(&format!("{DIRECTORY}/{name}"))
}

/// Asks the loader which libibverbs a program gets, which may be one that it opens by itself.
fn is_used_by(library: &Library, program: &Path) -> Result {
    let output = library
        .command(program)
        .arg("--help")
        .env("LD_DEBUG", "libs")
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let used = said
        .lines()
        .find(|line| line.contains("calling init: ") && line.contains("/libibverbs.so.1"));
    match used.map(|line| line.contains("/c-abi/lib/")) {
        Some(is_ours) if is_ours == (*library != Library::Theirs) => Ok(()),
        _ => fail(format!("{} on {library:?}: {used:?}", program.display())),
    }
}

/// Runs a program to its end, or the end of its time.
fn run(library: &Library, program: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(LIMIT[0]);
    command.args(&LIMIT[1..]).arg(program).args(arguments);
    if let Some(path) = library.path() {
        command.env("LD_LIBRARY_PATH", path);
    }
    Ok(command.output()?)
}

/// How the tests of a program end, by their names.
fn outcomes(library: &Library, program: &Path) -> Result<BTreeMap<String, String>> {
    is_used_by(library, program)?;
    let output = run(library, program, &["--test-threads=1"])?;
    let said = String::from_utf8_lossy(&output.stdout);
    let outcome = |line: &str| {
        let (name, how) = line.strip_prefix("test ")?.split_once(" ... ")?;
        Some((name.to_owned(), how.to_owned()))
    };
    Ok(said.lines().filter_map(outcome).collect())
}

/// Catches a test of a crate's own that passes on libibverbs, and not on ours.
fn compare(name: &str) -> Result {
    let (ours, program) = (Library::ours_with_rdmacm()?, program(name)?);
    let theirs = outcomes(&Library::Theirs, &program)?;
    let ours = outcomes(&ours, &program)?;
    let passes = |how: &&String| how.as_str() == "ok";
    let passed = theirs.values().filter(passes).count();
    let passed_here = ours.values().filter(passes).count();
    println!("{name}: {passed_here} tests pass, on libibverbs {passed}");
    if theirs.is_empty() {
        return fail(format!("{name} has no tests"));
    }
    let worse = theirs.iter().filter_map(|(test, theirs)| {
        let ours = ours.get(test).map_or("did not run", String::as_str);
        (theirs == "ok" && ours != "ok").then(|| format!("{name} {test}: {ours}"))
    });
    let worse: Vec<String> = worse.collect();
    match worse.is_empty() {
        true => Ok(()),
        false => fail(worse.join("\n")),
    }
}

/// Catches an attribute that a program shows otherwise than on libibverbs.
fn sideway_shows() -> Result {
    let ours = Library::ours_with_rdmacm()?;
    for name in ["show_gids", "ibv_devinfo"] {
        let program = program(name)?;
        let said = |library: &Library| -> Result<(bool, String)> {
            is_used_by(library, &program)?;
            let output = run(library, &program, &[])?;
            let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
            if device().has_raw_packets() {
                // Two flags are theirs.
                let is_other = |line: &&str| !line.contains("device_cap_flags");
                said = said.lines().filter(is_other).collect::<Vec<_>>().join("\n");
            }
            Ok((output.status.success(), said))
        };
        let (theirs, ours) = (said(&Library::Theirs)?, said(&ours)?);
        if !theirs.0 {
            println!("{name} does not work on libibverbs: on InfiniBand no GID has a netdev");
            continue;
        }
        if ours != theirs || !ours.1.contains(device().name()) {
            return fail(format!("{name}: {ours:?}\nand on libibverbs {theirs:?}"));
        }
    }
    Ok(())
}

/// Catches queue pairs that exchange nothing by a crate's safe functions, between both libraries. Where that
/// does not work between two programs on libibverbs, both are on ours.
fn pingpong(name: &str) -> Result {
    let (ours, program) = (Library::ours_with_rdmacm()?, program(name)?);
    let index = gid_index(device().name())?.unwrap_or(0).to_string();
    let once = |server: &Library, client: &Library| -> Result {
        let port = free_port()?;
        let words = [
            "-d",
            device().name(),
            "-g",
            &index,
            "-n",
            "50",
            "-p",
            &port.to_string(),
        ];
        let (mut server, mut client) = (limited(server, &program), limited(client, &program));
        server.args(words);
        client.args(words).arg("127.0.0.1");
        play(server, client, || listens(port)).map(drop)
    };
    is_used_by(&ours, &program)?;
    once(&ours, &ours)?;
    match once(&Library::Theirs, &Library::Theirs) {
        Ok(()) => {
            once(&ours, &Library::Theirs)?;
            once(&Library::Theirs, &ours)
        }
        Err(theirs) => {
            println!("{name} does not work on libibverbs: {theirs}");
            Ok(())
        }
    }
}

/// A command whose time is limited.
fn limited(library: &Library, program: &Path) -> Command {
    let mut command = Command::new(LIMIT[0]);
    command.args(&LIMIT[1..]).arg(program);
    if let Some(path) = library.path() {
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}

/// Catches connections that a crate does not make by our librdmacm.
fn connections() -> Result {
    let (ours, program) = (Library::ours_with_rdmacm()?, program("cmtime")?);
    is_used_by(&ours, &program)?;
    for [server, client] in [[&ours, &Library::Theirs], [&Library::Theirs, &ours]] {
        let once = |server, client| -> Result {
            let (mut server, mut client) = (limited(server, &program), limited(client, &program));
            server.args(["-b", ADDRESS, "-c", "10"]);
            client.args(["-s", ADDRESS, "-c", "10"]);
            play(server, client, listens_by_address).map(drop)
        };
        if let Err(error) = once(server, client) {
            return match once(&Library::Theirs, &Library::Theirs) {
                Ok(()) => fail(format!("server {server:?}, client {client:?}: {error}")),
                Err(theirs) => skip(format!("it does not work on libibverbs either: {theirs}")),
            };
        }
    }
    Ok(())
}

/// Catches a message to itself that a crate does not send or receive.
fn loopback() -> Result {
    let (ours, program) = (Library::ours()?, program("loopback")?);
    let of = |library: &Library| -> Result<bool> {
        is_used_by(library, &program)?;
        let output = run(library, &program, &[])?;
        println!("on {library:?}: {output:?}");
        Ok(output.status.success())
    };
    match (of(&ours)?, of(&Library::Theirs)?) {
        (true, _) => Ok(()),
        (false, true) => fail("it works on libibverbs alone"),
        (false, false) => skip("it does not work on libibverbs either"),
    }
}
