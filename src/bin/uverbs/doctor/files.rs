//! Files of the kernel and the system, below a root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files of a host.
#[derive(Clone, Debug)]
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn of_this_host() -> Self {
        Self("/".into())
    }

    #[cfg(test)]
    pub(super) fn below(root: &Path) -> Self {
        Self(root.into())
    }

    /// A file by its path without the leading slash.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    pub(super) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The text without the blanks around it.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        Ok(fs::read_to_string(self.path(path))?.trim().to_owned())
    }

    pub(super) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path).ok()?.parse().ok()
    }

    /// The names in a directory, in their order; none if there is no such directory.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }
}
