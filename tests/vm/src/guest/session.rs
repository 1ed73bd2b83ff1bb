//! One run of a guest: QEMU's process, the agent's socket, and the events that come from it.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::Options;
use super::launch::Emulator;
use super::protocol::{Ending, Frame, Kind, Network, Report, Request, Spec, WindowSize};
use super::turns::Turns;
use crate::fetch::Parts;
use crate::process;
use crate::qemu::Accelerator;
use crate::store::Store;

/// How long a boot may take. On a quiet machine it takes seconds; a busy one may have next to no time for an
/// emulated guest, and only a hang takes as long as this and the limits below.
const BOOT_LIMIT: Duration = Duration::from_secs(600);

/// How long the agent may be silent before the guest counts as hanging; it speaks every two seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(120);

/// The same where the guest's two seconds are so many instructions, which take a busy host minutes.
const SILENCE_LIMIT_COUNTED: Duration = Duration::from_secs(900);

/// How long the end of a guest may take.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(300);

/// How long QEMU may take to end after it has closed the agent's port.
const QEMU_END_LIMIT: Duration = Duration::from_secs(5);

/// How many lines of the console an error shows.
const CONSOLE_LINES: usize = 60;

/// Which stream bytes came from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// Something that happened to a process in the guest.
#[derive(Debug)]
pub(crate) enum Event {
    /// It wrote something.
    Wrote(u32, Stream, Vec<u8>),
    /// It ended.
    Ended(u32, Ending),
    /// It could not be started: the reason, and the status that a shell gives for it.
    NotStarted(u32, String, i32),
    /// The deadline passed before anything happened.
    Deadline,
}

/// A running guest. Dropped without [`Guest::shut_down`], it is killed.
#[derive(Debug)]
pub(crate) struct Guest {
    emulator: Emulator,
    socket: Arc<Mutex<UnixStream>>,
    frames: Receiver<Frame>,
    log: Vec<String>,
    next_process: u32,
    heard: Instant,
    /// How long it may be silent.
    silence: Duration,
    /// The socket of QEMU's monitor, if it has one.
    monitor: Option<PathBuf>,
}

impl Guest {
    /// Boots a guest and lays out its network.
    ///
    /// # Errors
    /// If QEMU cannot be started, or the guest does not come up in time; the error shows its console.
    pub(crate) fn boot(store: &Store, parts: &Parts, options: &Options) -> Result<Self> {
        Self::boot_beside(store, parts, options, None)
    }

    /// Boots a guest that has other functions of the adapter that this one has.
    ///
    /// # Errors
    /// As of [`Guest::boot`].
    pub(crate) fn boot_second(
        store: &Store,
        parts: &Parts,
        options: &Options,
        first: &Self,
    ) -> Result<Self> {
        let mut options = options.clone();
        if let Network::Adapter { guest, .. } = &mut options.network {
            *guest += 1;
        }
        Self::boot_beside(store, parts, &options, Some(&first.emulator))
    }

