//! `cargo vm c-abi`.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::store::Store;
use crate::suite;

/// A library for C programs.
struct Library {
    package: &'static str,
    /// Where it is put, beside cargo's own output.
    directory: &'static str,
    /// Its own name, which programs are linked to.
    soname: &'static str,
    /// The name that the linker looks for.
    link: &'static str,
}

/// librdmacm has a directory of its own: a program can have the distribution's on this libibverbs.
const LIBRARIES: [Library; 2] = [
    Library {
        package: "uverbs-c",
        directory: "lib",
        soname: "libibverbs.so.1",
        link: "libibverbs.so",
    },
    Library {
        package: "uverbs-rdmacm",
        directory: "rdmacm",
        soname: "librdmacm.so.1",
        link: "librdmacm.so",
    },
];

/// The test program that runs others on it.
pub(super) const TESTS: &str = "c_abi";

/// Build libibverbs.so.1 and librdmacm.so.1 for C programs, into target/c-abi/lib and target/c-abi/rdmacm
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm c-abi\n  LD_LIBRARY_PATH=target/c-abi/lib ibv_devices\n  \
                  LD_LIBRARY_PATH=target/c-abi/rdmacm:target/c-abi/lib rping -s"
)]
pub(crate) struct CAbi {}

impl CAbi {
    /// Builds them and puts them where programs find them.
    ///
    /// # Errors
    /// If one does not build.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        for file in build(&Store::open()?)? {
            println!("{}", file.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds the libraries and puts them where programs find them, and gives their files.
///
/// # Errors
/// If one does not build.
pub(super) fn build(store: &Store) -> Result<Vec<PathBuf>> {
    let build = |library: &Library| {
        let built = suite::c_library(store.workspace(), library.package)?;
        let place = built.with_file_name(library.directory);
        library
            .install(&built, &place)
            .with_context(|| format!("installing into {}", place.display()))?;
        Ok(place.join(library.soname))
    };
    LIBRARIES.iter().map(build).collect()
}

impl Library {
    /// Copies the library beside its old copy first: programs may have that mapped.
    fn install(&self, built: &Path, place: &Path) -> io::Result<()> {
        fs::create_dir_all(place)?;
        let fresh = place.join(format!("{}.new", self.soname));
        fs::copy(built, &fresh)?;
        fs::rename(&fresh, place.join(self.soname))?;
        match symlink(self.soname, place.join(self.link)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    }
}
