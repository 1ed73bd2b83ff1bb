//! Making and destroying objects: the library beside the bare calls in the same process, and beside
//! rdma-core.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use super::server::Server;
use super::{BARE, OURS, Plan, RDMA_CORE, Record, callgrind, median};

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
        let row = format!("{name}, made and destroyed");
        let mut times: [Vec<f64>; 3] = Default::default();
        // Of each time by the library and the time by the bare calls that followed.
        let mut ratios = Vec::new();
        let mut rounds = || {
            for _ in 0..plan.rounds(8, 25) {
                for pair in ours.ask(&format!("control {what} {turn}"))?.chunks_exact(2) {
                    let (by_us, bare) = (pair[0] as f64, pair[1] as f64);
                    ratios.push(by_us / bare);
                    times[0].push(by_us / 1e3);
                    times[1].push(bare / 1e3);
                }
                let theirs = rdma_core.ask(&format!("control {what} {turn}"))?;
                times[2].extend(theirs.into_iter().map(|time| time as f64 / 1e3));
            }
            Ok(())
        };
        if let Err(error) = rounds() {
            let error: anyhow::Error = error;
            Record::new("control", row, "us", BARE, [])
                .detail("skipped", json!(format!("{error:#}")))
                .print()?;
            continue;
        }
        let columns = [OURS, BARE, RDMA_CORE];
        let medians = columns
            .into_iter()
            .zip(&times)
            .filter_map(|(name, times)| Some((name, median(times)?)));
        Record::new("control", row, "us", BARE, medians)
            .paired(median(&ratios))
            .ratio_at_most("within 5%", 1.05)
            .detail("pairs", json!(ratios.len()))
            .print()?;
    }
    instructions(plan)
}

/// Instructions of user space for the same, which are exact: what the library adds to the bare calls.
fn instructions(plan: &Plan) -> Result<()> {
    let counted = callgrind::phases(plan.own(), &["control-instructions", &plan.device])?;
    let counted: BTreeMap<_, _> = counted.into_iter().collect();
    for (what, name) in ROWS {
        let (Some(ours), Some(bare)) = (counted.get(what), counted.get(&format!("{what}-bare")))
        else {
            continue;
        };
        let row = format!("{name}, instructions");
        let values = [(OURS, *ours), (BARE, *bare)];
        Record::new("control", row, "instructions", BARE, values).print()?;
    }
    Ok(())
}
