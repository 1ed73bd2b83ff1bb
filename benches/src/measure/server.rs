//! A program that does timed work when asked, seen from the side that asks; `crate::serve` is the other.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// How the scheduler treats a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheduling {
    /// It runs when nothing else has work, and yields at once to what gets some.
    Idle,
    /// It runs until it sleeps.
    Fifo,
}

/// The running program; it ends when its input does, which is when this is dropped.
pub(super) struct Server {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Server {
    /// Starts a program.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn start(program: &Path, device: &str) -> Result<Self> {
        Self::spawn(Command::new(program), program, device)
    }

    /// Starts a program that the scheduler treats like this.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn scheduled(program: &Path, device: &str, scheduling: Scheduling) -> Result<Self> {
        let mut command = Command::new("chrt");
        command.args(match scheduling {
            Scheduling::Idle => ["--idle", "0"],
            Scheduling::Fifo => ["--fifo", "1"],
        });
        command.arg(program);
        Self::spawn(command, program, device)
    }

    fn spawn(mut command: Command, program: &Path, device: &str) -> Result<Self> {
        let mut child = command
            .args(["serve", device])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", program.display()))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("a program without output")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    /// Has it do some work and gives the nanoseconds of each time.
    ///
    /// # Errors
    /// If the work fails or the program ends.
    pub(super) fn ask(&mut self, request: &str) -> Result<Vec<u64>> {
        let input = self.input.as_mut().context("a program without input")?;
        writeln!(input, "{request}").with_context(|| format!("asking for {request}"))?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if let Some(error) = line.strip_prefix("error ") {
            bail!("{request}: {}", error.trim_end());
        }
        let samples: Vec<u64> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{request}: {line:?}"))?;
        if samples.is_empty() {
            bail!("{request}: the program has ended");
        }
        Ok(samples)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
