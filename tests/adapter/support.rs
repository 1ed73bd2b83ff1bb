//! What all tests here use: how a test is declared, which adapter the guest has, and programs that run to their end.

use std::error::Error;
use std::fmt;
use std::fs;
use std::process::Command;

use libtest_mimic::{Completion, Trial};

use crate::hca::Hca;

/// The result of anything here. Whatever went wrong, the test failed.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The names of the adapter's devices.
pub(crate) fn devices(hca: Hca) -> Vec<String> {
    (0..hca.functions)
        .map(|number| format!("mlx5_{number}"))
        .collect()
}

/// The devices at both ends of a wire: two if there are two.
pub(crate) fn ends(hca: Hca) -> (String, String) {
    (
        "mlx5_0".to_owned(),
        format!("mlx5_{}", hca.functions.min(2) - 1),
    )
}

/// The index of a GID of a RoCE port: that of the IPv4 address, of RoCE 2. None on InfiniBand, which has LIDs.
pub(crate) fn gid_index(hca: Hca, device: &str) -> Result<Option<u32>> {
    if !hca.roce {
        return Ok(None);
    }
    let port = format!("/sys/class/infiniband/{device}/ports/1");
    let is_it = |index: &u32| {
        let read = |path: String| fs::read_to_string(path).unwrap_or_default();
        read(format!("{port}/gids/{index}")).starts_with("0000:0000:0000:0000:0000:ffff:")
            && read(format!("{port}/gid_attrs/types/{index}")).trim() == "RoCE v2"
    };
    let found = (0..16).find(is_it);
    Ok(Some(found.ok_or("no GID of an IPv4 address")?))
}

/// Why a test cannot run on this adapter.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) &'static str);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Skip {}

/// A test with its name. Where there is no adapter it is ignored.
pub(crate) fn test(name: &str, run: fn(Hca) -> Result) -> Trial {
    test_with(name.to_owned(), run)
}

/// As [`test`], for one that comes from a table.
pub(crate) fn test_with(name: String, run: impl Fn(Hca) -> Result + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match Hca::of_guest() {
        None => Ok(Completion::ignored_with(
            "no adapter here: run `cargo vm test --hca connectx`",
        )),
        Some(hca) => match run(hca) {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(Skip(reason)) => Ok(Completion::ignored_with(*reason)),
                None => Err(error.into()),
            },
        },
    })
}

/// Runs a program that must succeed, and gives what it printed.
pub(crate) fn run(command: &str) -> Result<String> {
    let mut words = command.split_whitespace();
    let program = words.next().ok_or("no program")?;
    let output = Command::new(program)
        .args(words)
        .output()
        .map_err(|error| format!("`{command}`: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "`{command}` ended with {}: {said}{complaint}",
            output.status
        )
        .into());
    }
    Ok(said)
}
