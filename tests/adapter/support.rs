//! What all tests here use: how a test is declared, which adapter the guest has, and programs that run to their end.

use std::error::Error;
use std::fs;
use std::process::Command;

use libtest_mimic::{Completion, Trial};

/// The result of anything here. Whatever went wrong, the test failed.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The adapter that the guest has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hca {
    /// How many functions: the devices are `mlx5_0` and so on.
    pub(crate) functions: u16,
    /// Whether its ports are Ethernet ones.
    pub(crate) roce: bool,
}

impl Hca {
    /// Reads `VM_HCA`, as `connectx=2,roce`. None where there is no adapter.
    fn of_guest() -> Option<Self> {
        std::env::var_os("VM_GUEST")?;
        let text = std::env::var("VM_HCA").ok()?;
        let (text, roce) = match text.strip_suffix(",roce") {
            Some(text) => (text, true),
            None => (text.as_str(), false),
        };
        let functions = text.strip_prefix("connectx=")?.parse().ok()?;
        Some(Self { functions, roce })
    }

    /// The names of its devices.
    pub(crate) fn devices(self) -> Vec<String> {
        (0..self.functions)
            .map(|number| format!("mlx5_{number}"))
            .collect()
    }

    /// The devices at both ends of a wire: two if there are two, but for RoCE, whose netdevs carry no frames yet.
    pub(crate) fn ends(self) -> (String, String) {
        (
            "mlx5_0".to_owned(),
            format!("mlx5_{}", u16::from(self.functions > 1 && !self.roce)),
        )
    }

    /// The index of a GID that two functions of one guest reach each other by: the link-local one of RoCE 2, for which the
    /// kernel needs no neighbour. None on InfiniBand, which has LIDs.
    pub(crate) fn gid_index(self, device: &str) -> Result<Option<u32>> {
        if !self.roce {
            return Ok(None);
        }
        let port = format!("/sys/class/infiniband/{device}/ports/1");
        let is_it = |index: &u32| {
            let read = |path: String| fs::read_to_string(path).unwrap_or_default();
            read(format!("{port}/gids/{index}")).starts_with("fe80:")
                && read(format!("{port}/gid_attrs/types/{index}")).trim() == "RoCE v2"
        };
        let found = (0..16).find(is_it);
        Ok(Some(found.ok_or("no link-local GID of RoCE 2")?))
    }
}

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
            Err(error) => Err(error.into()),
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
