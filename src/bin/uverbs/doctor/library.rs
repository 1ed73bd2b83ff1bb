//! The libibverbs that a program linked to one gets: the dynamic loader searches the directories of
//! LD_LIBRARY_PATH, its cache, and the usual directories.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Check, Finding};
use crate::exec::{SONAME, is_ours};
use crate::files::Files;

/// The directories that the loader searches last, after directories with the processor's name
/// (`/lib/x86_64-linux-gnu`).
const USUAL: [&str; 4] = ["lib64", "usr/lib64", "lib", "usr/lib"];

pub(super) fn finding(files: &Files) -> Finding {
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    verdict(by_path(&path), by_system(files))
}

/// The library of a directory of LD_LIBRARY_PATH.
fn by_path(path: &OsStr) -> Option<PathBuf> {
    let mut directories = env::split_paths(path).filter(|it| !it.as_os_str().is_empty());
    directories.find_map(|directory| library(directory.join(SONAME)))
}

/// The library that programs get without LD_LIBRARY_PATH.
fn by_system(files: &Files) -> Option<PathBuf> {
    // The cache has paths as texts, each with a zero after it.
    let cache = fs::read(files.path("etc/ld.so.cache")).unwrap_or_default();
    let cached = cache.split(|byte| *byte == 0).filter_map(|text| {
        let path = Path::new(std::str::from_utf8(text).ok()?);
        (path.file_name() == Some(OsStr::new(SONAME))).then(|| path.strip_prefix("/").ok())?
    });
    let of_processor = ["lib", "usr/lib"].map(|it| format!("{it}/{}-linux-gnu", env::consts::ARCH));
    let usual = of_processor.into_iter().chain(USUAL.map(str::to_owned));
    let usual = usual.map(|directory| Path::new(&directory).join(SONAME));
    let mut all = cached.map(Path::to_owned).chain(usual);
    all.find_map(|path| library(files.path(path)))
}

/// The file itself, if it is a library for this processor: the loader skips others.
fn library(path: PathBuf) -> Option<PathBuf> {
    let own = kind(&env::current_exe().ok()?)?;
    (kind(&path)? == own).then(|| path.canonicalize().ok())?
}

/// The class and the machine in the header of an ELF file.
fn kind(path: &Path) -> Option<[u8; 3]> {
    let mut head = [0; 20];
    File::open(path).ok()?.read_exact(&mut head).ok()?;
    head.starts_with(b"\x7fELF")
        .then_some([head[4], head[18], head[19]])
}

fn verdict(by_path: Option<PathBuf>, by_system: Option<PathBuf>) -> Finding {
    let check = Check::new("libibverbs", SONAME);
    let told = |path: &Path| match is_ours(path) {
        true => format!("{}, this project's", path.display()),
        false => format!("{}, not this project's", path.display()),
    };
    match (by_path, by_system) {
        (None, None) => check.good("none: programs that are linked to it do not start here"),
        (None, Some(path)) => check.good(told(&path)),
        (Some(path), Some(other)) if path != other && !is_ours(&path) => check.warning(
            format_args!(
                "{}, in place of {} (LD_LIBRARY_PATH)",
                told(&path),
                other.display()
            ),
            "Programs get another libibverbs than the system's, which may know other adapters: unset \
             LD_LIBRARY_PATH unless that is meant.",
        ),
        (Some(path), _) => check.good(format_args!("{} (LD_LIBRARY_PATH)", told(&path))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use crate::exec::OURS;
    use crate::files::host;

    /// A file that begins like this program, so that it is for this processor, and continues with these
    /// bytes.
    fn install(files: &Files, path: &str, more: &[u8]) -> PathBuf {
        let mut bytes = fs::read(env::current_exe().unwrap()).unwrap();
        bytes.truncate(64);
        bytes.extend(more);
        let path = files.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path.canonicalize().unwrap()
    }

    /// Catches a library that is reported although the loader finds another one first.
    #[test]
    fn the_path_is_first_then_the_cache_and_the_usual_directories() {
        let files = host("libraries", &[]);
        assert_eq!(by_system(&files), None);
        let usual = install(&files, "usr/lib64/libibverbs.so.1", b"");
        assert_eq!(by_system(&files), Some(usual.clone()));
        let cached = install(&files, "opt/ofed/libibverbs.so.1", b"");
        let cache = "glibc-ld.so.cache1.1\0/opt/old/libibverbs.so.1\0/opt/ofed/libibverbs.so.1\0";
        fs::create_dir_all(files.path("etc")).unwrap();
        fs::write(files.path("etc/ld.so.cache"), cache).unwrap();
        assert_eq!(by_system(&files), Some(cached));
        let own = install(&files, "home/lib/libibverbs.so.1", OURS);
        let directories = [files.path("nowhere"), files.path("home/lib")];
        let path = env::join_paths(directories).unwrap();
        assert_eq!(by_path(&path), Some(own.clone()));
        // A link that leads nowhere, and a file that is no library, are skipped.
        let other = files.path("home/other");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join(SONAME), "\x7fELF").unwrap();
        let path = env::join_paths([other, files.path("home/lib")]).unwrap();
        assert_eq!(by_path(&path), Some(own));
    }

    #[test]
    fn a_library_in_place_of_the_systems_is_told_unless_it_is_ours() {
        let files = host("in-place", &[]);
        let system = install(&files, "usr/lib/libibverbs.so.1", b"");
        let ours = install(&files, "ours/libibverbs.so.1", OURS);
        let other = install(&files, "other/libibverbs.so.1", b"");
        let of = |path: &PathBuf| verdict(Some(path.clone()), Some(system.clone()));
        assert_eq!(of(&system).verdict, Verdict::Good);
        let finding = of(&ours);
        assert_eq!(finding.verdict, Verdict::Good);
        assert!(finding.found.contains(", this project's"), "{finding:?}");
        let finding = of(&other);
        assert_eq!(finding.verdict, Verdict::Warning);
        assert!(finding.found.contains("not this project's, in place of"));
        let none = verdict(None, None);
        assert_eq!((none.verdict, &none.found[..4]), (Verdict::Good, "none"));
    }
}
