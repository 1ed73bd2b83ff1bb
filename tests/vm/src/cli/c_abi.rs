//! `cargo vm c-abi`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use clap::Args;

use crate::fetch;
use crate::process;
use crate::store::Store;
use crate::suite::{self, CLibrary, Sanitized, Sanitizer};

/// The test program that runs others on it.
pub(super) const TESTS: &str = "c_abi";

/// Build libibverbs.so.1, libmlx5.so.1, libefa.so.1, libmana.so.1 and libhns.so.1 for C programs into
/// target/c-abi/lib, and librdmacm.so.1 into target/c-abi/rdmacm
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm c-abi\n  LD_LIBRARY_PATH=target/c-abi/lib ibv_devices\n  \
                  LD_LIBRARY_PATH=target/c-abi/rdmacm:target/c-abi/lib rping -s"
)]
pub(crate) struct CAbi {
    /// Also libibverbs with the thread sanitizer, into target/c-abi/thread, and the program of the tests that
    /// runs on it
    #[arg(long)]
    sanitized: bool,
}

impl CAbi {
    /// Builds them and puts them where programs find them.
    ///
    /// # Errors
    /// If one does not build.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        for file in build(&store)? {
            println!("{}", file.display());
        }
        if self.sanitized {
            build_sanitized(&store)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Builds the libraries and puts them where programs find them, and gives their files.
///
/// # Errors
/// If one does not build.
pub(super) fn build(store: &Store) -> Result<Vec<PathBuf>> {
    // The one with the sanitizer is of an earlier build: its test skips itself until there is another.
    let sanitized = store.workspace().join(SANITIZED);
    match fs::remove_dir_all(&sanitized) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", sanitized.display()));
        }
        _ => {}
    }
    let built = CLibrary::build_all(store.workspace())?.into_iter();
    let install = |(library, file): (&CLibrary, PathBuf)| {
        library.install(&file, &file.with_file_name(library.directory))
    };
    built.map(install).collect()
}

/// How the names of its tests begin that run programs of newer suites.
pub(super) const NEWER_TESTS: &str = "newer::";

/// The test that runs it.
pub(super) const SANITIZED_TEST: &str = "programs::sanitized";

/// Where the library that is watched by the thread sanitizer is put, beside the others.
const SANITIZED: &str = "target/c-abi/thread";

/// Builds libibverbs, and the C program with threads, with the thread sanitizer. Its runtime is the
/// compiler's, and the standard library is built with it.
///
/// # Errors
/// If they do not build, or there is no runtime or no source of the standard library.
pub(super) fn build_sanitized(store: &Store) -> Result<()> {
    let (library, place) = (&CLibrary::VERBS, store.workspace().join(SANITIZED));
    let sanitized = Sanitized {
        by: Sanitizer::Thread,
        library: Some(fetch::standard_library(store)?),
    };
    let built = suite::sanitized_c_library(store.workspace(), library.package, &sanitized)?;
    library.install(&built, &place)?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    rustc.args(["--print", "target-libdir"]);
    let directory = process::output("asking the compiler", &mut rustc)?;
    let tools = fetch::libibverbs(store)?;
    suite::compile_sanitized(store, &tools, Path::new(directory.trim()))
}