    fn boot_beside(
        store: &Store,
        parts: &Parts,
        options: &Options,
        other: Option<&Emulator>,
    ) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair().context("making a socket for the guest's agent")?;
        let emulator = Emulator::start(store, parts, options, theirs.into(), other)?;
        let reader = ours.try_clone().context("reading from the guest")?;
        let (sender, frames) = channel();
        std::thread::spawn(move || {
            while let Ok(Some(frame)) = Frame::read(&reader) {
                if sender.send(frame).is_err() {
                    return;
                }
            }
        });
        let socket = Arc::new(Mutex::new(ours));
        let mut guest = Self {
            monitor: emulator.files().monitor(options),
            emulator,
            socket,
            frames,
            log: Vec::new(),
            next_process: 1,
            heard: Instant::now(),
            silence: match options.accelerator {
                Accelerator::Icount => SILENCE_LIMIT_COUNTED,
                Accelerator::Kvm | Accelerator::Tcg => SILENCE_LIMIT,
            },
        };
        guest.come_up(options.network)?;
        Ok(guest)
    }

    /// The turns of its processors, if it has several that are counted.
    pub(crate) fn turns(&self) -> Option<Turns> {
        let monitor = self.monitor.clone()?;
        Some(Turns { monitor })
    }

    /// Waits for the agent and has it lay out the network.
    fn come_up(&mut self, network: Network) -> Result<()> {
        let deadline = Instant::now() + BOOT_LIMIT;
        loop {
            match self.report(deadline)? {
                Some((_, Report::Hello)) => self.request(0, &Request::Prepare(network))?,
                Some((_, Report::Ready)) => return Ok(()),
                Some((_, Report::NotReady(reason))) => bail!("{reason}\n{}", self.console()),
                Some(_) => {}
                None => bail!(
                    "the guest was not up after {} s\n{}",
                    BOOT_LIMIT.as_secs(),
                    self.console()
                ),
            }
        }
    }

    /// Starts a process and gives its number.
    ///
    /// # Errors
    /// If the guest is gone.
    pub(crate) fn start(&mut self, spec: &Spec) -> Result<u32> {
        let process = self.next_process;
        self.next_process += 1;
        self.request(process, &Request::Start(spec.clone()))?;
        Ok(process)
    }

    /// Sends a signal to a process and its children.
    ///
    /// # Errors
    /// If the guest is gone.
    pub(crate) fn signal(&mut self, process: u32, signal: i32) -> Result<()> {
        self.request(process, &Request::Signal(signal))
    }

    /// Gives what feeds a process's input and terminal from another thread.
    pub(crate) fn input(&self, process: u32) -> Input {
        Input {
            socket: Arc::clone(&self.socket),
            process,
        }
    }

    /// Waits for the next event, until the deadline if there is one.
    ///
    /// # Errors
    /// If the guest is gone or hangs; the error shows its console.
    pub(crate) fn next(&mut self, deadline: Option<Instant>) -> Result<Event> {
        loop {
            let silence = self.heard + self.silence;
            let until = deadline.map_or(silence, |deadline| deadline.min(silence));
            let Some(frame) = self.frame(until)? else {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(Event::Deadline);
                }
                bail!(
                    "the guest hangs: nothing heard for {} s\n{}",
                    self.silence.as_secs(),
                    self.console()
                );
            };
            match frame.kind {
                Kind::Output => {
                    return Ok(Event::Wrote(frame.process, Stream::Output, frame.content));
                }
                Kind::Error => {
                    return Ok(Event::Wrote(frame.process, Stream::Error, frame.content));
                }
                Kind::Control => match control(&frame)? {
                    Report::Ended(ending) => return Ok(Event::Ended(frame.process, ending)),
                    Report::NotStarted(reason, status) => {
                        return Ok(Event::NotStarted(frame.process, reason, status));
                    }
                    _ => {}
                },
                Kind::Log | Kind::Input => {}
            }
        }
    }

    /// Ends the guest in good order, and gives its kernel's whole log, and what its adapter complained about.
    ///
    /// # Errors
    /// If it does not end in time; the error shows its console.
    pub(crate) fn shut_down(mut self) -> Result<(Vec<String>, Vec<String>)> {
        self.request(0, &Request::Shutdown)?;
        let deadline = Instant::now() + SHUTDOWN_LIMIT;
        loop {
            match self.report(deadline)? {
                Some((_, Report::Goodbye)) => break,
                Some(_) => {}
                None => bail!(
                    "the guest did not end in {} s\n{}",
                    SHUTDOWN_LIMIT.as_secs(),
                    self.console()
                ),
            }
        }
        // Nothing is left to be lost, so QEMU is killed on return: no need to wait for the kernel to power
        // off.
        let violations = self.emulator.take_adapter_violations();
        Ok((std::mem::take(&mut self.log), violations))
    }

    /// Takes what the adapter has complained about since it was asked last.
    pub(crate) fn take_adapter_violations(&self) -> Vec<String> {
        self.emulator.take_adapter_violations()
    }

    /// The kernel's log so far.
    pub(crate) fn log(&self) -> &[String] {
        &self.log
    }

    /// The console's last lines, for an error message.
    pub(crate) fn console(&self) -> String {
        let lines = process::last_lines(&self.emulator.console(), CONSOLE_LINES);
        format!("the guest's console ended with:\n{lines}")
    }

    fn request(&mut self, process: u32, request: &Request) -> Result<()> {
        send(&self.socket, &Frame::control(process, request))
            .map_err(|error| anyhow!("the guest is gone ({error})\n{}", self.console()))
    }

    /// The next report of the agent, none if the deadline passes.
    fn report(&mut self, deadline: Instant) -> Result<Option<(u32, Report)>> {
        while let Some(frame) = self.frame(deadline)? {
            if frame.kind == Kind::Control {
                return Ok(Some((frame.process, control(&frame)?)));
            }
        }
        Ok(None)
    }

    /// The next frame, none if the deadline passes. Lines of the log are kept on the way.
    fn frame(&mut self, deadline: Instant) -> Result<Option<Frame>> {
        match self
            .frames
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(frame) => {
                self.heard = Instant::now();
                if frame.kind == Kind::Log {
                    self.log
                        .push(String::from_utf8_lossy(&frame.content).into_owned());
                }
                Ok(Some(frame))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.gone()),
        }
    }

    /// Why the guest is gone.
    fn gone(&mut self) -> anyhow::Error {
        let ended = match self.emulator.wait(QEMU_END_LIMIT) {
            Some(status) => format!("QEMU ended with {status}"),
            None => "QEMU closed the agent's port".to_owned(),
        };
        let said = process::last_lines(&self.emulator.errors(), 10);
        anyhow!("the guest is gone: {ended}\n{said}\n{}", self.console())
    }
}

/// Feeds a process's standard input and its terminal's size.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    socket: Arc<Mutex<UnixStream>>,
    process: u32,
}

impl Input {
    /// Passes bytes on; none close the input.
    ///
    /// # Errors
    /// If the guest is gone.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        send(
            &self.socket,
            &Frame {
                kind: Kind::Input,
                process: self.process,
                content: bytes.to_vec(),
            },
        )
    }

    /// Gives the process's terminal a new size.
    ///
    /// # Errors
    /// If the guest is gone.
    pub(crate) fn resize(&self, size: WindowSize) -> io::Result<()> {
        send(
            &self.socket,
            &Frame::control(self.process, &Request::Resize(size)),
        )
    }
}

/// Writes a frame whole, whichever thread it comes from.
fn send(socket: &Mutex<UnixStream>, frame: &Frame) -> io::Result<()> {
    frame.write(&*socket.lock().unwrap_or_else(PoisonError::into_inner))
}

fn control(frame: &Frame) -> Result<Report> {
    serde_json::from_slice(&frame.content).context("reading what the guest's agent says")
}
