//! The two libraries, and programs that run on one of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Result, fail, skip};

/// Whose libibverbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// That of the distribution.
    Theirs,
    /// This project's, in this directory.
    Ours(PathBuf),
}

/// The directory in the one of cargo's output.
const DIRECTORY: &str = "c-abi/lib";

impl Library {
    /// Ours.
    ///
    /// # Errors
    /// [`support::outcome::Skip`] if it has not been built.
    pub(crate) fn ours() -> Result<Self> {
        let own = std::env::current_exe()?;
        let directories = own
            .ancestors()
            .map(|directory| directory.join(DIRECTORY))
            .find(|directory| directory.join("libibverbs.so.1").is_file());
        match directories {
            Some(directory) => Ok(Self::Ours(directory)),
            None => skip("the library is not there: `cargo vm c-abi` builds it"),
        }
    }

    /// A command that runs on this library.
    pub(crate) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        if let Self::Ours(directory) = self {
            command.env("LD_LIBRARY_PATH", directory);
        }
        command
    }

    /// Asks the loader whether the program gets this library: else the test would compare one with itself.
    ///
    /// # Errors
    /// If it does not, or does not start.
    pub(crate) fn is_used_by(&self, program: &Path) -> Result {
        let output = self
            .command(program)
            .env("LD_TRACE_LOADED_OBJECTS", "1")
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let line = said.lines().find(|line| line.contains("libibverbs.so.1"));
        let used = match self {
            Self::Ours(directory) => {
                line.is_some_and(|line| line.contains(&*directory.to_string_lossy()))
            }
            Self::Theirs => line.is_some_and(|line| !line.contains(DIRECTORY)),
        };
        match used {
            true => Ok(()),
            false => fail(format!(
                "{} does not use {self:?}: {line:?}",
                program.display()
            )),
        }
    }
}

/// A C program of this directory, compiled.
///
/// # Errors
/// [`support::outcome::Skip`] if the host has no compiler.
pub(crate) fn c_program(name: &str) -> Result<PathBuf> {
    let directory = std::env::var_os("VM_C_PROGRAMS").map(PathBuf::from);
    match directory.map(|directory| directory.join(name)) {
        Some(program) if program.is_file() => Ok(program),
        _ => skip("the C programs are not there: the host has no C compiler"),
    }
}

/// The index of the GID by which the device's port is named; none on InfiniBand.
///
/// # Errors
/// If it cannot be asked.
pub(crate) fn gid_index(device: &str) -> Result<Option<u8>> {
    Ok(uverbs::open(device)?.best_gid(1)?.map(|(index, _)| index))
}
