//! Mooncake's transfer engine, by which inference servers move their caches, on both libraries. Its wheel is
//! fetched by `cargo vm clients --full`.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use libtest_mimic::Trial;
use support::{Result, device, fail, test};

use crate::runs::ADDRESS;
use support::library::{Library, engine};

/// Where the wheel is unpacked, in the directory of clients.
const DIRECTORY: &str = "mooncake";

/// The program, in the package's directory.
const PROGRAM: &str = "tests/clients/mooncake/transfer.py";

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("engines::mooncake", transfers),
        test("engines::mooncake_after_a_killed_host", killed),
    ]
}

/// A side of a transfer, which is killed at the end of the test at the latest.
struct Side {
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
    hears: ChildStdin,
}

impl Side {
    fn start(library: &Library, role: &str, words: &[&str]) -> Result<Self> {
        let mut command: Command = library.command("python3");
        command.arg(PROGRAM).arg(engine(DIRECTORY)?).arg(role);
        command.args([ADDRESS, device().name()]).args(words);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let says = child.stdout.take().ok_or("no output")?;
        let hears = child.stdin.take().ok_or("no input")?;
        Ok(Self {
            child,
            says: BufReader::new(says).lines(),
            hears,
        })
    }

    fn line(&mut self) -> Result<String> {
        Ok(self.says.next().ok_or("a side has ended")??)
    }

    /// Fails if it does not say that all bytes are right.
    fn expect_right(&mut self) -> Result {
        match self.line()?.as_str() {
            "right" => Ok(()),
            other => fail(format!("a side says: {other}")),
        }
    }

    /// Whether the process has this library's libibverbs, and not the other.
    fn uses(&self, library: &Library) -> Result {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id()))?;
        let mut lines = maps.lines().filter(|line| line.contains("libibverbs.so"));
        let own = library.path();
        let is_right = |line: &str| match &own {
            Some(directory) => line.contains(directory.as_str()),
            None => !line.contains("/c-abi/"),
        };
        match lines.next().is_some_and(is_right) && lines.all(is_right) {
            true => Ok(()),
            false => fail(format!("a side does not use {library:?}")),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A target on this library, and the words by which hosts find it.
fn target(library: &Library) -> Result<(Side, Vec<String>)> {
    let mut target = Side::start(library, "target", &[])?;
    let words = target.line()?;
    target.uses(library)?;
    Ok((target, words.split(' ').map(str::to_owned).collect()))
}

/// Has a host on this library write and read once, and asks both sides what they found.
fn transfer(target: &mut Side, library: &Library, words: &[&str]) -> Result {
    Side::start(library, "once", words)?.expect_right()?;
    writeln!(target.hears)?;
    target.expect_right()
}

/// Catches what the engine understands differently over the two libraries: several regions, of a page to a
/// mebibyte.
fn transfers() -> Result {
    let ours = Library::ours()?;
    for (one, other) in ours.pairs() {
        let (mut target, words) = target(one)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let result = transfer(&mut target, other, &words);
        result.map_err(|error| format!("{other:?} to {one:?}: {error}"))?;
    }
    Ok(())
}

/// Catches a target that a killed host spoils: the next one is served.
fn killed() -> Result {
    let ours = Library::ours()?;
    let (mut target, words) = target(&ours)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut host = Side::start(&ours, "forever", &words)?;
    host.expect_right()?;
    drop(host);
    transfer(&mut target, &ours, &words)
}
