//! The transfer engine (`docs/examples/transfer`), which runs over connections elsewhere, over reliable
//! datagrams: the same engine, by counted immediates.

use std::process::Command;

use libtest_mimic::Trial;
use support::program::example;
use support::{Result, fail, kernel, skip, test_on_efa};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test_on_efa("transfer::over_all_functions", |efa| {
            transfer(&efa.devices().collect::<Vec<_>>())
        }),
        test_on_efa("transfer::over_one_function_twice", |_| {
            transfer(&["efa_0".to_owned(), "efa_0".to_owned()])
        }),
    ]
}

/// Catches pages that are missing when the immediates have been counted, and an engine that relies on an
/// order which reliable datagrams do not have. It looks at every byte by itself.
fn transfer(devices: &[String]) -> Result {
    if kernel() < (6, 12) {
        return skip("the driver of Linux 6.1 has no WRITE");
    }
    let mut command = Command::new(example("transfer")?);
    command.args(["bench", "64", "8192", "4"]).args(devices);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.success() && said.contains("128 pages written") {
        true => Ok(()),
        false => fail(format!("{output:?}")),
    }
}
