//! A guest kernel: its image and its modules, wherever they came from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// A kernel that can be booted.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Kernel {
    /// What it is called in reports: the series, or the release of a system kernel.
    pub(crate) name: String,
    /// The release, as `uname -r` prints it.
    pub(crate) release: String,
    /// The boot image.
    pub(crate) image: PathBuf,
    /// The directory of its modules, `.../lib/modules/RELEASE`.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// A kernel of the system, named by its image: `/boot/vmlinuz-RELEASE`, with the modules in
    /// `/lib/modules/RELEASE`.
    ///
    /// # Errors
    /// If the file name holds no release, or the modules are not there.
    pub(crate) fn system(image: &Path) -> Result<Self> {
        let name = image
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        // Fedora and others keep the image beside the modules: /lib/modules/RELEASE/vmlinuz.
        let beside = || image.parent()?.file_name()?.to_str();
        let release = match name.split_once('-') {
            Some((_, release)) => release,
            None => beside()
                .with_context(|| format!("{}: no kernel release in the name", image.display()))?,
        };
        let modules = Path::new("/lib/modules").join(release);
        if !image.is_file() {
            bail!("no kernel image at {}", image.display());
        }
        if !modules.is_dir() {
            bail!(
                "{}: its modules are not in {}",
                image.display(),
                modules.display()
            );
        }
        Ok(Self {
            name: release.to_owned(),
            release: release.to_owned(),
            image: image.to_path_buf(),
            modules,
        })
    }

    /// Finds image and modules in an unpacked package tree.
    ///
    /// # Errors
    /// If the tree holds no kernel.
    pub(crate) fn in_tree(name: &str, root: &Path) -> Result<Self> {
        let all = root.join("usr/lib/modules");
        let entries = std::fs::read_dir(&all)
            .with_context(|| format!("no kernel modules in {}", all.display()))?;
        let modules = entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.is_dir());
        let modules = modules.with_context(|| format!("no kernel modules in {}", all.display()))?;
        let release = modules
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
            .to_owned();
        let places = [
            root.join("boot").join(format!("vmlinuz-{release}")),
            modules.join("vmlinuz"),
        ];
        let image = places.into_iter().find(|place| place.is_file());
        let image =
            image.with_context(|| format!("no image of Linux {release} in {}", root.display()))?;
        Ok(Self {
            name: name.to_owned(),
            release,
            image,
            modules,
        })
    }
}
