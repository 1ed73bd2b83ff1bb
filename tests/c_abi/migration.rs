//! QEMU's migration over RDMA: one emulator gives its memory to another, one on each library. The emulator is
//! the one that the guest itself runs on, compiled against a later rdma-core than that of the guest.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use libtest_mimic::Trial;
use rand::{Rng, SeedableRng, rngs::ChaCha8Rng};
use serde::Deserialize;
use serde_json::{Value, json};
use support::peers::free_port;
use support::{Result, fail, is_full, skip, test};

use crate::runs::ADDRESS;
use support::library::Library;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("migration::of_qemu", of_qemu)]
}

/// Where the guest has the distribution's libraries, and those that the emulator gets.
const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// The machine's memory in MiB, of which these bytes from this address on are not zero.
const MEMORY: &str = "32";
const FROM: u64 = 1 << 20;
const BYTES: usize = 9 << 20;

/// What limits an emulator's time.
const LIMIT: [&str; 4] = ["timeout", "-k", "5", "200"];

/// The emulator, as `cargo vm` describes it.
#[derive(Debug, Deserialize)]
struct Emulator {
    program: PathBuf,
    /// The loader to start it with, and where that looks for libraries, if they are not the guest's own.
    loader: Option<(PathBuf, String)>,
    data: Vec<PathBuf>,
    modules: Option<PathBuf>,
}

impl Emulator {
    /// # Errors
    /// [`support::outcome::Skip`] if it has no migration over RDMA.
    fn of_guest() -> Result<Self> {
        let Some(said) = std::env::var_os("VM_EMULATOR") else {
            return skip("the guest's emulator does not run here");
        };
        let emulator: Self = serde_json::from_str(&said.to_string_lossy())?;
        let needs = emulator.command("").arg("--version").output()?;
        if !needs.status.success() {
            return skip(format!(
                "the guest's emulator does not run in it: {needs:?}"
            ));
        }
        match emulator.libraries("")?.contains(LIBRARIES[1]) {
            true => Ok(emulator),
            false => skip("the guest's emulator is built without librdmacm"),
        }
    }

    /// A command that starts it, with the libraries of this directory, or list of directories, before others.
    /// Those that it needs may be later than the guest's, down to the C library.
    fn command(&self, first: &str) -> Command {
        let mut command = Command::new(LIMIT[0]);
        command.args(&LIMIT[1..]);
        match &self.loader {
            Some((loader, path)) => {
                let path = [first, path].join(":");
                command.arg(loader).arg("--library-path");
                command.arg(path.trim_start_matches(':'));
            }
            None => {
                command.env("LD_LIBRARY_PATH", first);
            }
        }
        command.arg(&self.program);
        if let Some(modules) = &self.modules {
            command.env("QEMU_MODULE_DIR", modules);
        }
        command
    }

    /// What the loader says that it gets.
    fn libraries(&self, first: &str) -> Result<String> {
        let mut command = match &self.loader {
            Some((loader, path)) => {
                let path = [first, path].join(":");
                let mut command = Command::new(loader);
                command.arg("--library-path");
                command.arg(path.trim_start_matches(':')).arg("--list");
                command
            }
            None => {
                let mut command = Command::new("ldd");
                command.env("LD_LIBRARY_PATH", first);
                command
            }
        };
        let output = command.arg(&self.program).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Starts one that has memory and nothing else, and takes commands.
    fn start(&self, first: &str, further: &[&str]) -> Result<Monitor> {
        let said = self.libraries(first)?;
        let is_found = |library: &&str| {
            let line = said.lines().find(|line| line.contains(*library));
            line.is_some_and(|line| first.split(':').any(|place| line.contains(place)))
        };
        if !LIBRARIES.iter().all(is_found) {
            return fail(format!(
                "the emulator does not get the libraries of {first}: {said}"
            ));
        }
        let mut command = self.command(first);
        for directory in &self.data {
            command.arg("-L").arg(directory);
        }
        // No processor, so nothing that would have to be emulated.
        command
            .args(["-machine", "none", "-accel", "qtest", "-m", MEMORY, "-S"])
            .args(["-nodefaults", "-display", "none", "-qmp", "stdio"])
            .args(further)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let streams = process.stdin.take().zip(process.stdout.take());
        let (commands, answers) = streams.ok_or("no streams")?;
        let mut monitor = Monitor {
            process,
            commands,
            answers: BufReader::new(answers),
        };
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }
}

/// An emulator that runs, and ends with this.
struct Monitor {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may have ended; whatever it says does not matter any more. `timeout` passes the signal on.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

impl Monitor {
    /// The next thing that it says.
    fn next(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return fail("the emulator has ended");
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Has a command carried out.
    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let line = json!({"execute": command, "arguments": arguments});
        writeln!(self.commands, "{line}")?;
        loop {
            let said = self.next()?;
            if let Some(error) = said.get("error") {
                return fail(format!("{command}: {error}"));
            }
            if let Some(answer) = said.get("return") {
                return Ok(answer.clone());
            }
        }
    }

