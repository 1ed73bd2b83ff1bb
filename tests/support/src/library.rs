//! The two libraries, and programs that run on one of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, fail, is_full, skip};

/// Whose libibverbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Library {
    /// That of the distribution.
    Theirs,
    /// This project's, in this directory.
    Ours(PathBuf),
    /// This project's, and its librdmacm in the second directory.
    OursWithRdmacm(PathBuf, PathBuf),
}

/// The directory in the one of cargo's output.
const DIRECTORY: &str = "c-abi/lib";

/// That of librdmacm, beside it.
const RDMACM: &str = "../rdmacm";

impl Library {
    /// Ours.
    ///
    /// # Errors
    /// [`crate::outcome::Skip`] if it has not been built.
    pub fn ours() -> Result<Self> {
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

    /// Ours, with our librdmacm.
    ///
    /// # Errors
    /// [`crate::outcome::Skip`] if they have not been built.
    pub fn ours_with_rdmacm() -> Result<Self> {
        match Self::ours()? {
            Self::Ours(verbs) if verbs.join(RDMACM).join("librdmacm.so.1").is_file() => {
                let rdmacm = verbs.join(RDMACM).canonicalize()?;
                Ok(Self::OursWithRdmacm(verbs, rdmacm))
            }
            _ => skip("librdmacm is not there: `cargo vm c-abi` builds it"),
        }
    }

    /// The libraries of two programs that talk to each other: this one and the distribution's, each on either
    /// side.
    pub fn pairs(&self) -> [(&Self, &Self); 4] {
        [
            (&Self::Theirs, &Self::Theirs),
            (self, self),
            (self, &Self::Theirs),
            (&Self::Theirs, self),
        ]
    }

    /// A command that runs on this library.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        if let Some(path) = self.path() {
            command.env("LD_LIBRARY_PATH", path);
        }
        command
    }

    /// Where programs on this library look for libraries first; none for that of the distribution.
    pub fn path(&self) -> Option<String> {
        match self {
            Self::Theirs => None,
            Self::Ours(directory) => Some(directory.display().to_string()),
            Self::OursWithRdmacm(verbs, rdmacm) => {
                Some(format!("{}:{}", rdmacm.display(), verbs.display()))
            }
        }
    }

    /// Asks the loader which libibverbs the program gets. If it got the other one, a test would compare a
    /// library with itself.
    ///
    /// # Errors
    /// If it does not, or does not start.
    pub fn is_used_by(&self, program: &Path) -> Result {
        let output = self
            .command(program)
            .env("LD_TRACE_LOADED_OBJECTS", "1")
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let line = |library| said.lines().find(|line| line.contains(library));
        let is_in = |library, directory: &Path| {
            line(library).is_some_and(|line| line.contains(&*directory.to_string_lossy()))
        };
        let verbs = "libibverbs.so.1";
        let used = match self {
            Self::Ours(directory) => is_in(verbs, directory),
            Self::OursWithRdmacm(directory, rdmacm) => {
                is_in(verbs, directory) && is_in("librdmacm.so.1", rdmacm)
            }
            Self::Theirs => line(verbs).is_some_and(|line| !line.contains(DIRECTORY)),
        };
        match used {
            true => Ok(()),
            false => fail(format!(
                "{} does not use {self:?}: {said}",
                program.display()
            )),
        }
    }
}

/// What `cargo vm clients --full` puts here, in the directory of cargo's output.
const CLIENTS: &str = "clients";

/// Something of what others wrote, by its path there.
///
/// # Errors
/// [`crate::outcome::Skip`] if it is not there.
pub fn client(path: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let mut places = own.ancestors().map(|place| place.join(CLIENTS).join(path));
    match places.find(|place| place.exists()) {
        Some(place) => Ok(place),
        None => skip(format!(
            "{path} is not there: `cargo vm clients --full` fetches or builds it"
        )),
    }
}

/// As [`client`], of engines and stores, whose tests take long.
///
/// # Errors
/// As of `client`; and [`crate::outcome::Skip`] if neither all tests were asked for nor this one.
pub fn engine(path: &str) -> Result<PathBuf> {
    match is_full() {
        true => client(path),
        false => skip("only in a run of everything, or by its name"),
    }
}

/// A C program of this directory, compiled.
///
/// # Errors
/// [`crate::outcome::Skip`] if the host has no compiler.
pub fn c_program(name: &str) -> Result<PathBuf> {
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
pub fn gid_index(device: &str) -> Result<Option<u8>> {
    Ok(uverbs::open(device)?.best_gid(1)?.map(|(index, _)| index))
}
