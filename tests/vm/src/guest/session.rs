//! One run of a guest: QEMU's process, the agent's socket, and the events that come from it.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::protocol::{Ending, Frame, Kind, Network, Report, Request, Spec, WindowSize};
use crate::fetch::Parts;
use crate::initramfs::{self, Boot};
use crate::process;
use crate::qemu::{Accelerator, Machine, Share};
use crate::store::Store;

/// How long a boot may take.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// How long the agent may be silent before the guest counts as hanging; it speaks every two seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// How long the end of a guest may take.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(30);

/// How many lines of the console an error shows.
const CONSOLE_LINES: usize = 60;

/// What a guest is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// What runs it.
    pub(crate) accelerator: Accelerator,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// Number of processors.
    pub(crate) cpus: u32,
    /// Its network.
    pub(crate) network: Network,
}

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
    qemu: Child,
    socket: UnixStream,
    frames: Receiver<Frame>,
    files: Files,
    log: Vec<String>,
    next_process: u32,
    heard: Instant,
}

/// The files of one run; removed at its end.
#[derive(Debug)]
struct Files {
    directory: PathBuf,
}

impl Guest {
    /// Boots a guest and lays out its network.
    ///
    /// # Errors
    /// If QEMU cannot be started, or the guest does not come up in time; the error shows its console.
    pub(crate) fn boot(store: &Store, parts: &Parts, options: &Options) -> Result<Self> {
        let files = Files::new(store)?;
        let agent = std::env::current_exe().context("finding this program's executable")?;
        let keep = kept_directories(store, &agent)?;
        let boot = Boot {
            agent: Some(agent),
            keep,
        };
        initramfs::write(store, parts, &boot, &files.initramfs())?;
        let (ours, theirs) = UnixStream::pair().context("making a socket for the guest's agent")?;
        let machine = machine(parts, options, &files, Some(&theirs));
        let qemu = start(parts, &machine, &files, theirs.into())?;
        let (sender, frames) = channel();
        let reader = ours.try_clone().context("reading from the guest")?;
        std::thread::spawn(move || {
            while let Ok(Some(frame)) = Frame::read(&reader) {
                if sender.send(frame).is_err() {
                    return;
                }
            }
        });
        let heard = Instant::now();
        let mut guest = Self {
            qemu,
            socket: ours,
            frames,
            files,
            log: Vec::new(),
            next_process: 1,
            heard,
        };
        guest.come_up(options.network)?;
        Ok(guest)
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
    ///
    /// # Errors
    /// If the socket cannot be duplicated.
    pub(crate) fn input(&self, process: u32) -> Result<Input> {
        let socket = self.socket.try_clone().context("writing to the guest")?;
        Ok(Input { socket, process })
    }

    /// Waits for the next event, until the deadline if there is one.
    ///
    /// # Errors
    /// If the guest is gone or hangs; the error shows its console.
    pub(crate) fn next(&mut self, deadline: Option<Instant>) -> Result<Event> {
        loop {
            let silence = self.heard + SILENCE_LIMIT;
            let until = deadline.map_or(silence, |deadline| deadline.min(silence));
            let Some(frame) = self.frame(until)? else {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(Event::Deadline);
                }
                bail!(
                    "the guest hangs: nothing heard for {} s\n{}",
                    SILENCE_LIMIT.as_secs(),
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

    /// Ends the guest in good order, and gives its kernel's whole log.
    ///
    /// # Errors
    /// If it does not end in time; the error shows its console.
    pub(crate) fn shut_down(mut self) -> Result<Vec<String>> {
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
        // Nothing is left to be lost: no need to wait for the kernel to power off.
        let _ = self.qemu.kill();
        Ok(std::mem::take(&mut self.log))
    }

    /// The kernel's log so far.
    pub(crate) fn log(&self) -> &[String] {
        &self.log
    }

    /// The console's last lines, for an error message.
    pub(crate) fn console(&self) -> String {
        let text = fs::read(self.files.console()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).replace('\r', "");
        format!(
            "the guest's console ended with:\n{}",
            process::last_lines(&text, CONSOLE_LINES)
        )
    }

    fn request(&mut self, process: u32, request: &Request) -> Result<()> {
        let sent = Frame::control(process, request).write(&self.socket);
        sent.map_err(|error| anyhow!("the guest is gone ({error})\n{}", self.console()))
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
        let status = self
            .qemu
            .wait()
            .map(|status| status.to_string())
            .unwrap_or_default();
        let said = fs::read_to_string(self.files.qemu_errors()).unwrap_or_default();
        anyhow!(
            "the guest is gone (QEMU: {status})\n{}\n{}",
            process::last_lines(&said, 10),
            self.console()
        )
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Feeds a process's standard input.
#[derive(Debug)]
pub(crate) struct Input {
    socket: UnixStream,
    process: u32,
}

impl Input {
    /// Passes bytes on; none close the input.
    ///
    /// # Errors
    /// If the guest is gone.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<()> {
        let frame = Frame {
            kind: Kind::Input,
            process: self.process,
            content: bytes.to_vec(),
        };
        frame.write(&self.socket).context("writing to the guest")
    }

    /// Gives the process's terminal a new size.
    ///
    /// # Errors
    /// If the guest is gone.
    pub(crate) fn resize(&self, size: WindowSize) -> Result<()> {
        Frame::control(self.process, &Request::Resize(size))
            .write(&self.socket)
            .context("writing to the guest")
    }
}

impl Files {
    fn new(store: &Store) -> Result<Self> {
        let directory = store.directory(format!("runs/{}", std::process::id()))?;
        Ok(Self { directory })
    }

    fn console(&self) -> PathBuf {
        self.directory.join("console")
    }

    fn initramfs(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    fn qemu_errors(&self) -> PathBuf {
        self.directory.join("qemu-errors")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn control(frame: &Frame) -> Result<Report> {
    serde_json::from_slice(&frame.content).context("reading what the guest's agent says")
}

/// Directories that must be seen in the guest although they may lie where it has a tmpfs of its own.
fn kept_directories(store: &Store, agent: &Path) -> Result<Vec<PathBuf>> {
    let current = std::env::current_dir().context("finding the current directory")?;
    let mut keep = vec![
        store.workspace().to_path_buf(),
        store.root().to_path_buf(),
        current,
    ];
    keep.extend(agent.parent().map(Path::to_path_buf));
    keep.retain(|path| {
        ["/tmp/", "/run/", "/dev/shm/"]
            .iter()
            .any(|hidden| path.starts_with(hidden))
    });
    keep.sort();
    keep.dedup();
    Ok(keep)
}

fn machine(parts: &Parts, options: &Options, files: &Files, agent: Option<&UnixStream>) -> Machine {
    Machine {
        accelerator: options.accelerator,
        memory: options.memory,
        cpus: options.cpus,
        kernel: parts.kernel.image.clone(),
        initramfs: files.initramfs(),
        append: kernel_command_line(),
        console: files.console(),
        shares: vec![
            Share {
                tag: "host",
                path: "/".into(),
            },
            Share {
                tag: "tools",
                path: parts.tools.root.clone(),
            },
        ],
        agent: agent.map(AsRawFd::as_raw_fd),
        devices: Vec::new(),
    }
}

/// Level 5 puts warnings and worse on the console, so that a guest that dies has said why. A panic ends QEMU at once.
fn kernel_command_line() -> String {
    "console=ttyS0 loglevel=5 panic=-1 mitigations=off rdinit=/init tsc=reliable no_timer_check rcupdate.rcu_expedited=1 \
     random.trust_cpu=on i8042.noaux i8042.nokbd"
        .to_owned()
}

/// Starts QEMU, which inherits the agent's socket and ends with this process.
fn start(parts: &Parts, machine: &Machine, files: &Files, agent: OwnedFd) -> Result<Child> {
    fcntl(&agent, FcntlArg::F_SETFD(FdFlag::empty())).context("passing a socket to QEMU")?;
    let errors =
        fs::File::create(files.qemu_errors()).context("making a file for QEMU's errors")?;
    let mut command = parts.qemu.command(machine);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors);
    // An interrupt from the terminal is for this process, which then ends the guest.
    command.process_group(0);
    // SAFETY: between fork and exec only one system call is made, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            Ok(nix::sys::prctl::set_pdeathsig(
                nix::sys::signal::Signal::SIGKILL,
            )?)
        });
    }
    command
        .spawn()
        .with_context(|| format!("starting QEMU: `{}`", process::describe(&command)))
}
