//! Programs of others that run while a test looks at them.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use tempfile::NamedTempFile;
use uverbs::qp::QpState;

use crate::library::Library;
use crate::wait::{PROCESS, until_so};
use crate::{Result, fail};

/// A program, which is killed at the end of the test at the latest.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// This one.
    pub fn new(child: Child) -> Self {
        Self(child)
    }

    /// How it has ended; `None` as long as it runs.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.0.try_wait()?)
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// If it had ended by itself.
    pub fn kill(mut self) -> Result {
        if let Some(status) = self.status()? {
            return fail(format!("it has ended by itself with {status}"));
        }
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    /// Whether it has a connected queue pair on this device.
    ///
    /// # Errors
    /// If the kernel does not list queue pairs.
    pub fn has_connection_on(&self, device: &str) -> Result<bool> {
        let threads = PathBuf::from(format!("/proc/{}/task", self.0.id()));
        let qps = uverbs::device::find(device)?.resources()?.qps()?;
        // The kernel names the thread that has made it.
        let is_own = |thread| threads.join(format!("{thread}")).exists();
        let mut own = qps.iter().filter(|qp| qp.owner.pid().is_some_and(is_own));
        Ok(own.any(|qp| qp.state == QpState::RTS))
    }

    /// Fails unless the process has this library's libibverbs, and not the other.
    ///
    /// # Errors
    /// If it has not.
    pub fn uses(&self, library: &Library) -> Result {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.0.id()))?;
        let mut lines = maps.lines().filter(|line| line.contains("libibverbs.so"));
        let is_right = |line: &str| match library {
            Library::Theirs => !line.contains("/c-abi/"),
            Library::Ours(directory) | Library::OursWithRdmacm(directory, _) => {
                line.contains(&*directory.to_string_lossy())
            }
        };
        match lines.next().is_some_and(is_right) && lines.all(is_right) {
            true => Ok(()),
            false => fail(format!("a side does not use {library:?}")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, if all went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program whose words, on both streams, can be read while it runs.
#[derive(Debug)]
pub struct Recorded {
    running: Running,
    said: NamedTempFile,
}

impl Recorded {
    /// Starts it.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(mut command: Command) -> Result<Self> {
        let said = NamedTempFile::new()?;
        let stream = || -> Result<File> { Ok(OpenOptions::new().append(true).open(said.path())?) };
        let child = command.stdout(stream()?).stderr(stream()?).spawn()?;
        let running = Running::new(child);
        Ok(Self { running, said })
    }

    /// The program.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// What it has said.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.said)?).into_owned())
    }

    /// Waits for the end, as long as a process may take.
    ///
    /// # Errors
    /// If it does not come.
    pub fn end(&mut self) -> Result<ExitStatus> {
        until_so(PROCESS, "a program to end", || {
            Ok(self.running.status()?.is_some())
        })?;
        Ok(self.running.0.wait()?)
    }

    /// Waits until something is so, as long as a process may take.
    ///
    /// # Errors
    /// If the program ends before, or it does not become so.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> Result<bool>) -> Result {
        until_so(PROCESS, what, || match self.running.status()? {
            None => is_so(self),
            Some(status) => fail(format!("it ended with {status}: {}", self.said()?)),
        })
    }

    /// Ends it by SIGKILL.
    ///
    /// # Errors
    /// If it had ended by itself.
    pub fn kill(self) -> Result {
        let Self { running, said } = self;
        let words =
            || String::from_utf8_lossy(&std::fs::read(&said).unwrap_or_default()).into_owned();
        running
            .kill()
            .map_err(|error| format!("{error}: {}", words()).into())
    }
}
