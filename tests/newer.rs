//! Programs and libraries of Debian's newer suites, on the libraries of the C ABI: everything that needs
//! libibverbs or librdmacm starts, with the provider libraries of its suite and with those of this project.
//! `cargo vm fetch` fetches them.

mod built;
mod users;

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Trial};

use self::built::{Export, build, workspace};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The suites, with the newest version of rdma-core's library that `tests/checks/exports.txt` has of it.
const SUITES: [(&str, &str); 2] = [
    ("trixie", "libibverbs.so.1.14.56.1"),
    ("sid", "libibverbs.so.1.18.65.0"),
];

/// The libraries, with the packages that they are of.
const LIBRARIES: [(&str, &str); 6] = [
    ("uverbs-c", "libibverbs.so"),
    ("uverbs-efa", "libefa.so"),
    ("uverbs-hns", "libhns.so"),
    ("uverbs-mana", "libmana.so"),
    ("uverbs-mlx5", "libmlx5.so"),
    ("uverbs-rdmacm", "librdmacm.so"),
];

/// What must be among what is tried of each suite.
const PROGRAMS: [&str; 6] = [
    "ib_write_bw",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "libfabric.so.1",
    "libmlx5.so.1",
    "rping",
];

fn main() -> ExitCode {
    let starts = SUITES.map(|suite| {
        Trial::ignorable_test(format!("all_of_{}_starts", suite.0), move || {
            where_it_is(suite.0, everything_starts)
        })
    });
    let exports = SUITES.map(|suite| {
        Trial::ignorable_test(
            format!("the_list_has_what_{}_exports", suite.0),
            move || where_it_is(suite.0, |root| exports_are_listed(root, suite.1)),
        )
    });
    let find = SUITES.map(|suite| {
        let name = format!("what_needs_the_libraries_in_{}_finds_its_names", suite.0);
        Trial::ignorable_test(name, move || {
            where_users_are(suite.0, |root| users::find_their_names(root).map(|()| None))
        })
    });
    let start = SUITES.map(|suite| {
        let name = format!("what_needs_the_libraries_in_{}_starts", suite.0);
        Trial::ignorable_test(name, move || where_users_are(suite.0, users::start))
    });
    let tests = starts
        .into_iter()
        .chain(exports)
        .chain(find)
        .chain(start)
        .collect();
    libtest_mimic::run(&Arguments::from_args(), tests).exit_code()
}

/// Runs a test with the tree of all packages of a suite that need the libraries, if there is one. The test
/// says why it cannot run.
fn where_users_are(
    suite: &str,
    test: impl FnOnce(&Path) -> Result<Option<String>>,
) -> std::result::Result<Completion, libtest_mimic::Failed> {
    let tree = workspace()
        .join("target/vm")
        .join(format!("dependents-{suite}"));
    let skipped = match tree.with_extension("json").is_file() {
        true => test(&tree)?,
        false => {
            Some("the packages are not there: `cargo vm clients --full` fetches them".to_owned())
        }
    };
    Ok(match skipped {
        None => Completion::Completed,
        Some(why) => Completion::ignored_with(why),
    })
}

/// Runs a test with the tree of a suite, if there is one.
fn where_it_is(
    suite: &str,
    test: impl FnOnce(&Path) -> Result,
) -> std::result::Result<Completion, libtest_mimic::Failed> {
    let root = workspace().join("target/vm").join(format!("tools-{suite}"));
    if !root.with_extension("json").is_file() {
        let why = format!("the programs of {suite} are not there: `cargo vm fetch` fetches them");
        return Ok(Completion::ignored_with(why));
    }
    Ok(test(&root).map(|()| Completion::Completed)?)
}

/// Where a suite has its libraries.
fn libraries_of(root: &Path) -> PathBuf {
    root.join("usr/lib/x86_64-linux-gnu")
}

