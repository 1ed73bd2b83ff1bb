//! Programs for inside the guest: busybox for the initramfs, and rdma-core's programs as the other end of the
//! wire.
//!
//! Only what this machine lacks is fetched, from its own suite, and laid over its file system in the guest.
//! The package `rdma-core` itself is not among them: it holds daemons and udev rules, and would pull in udev.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::apt::{self, Apt, Installed, Wanted};
use super::progress::Progress;
use super::unpack;
use crate::store::Store;

/// The packages, without those that they depend on.
const PACKAGES: [&str; 15] = [
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "libibumad-dev",
    "libibverbs-dev",
    "librdmacm-dev",
    "kmod",
    "perftest",
    "procps",
    "rdmacm-utils",
    "strace",
    "util-linux",
    "valgrind",
];

/// The tree of tools.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Tools {
    /// The root of the unpacked packages; laid over the host's root in the guest.
    pub(crate) root: PathBuf,
    /// A static busybox.
    pub(crate) busybox: PathBuf,
    /// The packages' file names, for the curious.
    packages: Vec<String>,
}

/// Fetches the tools; returns at once if they are there.
///
/// # Errors
/// If they cannot be fetched.
pub(crate) fn ensure(store: &Store, progress: &Progress) -> Result<Tools> {
    if let Some(tools) = store.stamp::<Tools>("tools")
        && tools.busybox.is_file()
    {
        return Ok(tools);
    }
    let downloads = store.path("tools-packages");
    let codename = apt::codename()?;
    let apt = Apt::open(store, &[&codename], progress)?;
    let wanted = Wanted {
        packages: PACKAGES.map(str::to_owned).to_vec(),
        installed: Installed::ThisMachine,
        prefer: None,
    };
    let files = apt.download(&wanted, &downloads, progress)?;
    let root = store.path("tools");
    unpack::all(&files, &root, progress)?;
    let busybox = [
        root.join("usr/bin/busybox"),
        PathBuf::from("/usr/bin/busybox"),
        PathBuf::from("/bin/busybox"),
    ];
    let busybox = busybox
        .into_iter()
        .find(|path| path.is_file())
        .context("the packages held no busybox")?;
    let packages = files
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    let tools = Tools {
        root,
        busybox,
        packages,
    };
    store.write_stamp("tools", &tools)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    progress.note("rdma-core's programs are there");
    Ok(tools)
}
