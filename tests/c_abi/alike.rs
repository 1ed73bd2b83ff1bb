//! Programs that say what there is: on ours they say what they say on libibverbs.

use std::process::Command;

use libtest_mimic::Trial;
use support::{Device, Result, device, fail, skip, test};

use support::library::Library;

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
                let here = |words: &&&str| match device() {
                    Device::Rxe | Device::Efa => true,
                    Device::Mlx5 { .. } => ON_THE_ADAPTER.contains(*words),
                };
                let mut commands = commands.iter().filter(here).peekable();
                match commands.peek() {
                    Some(_) => commands.try_for_each(|words| alike(words)),
                    None => skip("over libmlx5 it tells of verbs of mlx5 alone"),
                }
            })
        })
        .into()
}

/// Those whose output is the same on the adapter. Over libmlx5 the others tell of what is not here: raw
/// packets, and verbs of mlx5 alone.
const ON_THE_ADAPTER: [&str; 3] = ["ibv_devices", "ibv_devinfo", "ibv_devinfo -l"];

/// Catches a device, a port or a limit that a program sees otherwise.
fn alike(words: &str) -> Result {
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
