//! The part of this program that runs in the guest: it takes requests from the host over a virtio-serial port
//! and runs processes for it.
//!
//! It is the same executable, found on the host's file system. Nothing here runs on the host.

mod init;

mod log;
mod network;
mod process;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use self::process::Process;
use crate::guest::protocol::{Frame, Kind, Report, Request, Spec};
use crate::qemu::AGENT_PORT;

pub(crate) use self::init::main as init;

/// How often the agent says that the guest is alive.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// The way back to the host, shared by all threads.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    port: Arc<Mutex<File>>,
}

impl Host {
    /// Sends a frame. A host that is gone is noticed by the reader of the port, which ends the guest.
    fn send(&self, frame: &Frame) {
        let port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = frame.write(&*port);
    }

    fn report(&self, process: u32, report: &Report) {
        self.send(&Frame::control(process, report));
    }
}

/// Serves requests until the host asks for the end or goes away.
///
/// # Errors
/// If the port to the host cannot be found or breaks.
pub(crate) fn main() -> Result<()> {
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY)
        .context("lifting the memory lock limit")?;
    let port = File::options()
        .read(true)
        .write(true)
        .open(find_port()?)
        .context("opening the port to the host")?;
    let host = Host {
        port: Arc::new(Mutex::new(
            port.try_clone().context("opening the port to the host")?,
        )),
    };
    let log = log::follow(&host).context("following the kernel's log")?;
    host.report(0, &Report::Hello);
    let beat = host.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(HEARTBEAT);
            beat.report(0, &Report::Alive);
        }
    });
    serve(&port, &host)?;
    process::end_all();
    network::take_down();
    log.finish();
    host.report(0, &Report::Goodbye);
    Ok(())
}

/// Handles frames until the end.
fn serve(port: &File, host: &Host) -> Result<()> {
    let mut processes = HashMap::new();
    while let Some(frame) = Frame::read(port).context("reading from the host")? {
        match frame.kind {
            Kind::Input => {
                if let Some(process) = processes.get(&frame.process) {
                    Process::input(process, frame.content);
                }
            }
            Kind::Control => {
                let request = serde_json::from_slice(&frame.content)
                    .context("reading a request of the host")?;
                if matches!(request, Request::Shutdown) {
                    break;
                }
                handle(request, frame.process, &mut processes, host);
            }
            Kind::Output | Kind::Error | Kind::Log => {}
        }
    }
    Ok(())
}

fn handle(request: Request, number: u32, processes: &mut HashMap<u32, Process>, host: &Host) {
    match request {
        Request::Prepare(network) => match network::lay_out(network) {
            Ok(()) => host.report(0, &Report::Ready),
            Err(error) => host.report(0, &Report::NotReady(format!("{error:#}"))),
        },
        Request::Start(spec) => start(&spec, number, processes, host),
        Request::Signal(signal) => {
            if let Some(process) = processes.get(&number) {
                process.signal(signal);
            }
        }
        Request::Resize(size) => {
            if let Some(process) = processes.get(&number) {
                process.resize(size);
            }
        }
        Request::Shutdown => {}
    }
}

fn start(spec: &Spec, number: u32, processes: &mut HashMap<u32, Process>, host: &Host) {
    log::mark(&format!("{number}: {}", spec.words.join(" ")));
    match Process::start(spec, number, host) {
        Ok(process) => {
            processes.insert(number, process);
        }
        Err(error) => {
            let program = spec.words.first().map_or("", String::as_str);
            // As a shell does: 127 for what is not there, 126 for what cannot be run.
            let status = if error.kind() == std::io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            host.report(
                number,
                &Report::NotStarted(format!("{program}: {error}"), status),
            );
        }
    }
}

/// Finds the port's device by the name that QEMU gave it.
fn find_port() -> Result<PathBuf> {
    let ports =
        fs::read_dir("/sys/class/virtio-ports").context("looking for the port to the host")?;
    let ours = ports.flatten().find(|port| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim() == AGENT_PORT)
    });
    let port = ours.context("no port to the host")?;
    Ok(PathBuf::from("/dev").join(port.file_name()))
}