/// Catches a name or a version that a program or a library is linked to and that is not here. The suite's own
/// loader binds all names of each, and tells what it does not find.
fn everything_starts(root: &Path) -> Result {
    let whole = tempfile::tempdir()?;
    let alone = tempfile::tempdir()?;
    for (package, built) in LIBRARIES {
        let library = build(package, built)?;
        fs::copy(&library, whole.path().join(format!("{built}.1")))?;
        if ["libibverbs.so", "librdmacm.so"].contains(&built) {
            fs::copy(&library, alone.path().join(format!("{built}.1")))?;
        }
    }
    let (mut tried, mut found) = (BTreeSet::new(), Vec::new());
    for file in files(&[root.join("usr/bin"), libraries_of(root)])? {
        let needed = built::needed(&file).unwrap_or_default();
        if !needed.iter().any(|name| is_ours(name)) {
            continue;
        }
        for ours in [whole.path(), alone.path()] {
            found.extend(missing(root, ours, &file)?);
        }
        tried.extend(file.file_name().and_then(OsStr::to_str).map(str::to_owned));
    }
    println!("tried: {tried:?}");
    let untried: Vec<&str> = PROGRAMS
        .into_iter()
        .filter(|name| !tried.contains(*name))
        .collect();
    match found.is_empty() && untried.is_empty() {
        true => Ok(()),
        false => Err(format!("not tried: {untried:?}; missing:\n{}", found.join("\n")).into()),
    }
}

/// Whether it is a library of rdma-core that this project has too.
fn is_ours(name: &str) -> bool {
    LIBRARIES
        .iter()
        .any(|(_, ours)| name.strip_suffix(".1") == Some(ours))
}

/// What the loader does not find for a file, with these libraries in front.
fn missing(root: &Path, ours: &Path, file: &Path) -> Result<Vec<String>> {
    let path = [ours, &libraries_of(root)].map(|directory| directory.display().to_string());
    let output = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"))
        .args(["--library-path", &path.join(":")])
        .arg(file)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env("LD_WARN", "yes")
        .env("LD_BIND_NOW", "yes")
        .output()?;
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    let said = said.concat();
    let uses_ours = said.contains(&*ours.to_string_lossy());
    if !output.status.success() || !uses_ours {
        return Err(format!("{}: {}: {said}", file.display(), output.status).into());
    }
    let bad = ["undefined symbol", "not found", "symbol lookup error"];
    let lines = said
        .lines()
        .filter(|line| bad.iter().any(|bad| line.contains(bad)));
    Ok(lines.map(str::to_owned).collect())
}

/// The regular files in these directories, and links to such.
fn files(directories: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for directory in directories {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_file() {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// Catches a list of names that is older than the suite. Of a version of rdma-core that is newer than the
/// list's this is only told: a suite moves on by itself.
fn exports_are_listed(root: &Path, version: &str) -> Result {
    let listed = listed()?;
    let mut lacking = Vec::new();
    for (_, built) in LIBRARIES {
        let soname = format!("{built}.1");
        let library = libraries_of(root).join(&soname);
        if !library.is_file() {
            continue;
        }
        let exports = exports(&library)?;
        let lines = exports.iter().map(|name| format!("{soname} {name}"));
        lacking.extend(lines.filter(|line| !listed.contains(line)));
    }
    let has_that_version = libraries_of(root).join(version).is_file();
    if !has_that_version {
        println!(
            "warning: rdma-core is not the version of which tests/checks/exports.txt has the names"
        );
    }
    match (lacking.is_empty(), has_that_version) {
        (true, _) => Ok(()),
        (false, true) => Err(format!("exports.txt lacks {lacking:?}").into()),
        (false, false) => {
            println!("warning: exports.txt lacks {lacking:?}");
            Ok(())
        }
    }
}

/// The names of `exports.txt`: library, name and version.
fn listed() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(workspace().join("tests/checks/exports.txt"))?;
    let (mut soname, mut node) = ("", "");
    let mut listed = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let depth = line.len() - line.trim_start().len();
        let name = line.trim().trim_end_matches(" = data");
        match depth {
            0 => soname = name,
            4 => node = name,
            _ => drop(listed.insert(format!("{soname} {name}@{node}"))),
        }
    }
    Ok(listed)
}

/// What a library exports: each name with its version.
fn exports(library: &Path) -> Result<BTreeSet<String>> {
    let versioned = |export: Export| Some(format!("{}@{}", export.name, export.version?));
    Ok(built::exports(library)?
        .into_iter()
        .filter_map(versioned)
        .collect())
}
