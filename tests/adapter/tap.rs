//! The tap: what the device fetches and takes can be had from within the guest.

use std::process::Command;

use libtest_mimic::Trial;
use serde_json::{Value, json};
use support::hca::needs_copies;
use support::peers::{free_port, listens, play};
use support::{Control, Hca, Result, test_on_adapter};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_on_adapter(
        "tap::requests_and_doorbells_are_recorded",
        recorded,
    )]
}

/// Catches requests, receives, doorbells and BlueFlame copies that the tap loses, and fields that it reads
/// wrongly: of five inline sends each way, each is one of each.
fn recorded(hca: Hca) -> Result {
    needs_copies("mlx5_0")?;
    let mut control = Control::open()?;
    control.ask("tap_start", json!({}))?;
    let port = free_port()?.to_string();
    let side = || -> Result<Command> {
        let mut command = Command::new("ib_send_lat");
        command.args(["-F", "-d", "mlx5_0", "-p", &port, "-n", "5"]);
        command.args(["-s", "40", "-I", "64"]);
        if let Some(index) = hca.gid_index("mlx5_0")? {
            command.args(["-x", &index.to_string()]);
        }
        Ok(command)
    };
    let mut client = side()?;
    client.arg("127.0.0.1");
    let number = port.parse()?;
    play(side()?, client, || listens(number))?;
    let records = control.ask("tap_take", json!({}))?;
    let records = records.as_array().ok_or("no list of records")?;
    // A request of 40 bytes inline has 16 for control and 44 for data: one block of 64.
    let inline = |record: &&Value| {
        let data = &record["request"]["segments"][0]["inline"];
        record["kind"] == "send" && data.as_str().is_some_and(|data| data.len() == 80)
    };
    let queue_pairs: Vec<&Value> = records.iter().filter(inline).map(|r| &r["qpn"]).collect();
    let of = |kind: &str, field: &str| {
        let found = records
            .iter()
            .filter(|record| record["kind"] == kind && queue_pairs.contains(&&record[field]));
        found.count()
    };
    let counted = (
        queue_pairs.len(),
        of("receive", "queue"),
        of("doorbell", "qpn"),
    );
    if counted != (10, 10, 10) {
        return Err(format!("sends, receives and doorbells: {counted:?}: {records:#?}").into());
    }
    let copied: usize = records
        .iter()
        .filter(|record| record["kind"] == "blue_flame")
        .filter_map(|record| record["bytes"].as_str())
        .map(|bytes| bytes.len() / 2)
        .sum();
    // The first 8 bytes of each copy are its doorbell.
    if copied != 10 * (64 - 8) {
        return Err(format!("{copied} bytes of BlueFlame copies: {records:#?}").into());
    }
    Ok(())
}
