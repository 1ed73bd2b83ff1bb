//! Programs that say what there is: on ours they say what they say on libibverbs.

use std::process::Command;

use libtest_mimic::Trial;
use support::{Result, fail, only_on_rxe, test};

use crate::library::Library;

/// The tests' names and their commands.
const COMMANDS: [(&str, &[&str]); 3] = [
    (
        "alike::ibverbs_utils",
        &[
            "ibv_devices",
            "ibv_devinfo",
            "ibv_devinfo -v",
            "ibv_devinfo -l",
        ],
    ),
    ("alike::ucx_info", &["ucx_info -d"]),
    (
        "alike::fi_info",
        &["fi_info -p verbs", "fi_info -p verbs -v"],
    ),
];

pub(crate) fn tests() -> Vec<Trial> {
    COMMANDS
        .map(|(name, commands)| {
            test(name, move || {
                commands.iter().try_for_each(|words| alike(words))
            })
        })
        .into()
}

/// Catches a device, a port or a limit that a program sees otherwise.
fn alike(words: &str) -> Result {
    only_on_rxe(
        "over libmlx5 these programs tell of what is not here: raw packets, and verbs of mlx5 alone",
    )?;
    let ours = said(&Library::ours()?, words)?;
    let theirs = said(&Library::Theirs, words)?;
    if theirs.trim().is_empty() {
        return fail(format!("`{words}` says nothing on libibverbs"));
    }
    let differing = ours.lines().zip(theirs.lines());
    match differing.into_iter().find(|(ours, theirs)| ours != theirs) {
        Some((ours, theirs)) => fail(format!("`{words}`: `{ours}`, on libibverbs `{theirs}`")),
        None if ours.lines().count() != theirs.lines().count() => {
            fail(format!("`{words}`: {ours}\nand on libibverbs {theirs}"))
        }
        None => Ok(()),
    }
}

/// What a program says on a library.
fn said(library: &Library, words: &str) -> Result<String> {
    let mut words = words.split_whitespace();
    let mut command: Command = library.command(words.next().unwrap_or_default());
    // UCX has a driver of its own for ConnectX, over libmlx5's direct verbs.
    command.args(words).env("UCX_TLS", "rc_verbs,ud_verbs");
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(said),
        false => fail(format!(
            "{command:?} ended with {}: {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
