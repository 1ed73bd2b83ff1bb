//! `cargo vm fetch`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::fetch;
use crate::store::Store;

/// Fetch kernels, QEMU and rdma-core's programs into target/vm.
#[derive(Args, Debug)]
pub(crate) struct Fetch {
    /// A kernel series (6.1, 6.12, 7.2, latest) or all of them.
    #[arg(long, value_name = "K", default_value = "all")]
    kernel: String,
    /// A QEMU of the system instead of the fetched one.
    #[arg(long, value_name = "PATH", env = "VM_QEMU")]
    qemu: Option<PathBuf>,
}

impl Fetch {
    /// Fetches, and says what is there.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let all: Vec<&str> = match self.kernel.as_str() {
            "all" => fetch::kernel::all().collect(),
            one => vec![one],
        };
        for name in all {
            let parts = fetch::parts(&store, name, self.qemu.as_deref())?;
            println!("Linux {:5} {}", parts.kernel.name, parts.kernel.release);
        }
        Ok(ExitCode::SUCCESS)
    }
}
