//! An EFA (Elastic Fabric Adapter) that exists only in software, for the unmodified efa kernel driver in a
//! QEMU guest.
//!
//! [`Model::start`] makes some functions on one fabric and serves each on a Unix socket by the vfio-user
//! protocol; QEMU's device `vfio-user-pci` connects there, and the guest sees a PCI device.
//! [`Model::take_violations`] tells what rules were broken.
//!
//! This is a tool of the project's own tests. It is strict where hardware is, or stricter, and not fast.
//! `tests/efa/README.md` says what it models, and what it cannot prove.

mod admin;
mod command;
mod control;
mod cq;
mod engine;
mod event;
mod fabric;
mod fault;
mod feature;
mod fields;
mod function;
mod mr;
mod qp;
mod registers;
mod server;
#[cfg(test)]
mod tests;
mod wqe;

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vfio_model::clock;
use vfio_model::report::Report;
use vfio_model::sockets::Sockets;
pub use vfio_model::sockets::StartError;
use vfio_model::tap::Tap;

use self::fabric::Fabric;

/// What to model.
#[derive(Clone, Debug)]
pub struct Config {
    /// How many functions there are, all on one fabric.
    pub functions: u16,
    /// Decides in which order SRD delivers and completes.
    pub seed: u64,
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
    fabric: Arc<Fabric>,
    seed: u64,
}

impl Model {
    /// Starts the functions, with one socket for each in this directory.
    ///
    /// # Errors
    /// If a socket or the tap's file cannot be made.
    pub fn start(config: &Config, directory: &Path) -> Result<Self, StartError> {
        let report = Report::new("efa", config.trace);
        let tap = Tap::default();
        if let Some(path) = &config.tap {
            tap.write_to(path)
                .map_err(|error| StartError::new(path, error))?;
        }
        let fabric = Arc::new(Fabric::new(config, &report, &tap));
        let sockets = Sockets::serve(config.functions, directory, |index, socket| {
            vfio_model::server::start(server::Backend::new(&fabric, index), socket)
        })?;
        clock::start(&fabric, |fabric| engine::tick(&mut fabric.lock()));
        Ok(Self {
            sockets,
            report,
            tap,
            fabric,
            seed: config.seed,
        })
    }

    /// Takes requests from a program beside the driver (see `tests/efa/README.md`), until the stream ends.
    ///
    /// # Errors
    /// If the stream cannot be shared with the thread that reads it.
    pub fn serve_control(&self, stream: UnixStream) -> io::Result<()> {
        let fabric = Arc::downgrade(&self.fabric);
        vfio_model::control::start(stream, &self.report, &self.tap, move |request| {
            control::answer(&fabric, request)
        })
    }

    /// The functions' sockets.
    #[must_use]
    pub fn sockets(&self) -> &[PathBuf] {
        self.sockets.paths()
    }

    /// Takes the rules that were broken since this was asked last, each in words, with the seed that the
    /// model was started with.
    #[must_use]
    pub fn take_violations(&self) -> Vec<String> {
        let violations = self.report.take().into_iter();
        let seed = self.seed;
        violations
            .map(|text| format!("{text} (seed {seed})"))
            .collect()
    }
}
