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
const PACKAGES: [&str; 20] = [
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
    "netpipe-openmpi",
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

/// Those that only a run of everything has: they bring much with them.
const FULL_PACKAGES: [&str; 2] = ["fio", "prometheus"];

/// The suites whose programs run on the libraries for C programs as well: of rdma-core that is newer than
/// this machine's. Each has a tree of its own, with everything down to its C library.
pub(crate) const NEWER_SUITES: [&str; 2] = ["trixie", "sid"];

/// Those programs.
const NEWER_PACKAGES: [&str; 4] = ["ibverbs-utils", "libfabric-bin", "perftest", "rdmacm-utils"];

/// The newest of the suites, and rdma-core's own tests in it.
const NEWEST: (&str, &str) = ("sid", "python3-pyverbs");

/// The suite whose measurement of Ceph's messenger is taken, since Debian 12 has none; its package, without
/// all that its other programs need, and what the two programs need.
const CEPH_SUITE: &str = "trixie";
const CEPH: &str = "ceph-test";
const CEPH_PACKAGES: [&str; 3] = ["ibverbs-providers", "libgoogle-perftools4t64", "librados2"];

/// The suite whose UCX is taken beside this machine's: sid builds its own without transports over verbs.
const UCX_SUITE: &str = "trixie";
const UCX_PACKAGES: [&str; 2] = ["ibverbs-providers", "ucx-utils"];

/// What builds crates that are linked to libibverbs, on this machine.
const BUILD_PACKAGES: [&str; 2] = ["cmake", "libclang-dev"];

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

/// A tree of tools.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Tools {
    /// The root of the unpacked packages; laid over the host's root in the guest.
    pub(crate) root: PathBuf,
    /// A static busybox. The tree of a run of everything has none.
    #[serde(default)]
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
    let apt = Apt::open(store, arch, &[&apt::codename()?], progress)?;
    let mut tools = unpacked_by(&apt, store, &name, [wanted], progress)?;
    let root = &tools.root;
    let busybox = [
        root.join("usr/bin/busybox"),
        PathBuf::from("/usr/bin/busybox"),
        PathBuf::from("/bin/busybox"),
    ];
    // This machine's own is no good on another architecture.
    let places = if arch == Arch::X86_64 { 3 } else { 1 };
    tools.busybox = busybox
        .into_iter()
        .take(places)
        .find(|path| path.is_file())
        .context("the packages held no busybox")?;
    store.write_stamp(&name, &tools)?;
    progress.note("rdma-core's programs are there");
    Ok(tools)
}

/// The names of the tree of a run of everything, and of the one that builds.
const FULL: &str = "tools-full";
const BUILD: &str = "tools-build";

/// Fetches what builds crates that are linked to libibverbs, as far as this machine lacks it, and gives its
/// root; returns at once if it is there.
///
/// # Errors
/// If it cannot be fetched.
pub(crate) fn ensure_build(store: &Store, progress: &Progress) -> Result<PathBuf> {
    let wanted = of_this_machine(&BUILD_PACKAGES);
    Ok(once(store, BUILD, None, [wanted], progress)?.root)
}

/// Fetches what only a run of everything has; returns at once if it is there.
///
/// # Errors
/// If it cannot be fetched.
pub(crate) fn ensure_full(store: &Store, progress: &Progress) -> Result<()> {
    once(store, FULL, None, [wanted_in_full()], progress).map(drop)
}

/// Fetches the programs of a suite that is newer than this machine's; returns at once if they are there.
///
/// # Errors
/// If they cannot be fetched.
pub(crate) fn ensure_newer(store: &Store, suite: &str, progress: &Progress) -> Result<()> {
    let name = format!("tools-{suite}");
    let newest = (suite == NEWEST.0).then_some(NEWEST.1);
    let packages = NEWER_PACKAGES.into_iter().chain(newest);
    let wanted = Wanted::new(packages, Installed::Nothing);
    once(store, &name, Some(suite), [wanted], progress).map(drop)
}

/// Fetches the measurement of Ceph's messenger, in a tree of its own; returns at once if it is there.
///
/// # Errors
/// If it cannot be fetched.
pub(crate) fn ensure_ceph(store: &Store, progress: &Progress) -> Result<()> {
    let name = "tools-ceph";
    let wanted = [
        Wanted::new(CEPH_PACKAGES, Installed::Nothing),
        Wanted::new([CEPH], Installed::AllElse),
    ];
    once(store, name, Some(CEPH_SUITE), wanted, progress).map(drop)
}

