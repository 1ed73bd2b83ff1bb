//! Unpacking packages side by side into a tree of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::progress::Progress;
use crate::process;

/// Directories that are links into /usr on a system with a merged /usr.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Unpacks package files into `root`, which is made anew, and brings it into the merged-/usr form.
///
/// # Errors
/// If a package cannot be unpacked (no space, most likely) or files cannot be moved.
pub(crate) fn all(files: &[PathBuf], root: &Path, progress: &Progress) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)
            .with_context(|| format!("removing the unfinished {}", root.display()))?;
    }
    fs::create_dir_all(root).with_context(|| format!("making {}", root.display()))?;
    progress.step(&format!("unpacking {} packages", files.len()));
    for (index, file) in files.iter().enumerate() {
        let mut command = Command::new("dpkg-deb");
        command.arg("--extract").arg(file).arg(root);
        process::output("unpacking a package", &mut command)?;
        progress.percent(100.0 * (index + 1) as f32 / files.len() as f32);
    }
    merge_usr(root)
}

/// Moves /bin, /sbin, /lib and /lib64 under /usr: a tree that has a directory /lib of its own would hide the
/// whole system's, where /lib is a link, once it is laid over it.
fn merge_usr(root: &Path) -> Result<()> {
    for name in MERGED {
        let from = root.join(name);
        if from.is_dir() && !from.is_symlink() {
            move_tree(&from, &root.join("usr").join(name))?;
        }
    }
    Ok(())
}

fn move_tree(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("moving {} to {}", from.display(), to.display());
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let target = to.join(entry.file_name());
        if entry.file_type().with_context(failed)?.is_dir() && target.is_dir() {
            move_tree(&entry.path(), &target)?;
        } else {
            fs::rename(entry.path(), target).with_context(failed)?;
        }
    }
    fs::remove_dir(from).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lib_moves_under_usr_and_keeps_what_is_there() -> Result<()> {
        let root = std::env::temp_dir().join(format!("vm-merge-{}", std::process::id()));
        fs::create_dir_all(root.join("lib/x"))?;
        fs::create_dir_all(root.join("usr/lib/x"))?;
        fs::write(root.join("lib/x/a"), "a")?;
        fs::write(root.join("usr/lib/x/b"), "b")?;
        merge_usr(&root)?;
        assert!(!root.join("lib").exists());
        assert_eq!(fs::read_to_string(root.join("usr/lib/x/a"))?, "a");
        assert_eq!(fs::read_to_string(root.join("usr/lib/x/b"))?, "b");
        fs::remove_dir_all(&root)?;
        Ok(())
    }
}
