//! Snapshots: lists that lie in this package's folder and are changed on purpose only.
//!
//! A test makes the list anew and compares. [`UPDATE`] writes what it found instead.

pub mod lines;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// The command that writes the snapshots anew.
pub const UPDATE: &str = "UPDATE_SNAPSHOTS=1 cargo test --package checks";

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All Rust files below a folder.
///
/// # Errors
/// If it cannot be read.
pub fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.append(&mut sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Cargo in the workspace, without the network: what is needed has been downloaded for the tests themselves.
pub fn cargo() -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace())
        .env("CARGO_NET_OFFLINE", "true");
    command
}

/// Compares lines with a snapshot, or writes it where the environment says so.
///
/// # Errors
/// If they differ: the lines that went and came, and the command that accepts them. If the file cannot be
/// read or written.
pub fn compare(name: &str, found: &[String]) -> Result<(), String> {
    let path = snapshot(name);
    let failed = |error| format!("{}: {error}", path.display());
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        return fs::write(&path, found.join("\n") + "\n").map_err(failed);
    }
    let expected = fs::read_to_string(&path).map_err(failed)?;
    let expected: Vec<&str> = expected.lines().collect();
    if expected == found {
        return Ok(());
    }
    let differences = differences(&expected, found);
    Err(format!(
        "{} is not what was found:\n{differences}If this is meant, `{UPDATE}` writes it anew.",
        path.display()
    ))
}

fn snapshot(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A line for each line that one list has more often than the other. Empty if only the order differs.
fn differences(expected: &[&str], found: &[String]) -> String {
    let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
    for line in expected {
        *counts.entry(line).or_default() -= 1;
    }
    for line in found {
        *counts.entry(line).or_default() += 1;
    }
    let line = |(line, count): (&str, i32)| match count {
        0 => String::new(),
        1.. => format!("+ {line}\n"),
        _ => format!("- {line}\n"),
    };
    counts.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_went_and_came_are_told() {
        let found = ["a", "c", "d", "d"].map(str::to_owned);
        assert_eq!(differences(&["a", "b", "d"], &found), "- b\n+ c\n+ d\n");
    }
}
