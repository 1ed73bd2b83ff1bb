//! Between the first functions of an EFA in two guests: perftest, libfabric's ping-pong over its own
//! protocol, and this project's. The programs find each other over a wire of Ethernet.

use std::process::Command;

use libtest_mimic::Trial;
use support::peers::listens;
use support::{Efa, Result, program, test_on_efa};

use super::{FIRST, PORT, play, serves};
use crate::newer::program as newer;

const DEVICE: &str = "efa_0";

/// perftest's runs.
const RUNS: [(&str, &str); 2] = [
    ("send", "ib_send_lat -c SRD -s 64"),
    ("read", "ib_read_bw -c SRD -s 65536"),
];

pub(crate) fn tests() -> Vec<Trial> {
    let perftest = RUNS
        .map(|(name, run)| test_on_efa(format!("efa::perftest_{name}"), move |_| perftest(run)));
    let others = [
        test_on_efa("efa::libfabric", libfabric),
        test_on_efa("efa::uverbs", uverbs),
    ];
    perftest.into_iter().chain(others).collect()
}

/// Catches messages that do not find their way to a function of another guest, and data that are not there.
fn perftest(run: &str) -> Result {
    let mut words = run.split_whitespace();
    let mut command = newer(words.next().unwrap_or_default())?;
    command.args(["-F", "-x", "0", "-n", "20", "-d", DEVICE]);
    command.args(["-p", &PORT.to_string()]).args(words);
    if !serves()? {
        command.arg(FIRST);
    }
    play(command, || listens(PORT))
}

/// As above; it looks at every byte, and counts on no order.
fn libfabric(_: Efa) -> Result {
    let mut command = newer("fi_pingpong")?;
    command.args(["-p", "efa", "-e", "rdm", "-I", "5", "-S", "all", "-c"]);
    command.args(["-d", &format!("{DEVICE}-rdm")]);
    match serves()? {
        true => command.args(["-B", &PORT.to_string()]),
        false => command.args(["-P", &PORT.to_string(), FIRST]),
    };
    play(command, || listens(PORT))
}

/// As above, on this project's driver.
fn uverbs(_: Efa) -> Result {
    let mut command = Command::new(program::uverbs()?);
    command.args(["pingpong", "srd", "-c", "-n", "50", "-d", DEVICE]);
    command.args(["-p", &PORT.to_string()]);
    if !serves()? {
        command.arg(FIRST);
    }
    play(command, || listens(PORT))
}
