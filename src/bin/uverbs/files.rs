//! Files of the kernel and the system, below a root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files of a host.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn of_this_host() -> Self {
        Self("/".into())
    }

    #[cfg(test)]
    pub(crate) fn below(root: &Path) -> Self {
        Self(root.into())
    }

    /// A file by its path without the leading slash.
    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.join(path)
    }

    pub(crate) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The text without the blanks around it.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        Ok(fs::read_to_string(self.path(path))?.trim().to_owned())
    }

    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path).ok()?.parse().ok()
    }

    /// The names in a directory, sorted; empty if there is no such directory.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }
}

/// A host with these files, in a directory of its own.
#[cfg(test)]
pub(crate) fn host(name: &str, files: &[(&str, &str)]) -> Files {
    let root = std::env::temp_dir().join(format!("host-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir_all(&root).unwrap();
    Files::below(&root)
}
