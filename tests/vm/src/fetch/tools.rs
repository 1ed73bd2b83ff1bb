//! Programs for inside the guest: busybox for the initramfs, and rdma-core's programs as the other end of the
//! wire.
//!
//! Only what this machine lacks is fetched, from its own suite, and laid over its file system in the guest.
//! The package `rdma-core` itself is not among them: it holds daemons and udev rules, and would pull in udev.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::apt::{self, Apt, Installed, Wanted};
use super::progress::Progress;
use super::unpack;
use crate::arch::Arch;
use crate::store::Store;

/// The packages, without those that they depend on.
const PACKAGES: [&str; 19] = [
    "busybox-static",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "libibumad-dev",
    "libfabric-bin",
    "libibverbs-dev",
    "librdmacm-dev",
    "kmod",
    "perftest",
    "procps",
    "python3-pyverbs",
    "qperf",
    "rdmacm-utils",
    "strace",
    "ucx-utils",
    "util-linux",
    "valgrind",
];

/// What those depend on to be installed, which a guest has no use for: daemons and udev's rules.
const SURROUNDINGS: [&str; 1] = ["rdma-core"];

/// The packages for a guest of arm64: none of this machine's programs runs there.
const PACKAGES_ARM64: [&str; 13] = [
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "kmod",
    "perftest",
    "procps",
    "rdmacm-utils",
    "util-linux",
];

/// What those depend on to be installed, which a guest has no use for.
const SURROUNDINGS_ARM64: [&str; 9] = [
    "adduser",
    "base-files",
    "debconf",
    "dpkg",
    "passwd",
    "perl",
    "perl-base",
    "tar",
    "usrmerge",
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
    /// What was asked for. If that is something else now, the tree is made anew.
    #[serde(default)]
    wanted: Vec<String>,
}

/// Fetches the tools of this architecture; returns at once if they are there.
///
/// # Errors
/// If they cannot be fetched.
pub(crate) fn ensure(store: &Store, arch: Arch, progress: &Progress) -> Result<Tools> {
    let name = format!("tools{}", arch.suffix());
    let wanted = wanted(arch);
    if let Some(tools) = store.stamp::<Tools>(&name)
        && tools.busybox.is_file()
        && tools.wanted == wanted.packages
    {
        return Ok(tools);
    }
    let downloads = store.path(format!("{name}-packages"));
    let codename = apt::codename()?;
    let apt = Apt::open(store, arch, &[&codename], progress)?;
    let files = apt.download(&wanted, &downloads, progress)?;
    let root = store.path(&name);
    unpack::all(&files, &root, progress)?;
    link_psm(&root)?;
    let busybox = [
        root.join("usr/bin/busybox"),
        PathBuf::from("/usr/bin/busybox"),
        PathBuf::from("/bin/busybox"),
    ];
    // This machine's own is no good on another architecture.
    let places = if arch == Arch::X86_64 { 3 } else { 1 };
    let busybox = busybox
        .into_iter()
        .take(places)
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
        wanted: wanted.packages,
    };
    store.write_stamp(&name, &tools)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    progress.note("rdma-core's programs are there");
    Ok(tools)
}

/// Makes a link that a package's own script makes when it is installed: libfabric needs that library.
fn link_psm(root: &Path) -> Result<()> {
    let library = "libpsm1/libpsm_infinipath.so.1.16";
    if root.join("usr/lib").join(library).is_file() {
        let link = root.join("usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1");
        symlink(format!("../{library}"), &link)
            .with_context(|| format!("making {}", link.display()))?;
    }
    Ok(())
}

fn wanted(arch: Arch) -> Wanted {
    let (packages, installed) = match arch {
        Arch::X86_64 => {
            let surroundings = SURROUNDINGS.map(str::to_owned).to_vec();
            (PACKAGES.as_slice(), Installed::ThisMachineAnd(surroundings))
        }
        Arch::Arm64 => {
            let surroundings = SURROUNDINGS_ARM64.map(str::to_owned).to_vec();
            (PACKAGES_ARM64.as_slice(), Installed::These(surroundings))
        }
    };
    Wanted {
        packages: packages.iter().map(|&name| name.to_owned()).collect(),
        installed,
        prefer: None,
    }
}
