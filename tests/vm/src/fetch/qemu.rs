//! QEMU from a newer suite, beside the system: with its own loader and libraries, so that it runs on an older
//! one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apt::{Apt, Installed, Wanted};
use super::progress::Progress;
use super::unpack;
use crate::arch::Arch;
use crate::qemu::Qemu;
use crate::store::Store;

/// The suites that QEMU comes from; the last is preferred.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

/// The packages for a guest of this architecture.
fn packages(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &["qemu-system-x86", "seabios"],
        Arch::Arm64 => &["qemu-system-arm"],
    }
}

/// Fetches QEMU for guests of this architecture; returns at once if it is there.
///
/// # Errors
/// If it cannot be fetched.
pub(crate) fn ensure(store: &Store, arch: Arch, progress: &Progress) -> Result<Qemu> {
    let name = format!("qemu{}", arch.suffix());
    if let Some(qemu) = store.stamp::<Qemu>(&name)
        && qemu.program.is_file()
    {
        return Ok(qemu);
    }
    let downloads = store.path(format!("{name}-packages"));
    // QEMU itself runs on this machine.
    let apt = Apt::open(store, Arch::X86_64, &SUITES, progress)?;
    let wanted = Wanted {
        prefer: Some(SUITES[1]),
        ..Wanted::new(packages(arch).iter().copied(), Installed::Nothing)
    };
    let files = apt.download(&wanted, &downloads, progress)?;
    let root = store.path(&name);
    unpack::all(&files, &root, progress)?;
    let qemu = in_tree(arch, &root)?;
    store.write_stamp(&name, &qemu)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    progress.note(&format!("{} is there", arch.qemu()));
    Ok(qemu)
}

/// How QEMU is started from an unpacked tree: through the tree's own loader, which is told where the
/// libraries are.
fn in_tree(arch: Arch, root: &Path) -> Result<Qemu> {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let library_path = [&libraries, &libraries.join("pulseaudio")]
        .map(|path| path.display().to_string())
        .join(":");
    let program = root.join("usr/bin").join(arch.qemu());
    let loader = libraries.join("ld-linux-x86-64.so.2");
    for file in [&program, &loader] {
        fs::metadata(file)
            .with_context(|| format!("the packages of QEMU held no {}", file.display()))?;
    }
    let data: Vec<PathBuf> = ["usr/share/qemu", "usr/share/seabios"]
        .map(|name| root.join(name))
        .to_vec();
    Ok(Qemu {
        program,
        loader: Some((loader, library_path)),
        data,
        modules: Some(libraries.join("qemu")),
    })
}
