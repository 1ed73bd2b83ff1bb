//! Where the command line `uverbs` is: a package of its own, so cargo does not tell these tests.

use std::path::PathBuf;

/// The program, which lies in the directory above that of the tests' programs (`target/debug`).
///
/// # Errors
/// If it has not been built. `cargo vm test` builds it.
pub(crate) fn uverbs() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let directory = own.parent().and_then(|deps| deps.parent());
    let program = directory.map(|directory| directory.join("uverbs"));
    match program {
        Some(program) if program.is_file() => Ok(program),
        _ => Err(format!(
            "no program `uverbs` above {}: `cargo build --package uverbs-cli` makes it",
            own.display()
        )),
    }
}
