//! The shared libraries for C programs.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::build;

/// A library for C programs.
#[derive(Debug)]
pub(crate) struct CLibrary {
    pub(crate) package: &'static str,
    /// Where it is put, beside cargo's own output.
    pub(crate) directory: &'static str,
    /// The name that the linker looks for, which is cargo's as well.
    link: &'static str,
}

impl CLibrary {
    /// libibverbs.
    pub(crate) const VERBS: Self = Self::beside_verbs("uverbs-c", "libibverbs.so");

    /// All of them. librdmacm has a directory of its own: a program can have the distribution's on this
    /// libibverbs.
    const ALL: &'static [Self] = &[
        Self::VERBS,
        Self::beside_verbs("uverbs-efa", "libefa.so"),
        Self::beside_verbs("uverbs-hns", "libhns.so"),
        Self::beside_verbs("uverbs-mana", "libmana.so"),
        Self::beside_verbs("uverbs-mlx5", "libmlx5.so"),
        Self {
            package: "uverbs-rdmacm",
            directory: "rdmacm",
            link: "librdmacm.so",
        },
    ];

    const fn beside_verbs(package: &'static str, link: &'static str) -> Self {
        Self {
            package,
            directory: "lib",
            link,
        }
    }

    /// Whether programs find it where they find libibverbs.
    pub(crate) fn is_beside_verbs(&self) -> bool {
        self.directory == Self::VERBS.directory
    }

    /// Builds all of them, and gives each with its file.
    ///
    /// # Errors
    /// If one does not build, or cargo does not say where it is.
    pub(crate) fn build_all(workspace: &Path) -> Result<Vec<(&'static Self, PathBuf)>> {
        let packages: Vec<&str> = Self::ALL.iter().map(|library| library.package).collect();
        let files = build::c_libraries(workspace, &packages)?;
        let with_file = |library: &'static Self| {
            let file = files.iter().find(|file| file.ends_with(library.link));
            let file = file.with_context(|| format!("cargo built no {}", library.link))?;
            Ok((library, file.clone()))
        };
        Self::ALL.iter().map(with_file).collect()
    }

    /// Puts the file that was built into a directory, under the names by which programs and the linker look
    /// for it, and gives where it is.
    ///
    /// # Errors
    /// If it cannot be copied.
    pub(crate) fn install(&self, built: &Path, directory: &Path) -> Result<PathBuf> {
        let install = || {
            fs::create_dir_all(directory)?;
            let soname = format!("{}.1", self.link);
            let (file, fresh) = (
                directory.join(&soname),
                directory.join(format!("{soname}.new")),
            );
            // Programs may have the old file mapped, which stays as it is.
            fs::copy(built, &fresh)?;
            fs::rename(&fresh, &file)?;
            match symlink(&soname, directory.join(self.link)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(file),
            }
        };
        install().with_context(|| format!("installing into {}", directory.display()))
    }
}
