//! C programs on rdma-core's library, which the guest's measurements and tests compare this project with.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process;

/// Options for all of them: what a distribution builds rdma-core itself with.
const OPTIONS: [&str; 3] = ["-O2", "-Wall", "-Wextra"];

/// The compiler's name: that of the environment, or the system's.
pub(crate) fn compiler() -> OsString {
    std::env::var_os("CC").unwrap_or_else(|| "cc".into())
}

/// Whether there is a compiler.
pub(crate) fn is_there() -> bool {
    let asked = Command::new(compiler()).arg("--version").output();
    !asked.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Compiles a program with further options.
///
/// # Errors
/// If it does not compile; a C compiler is needed.
pub(crate) fn compile(
    source: &Path,
    program: &Path,
    options: impl FnOnce(&mut Command),
) -> Result<()> {
    let mut command = Command::new(compiler());
    command.args(OPTIONS).arg(source).arg("-o").arg(program);
    options(&mut command);
    let step = process::describe(&command);
    let status = command
        .status()
        .with_context(|| format!("running `{step}`"))?;
    if !status.success() {
        bail!("`{step}` ended with {status}");
    }
    Ok(())
}

/// The header of librdmacm. A program that includes it is linked to that library as well.
const RDMACM: &str = "<rdma/rdma_cma.h>";

/// The header of libefa, likewise.
const EFA: &str = "<infiniband/efadv.h>";

/// The header of libmlx5, likewise.
const MLX5: &str = "<infiniband/mlx5dv.h>";

/// Compiles a program that is linked to the libibverbs that the guest has, with further options.
///
/// # Errors
/// As of [`compile`], or if the source cannot be read.
pub(crate) fn compile_with_libibverbs(
    source: &Path,
    program: &Path,
    tools: &Path,
    options: &[&str],
) -> Result<()> {
    let text = fs::read(source).with_context(|| format!("reading {}", source.display()))?;
    let includes = |header| String::from_utf8_lossy(&text).contains(header);
    let (rdmacm, efa, mlx5) = (includes(RDMACM), includes(EFA), includes(MLX5));
    compile(source, program, |command| {
        // Headers and library of the guest; a machine that has them itself has nothing there.
        let mut library = OsString::from("-L");
        library.push(tools.join("usr/lib/x86_64-linux-gnu"));
        command
            .arg("-isystem")
            .arg(tools.join("usr/include"))
            .arg(library)
            .args(["-Wl,--allow-shlib-undefined", "-libverbs"])
            .args(rdmacm.then_some("-lrdmacm"))
            .args(efa.then_some("-lefa"))
            .args(mlx5.then_some("-lmlx5"))
            .args(options);
    })
}
