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

/// The library's own name, which programs are linked to.
const SONAME: &str = "libibverbs.so.1";

/// The name that the linker looks for.
const LINK: &str = "libibverbs.so";

/// The test program that runs others on it.
pub(super) const TESTS: &str = "c_abi";

/// Build libibverbs.so.1 for C programs, into target/c-abi/lib
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm c-abi\n  LD_LIBRARY_PATH=target/c-abi/lib ibv_devices"
)]
pub(crate) struct CAbi {}

impl CAbi {
    /// Builds it and puts it where programs find it.
    ///
    /// # Errors
    /// If it does not build.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let place = build(&Store::open()?)?;
        println!("{}", place.join(SONAME).display());
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds the library and puts it where programs find it, and gives the directory.
///
/// # Errors
/// If it does not build.
pub(super) fn build(store: &Store) -> Result<PathBuf> {
    let library = suite::c_library(store.workspace())?;
    let place = library.with_file_name("lib");
    install(&library, &place).with_context(|| format!("installing into {}", place.display()))?;
    Ok(place)
}

/// Copies the library beside its old copy first: programs may have that mapped.
fn install(library: &Path, place: &Path) -> io::Result<()> {
    fs::create_dir_all(place)?;
    let fresh = place.join("libibverbs.so.1.new");
    fs::copy(library, &fresh)?;
    fs::rename(&fresh, place.join(SONAME))?;
    match symlink(SONAME, place.join(LINK)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}
