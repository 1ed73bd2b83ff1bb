//! Programs of a newer Debian, with its own libraries and its own libefa.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Result, skip};

/// Where their tree is.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/vm/tools-trixie")
}

/// A program of it.
///
/// # Errors
/// [`support::outcome::Skip`] if the tree is not there.
pub(crate) fn program(name: &str) -> Result<Command> {
    if cfg!(not(target_arch = "x86_64")) {
        skip("the programs of trixie are fetched for x86-64 alone")?;
    }
    let root = root();
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let loader = root.join("usr/lib64/ld-linux-x86-64.so.2");
    if !loader.is_file() {
        skip("the programs of trixie are not there: `cargo vm fetch` fetches them")?;
    }
    let mut command = Command::new(loader);
    command.arg("--library-path").arg(&libraries);
    command.arg(root.join("usr/bin").join(name));
    // libibverbs looks for providers where they are installed, and there is that of the other Debian.
    command.env("IBV_DRIVERS", libraries.join("libibverbs/libefa"));
    Ok(command)
}
