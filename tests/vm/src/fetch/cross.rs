//! What builds programs for arm64: a C compiler as the linker, a C library, and the Rust standard library.
//!
//! rustup's standard library for arm64 is used if it is installed. Else the standard library is built from
//! its source, by the same compiler: rustup's component `rust-src`, or Debian's package of that name in the
//! compiler's version. Building it takes a minute or two, once.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::apt::{self, Apt, Installed, Wanted};
use super::progress::Progress;
use super::unpack;
use crate::arch::Arch;
use crate::process;
use crate::store::Store;

/// The target, as Rust calls it.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The C compiler's name.
const GCC: &str = "aarch64-linux-gnu-gcc";

/// The suites that are asked for the standard library's source. Backports keeps the versions that it has had.
const SUITES: [&str; 2] = ["trixie-backports", "trixie"];

/// What cargo needs to build for arm64.
#[derive(Clone, Debug)]
pub(crate) struct Cross {
    /// The C compiler that links.
    pub(crate) linker: PathBuf,
    /// The directory of the compiler's own shared libraries.
    pub(crate) libraries: PathBuf,
    /// The standard library's source, if the library has to be built.
    pub(crate) library: Option<PathBuf>,
    /// Where cargo puts what it builds. It is another directory than for this machine, since build scripts
    /// and macros are built with other settings.
    pub(crate) target_directory: PathBuf,
}

/// Something that no suite has.
#[derive(Clone, Debug)]
pub(crate) struct Missing(String);

impl fmt::Display for Missing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The stamp of a fetched source.
#[derive(Debug, Deserialize, Serialize)]
struct Source {
    /// The compiler's version that it belongs to.
    release: String,
    library: PathBuf,
}

/// Fetches what is not there.
///
/// # Errors
/// If it cannot be fetched; [`Missing`] if no suite has it.
pub(crate) fn ensure(store: &Store, progress: &Progress) -> Result<Cross> {
    let library = library(store, progress)?;
    let toolchain = toolchain(store, progress)?;
    let target = store.root().parent().unwrap_or(store.root());
    Ok(Cross {
        linker: toolchain.programs.join(GCC),
        libraries: toolchain.libraries,
        library,
        target_directory: target.join("arm64"),
    })
}

/// The C compiler and its tools, called `aarch64-linux-gnu-` and their names.
pub(super) struct Toolchain {
    /// The directory that they are in.
    pub(super) programs: PathBuf,
    /// The directory of their own shared libraries.
    pub(super) libraries: PathBuf,
}

/// Fetches the C compiler if it is not there.
///
/// # Errors
/// If it cannot be fetched; [`Missing`] if no suite has it.
pub(super) fn toolchain(store: &Store, progress: &Progress) -> Result<Toolchain> {
    let root = compiler(store, progress)?;
    Ok(Toolchain {
        programs: root.join("usr/bin"),
        libraries: root.join("usr/lib/x86_64-linux-gnu"),
    })
}

fn linker(root: &Path) -> PathBuf {
    root.join("usr/bin").join(GCC)
}

/// The tree of the C compiler, of the machine's own suite.
fn compiler(store: &Store, progress: &Progress) -> Result<PathBuf> {
    let root = store.path("gcc-arm64");
    if let Some(root) = store.stamp::<PathBuf>("gcc-arm64")
        && linker(&root).is_file()
    {
        return Ok(root);
    }
    let codename = apt::codename()?;
    let apt = Apt::open(store, Arch::X86_64, &[&codename], progress)?;
    let packages = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
    for package in packages {
        if apt.offered(package)?.is_none() {
            return Err(Missing(format!("suite {codename} has no {package}")).into());
        }
    }
    let wanted = Wanted::new(packages, Installed::ThisMachine);
    let downloads = store.path("gcc-arm64-packages");
    let files = apt.download(&wanted, &downloads, progress)?;
    unpack::all(&files, &root, progress)?;
    // The package is no more than links, which the machine may have as well.
    fs::metadata(linker(&root))
        .with_context(|| format!("the packages held no {}", linker(&root).display()))?;
    store.write_stamp("gcc-arm64", &root)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    progress.note("a C compiler for arm64 is there");
    Ok(root)
}

/// The standard library's source; none if the library is there already.
fn library(store: &Store, progress: &Progress) -> Result<Option<PathBuf>> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    let rustlib = Path::new(sysroot.trim()).join("lib/rustlib");
    if rustlib.join(TARGET).join("lib").is_dir() {
        return Ok(None);
    }
    library_source(store, progress).map(Some)
}

/// The standard library's source in the compiler's version.
///
/// # Errors
/// If it cannot be fetched; [`Missing`] if no suite has it.
pub(crate) fn library_source(store: &Store, progress: &Progress) -> Result<PathBuf> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    let component = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if component.is_dir() {
        return Ok(component);
    }
    let version = rustc(&["-vV"])?;
    let release = version
        .lines()
        .find_map(|line| line.strip_prefix("release: "));
    let release = release.context("rustc -vV names no release")?;
    source(store, release, progress)
}

fn rustc(arguments: &[&str]) -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    process::output("asking the compiler", Command::new(rustc).args(arguments))
}

/// Debian's package of the source of this release.
fn source(store: &Store, release: &str, progress: &Progress) -> Result<PathBuf> {
    if let Some(source) = store.stamp::<Source>("rust-src")
        && source.release == release
        && source.library.is_dir()
    {
        return Ok(source.library);
    }
    let apt = Apt::open(store, Arch::X86_64, &SUITES, progress)?;
    let versions = apt.versions("rust-src")?;
    let is_it = |version: &&String| version.starts_with(&format!("{release}+"));
    let Some(version) = versions.iter().find(is_it) else {
        let suites = SUITES.join(" and ");
        return Err(Missing(format!(
            "the standard library's source is not installed, and {suites} have none for rustc {release} \
             (`rustup component add rust-src` installs it)"
        ))
        .into());
    };
    let wanted = Wanted::new([format!("rust-src={version}")], Installed::Nothing);
    let downloads = store.path("rust-src-packages");
    let files = apt.download(&wanted, &downloads, progress)?;
    let root = store.path("rust-src");
    unpack::all(&files, &root, progress)?;
    let library = root.join(format!("usr/src/rustc-{release}/library"));
    fs::metadata(library.join("std"))
        .with_context(|| format!("the package held no {}", library.display()))?;
    let source = Source {
        release: release.to_owned(),
        library,
    };
    store.write_stamp("rust-src", &source)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    progress.note(&format!("the source of Rust {release} is there"));
    Ok(source.library)
}
