//! `cargo vm fetch`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use super::options::Architecture;
use crate::arch::Arch;
use crate::fetch;
use crate::store::Store;

/// Fetch kernels, QEMU and rdma-core's programs into target/vm
///
/// They come as packages from the mirror that this machine's apt sources name, verified by apt, without root
/// and without a change to the system. The other subcommands fetch what they need by themselves.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm fetch\n  cargo vm fetch --kernel 6.12\n  cargo vm fetch --full"
)]
pub(crate) struct Fetch {
    /// A kernel series (6.1, 6.12, latest for the newest that backports has, or another that Debian has), or
    /// all of the three
    #[arg(long, value_name = "K", default_value = "all")]
    kernel: String,
    /// Also what only a run of everything (`cargo vm test --full`) fetches by itself: fio
    #[arg(long)]
    full: bool,
    #[command(flatten)]
    architecture: Architecture,
    /// A QEMU of the system (7.2 or newer), instead of the fetched one
    #[arg(long, value_name = "PATH", env = "VM_QEMU")]
    qemu: Option<PathBuf>,
}

impl Fetch {
    /// Fetches, and prints what is there.
    ///
    /// # Errors
    /// If something cannot be fetched.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let arch = self.architecture.arch;
        for name in fetch::kernel::asked_for(arch, &self.kernel) {
            let parts = fetch::parts(&store, arch, name, self.qemu.as_deref())?;
            println!("Linux {:<5} {}", parts.kernel.name, parts.kernel.release);
            parts.with_built_modules(&store)?;
        }
        if self.full {
            fetch::full_tools(&store)?;
        }
        match arch {
            Arch::X86_64 => fetch::newer_programs(&store)?,
            Arch::Arm64 => fetch::cross(&store).map(drop)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
