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
mod layout;
mod object;
mod pages;
mod pci;
mod port;
mod registers;
mod server;
mod subnet;
mod tap;
mod translate;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vfio_model::clock;
use vfio_model::report::Report;
use vfio_model::sockets::Sockets;
pub use vfio_model::sockets::StartError;

use self::device::Device;
pub use self::port::PortKind;
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
    sockets: Sockets,
    report: Report,
    tap: Tap,
    device: Arc<Device>,
}

impl Model {
    /// Starts the functions, with one socket for each in this directory.
    ///
    /// # Errors
    /// If a socket or the tap's file cannot be made.
    pub fn start(config: &Config, directory: &Path) -> Result<Self, StartError> {
        let report = Report::new("connectx", config.trace);
        let tap = Tap::default();
        if let Some(path) = &config.tap {
            tap.write_to(path)
                .map_err(|error| StartError::new(path, error))?;
        }
        let device = Arc::new(Device::new(config, &report, &tap));
        let sockets = Sockets::serve(config.functions, directory, |index, socket| {
            vfio_model::server::start(server::Backend::new(&device, index), socket)
        })?;
        clock::start(&device, |device| engine::tick(&mut device.lock()));
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
        let device = Arc::downgrade(&self.device);
        vfio_model::control::start(stream, &self.report, &self.tap, move |request| {
            control::answer(&device, request)
        })
    }

    /// The functions' sockets.
    #[must_use]
    pub fn sockets(&self) -> &[PathBuf] {
        self.sockets.paths()
    }

    /// Takes the rules that were broken since this was asked last, each in words.
    #[must_use]
    pub fn take_violations(&self) -> Vec<String> {
        self.report.take()
    }
}
