//! Options that several subcommands share, and what they make: a booted guest.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::accel::{self, Wish};
use crate::arch::Arch;
use crate::fetch::{self, Parts};
use crate::guest::protocol::Network;
use crate::guest::{Guest, Options};
use crate::hca::Hca;
use crate::klog;
use crate::modules::Wanted;
use crate::qemu::Accelerator;
use crate::store::Store;
use crate::suite;

/// What the guest is made of and like.
#[derive(Args, Clone, Debug)]
pub(crate) struct Machine {
    /// A QEMU of the system (7.2 or newer), instead of the fetched one
    #[arg(long, value_name = "PATH", env = "VM_QEMU")]
    pub(crate) qemu: Option<PathBuf>,
    /// KVM, TCG, whichever of them a trial boot finds to work, or TCG that counts instructions as time
    #[arg(long, value_name = "WHICH", default_value = "auto", env = "VM_ACCEL")]
    accel: Wish,
    /// Memory of the guest, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(256..))]
    memory: u32,
    /// Processors of the guest; 2 by default, 1 where instructions are counted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: Option<u32>,
    /// Also load this module; efa, which stock kernels lack, is built first; may be repeated
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
}

/// What the guest's programs are compiled for.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Architecture {
    /// The guest's architecture; arm64 is emulated, and its programs are compiled with a C compiler and a
    /// standard library that are fetched
    #[arg(long, value_name = "ARCH", default_value = "x86-64")]
    pub(crate) arch: Arch,
}

/// The one kernel to boot.
#[derive(Args, Clone, Debug)]
pub(crate) struct Kernel {
    /// The guest's kernel: 6.1, 6.12, latest for the newest that backports has, another series that Debian
    /// has, or the path of a system kernel (/boot/vmlinuz-VERSION); on arm64 with -16k at the end for pages
    /// of 16 KiB (latest-16k)
    #[arg(
        long,
        value_name = "K",
        default_value = "latest",
        env = "VM_KERNEL_IMAGE"
    )]
    pub(crate) kernel: String,
}

/// The guest's adapter.
#[derive(Args, Clone, Debug)]
pub(crate) struct Adapter {
    /// An adapter made of software, with N functions, for the real driver (mlx5 or efa)
    #[arg(long, value_name = "connectx[=N][,roce]|efa[=N]")]
    hca: Option<Hca>,
    /// Tell on standard error what the driver asks of the adapter
    #[arg(long, requires = "hca")]
    hca_trace: bool,
    /// Write what the adapter fetches from rings and takes at doorbells to this file, as JSON, one record a
    /// line
    #[arg(long, value_name = "FILE", requires = "hca")]
    hca_tap: Option<PathBuf>,
    /// The order in which an EFA delivers and completes follows from this number; another one in each run if
    /// it is not given
    #[arg(long, value_name = "NUMBER", requires = "hca")]
    hca_seed: Option<u64>,
}

impl Adapter {
    /// What was asked for.
    pub(crate) fn wanted(&self) -> Option<Hca> {
        let hca = self.hca.clone()?;
        let hca = match self.hca_seed {
            Some(seed) => hca.seeded(seed),
            None => hca,
        };
        Some(hca.watched(self.hca_trace, self.hca_tap.clone()))
    }
}

/// Variables for a command in the guest.
#[derive(Args, Clone, Debug)]
pub(crate) struct Environment {
    /// A variable for the command in the guest; may be repeated
    #[arg(long = "env", value_name = "K=V", value_parser = pair)]
    pub(crate) variables: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("want NAME=VALUE".to_owned()),
    }
}

impl Machine {
    /// Whether it was left open what runs the guest.
    pub(crate) fn leaves_choice(&self) -> bool {
        self.accel == Wish::Auto
    }

    /// The same machine, whose time is a count of the instructions of so many processors.
    pub(crate) fn counted(self, cpus: u32) -> Self {
        Self {
            accel: Wish::Icount,
            cpus: Some(cpus),
            ..self
        }
    }

    /// Gets the parts of a guest of this architecture with this kernel and finds out what runs it.
    ///
    /// # Errors
    /// If they can not be had.
    pub(crate) fn prepare(
        &self,
        store: &Store,
        arch: Arch,
        kernel: &str,
        network: Network,
    ) -> Result<(Parts, Options)> {
        let parts = fetch::parts(store, arch, kernel, self.qemu.as_deref())?;
        let modules = self.modules.iter().map(|name| Wanted::named(name));
        let modules: Vec<Wanted> = modules.collect();
        let parts = parts.with_modules(store, &modules)?;
        let mut options = Options {
            accelerator: Accelerator::Tcg,
            memory: self.memory,
            cpus: 2,
            network,
            hca: None,
            agent: suite::agent(store, arch)?,
            without: None,
            modules,
        };
        options.accelerator = accel::choose(store, &parts, self.accel, &options)?;
        options.cpus = self.cpus.unwrap_or(match options.accelerator {
            Accelerator::Icount => 1,
            Accelerator::Kvm | Accelerator::Tcg => 2,
        });
        Ok((parts, options))
    }

    /// As [`Machine::prepare`], for a guest that has this adapter instead of soft-RoCE.
    ///
    /// # Errors
    /// As of [`Machine::prepare`].
    pub(crate) fn prepare_with_adapter(
        &self,
        store: &Store,
        arch: Arch,
        kernel: &str,
        hca: Hca,
    ) -> Result<(Parts, Options)> {
        let network = Network::Adapter {
            functions: hca.functions(),
            guest: 0,
        };
        let (parts, mut options) = self.prepare(store, arch, kernel, network)?;
        let parts = parts.with_modules(store, &hca.modules())?;
        options.hca = Some(hca);
        Ok((parts, options))
    }
}

/// Ends the guest, and looks through its kernel's log. Gives whether that was clean; if not, it is shown.
/// Known faults of the kernel are told, and are clean.
///
/// # Errors
/// If the guest does not end.
pub(crate) fn shut_down(guest: Guest) -> Result<bool> {
    let (log, violations) = guest.shut_down()?;
    let findings = klog::scan(log.iter().map(String::as_str));
    for finding in findings.iter().filter(|finding| finding.fault.is_none()) {
        eprint!("vm: the guest's kernel complained\n{finding}");
    }
    for known in klog::known_faults(&findings) {
        let why = known.fault.why;
        eprintln!("vm: the guest's kernel showed a known fault: {known}: {why}");
    }
    for violation in &violations {
        eprintln!("vm: the adapter complained: {violation}");
    }
    Ok(klog::complaints(&findings).is_empty() && violations.is_empty())
}

/// The current directory, as the guest is to have it.
///
/// # Errors
/// If there is none, or its name is not UTF-8.
pub(crate) fn current_directory() -> Result<String> {
    let path = std::env::current_dir().context("finding the current directory")?;
    path.into_os_string()
        .into_string()
        .ok()
        .context("the current directory's name is not UTF-8")
}