    /// Chooses how it migrates, and that it tells how that goes on.
    fn prepare(&mut self, pins_all: bool) -> Result {
        let capabilities = json!([
            {"capability": "events", "state": true},
            {"capability": "rdma-pin-all", "state": pins_all},
        ]);
        let arguments = json!({"capabilities": capabilities});
        self.ask("migrate-set-capabilities", arguments).map(drop)
    }

    /// Waits for the migration's end.
    fn migrated(&mut self) -> Result {
        loop {
            let said = self.next()?;
            if said["event"] != "MIGRATION" {
                continue;
            }
            match said["data"]["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    let why = self.ask("query-migrate", json!({}))?;
                    return fail(format!("the migration failed: {why}"));
                }
                _ => {}
            }
        }
    }
}

/// Catches memory that does not come over whole: in registrations of a part each, and of all at once.
fn of_qemu() -> Result {
    if !is_full() {
        return skip(
            "an emulator takes long to start in an emulated guest: it runs with everything",
        );
    }
    let (emulator, ours) = (Emulator::of_guest()?, Library::ours_with_rdmacm()?);
    let directory = tempfile::tempdir()?;
    let theirs = directory.path().join("theirs");
    std::fs::create_dir(&theirs)?;
    // The loader may have later libraries of its own beside them.
    for library in LIBRARIES {
        symlink(Path::new(SYSTEM).join(library), theirs.join(library))?;
    }
    let (ours, theirs) = (
        ours.path().unwrap_or_default(),
        theirs.display().to_string(),
    );
    for pins_all in [false, true] {
        for sides in [[&ours, &theirs], [&theirs, &ours]] {
            let Err(error) = once(
                &emulator,
                sides.map(String::as_str),
                directory.path(),
                pins_all,
            ) else {
                continue;
            };
            return match once(&emulator, [&theirs, &theirs], directory.path(), pins_all) {
                Ok(()) => fail(format!("from {} to {}: {error}", sides[0], sides[1])),
                Err(theirs) => skip(format!("it does not work on libibverbs either: {theirs}")),
            };
        }
    }
    Ok(())
}

/// One migration, between emulators with these libraries.
fn once(emulator: &Emulator, [from, to]: [&str; 2], directory: &Path, pins_all: bool) -> Result {
    let mut bytes = vec![0; BYTES];
    ChaCha8Rng::seed_from_u64(7).fill_bytes(&mut bytes);
    let (given, got) = (directory.join("given"), directory.join("got"));
    std::fs::write(&given, &bytes)?;
    let filled = format!("loader,file={},addr={FROM},force-raw=on", given.display());
    let address = format!("rdma:{ADDRESS}:{}", free_port()?);
    let mut destination = emulator.start(to, &["-incoming", "defer"])?;
    destination.prepare(pins_all)?;
    destination.ask("migrate-incoming", json!({"uri": address}))?;
    let mut source = emulator.start(from, &["-device", &filled])?;
    source.prepare(pins_all)?;
    source.ask("migrate", json!({"uri": address}))?;
    source.migrated()?;
    destination.migrated()?;
    let arguments = json!({"val": FROM, "size": BYTES, "filename": got.display().to_string()});
    destination.ask("pmemsave", arguments)?;
    match std::fs::read(&got)? == bytes {
        true => Ok(()),
        false => fail("the memory that came over is another"),
    }
}
