//! A ConnectX that exists only in software, for the unmodified mlx5 kernel driver in a QEMU guest.
//!
//! [`Model::start`] makes some functions on one fabric and serves each on a Unix socket by the vfio-user
//! protocol; QEMU's device `vfio-user-pci` connects there, and the guest sees a PCI device.
//! [`Model::take_violations`] tells what rules were broken.
//!
//! This is a tool of the project's own tests. It is strict where hardware is, or stricter, and not fast.
//! `tests/connectx/README.md` says what it models, and what it cannot prove.

mod capability;
mod command;
mod control;
mod device;
mod engine;
mod fault;
#[cfg(test)]
mod fixture;
mod function;
mod interrupt;
mod layout;
mod memory;
mod object;
mod pages;
mod pci;
mod port;
mod registers;
mod report;
mod server;
mod subnet;
mod table;
mod tap;
mod translate;

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::port::PortKind;

use self::device::Device;
use self::report::Report;
use self::tap::Tap;

/// What to model.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many functions there are, all on one fabric.
    pub functions: u16,
    /// The kind of their ports.
    pub port: PortKind,
    /// Whether to tell on standard error what the driver does.
    pub trace: bool,
    /// A file for all that the device fetches from rings and takes at doorbells, as JSON, one record a line.
    pub tap: Option<PathBuf>,
}

/// A running model. It serves until the process ends or QEMU closes its connections.
#[derive(Debug)]
pub struct Model {
    sockets: Vec<PathBuf>,
    report: Report,
    tap: Tap,
    device: Arc<Device>,
}

/// Why the model cannot be started.
#[derive(Debug)]
pub struct StartError {
    what: PathBuf,
    reason: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "making {}: {}", self.what.display(), self.reason)
    }
}

impl std::error::Error for StartError {}

impl Model {
    /// Starts the functions, with one socket for each in this directory.
    ///
    /// # Errors
    /// If a socket or the tap's file cannot be made.
    pub fn start(config: &Config, directory: &Path) -> Result<Self, StartError> {
        let report = Report::new(config.trace);
        let tap = Tap::default();
        if let Some(path) = &config.tap {
            tap.write_to(path).map_err(|error| StartError {
                what: path.clone(),
                reason: error.to_string(),
            })?;
        }
        let device = Arc::new(Device::new(config, &report, &tap));
        let mut sockets = Vec::new();
        for index in 0..usize::from(config.functions) {
            let socket = directory.join(format!("hca{index}"));
            server::start(&device, index, &socket).map_err(|reason| StartError {
                what: socket.clone(),
                reason,
            })?;
            sockets.push(socket);
        }
        device::start_clock(&device);
        Ok(Self {
            sockets,
            report,
            tap,
            device,
        })
    }

    /// Takes requests from a program beside the driver (see `tests/connectx/README.md`), until the stream
    /// ends.
    ///
    /// # Errors
    /// If the stream cannot be shared with the thread that reads it.
    pub fn serve_control(&self, stream: UnixStream) -> io::Result<()> {
        control::start(&self.device, &self.tap, stream)
    }

    /// The functions' sockets.
    #[must_use]
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Takes the rules that were broken since this was asked last, each in words.
    #[must_use]
    pub fn take_violations(&self) -> Vec<String> {
        self.report.take()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        for socket in &self.sockets {
            // QEMU may have removed it.
            let _ = std::fs::remove_file(socket);
        }
    }
}
