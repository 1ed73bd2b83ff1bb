//! Starting QEMU for one run: the run's files, the machine's description, the child process.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Options;
use crate::arch::Arch;
use crate::fetch::Parts;
use crate::hca::{self, Hca};
use crate::initramfs::{self, Boot};
use crate::process;
use crate::qemu::{Accelerator, Machine, Share, Wire};
use crate::store::Store;
use crate::tsc;

/// The guest kernel's command line. Level 5 puts warnings and worse on the console, so that a guest that dies
/// has said why. A panic ends QEMU at once. The watchdogs, of processors and of grace periods, are patient
/// because an emulated processor may be slow.
const KERNEL_COMMAND_LINE: &str = "loglevel=5 panic=-1 mitigations=off watchdog_thresh=60 \
     rcupdate.rcu_expedited=1 rcupdate.rcu_cpu_stall_timeout=120";

/// What is different on x86-64: the clock is trusted, and devices that are not there are not looked for.
const X86_64: &str =
    "console=ttyS0 tsc=reliable no_timer_check random.trust_cpu=on i8042.noaux i8042.nokbd";

/// What is different on arm64.
const ARM64: &str = "console=ttyAMA0";

/// The rest of it for an emulated x86-64, whose time stamp counter is this machine's.
fn rate_of_counter(options: &Options) -> String {
    match tsc::khz() {
        Some(khz) if options.accelerator == Accelerator::Tcg => format!(" tsc_early_khz={khz}"),
        _ => String::new(),
    }
}

/// The number of this process's next run. None is used twice: the adapter of a run that has ended removes its
/// sockets by name when it notices, which may be after the next run has made its own.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The files of one run; removed at its end.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
}

