//! A ConnectX that exists only in software, for the unmodified mlx5 kernel driver in a QEMU guest.
//!
//! [`Model::start`] makes some functions on one fabric and serves each on a Unix socket by the vfio-user protocol; QEMU's
//! device `vfio-user-pci` connects there, and the guest sees a PCI device. [`Model::take_violations`] tells what rules were broken.
//!
//! This is a tool of the project's own tests. It is strict where hardware is, or stricter, and not fast.
//! `tests/connectx/README.md` says what it models, and what it cannot prove.

mod capability;
mod command;
mod device;
mod engine;
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
mod table;
mod translate;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::port::PortKind;

use self::device::Device;
use self::report::Report;

/// What to model.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many functions there are, all on one fabric.
    pub functions: u16,
    /// The kind of their ports.
    pub port: PortKind,
    /// Whether to tell on standard error what the driver does.
    pub trace: bool,
}

/// A running model. It serves until the process ends or QEMU closes its connections.
#[derive(Debug)]
pub struct Model {
    sockets: Vec<PathBuf>,
    report: Report,
}

/// Why the model cannot be started.
#[derive(Debug)]
pub struct StartError {
    socket: PathBuf,
    reason: String,
}

impl fmt::Display for StartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "serving a function on {}: {}",
            self.socket.display(),
            self.reason
        )
    }
}

impl std::error::Error for StartError {}

impl Model {
    /// Starts the functions, with one socket for each in this directory.
    ///
    /// # Errors
    /// If a socket cannot be made.
    pub fn start(config: &Config, directory: &Path) -> Result<Self, StartError> {
        let report = Report::new(config.trace);
        let device = Arc::new(Device::new(config, &report));
        let mut sockets = Vec::new();
        for index in 0..usize::from(config.functions) {
            let socket = directory.join(format!("hca{index}"));
            server::start(&device, index, &socket).map_err(|reason| StartError {
                socket: socket.clone(),
                reason,
            })?;
            sockets.push(socket);
        }
        device::start_clock(&device);
        Ok(Self { sockets, report })
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
