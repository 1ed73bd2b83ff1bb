//! Crates that drive libibverbs: their own test programs and examples, built as the registry has them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::clients::{cargo, copy, sources};
use crate::fetch;
use crate::process;
use crate::store::Store;
use crate::suite::{self, Suite};

/// The package that names them, in the workspace.
const NAMES: &str = "tests/clients/linked";

/// The build script in it that takes the place of that of `ibverbs-sys`.
const BINDINGS: &str = "bindings.rs";

/// Where their sources and what is built of them lie, in the workspace.
const PLACE: &str = "target/clients/linked";

/// Where the programs are put there, for the tests.
const PROGRAMS: &str = "programs";

/// Where the bindings that sideway is built on have the headers of a later rdma-core, and where the C
/// programs of the tests that are compiled with those are put, beside the others.
const HEADERS: &str = "rdma-core-mummy/include";
const NEWER: &str = "newer";

/// Builds all of them, and the C programs of these suites with newer headers, and puts the programs where the
/// tests of the C ABI look for them.
///
/// # Errors
/// If one does not build: this needs the registry, a C compiler, and CMake and libclang, which are fetched.
pub(super) fn build(store: &Store, suites: &[Suite]) -> Result<()> {
    let (names, place) = (store.workspace().join(NAMES), store.workspace().join(PLACE));
    let tools = fetch::build_tools(store)?;
    let libibverbs = fetch::libibverbs(store)?;
    let [sideway, ibverbs, bindings, headers] = sources(
        &names,
        ["sideway", "ibverbs", "ibverbs-sys", "rdma-mummy-sys"],
    )?;
    let newer = place.join(PROGRAMS).join(NEWER);
    let headers = headers.join(HEADERS);
    suite::compile_with_headers(suites, &libibverbs, &headers, &newer)?;
    let sideway = unpack(&sideway, &place)?;
    let ibverbs = unpack(&ibverbs, &place)?;
    let bindings = unpack(&bindings, &place)?;
    let variables = variables(&tools, libibverbs);
    let script = bindings.join("build.rs");
    fs::copy(names.join(BINDINGS), &script)
        .with_context(|| format!("writing {}", script.display()))?;
    let patch = format!(
        "patch.crates-io.ibverbs-sys.path={:?}",
        bindings.display().to_string()
    );
    let mut fetch = Command::new(cargo());
    fetch.arg("fetch").current_dir(&ibverbs);
    process::output("fetching what ibverbs needs", &mut fetch)?;
    let builds: [(&Path, &[&str]); 2] = [
        (&sideway, &["--locked"]),
        (&ibverbs, &["--offline", "--config", &patch]),
    ];
    let to = place.join("build").display().to_string();
    let put = place.join(PROGRAMS);
    fs::create_dir_all(&put).with_context(|| format!("making {}", put.display()))?;
    for (source, options) in builds {
        for what in [
            ["test", "--no-run", "--tests"].as_slice(),
            &["build", "--examples"],
        ] {
            let arguments = [what, options, &["--target-dir", &to]].concat();
            for program in suite::programs_of_others(source, &arguments, &variables)? {
                let copied = put.join(&program.name);
                fs::copy(&program.path, &copied)
                    .with_context(|| format!("writing {}", copied.display()))?;
            }
        }
    }
    Ok(())
}

/// What cargo is to know: programs and libraries that this machine lacks, and the root of libibverbs.
fn variables(tools: &Path, libibverbs: PathBuf) -> Vec<(&'static str, OsString)> {
    let libraries = tools.join("usr/lib/x86_64-linux-gnu");
    let mut variables = vec![
        ("PATH", process::behind(&tools.join("usr/bin"), "PATH")),
        (
            "LD_LIBRARY_PATH",
            process::behind(&libraries, "LD_LIBRARY_PATH"),
        ),
        ("LIBIBVERBS_ROOT", libibverbs.into()),
        // Nobody looks at lines there, and a guest reads the programs over 9p.
        ("CARGO_PROFILE_DEV_DEBUG", "0".into()),
    ];
    if let Some(directory) = of_a_version(&tools.join("usr/lib"), "lib", "libclang.so") {
        // It does not find its own headers from where its file lies.
        if let Some(headers) = of_a_version(&directory.join("clang"), "include", "stddef.h") {
            let argument = format!("-isystem{}", headers.display());
            variables.push(("BINDGEN_EXTRA_CLANG_ARGS", argument.into()));
        }
        variables.push(("LIBCLANG_PATH", directory.into()));
    }
    variables
}

/// The directory of that name, of any version below `root`, that has the file.
fn of_a_version(root: &Path, name: &str, file: &str) -> Option<PathBuf> {
    let versions = fs::read_dir(root).into_iter().flatten();
    versions
        .filter_map(|version| Some(version.ok()?.path().join(name)))
        .find(|directory| directory.join(file).exists())
}

/// Copies the source of a crate, which is a workspace of its own there.
fn unpack(from: &Path, place: &Path) -> Result<PathBuf> {
    let name = from
        .file_name()
        .context("the registry has no directory for a crate")?;
    let to = place.join(name);
    copy(from, &to, |manifest| {
        manifest.push_str("\n[workspace]\n");
    })?;
    Ok(to)
}
