//! Getting what a guest needs into `target/vm`, as distribution packages and without root.
//!
//! Everything is fetched once; what is there needs neither apt nor a network. This module does not boot
//! anything.

mod apt;
mod built;
mod cross;
pub(crate) mod kernel;
mod output;
mod progress;
mod qemu;
mod sources;
mod tools;
mod unpack;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use self::apt::Apt;
use self::progress::Progress;
use crate::arch::Arch;
use crate::kernel::Kernel;
use crate::modules::Wanted;
use crate::qemu::Qemu;
use crate::store::Store;

pub(crate) use self::cross::{Cross, Missing, TARGET};
pub(crate) use self::tools::Tools;

/// All that a guest is made of.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// What it is compiled for.
    pub(crate) arch: Arch,
    /// The emulator.
    pub(crate) qemu: Qemu,
    /// The kernel.
    pub(crate) kernel: Kernel,
    /// Programs for inside the guest.
    pub(crate) tools: Tools,
    /// The root of further programs, which only a run of everything fetches; none if they are not there.
    pub(crate) full_tools: Option<PathBuf>,
    /// The directory of modules that the kernel lacks and that are built for it; none if nobody wants them.
    pub(crate) built_modules: Option<PathBuf>,
}

impl Parts {
    /// With the modules that stock kernels lack, built for this one, if one of them is wanted.
    ///
    /// # Errors
    /// If they are neither there nor can be built.
    pub(crate) fn with_modules(self, store: &Store, wanted: &[Wanted]) -> Result<Self> {
        if !wanted.iter().any(|wanted| built::has(&wanted.name)) {
            return Ok(self);
        }
        self.with_built_modules(store)
    }

    /// With the modules that stock kernels lack, built for this one.
    ///
    /// # Errors
    /// If they are neither there nor can be built.
    pub(crate) fn with_built_modules(self, store: &Store) -> Result<Self> {
        let _lock = store.lock()?;
        let (arch, progress) = (self.arch, Progress::new());
        let directory = built::ensure(store, arch, &self.kernel, &self.qemu, &progress)?;
        Ok(Self {
            built_modules: Some(directory),
            ..self
        })
    }
}

/// Gets everything for a guest of this architecture with this kernel: a series, `latest`, or the path of a
/// system kernel's image. A QEMU of the system is used if one is named.
///
/// # Errors
/// If something is neither there nor can be fetched.
pub(crate) fn parts(store: &Store, arch: Arch, kernel: &str, qemu: Option<&Path>) -> Result<Parts> {
    let _lock = store.lock()?;
    let progress = Progress::new();
    let kernel = if kernel.contains('/') {
        Kernel::system(Path::new(kernel))?
    } else {
        kernel::ensure(store, arch, kernel, &progress)?
    };
    let qemu = match qemu {
        Some(program) if program.is_file() => Qemu::system(program),
        Some(program) => bail!("no QEMU at {}", program.display()),
        None => qemu::ensure(store, arch, &progress)?,
    };
    let tools = tools::ensure(store, arch, &progress)?;
    Ok(Parts {
        arch,
        qemu,
        kernel,
        tools,
        full_tools: tools::of_full_run(store, arch),
        built_modules: None,
    })
}

/// Gets the programs that only a run of everything has; all guests have them from then on.
///
/// # Errors
/// If they are neither there nor can be fetched.
pub(crate) fn full_tools(store: &Store) -> Result<()> {
    let _lock = store.lock()?;
    tools::ensure_full(store, &Progress::new())
}

/// Gets programs of suites that are newer than this machine's, which run on the libraries for C programs.
///
/// # Errors
/// If they are neither there nor can be fetched.
pub(crate) fn newer_programs(store: &Store) -> Result<()> {
    let _lock = store.lock()?;
    let progress = Progress::new();
    tools::NEWER_SUITES
        .iter()
        .try_for_each(|suite| tools::ensure_newer(store, suite, &progress))
}

/// Gets all packages of those suites that need the libraries which this project has as well.
///
/// # Errors
/// If they are neither there nor can be fetched.
pub(crate) fn users(store: &Store) -> Result<()> {
    let _lock = store.lock()?;
    let progress = Progress::new();
    tools::NEWER_SUITES
        .iter()
        .try_for_each(|suite| tools::ensure_users(store, suite, &progress))
}

/// Gets the measurement of Ceph's messenger.
///
/// # Errors
/// If it is neither there nor can be fetched.
pub(crate) fn ceph(store: &Store) -> Result<()> {
    let _lock = store.lock()?;
    tools::ensure_ceph(store, &Progress::new())
}

/// Gets UCX of a suite that is newer than this machine's.
///
/// # Errors
/// If it is neither there nor can be fetched.
pub(crate) fn ucx(store: &Store) -> Result<()> {
    let _lock = store.lock()?;
    tools::ensure_ucx(store, &Progress::new())
}

/// Gets what builds crates that are linked to libibverbs, and gives the root of what this machine lacks.
///
/// # Errors
/// If it is neither there nor can be fetched.
pub(crate) fn build_tools(store: &Store) -> Result<PathBuf> {
    let _lock = store.lock()?;
    tools::ensure_build(store, &Progress::new())
}

/// The root of libibverbs's header and library, as a guest has them.
///
/// # Errors
/// If they are neither there nor can be fetched.
pub(crate) fn libibverbs(store: &Store) -> Result<PathBuf> {
    let _lock = store.lock()?;
    Ok(tools::ensure(store, Arch::X86_64, &Progress::new())?.root)
}

/// Gets the files of a source package of a suite into a directory.
///
/// # Errors
/// If they cannot be fetched.
pub(crate) fn source(
    store: &Store,
    suite: &str,
    package: &str,
    into: &Path,
) -> Result<Vec<PathBuf>> {
    let _lock = store.lock()?;
    let progress = Progress::new();
    Apt::of_sources(store, suite, &progress)?.download_source(package, into, &progress)
}

/// Gets what builds programs for arm64 on this machine.
///
/// # Errors
/// If it is neither there nor can be fetched; [`Missing`] if no suite has it.
pub(crate) fn cross(store: &Store) -> Result<Cross> {
    let _lock = store.lock()?;
    cross::ensure(store, &Progress::new())
}

/// Gets the standard library's source, of the compiler's version.
///
/// # Errors
/// As for [`cross()`].
pub(crate) fn standard_library(store: &Store) -> Result<PathBuf> {
    let _lock = store.lock()?;
    cross::library_source(store, &Progress::new())
}
