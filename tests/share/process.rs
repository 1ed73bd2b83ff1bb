//! This program again, in a role, with its standard input and output as lines.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use support::role::{self, Step};
use support::{Result, fail};

/// A process in a role. It is killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Result<Self> {
        Self::spawn(role::command(role, arguments)?)
    }

    /// Starts one that is killed at this step.
    pub(crate) fn start_killed_at(role: &str, arguments: &[&str], step: Step) -> Result<Self> {
        Self::spawn(role::killed_at(role, arguments, step)?)
    }

    fn spawn(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Self {
            child,
            input,
            output,
        })
    }

    /// Starts it as the first process of a new PID namespace.
    pub(crate) fn start_apart(role: &str, arguments: &[&str]) -> Result<Self> {
        use rustix::thread::{UnshareFlags, move_into_link_name_space, unshare_unsafe};
        let own = File::open("/proc/self/ns/pid")?;
        // SAFETY: of this thread, only children that are made until the end of this function are concerned.
        unsafe { unshare_unsafe(UnshareFlags::NEWPID) }?;
        let process = Self::start(role, arguments);
        // Nothing could be started any more once the first process of the namespace has ended.
        move_into_link_name_space(own.as_fd(), None)?;
        process
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn say(&mut self, line: &str) -> Result {
        writeln!(self.input, "{line}")?;
        Ok(self.input.flush()?)
    }

    /// The next line that it says; an error if it has ended instead.
    pub(crate) fn hear(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("the process has ended: {}", self.child.wait()?).into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Hears that it has done what it was to do.
    pub(crate) fn expect(&mut self, expected: &str) -> Result {
        let line = self.hear()?;
        match line == expected {
            true => Ok(()),
            false => Err(format!("expected {expected:?}, the process says {line:?}").into()),
        }
    }

    /// Kills it as nothing can be caught, and waits until it is gone.
    pub(crate) fn kill(mut self) -> Result {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Closes its input and waits for its end.
    pub(crate) fn wait(mut self) -> Result<ExitStatus> {
        drop(std::mem::replace(&mut self.input, null_input()?));
        Ok(self.child.wait()?)
    }

    /// Waits for its end: true if it has done what it was to do, false if it was killed. One that ended by
    /// itself failed, as was heard from it.
    pub(crate) fn outlived(self, heard: Result) -> Result<bool> {
        let status = self.wait()?;
        match status.signal() {
            Some(_) => Ok(false),
            None if status.success() => Ok(true),
            None => heard.and_then(|()| fail(format!("the process ended with {status}"))),
        }
    }

    /// Waits for its end, which is to be a success.
    pub(crate) fn finish(mut self) -> Result {
        self.input = null_input()?;
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        let mut said = String::new();
        self.output.read_to_string(&mut said)?;
        Err(format!("the process ended with {status}: {said}").into())
    }
}

/// An input that leads nowhere, to stand where one was closed.
fn null_input() -> Result<ChildStdin> {
    Ok(ChildStdin::from(OwnedFd::from(
        File::options().write(true).open("/dev/null")?,
    )))
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, and then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A duplicate that programs which are executed inherit, and its number.
pub(crate) fn inheritable(fd: impl AsFd) -> Result<(OwnedFd, String)> {
    let fd = rustix::io::dup(fd)?;
    let number = fd.as_raw_fd().to_string();
    Ok((fd, number))
}