impl Files {
    /// Makes a directory for one run, and removes those of processes that were killed.
    ///
    /// # Errors
    /// If it cannot be made.
    fn new(store: &Store) -> Result<Self> {
        let runs = store.directory("runs")?;
        let own = std::process::id();
        for entry in fs::read_dir(&runs).into_iter().flatten().flatten() {
            let owner = entry
                .file_name()
                .to_string_lossy()
                .split('-')
                .next()
                .and_then(|pid| pid.parse::<u32>().ok());
            let gone = owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists());
            if gone {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        // Relaxed: the number alone is shared. One of a killed process with the same id may be there.
        let directory =
            std::iter::repeat_with(|| format!("{own}-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
                .map(|name| runs.join(name))
                .find(|path| !path.exists());
        let directory = directory.context("no name left for a run's directory")?;
        fs::create_dir(&directory).with_context(|| format!("making {}", directory.display()))?;
        Ok(Self { directory })
    }

    /// What the guest wrote to its serial console.
    pub(super) fn console(&self) -> PathBuf {
        self.directory.join("console")
    }

    fn initramfs(&self) -> PathBuf {
        self.directory.join("initramfs")
    }

    /// The socket of QEMU's monitor, which guests with several counted processors have.
    pub(super) fn monitor(&self, options: &Options) -> Option<PathBuf> {
        let has_turns = options.accelerator == Accelerator::Icount && options.cpus > 1;
        has_turns.then(|| self.directory.join("monitor"))
    }

    /// What QEMU wrote to its standard error.
    pub(super) fn qemu_errors(&self) -> PathBuf {
        self.directory.join("qemu-errors")
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A QEMU process with its files; killed when dropped.
#[derive(Debug)]
pub(super) struct Emulator {
    process: Child,
    files: Files,
    adapter: Option<Adapter>,
}

/// The adapter as one of its guests has it.
#[derive(Clone, Debug)]
struct Adapter {
    model: Arc<hca::Model>,
    /// The guest's number, counted from 0.
    guest: u16,
    /// Where the ends of a wire between the guests are: the first one's directory.
    directory: PathBuf,
}

impl Emulator {
    /// Starts a guest that serves the agent's port on this socket. With another guest given, it has the
    /// adapter of that one.
    ///
    /// # Errors
    /// If the initramfs cannot be made or QEMU cannot be started.
    pub(super) fn start(
        store: &Store,
        parts: &Parts,
        options: &Options,
        socket: OwnedFd,
        other: Option<&Self>,
    ) -> Result<Self> {
        let agent = match &options.agent {
            Some(agent) => agent.clone(),
            None => std::env::current_exe().context("finding this program's executable")?,
        };
        let keep = kept_directories(store, &agent)?;
        let boot = Boot {
            agent: Some(agent),
            keep,
            full_tools: parts.full_tools.is_some(),
            without: options.without.clone(),
        };
        let shared = other.and_then(|other| other.adapter.clone());
        let shared = shared.map(|adapter| Adapter {
            guest: adapter.guest + 1,
            ..adapter
        });
        Self::launch(store, parts, options, &boot, Some(socket), shared)
    }

    /// Starts a guest that powers off as soon as it is up.
    ///
    /// # Errors
    /// As [`Emulator::start`].
    pub(super) fn start_trial(store: &Store, parts: &Parts, options: &Options) -> Result<Self> {
        Self::launch(store, parts, options, &Boot::default(), None, None)
    }

    fn launch(
        store: &Store,
        parts: &Parts,
        options: &Options,
        boot: &Boot,
        socket: Option<OwnedFd>,
        shared: Option<Adapter>,
    ) -> Result<Self> {
        let files = Files::new(store)?;
        let mut further = options.hca.as_ref().map(Hca::modules).unwrap_or_default();
        further.extend(options.modules.iter().cloned());
        initramfs::write(store, parts, &further, boot, &files.initramfs())?;
        let mut machine = machine(
            parts,
            options,
            &files,
            socket.as_ref().map(AsRawFd::as_raw_fd),
        );
        let mut adapter = None;
        let mut control = None;
        if let Some(hca) = &options.hca {
            let shared = match shared {
                Some(shared) => shared,
                None => Adapter {
                    model: Arc::new(hca.start(&files.directory)?),
                    guest: 0,
                    directory: files.directory.clone(),
                },
            };
            if hca.needs_wire() {
                machine.wire = Some(Wire::between_two(&shared.directory, shared.guest));
            }
            let model = &shared.model;
            machine.devices = hca::devices(model, hca, shared.guest, &machine);
            let (ours, theirs) = UnixStream::pair().context("making a socket for the adapter")?;
            model
                .serve_control(ours)
                .context("serving the adapter's control channel")?;
            machine.hca_control = Some(theirs.as_raw_fd());
            adapter = Some(shared);
            // Kept open until QEMU has it.
            control = Some(theirs);
        }
        let mut command = parts.qemu.command(&machine);
        let errors =
            fs::File::create(files.qemu_errors()).context("making a file for QEMU's errors")?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        // An interrupt from the terminal is for this process, with which the guest ends.
        command.process_group(0);
        process::end_with_parent(&mut command);
        process::step_back(&mut command);
        let passed = [
            socket.as_ref().map(AsFd::as_fd),
            control.as_ref().map(AsFd::as_fd),
        ];
        for file in passed.into_iter().flatten() {
            process::inherit(&mut command, file);
        }
        let process = command
            .spawn()
            .with_context(|| format!("starting QEMU: `{}`", process::describe(&command)))?;
        drop(control);
        Ok(Self {
            process,
            files,
            adapter,
        })
    }

    /// The run's files.
    pub(super) fn files(&self) -> &Files {
        &self.files
    }

    /// What the guest wrote to its console so far.
    pub(super) fn console(&self) -> String {
        let text = fs::read(self.files.console()).unwrap_or_default();
        String::from_utf8_lossy(&text).replace('\r', "")
    }

    /// What QEMU itself said.
    pub(super) fn errors(&self) -> String {
        fs::read_to_string(self.files.qemu_errors()).unwrap_or_default()
    }

    /// Takes what the adapter has complained about since it was asked last.
    pub(super) fn take_adapter_violations(&self) -> Vec<String> {
        let adapter = self.adapter.as_ref();
        adapter
            .map(|adapter| adapter.model.take_violations())
            .unwrap_or_default()
    }

    /// Waits for QEMU to end; none if it does not in time.
    pub(super) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.process.try_wait() {
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50))
                }
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Directories that must be seen in the guest although they may lie where it has a tmpfs of its own.
fn kept_directories(store: &Store, agent: &Path) -> Result<Vec<PathBuf>> {
    let current = std::env::current_dir().context("finding the current directory")?;
    let mut keep = vec![
        store.workspace().to_path_buf(),
        store.root().to_path_buf(),
        current,
    ];
    keep.extend(store.root().parent().map(Path::to_path_buf));
    keep.extend(agent.parent().map(Path::to_path_buf));
    let hidden = ["/tmp/", "/run/", "/dev/shm/"];
    keep.retain(|path| hidden.iter().any(|hidden| path.starts_with(hidden)));
    keep.sort();
    keep.dedup();
    Ok(keep)
}

fn machine(parts: &Parts, options: &Options, files: &Files, agent: Option<RawFd>) -> Machine {
    let share = |tag, path: &Path| Share {
        tag,
        path: path.to_path_buf(),
    };
    let further = match parts.arch {
        Arch::X86_64 => format!("{X86_64}{}", rate_of_counter(options)),
        Arch::Arm64 => ARM64.to_owned(),
    };
    let mut shares = vec![
        share("host", Path::new("/")),
        share("tools", &parts.tools.root),
    ];
    shares.extend(parts.full_tools.iter().map(|root| share("full", root)));
    Machine {
        arch: parts.arch,
        accelerator: options.accelerator,
        memory: options.memory,
        cpus: options.cpus,
        // For the adapters to be on. Nothing else is told of them.
        two_nodes: options.hca.is_some() && parts.arch == Arch::X86_64,
        kernel: parts.kernel.image.clone(),
        initramfs: files.initramfs(),
        append: format!("{KERNEL_COMMAND_LINE} {further}"),
        console: files.console(),
        shares,
        agent,
        hca_control: None,
        wire: None,
        monitor: files.monitor(options),
        devices: Vec::new(),
    }
}
