//! Files as disks, and the example that serves them and writes to those of others.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use support::program::example;
use support::wait::{PROCESS, until_so};
use support::{Result, fail, is_full, skip};

/// Bytes of a disk: enough for a file system.
pub(crate) const SIZE: usize = 16 << 20;

/// Where a disk is offered: an address that the device has.
pub(crate) const ADDRESS: &str = "10.9.0.1";

/// A file on a file system in memory, which goes with the test.
pub(crate) struct DiskFile(PathBuf);

impl DiskFile {
    /// A file with zeros.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let path = PathBuf::from("/tmp").join(name);
        File::create(&path)?.set_len(SIZE as u64)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result {
        let file = File::options().write(true).open(&self.0)?;
        Ok(file.write_all_at(bytes, at as u64)?)
    }

    /// Fails if there are other bytes at this place.
    pub(crate) fn expect(&self, at: usize, bytes: &[u8]) -> Result {
        let mut found = vec![0; bytes.len()];
        File::open(&self.0)?.read_exact_at(&mut found, at as u64)?;
        expect_same(&found, bytes, "the disk has")
    }

    /// Whether it has other bytes than zeros at this place.
    pub(crate) fn has_something(&self, at: usize, length: usize) -> Result<bool> {
        let mut found = vec![0; length];
        File::open(&self.0)?.read_exact_at(&mut found, at as u64)?;
        Ok(found.iter().any(|byte| *byte != 0))
    }
}

impl Drop for DiskFile {
    fn drop(&mut self) {
        // Whatever is left goes with the guest.
        let _ = fs::remove_file(&self.0);
    }
}

/// Compares long contents without printing them.
pub(crate) fn expect_same(found: &[u8], expected: &[u8], what: &str) -> Result {
    if found.len() != expected.len() {
        return fail(format!("{what} {} bytes", found.len()));
    }
    let mut pairs = found.iter().zip(expected);
    match pairs.position(|(found, expected)| found != expected) {
        Some(at) => fail(format!("{what} other bytes from {at} on")),
        None => Ok(()),
    }
}

/// The example as a process, which is killed at the end of the test at the latest.
pub(crate) struct Example(Child);

impl Example {
    /// Serves a file as a disk, and comes back when it does.
    pub(crate) fn serve(port: u16, disk: &DiskFile, name: &str) -> Result<Self> {
        let mut command = Command::new(example("nvmet")?);
        command.arg("serve").arg(format!("{ADDRESS}:{port}"));
        command.arg(disk.path()).arg(name);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let said = child.stdout.take().ok_or("no output")?;
        let served = Self(child);
        // Its first line says that it listens. The thread reads the others, so that it can go on.
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(said).lines() {
                let Ok(line) = line else { return };
                println!("{line}");
                // The test may be over.
                let _ = sender.send(line);
            }
        });
        lines
            .recv_timeout(PROCESS)
            .map_err(|_| "the target does not listen")?;
        Ok(served)
    }

    /// Starts to write bytes to a disk.
    pub(crate) fn write(port: u16, name: &str, bytes: Vec<u8>) -> Result<Self> {
        let mut command = Command::new(example("nvmet")?);
        command.args(["write", &format!("{ADDRESS}:{port}"), name]);
        let mut child = command.stdin(Stdio::piped()).spawn()?;
        let mut input = child.stdin.take().ok_or("no input")?;
        // If it ends before, it takes no more.
        thread::spawn(move || input.write_all(&bytes));
        Ok(Self(child))
    }

    /// Reads the first bytes of a disk.
    pub(crate) fn read(port: u16, name: &str, length: usize) -> Result<Vec<u8>> {
        let mut command = Command::new(example("nvmet")?);
        command.args(["read", &format!("{ADDRESS}:{port}"), name]);
        let output = command.arg(length.to_string()).output()?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => fail(String::from_utf8_lossy(&output.stderr)),
        }
    }

    /// Waits until it has ended well.
    pub(crate) fn finish(mut self) -> Result {
        let mut ended = None;
        until_so(PROCESS, "the example to end", || {
            ended = self.0.try_wait()?;
            Ok(ended.is_some())
        })?;
        match ended {
            Some(ended) if !ended.success() => fail(format!("the example ended with {ended}")),
            _ => Ok(()),
        }
    }

    /// Kills it, as a machine would that loses its power, and waits until it is gone.
    pub(crate) fn kill(mut self) -> Result {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // It has ended already, if it was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends a test for which not every run has the time.
pub(crate) fn only_in_full() -> Result {
    match is_full() {
        true => Ok(()),
        false => skip("only in a run of everything, or by its name"),
    }
}
