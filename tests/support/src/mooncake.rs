//! Mooncake's transfer engine, by which inference servers move their caches, as a program on either library.
//! Its wheel is fetched by `cargo vm clients --full`.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::library::{Library, engine};
use crate::running::Running;
use crate::wait::PROCESS;
use crate::{Result, fail};

/// Where the wheel is unpacked, in the directory of clients.
const DIRECTORY: &str = "mooncake";

/// The program, in the package's directory.
const PROGRAM: &str = "tests/clients/mooncake/transfer.py";

/// Where a side runs.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its network namespace; none for that of the test.
    pub namespace: Option<&'static str>,
    /// The address by which it is reached.
    pub address: String,
    /// The devices that the engine is given.
    pub devices: Vec<String>,
}

/// Which regions a side has, and how they are moved.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    /// Three, of a page to a mebibyte, block by block.
    Sizes,
    /// Those of a cache of keys and values: 36, with 136 blocks of 128 KiB to a MiB in a batch each way.
    Cache,
}

/// A side of transfers, which is killed at the end of the test at the latest.
#[derive(Debug)]
pub struct Side {
    running: Running,
    says: Receiver<String>,
    hears: ChildStdin,
}

/// The directory of the wheel.
///
/// # Errors
/// As of [`engine`].
pub fn wheel() -> Result<PathBuf> {
    engine(DIRECTORY)
}

impl Side {
    /// A target, and the line by which hosts find it.
    ///
    /// # Errors
    /// If it does not start, or not on this library.
    pub fn target(library: &Library, node: &Node, layout: Layout) -> Result<(Self, String)> {
        let target = Self::start(library, node, layout, "target")?;
        let line = target.line()?;
        target.running.uses(library)?;
        Ok((target, line))
    }

    /// A host.
    ///
    /// # Errors
    /// If it does not start.
    pub fn host(library: &Library, node: &Node, layout: Layout) -> Result<Self> {
        Self::start(library, node, layout, "host")
    }

    fn start(library: &Library, node: &Node, layout: Layout, role: &str) -> Result<Self> {
        let mut command: Command = match node.namespace {
            Some(namespace) => {
                let mut command = library.command("ip");
                command.args(["netns", "exec", namespace, "python3"]);
                command
            }
            None => library.command("python3"),
        };
        let layout = match layout {
            Layout::Sizes => "sizes",
            Layout::Cache => "cache",
        };
        command.arg(PROGRAM).arg(wheel()?).args([role, layout]);
        command.args([&node.address, &node.devices.join(",")]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let hears = child.stdin.take().ok_or("no input")?;
        let (sender, says) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(|line| line.ok());
            // Nobody listens any more when the test has ended.
            lines.for_each(|line| drop(sender.send(line)));
        });
        let running = Running::new(child);
        Ok(Self {
            running,
            says,
            hears,
        })
    }

    /// What it says next, within the time of a process.
    fn line(&self) -> Result<String> {
        match self.says.recv_timeout(PROCESS) {
            Ok(line) => Ok(line),
            Err(error) => fail(format!("a side says nothing more: {error}")),
        }
    }

    fn expect(&self, wanted: &str) -> Result {
        match self.line()? {
            line if line == wanted => Ok(()),
            other => fail(format!("a side says {other:?}, not {wanted:?}")),
        }
    }

    /// Has a host begin to transfer to and from this target, once, or again and again until that fails.
    ///
    /// # Errors
    /// If it does not.
    pub fn begin(&mut self, target: &str, until_failure: bool) -> Result {
        let how = if until_failure {
            "until_failure"
        } else {
            "once"
        };
        writeln!(self.hears, "{how} {target}")?;
        self.expect("begun")
    }

    /// Waits until a host has all bytes of its target.
    ///
    /// # Errors
    /// If it fails, or has others.
    pub fn ends_right(&self) -> Result {
        self.expect("right")
    }

    /// Waits until a host's transfers fail.
    ///
    /// # Errors
    /// If they do not within the time of a process, or it has read other bytes before.
    pub fn ends_failed(&self) -> Result {
        match self.line()? {
            line if line.starts_with("failed ") => Ok(()),
            other => fail(format!("a side says {other:?}, but the other has gone")),
        }
    }

    /// Has a host transfer once.
    ///
    /// # Errors
    /// If that fails.
    pub fn transfer(&mut self, target: &str) -> Result {
        self.begin(target, false)?;
        self.ends_right()
    }

    /// Asks a target whether it has all bytes of its host.
    ///
    /// # Errors
    /// If it has others.
    pub fn has_all(&mut self) -> Result {
        writeln!(self.hears)?;
        self.expect("right")
    }

    /// Fails unless it has connected queue pairs on each of these devices.
    ///
    /// # Errors
    /// If it has none on one of them.
    pub fn is_connected_on(&self, node: &Node) -> Result {
        for name in &node.devices {
            if !self.running.has_connection_on(name)? {
                return fail(format!("a side has no connection on {name}"));
            }
        }
        Ok(())
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// If it had ended by itself.
    pub fn kill(self) -> Result {
        self.running.kill()
    }
}
