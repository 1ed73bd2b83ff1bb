//! Making and destroying objects: the library beside the bare calls in the same process, and beside rdma-core.

use anyhow::Result;
use serde_json::json;

use super::server::Server;
use super::{BARE, OURS, Plan, RDMA_CORE, Record, median};

/// What is made, by the name in requests, and what it is called in the table.
const ROWS: [(&str, &str); 7] = [
    ("pd", "PD"),
    ("mr-4k", "MR of 4 KiB"),
    ("mr-1m", "MR of 1 MiB"),
    ("mr-256m", "MR of 256 MiB"),
    ("mr-huge", "MR of 32 MiB in huge pages"),
    ("cq", "CQ of 256 entries"),
    ("qp", "QP, to RTS"),
];

pub(super) fn run(plan: &Plan) -> Result<()> {
    let mut ours = Server::start(plan.own(), &plan.device)?;
    let mut rdma_core = Server::start(&plan.program("rdma_core"), &plan.device)?;
    // Turns are short, so that what else the machine does falls on all alike.
    let turn = "20 40";
    for (what, name) in ROWS {
        let mut times: [Vec<f64>; 3] = Default::default();
        let mut failure = None;
        for round in 0..plan.rounds(8, 30) {
            // Who goes first changes, for the first may find colder caches.
            let mut turns = [0, 1, 2];
            turns.rotate_left(round % 3);
            for who in turns {
                let answer = match who {
                    0 => ours.ask(&format!("control {what} {turn}")),
                    1 => ours.ask(&format!("bare {what} {turn}")),
                    _ => rdma_core.ask(&format!("control {what} {turn}")),
                };
                match answer {
                    Ok(samples) => {
                        times[who].extend(median(&samples).map(|time| time as f64 / 1e3))
                    }
                    Err(error) => failure = Some(error),
                }
            }
            if failure.is_some() {
                break;
            }
        }
        let row = format!("{name}, made and destroyed");
        if let Some(error) = failure {
            Record::new("control", row, "us", BARE, [])
                .detail("skipped", json!(format!("{error:#}")))
                .print()?;
            continue;
        }
        let paired = |other: usize| {
            let ratios: Vec<f64> = times[0]
                .iter()
                .zip(&times[other])
                .map(|(a, b)| a / b)
                .collect();
            median(&ratios)
        };
        let columns = [OURS, BARE, RDMA_CORE];
        let medians = columns
            .into_iter()
            .zip(&times)
            .filter_map(|(name, times)| Some((name, median(times)?)));
        Record::new("control", row, "us", BARE, medians)
            .paired(paired(1))
            .ratio_at_most("within 5%", 1.05)
            .detail("ratio to rdma-core", json!(paired(2)))
            .print()?;
    }
    Ok(())
}
