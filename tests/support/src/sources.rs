//! The library's own source, for tests that read it.

use std::fs;
use std::path::{Path, PathBuf};

/// Adds the files of the library below a directory, but for tests and the program.
///
/// # Panics
/// If one cannot be read: the source is part of the test.
pub fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        match path.is_dir() {
            true if !matches!(name, "tests" | "bin") => files(&path, found),
            false if name.ends_with(".rs") && name != "tests.rs" => found.push(path),
            _ => {}
        }
    }
}
