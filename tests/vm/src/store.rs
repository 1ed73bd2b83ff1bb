//! Where things lie under `target/vm`, and the stamps that say that a thing is there and whole.
//!
//! A stamp is a small JSON file that is written (by rename) after everything it describes: a fetch that was
//! interrupted leaves no stamp and is continued by the next one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The runner's own directory, `target/vm`.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    root: PathBuf,
    workspace: PathBuf,
}

impl Store {
    /// Asks cargo where the workspace and its target directory are, and makes `vm` in it.
    ///
    /// # Errors
    /// If cargo cannot say, or the directory cannot be made.
    pub(crate) fn open() -> Result<Self> {
        let metadata = cargo_metadata::MetadataCommand::new()
            .no_deps()
            .other_options(["--offline".to_owned()])
            .exec()
            .context("asking cargo for the target directory (cargo metadata)")?;
        let root = metadata.target_directory.join("vm").into_std_path_buf();
        fs::create_dir_all(&root).with_context(|| format!("making {}", root.display()))?;
        Ok(Self {
            root,
            workspace: metadata.workspace_root.into_std_path_buf(),
        })
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The root of the cargo workspace.
    pub(crate) fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// A path in the store.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Makes a directory of the store and gives its path.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn directory(&self, name: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }

    /// Reads the stamp of that name; none if there is none, or if an older version of this program wrote it.
    pub(crate) fn stamp<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let text = fs::read(self.path(format!("{name}.json"))).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes a stamp.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write_stamp<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        let path = self.path(format!("{name}.json"));
        // Another process may be writing the same stamp.
        let half = self.path(format!("{name}.json.half-{}", std::process::id()));
        let text = serde_json::to_vec_pretty(value).context("writing a stamp")?;
        fs::write(&half, text)
            .and_then(|()| fs::rename(&half, &path))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Takes the lock that keeps two fetches apart; it is free again when the file is dropped.
    ///
    /// # Errors
    /// If the lock file cannot be opened or locked.
    pub(crate) fn lock(&self) -> Result<File> {
        let path = self.path("lock");
        let file = File::create(&path).with_context(|| format!("opening {}", path.display()))?;
        if file.try_lock().is_err() {
            eprintln!("vm: another cargo vm is fetching; waiting for it");
            file.lock()
                .with_context(|| format!("locking {}", path.display()))?;
        }
        Ok(file)
    }
}
