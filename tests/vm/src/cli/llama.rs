//! llama.cpp's backend for remote procedure calls, from the source package that the registry of Python has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::pip;
use crate::fetch;
use crate::process;
use crate::store::Store;

/// What names the source, with its checksum, and how it is built, in the workspace.
const HERE: &str = "tests/clients/llama";

/// Where it is unpacked and built, in the workspace.
const PLACE: &str = "target/clients/llama";

/// Where the programs are put there: the tests look for them there.
const PROGRAMS: &str = "programs";

/// Where llama.cpp lies in the package.
const VENDORED: &str = "vendor/llama.cpp";

/// The programs.
const WANTED: [&str; 2] = ["rpc-server", "operators"];

/// Builds the server and the tests of operators; returns at once if they are there.
///
/// # Errors
/// If there is no Python with pip, no registry, or no compiler of C++.
pub(super) fn build(store: &Store) -> Result<()> {
    let place = store.workspace().join(PLACE);
    let put = place.join(PROGRAMS);
    if put.is_dir() {
        return Ok(());
    }
    let source = fetch(store, &place)?.join(VENDORED);
    let tools = fetch::build_tools(store)?;
    let libibverbs = fetch::libibverbs(store)?.join("usr");
    let built = place.join("build");
    let cmake = || {
        let mut cmake = Command::new(tools.join("usr/bin/cmake"));
        let libraries = tools.join("usr/lib/x86_64-linux-gnu");
        let libraries = process::behind(&libraries, "LD_LIBRARY_PATH");
        cmake.env("LD_LIBRARY_PATH", libraries);
        cmake
    };
    let mut configure = cmake();
    configure
        .arg("-S")
        .arg(store.workspace().join(HERE))
        .arg("-B")
        .arg(&built);
    configure.arg(format!("-DSOURCE={}", source.display()));
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", libibverbs.display()));
    process::output("preparing llama.cpp", &mut configure)?;
    let mut build = cmake();
    build
        .arg("--build")
        .arg(&built)
        .arg("--parallel")
        .arg("--target")
        .args(WANTED);
    process::output("building llama.cpp", &mut build)?;
    let half = place.join("half");
    fs::create_dir_all(&half).with_context(|| format!("making {}", half.display()))?;
    for name in WANTED {
        fs::copy(built.join(name), half.join(name)).with_context(|| format!("copying {name}"))?;
    }
    fs::rename(&half, &put).with_context(|| format!("writing {}", put.display()))
}

/// Fetches the package with the machine's pip, and unpacks it; gives its directory.
fn fetch(store: &Store, place: &Path) -> Result<PathBuf> {
    let source = place.join("source");
    if source.is_dir() {
        return Ok(source);
    }
    let packages = place.join("package");
    let requirements = store.workspace().join(HERE).join("requirements.txt");
    // Of this one alone: what reads its metadata comes as it was built.
    let form = ["--no-binary", "llama-cpp-python"];
    let package = pip::download("llama.cpp", &requirements, form, &packages)?;
    let half = place.join("source.half");
    fs::create_dir_all(&half).with_context(|| format!("making {}", half.display()))?;
    let mut tar = Command::new("tar");
    tar.arg("-xf")
        .arg(&package)
        .args(["--strip-components", "1", "-C"])
        .arg(&half);
    process::output("unpacking llama.cpp", &mut tar)?;
    fs::remove_dir_all(&packages).with_context(|| format!("removing {}", packages.display()))?;
    fs::rename(&half, &source).with_context(|| format!("writing {}", source.display()))?;
    Ok(source)
}
