//! Valkey over RDMA: its server, command line, benchmark and test client, built of Debian's source package.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::fetch;
use crate::process;
use crate::store::Store;

/// The suite whose source is taken: the command line and the benchmark go over RDMA from 9.0 on, and Debian
/// 13 has 8.1.
const SUITE: &str = "sid";

/// Where the programs are put, in the workspace: the tests look for them there.
const PLACE: &str = "target/clients/valkey";

/// The programs, in the source.
const PROGRAMS: [&str; 4] = [
    "src/valkey-server",
    "src/valkey-cli",
    "src/valkey-benchmark",
    "tests/rdma/rdma-test",
];

/// The test client's source, and the limits of a second in it for an answer and for a connection, which are
/// for hardware. Under emulation they are over at times, on either library, so each is made a minute.
const TEST_CLIENT: &str = "tests/rdma/rdma-test.c";
const LIMITS: [(&str, &str); 2] = [
    ("long timed = 1000;", "long timed = 60000;"),
    ("(host, port, 1000)", "(host, port, 60000)"),
];

/// Settings of its makefile: RDMA in the programs themselves, and nothing that tests of it do not need.
const SETTINGS: [&str; 6] = [
    "BUILD_RDMA=yes",
    "BUILD_LUA=no",
    "MALLOC=libc",
    "OPTIMIZATION=-O2",
    "USE_SYSTEMD=no",
    "DEBUG=",
];

/// Fetches the source and builds the programs; returns at once if they are there.
///
/// # Errors
/// If the source cannot be fetched, or there is no C compiler or `make`.
pub(super) fn build(store: &Store) -> Result<()> {
    let place = store.workspace().join(PLACE);
    if place.is_dir() {
        return Ok(());
    }
    let libraries = fetch::libibverbs(store)?;
    let (source, half) = (place.with_extension("source"), place.with_extension("half"));
    for old in [&source, &half] {
        if old.is_dir() {
            fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
        }
        fs::create_dir_all(old).with_context(|| format!("making {}", old.display()))?;
    }
    unpack(store, &source)?;
    give_time(&source.join(TEST_CLIENT))?;
    make(&source, &libraries)?;
    for program in PROGRAMS {
        let name = Path::new(program).file_name().unwrap_or_default();
        fs::copy(source.join(program), half.join(name))
            .with_context(|| format!("copying {program}"))?;
    }
    fs::remove_dir_all(&source).with_context(|| format!("removing {}", source.display()))?;
    fs::rename(&half, &place).with_context(|| format!("writing {}", place.display()))
}

/// Fetches the source as its authors published it, without Debian's changes: by those it takes libraries of
/// other packages.
fn unpack(store: &Store, into: &Path) -> Result<()> {
    let files = fetch::source(store, SUITE, "valkey", into)?;
    let is_original = |file: &&PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.contains(".orig.tar.") && !name.ends_with(".asc")
    };
    let archive = files.iter().find(is_original);
    let archive = archive.context("Valkey's source package has no original source")?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--strip-components=1", "--file"])
        .arg(archive)
        .arg("--directory")
        .arg(into);
    process::output("unpacking Valkey", &mut tar).map(drop)
}

/// Changes the limits in the test client's source.
fn give_time(test_client: &Path) -> Result<()> {
    let failed = || format!("changing {}", test_client.display());
    let mut text = fs::read_to_string(test_client).with_context(failed)?;
    for (of_hardware, longer) in LIMITS {
        ensure!(
            text.contains(of_hardware),
            "Valkey's test client has no `{of_hardware}` any more"
        );
        text = text.replace(of_hardware, longer);
    }
    fs::write(test_client, text).with_context(failed)
}

/// Builds the programs with this machine's compiler, and with the headers and libraries below this root.
fn make(source: &Path, libraries: &Path) -> Result<()> {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    for program in PROGRAMS {
        let (directory, target) = program.rsplit_once('/').unwrap_or(("", program));
        let mut make = Command::new("make");
        make.arg("--directory").arg(source.join(directory));
        make.arg(format!("--jobs={jobs}")).args(SETTINGS);
        make.arg(target).envs(variables(libraries));
        // A make above this one would have its own wishes.
        make.env_remove("MAKEFLAGS");
        process::output("building Valkey", &mut make)?;
    }
    Ok(())
}

/// What the compiler and the linker are to know.
fn variables(libraries: &Path) -> [(&'static str, OsString); 3] {
    let headers = libraries.join("usr/include");
    let libraries = libraries.join("usr/lib/x86_64-linux-gnu");
    [
        (
            "C_INCLUDE_PATH",
            process::behind(&headers, "C_INCLUDE_PATH"),
        ),
        ("LIBRARY_PATH", process::behind(&libraries, "LIBRARY_PATH")),
        // There the linker finds what the libraries need.
        (
            "LD_LIBRARY_PATH",
            process::behind(&libraries, "LD_LIBRARY_PATH"),
        ),
    ]
}
