//! Options that several subcommands share.

use std::path::PathBuf;

use clap::Args;

/// What to boot.
#[derive(Args, Clone, Debug)]
pub(crate) struct Machine {
    /// A QEMU of the system instead of the fetched one.
    #[arg(long, value_name = "PATH", env = "VM_QEMU")]
    pub(crate) qemu: Option<PathBuf>,
    /// Memory of the guest in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pub(crate) memory: u32,
    /// Processors of the guest.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) cpus: u32,
}
