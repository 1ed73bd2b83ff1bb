//! Getting what a guest needs into `target/vm`, as distribution packages and without root.
//!
//! Everything is fetched once; what is there needs neither apt nor a network. This module does not boot
//! anything.

mod apt;
pub(crate) mod kernel;
mod output;
mod progress;
mod qemu;
mod sources;
mod tools;
mod unpack;

use std::path::Path;

use anyhow::{Result, bail};

use self::progress::Progress;
use crate::kernel::Kernel;
use crate::qemu::Qemu;
use crate::store::Store;

pub(crate) use self::tools::Tools;

/// All that a guest is made of.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    /// The emulator.
    pub(crate) qemu: Qemu,
    /// The kernel.
    pub(crate) kernel: Kernel,
    /// Programs for inside the guest.
    pub(crate) tools: Tools,
}

/// Gets everything for a guest with this kernel: a series, `latest`, or the path of a system kernel's image.
/// A QEMU of the system is used if one is named.
///
/// # Errors
/// If something is neither there nor can be fetched.
pub(crate) fn parts(store: &Store, kernel: &str, qemu: Option<&Path>) -> Result<Parts> {
    let _lock = store.lock()?;
    let progress = Progress::new();
    let kernel = if kernel.contains('/') {
        Kernel::system(Path::new(kernel))?
    } else {
        kernel::ensure(store, kernel, &progress)?
    };
    let qemu = match qemu {
        Some(program) if program.is_file() => Qemu::system(program),
        Some(program) => bail!("no QEMU at {}", program.display()),
        None => qemu::ensure(store, &progress)?,
    };
    let tools = tools::ensure(store, &progress)?;
    Ok(Parts {
        qemu,
        kernel,
        tools,
    })
}