/// Fetches a newer UCX, in a tree of its own; returns at once if it is there.
///
/// # Errors
/// If it cannot be fetched.
pub(crate) fn ensure_ucx(store: &Store, progress: &Progress) -> Result<()> {
    let name = "tools-ucx";
    let wanted = Wanted::new(UCX_PACKAGES, Installed::Nothing);
    once(store, name, Some(UCX_SUITE), [wanted], progress).map(drop)
}

/// The tree of that name, made if it is not there with just what is wanted, of a suite or of this machine's.
fn once<const N: usize>(
    store: &Store,
    name: &str,
    suite: Option<&str>,
    wanted: [Wanted; N],
    progress: &Progress,
) -> Result<Tools> {
    if let Some(tools) = made(store, name, &wanted) {
        return Ok(tools);
    }
    let suite = match suite {
        Some(suite) => suite.to_owned(),
        None => apt::codename()?,
    };
    let apt = Apt::open(store, Arch::X86_64, &[&suite], progress)?;
    let tools = unpacked_by(&apt, store, name, wanted, progress)?;
    store.write_stamp(name, &tools)?;
    progress.note(&format!("the packages of {name} are there"));
    Ok(tools)
}

/// The tree of that name, if it is there with just what is wanted.
fn made(store: &Store, name: &str, wanted: &[Wanted]) -> Option<Tools> {
    let tools = store.stamp::<Tools>(name)?;
    let packages = wanted.iter().flat_map(|wanted| &wanted.packages);
    (tools.root.is_dir() && packages.eq(&tools.wanted)).then_some(tools)
}

/// The packages whose libraries this project has as well.
const LIBRARIES: [&str; 3] = ["ibverbs-providers", "libibverbs1", "librdmacm1t64"];

/// Programs that need those libraries by way of others, or might.
const FURTHER_USERS: [&str; 17] = [
    "ceph-common",
    "ceph-fuse",
    "ceph-mds",
    "ceph-mgr",
    "ceph-mon",
    "dpdk",
    "glusterfs-server",
    "infiniband-diags",
    "libfabric-bin",
    "mpich",
    "netpipe-mpich2",
    "netpipe-openmpi",
    "openmpi-bin",
    "opensm",
    "radosgw",
    "samba-vfs-ceph",
    "ucx-utils",
];

/// Fetches all packages of a suite that need those libraries, with everything down to the C library, so that
/// their programs start. Returns at once if they are there.
///
/// # Errors
/// If they cannot be fetched.
pub(crate) fn ensure_users(store: &Store, suite: &str, progress: &Progress) -> Result<()> {
    let name = format!("dependents-{suite}");
    if store.stamp::<Tools>(&name).is_some() {
        return Ok(());
    }
    let apt = Apt::open(store, Arch::X86_64, &[suite], progress)?;
    let mut packages = apt.users_of(&LIBRARIES)?;
    packages.extend(FURTHER_USERS.map(str::to_owned));
    progress.step(&format!(
        "looking for what needs rdma-core's libraries in {suite}"
    ));
    let wanted = Wanted::new(apt.together(&packages, progress)?, Installed::Nothing);
    let tools = unpacked_by(&apt, store, &name, [wanted], progress)?;
    store.write_stamp(&name, &tools)?;
    progress.note(&format!(
        "what needs rdma-core's libraries in {suite} is there"
    ));
    Ok(())
}

/// The root of what only a run of everything has, if it has been fetched.
pub(crate) fn of_full_run(store: &Store, arch: Arch) -> Option<PathBuf> {
    let tools = made(store, FULL, &[wanted_in_full()])?;
    (arch == Arch::X86_64).then_some(tools.root)
}

/// Makes a tree of packages that this apt finds, without a stamp.
fn unpacked_by<const N: usize>(
    apt: &Apt,
    store: &Store,
    name: &str,
    wanted: [Wanted; N],
    progress: &Progress,
) -> Result<Tools> {
    let downloads = store.path(format!("{name}-packages"));
    let mut files = Vec::new();
    for wanted in &wanted {
        files.extend(apt.download(wanted, &downloads, progress)?);
    }
    let root = store.path(name);
    unpack::all(&files, &root, progress)?;
    link_psm(&root)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    let packages = files
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .collect();
    Ok(Tools {
        root,
        busybox: PathBuf::new(),
        packages,
        wanted: wanted
            .into_iter()
            .flat_map(|wanted| wanted.packages)
            .collect(),
    })
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

fn wanted_in_full() -> Wanted {
    of_this_machine(&FULL_PACKAGES)
}

/// These packages, as far as this machine lacks them and what they need.
fn of_this_machine(packages: &[&str]) -> Wanted {
    Wanted::new(packages.iter().copied(), Installed::ThisMachine)
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
    Wanted::new(packages.iter().copied(), installed)
}
