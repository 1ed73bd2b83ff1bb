//! The sockets of a model's functions, and why a model cannot be started.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a model cannot be started.
#[derive(Debug)]
pub struct StartError {
    what: PathBuf,
    reason: String,
}

impl StartError {
    /// What could not be made, and why.
    pub fn new(what: &Path, reason: impl fmt::Display) -> Self {
        Self {
            what: what.to_path_buf(),
            reason: reason.to_string(),
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "making {}: {}", self.what.display(), self.reason)
    }
}

impl std::error::Error for StartError {}

/// One socket for each function, removed when dropped.
#[derive(Debug)]
pub struct Sockets(Vec<PathBuf>);

impl Sockets {
    /// Makes the sockets in this directory: `serve` does so for the function of that number.
    ///
    /// # Errors
    /// If one cannot be made.
    pub fn serve(
        functions: u16,
        directory: &Path,
        mut serve: impl FnMut(usize, &Path) -> Result<(), String>,
    ) -> Result<Self, StartError> {
        let mut sockets = Self(Vec::new());
        for index in 0..usize::from(functions) {
            let socket = directory.join(format!("hca{index}"));
            serve(index, &socket).map_err(|reason| StartError::new(&socket, reason))?;
            sockets.0.push(socket);
        }
        Ok(sockets)
    }

    /// Where they are.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for socket in &self.0 {
            // QEMU may have removed it.
            let _ = std::fs::remove_file(socket);
        }
    }
}
