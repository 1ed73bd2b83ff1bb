//! A process that the agent runs for the host: its streams, its terminal, its end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::Host;
use crate::guest::protocol::{Ending, Frame, Kind, Report, Spec, WindowSize};

/// How long the next output is waited for after the process has ended: a child that it left behind may keep
/// the pipe open.
const LAST_OUTPUT: Duration = Duration::from_secs(3);

nix::ioctl_write_ptr_bad!(
    /// Sets the size of a terminal (ioctl_tty(2)).
    set_window_size,
    nix::libc::TIOCSWINSZ,
    Winsize
);

nix::ioctl_write_int_bad!(
    /// Makes a terminal the controlling one of a session (ioctl_tty(2)).
    set_controlling_terminal,
    nix::libc::TIOCSCTTY
);

/// A running process.
#[derive(Debug)]
pub(crate) struct Process {
    group: Pid,
    input: Option<Sender<Vec<u8>>>,
    terminal: Option<OwnedFd>,
}

impl Process {
    /// Starts it, in a process group of its own; its output and its end go to the host by themselves.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(spec: &Spec, number: u32, host: &Host) -> io::Result<Self> {
        match spec.terminal {
            Some(size) => Self::start_on_terminal(spec, size, number, host),
            None => Self::start_on_pipes(spec, number, host),
        }
    }

    fn start_on_pipes(spec: &Spec, number: u32, host: &Host) -> io::Result<Self> {
        let mut command = command(spec)?;
        command.stdin(if spec.input {
            Stdio::piped()
        } else {
            Stdio::null()
        });
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn()?;
        let (sent, ended) = sync_channel(1);
        if let Some(output) = child.stdout.take() {
            forward(output, Kind::Output, number, host, sent.clone());
        }
        if let Some(errors) = child.stderr.take() {
            forward(errors, Kind::Error, number, host, sent.clone());
        }
        let input = child.stdin.take().map(feed);
        let group = group(&child);
        report_end(child, ended, number, host);
        Ok(Self {
            group,
            input,
            terminal: None,
        })
    }

    fn start_on_terminal(
        spec: &Spec,
        size: WindowSize,
        number: u32,
        host: &Host,
    ) -> io::Result<Self> {
        let pty = openpty(&winsize(size), None)?;
        let mut command = command(spec)?;
        command
            .stdin(pty.slave.try_clone()?)
            .stdout(pty.slave.try_clone()?)
            .stderr(pty.slave);
        // SAFETY: between fork and exec only two system calls are made, both async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                set_controlling_terminal(0, 0)?;
                Ok(())
            });
        }
        let child = command.spawn()?;
        // The command holds the terminal's other end; the last output is complete only when all of them are
        // closed.
        drop(command);
        let (sent, ended) = sync_channel(1);
        forward(
            File::from(pty.master.try_clone()?),
            Kind::Output,
            number,
            host,
            sent,
        );
        let input = feed(File::from(pty.master.try_clone()?));
        let group = group(&child);
        report_end(child, ended, number, host);
        Ok(Self {
            group,
            input: Some(input),
            terminal: Some(pty.master),
        })
    }

    /// Passes bytes to its standard input; none close it.
    pub(crate) fn input(&self, bytes: Vec<u8>) {
        if let Some(input) = &self.input {
            // The other end is gone when the process has closed its input, which is its right.
            let _ = input.send(bytes);
        }
    }

    /// Sends a signal to its group.
    pub(crate) fn signal(&self, signal: i32) {
        if let Ok(signal) = Signal::try_from(signal) {
            let _ = killpg(self.group, signal);
        }
    }

    /// Gives its terminal a new size.
    pub(crate) fn resize(&self, size: WindowSize) {
        if let Some(terminal) = &self.terminal {
            // SAFETY: the descriptor is open, and the kernel reads one `winsize` from a live reference.
            let _ = unsafe { set_window_size(terminal.as_fd().as_raw_fd(), &winsize(size)) };
        }
    }
}

/// Kills everything but process 1 and the agent.
pub(crate) fn end_all() {
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
    // They are gone when their devices are closed, which takes the kernel a moment; the removal of a device
    // waits for it.
}

fn command(spec: &Spec) -> io::Result<Command> {
    let (program, arguments) = spec
        .words
        .split_first()
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&spec.environment)
        .current_dir(&spec.directory);
    Ok(command)
}

fn group(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

fn winsize(size: WindowSize) -> Winsize {
    Winsize {
        ws_row: size.rows,
        ws_col: size.columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// Sends what comes out of a stream, until its end; then `sent`, which hears of each piece, is dropped.
fn forward(
    mut from: impl Read + Send + 'static,
    kind: Kind,
    number: u32,
    host: &Host,
    sent: SyncSender<()>,
) {
    let host = host.clone();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        // A terminal whose other end is closed gives EIO, which is its end.
        while let Ok(length) = from.read(&mut buffer)
            && length > 0
        {
            host.send(&Frame {
                kind,
                process: number,
                content: buffer[..length].to_vec(),
            });
            // A piece that nobody has heard of yet says the same.
            let _ = sent.try_send(());
        }
        drop(sent);
    });
}

/// Writes to a process's input, on a thread of its own since the process may never read.
fn feed(mut to: impl Write + Send + 'static) -> Sender<Vec<u8>> {
    let (sender, receiver) = channel::<Vec<u8>>();
    std::thread::spawn(move || {
        for bytes in receiver {
            if bytes.is_empty() || to.write_all(&bytes).is_err() {
                return;
            }
        }
    });
    sender
}

/// Waits for the process, then for its output, then tells the host.
fn report_end(mut child: Child, output: Receiver<()>, number: u32, host: &Host) {
    let host = host.clone();
    std::thread::spawn(move || {
        let status = child.wait();
        // Ends when the last sender is dropped, since all output has been sent then, or when no more comes.
        while output.recv_timeout(LAST_OUTPUT).is_ok() {}
        let report = match status {
            Ok(status) => Report::Ended(ending(status)),
            Err(error) => Report::NotStarted(format!("waiting for the process: {error}"), 126),
        };
        host.report(number, &report);
    });
}

fn ending(status: ExitStatus) -> Ending {
    match status.signal() {
        Some(signal) => Ending::Signalled(signal),
        None => Ending::Exited(status.code().unwrap_or_default()),
    }
}
