//! QEMU from a newer suite, beside the system: with its own loader and libraries, so that it runs on an older
//! one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apt::{Apt, Installed, Wanted};
use super::progress::Progress;
use super::unpack;
use crate::qemu::Qemu;
use crate::store::Store;

/// The suites that QEMU comes from; the last is preferred.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

/// Fetches QEMU; returns at once if it is there.
///
/// # Errors
/// If it cannot be fetched.
pub(crate) fn ensure(store: &Store, progress: &Progress) -> Result<Qemu> {
    if let Some(qemu) = store.stamp::<Qemu>("qemu")
        && qemu.program.is_file()
    {
        return Ok(qemu);
    }
    let downloads = store.path("qemu-packages");
    let apt = Apt::open(store, &SUITES, progress)?;
    let wanted = Wanted {
        packages: ["qemu-system-x86", "seabios"].map(str::to_owned).to_vec(),
        installed: Installed::Nothing,
        prefer: Some(SUITES[1]),
    };
    let files = apt.download(&wanted, &downloads, progress)?;
    let root = store.path("qemu");
    unpack::all(&files, &root, progress)?;
    let qemu = in_tree(&root)?;
    store.write_stamp("qemu", &qemu)?;
    fs::remove_dir_all(&downloads).with_context(|| format!("removing {}", downloads.display()))?;
    progress.note("QEMU is there");
    Ok(qemu)
}

/// How QEMU is started from an unpacked tree: through the tree's own loader, which is told where the
/// libraries are.
fn in_tree(root: &Path) -> Result<Qemu> {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let library_path = [&libraries, &libraries.join("pulseaudio")]
        .map(|path| path.display().to_string())
        .join(":");
    let program = root.join("usr/bin/qemu-system-x86_64");
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
