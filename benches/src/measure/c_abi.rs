//! Instructions of user space for each operation of a C program, on this project's `libibverbs.so.1` and on
//! rdma-core's.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{OURS, Plan, RDMA_CORE, Record, callgrind, instructions};

/// The interfaces: the program's argument, and what is put behind a row's name.
const INTERFACES: [(&str, &str); 2] = [("instructions", ""), ("instructions-ex", ", ibv_wr_*")];

/// Rows that are the same on this side: a C program has one way for what ours has several for.
const TWINS: [&str; 4] = [
    "one_write",
    "one_inline",
    "domain_write",
    "domain_one_write",
];

pub(super) fn run(plan: &Plan) -> Result<()> {
    let program = plan.rdma_core();
    let library = plan.program("c-abi");
    let mut runs = INTERFACES
        .map(|interface| (program.clone(), interface))
        .to_vec();
    if let Some(dc) = plan.rdma_core_dc()? {
        runs.push((dc, INTERFACES[1]));
    }
    for (program, (interface, suffix)) in runs {
        let arguments = [interface, plan.device.as_str()];
        let ours = callgrind::phases_on(&library, &program, &arguments)?;
        let theirs = callgrind::phases(&program, &arguments)?;
        let [ours, theirs] =
            [ours, theirs].map(|phases| phases.into_iter().collect::<BTreeMap<_, _>>());
        for (phase, name, operations) in instructions::ROWS {
            let (Some(ours), Some(theirs)) = (ours.get(phase), theirs.get(phase)) else {
                continue;
            };
            if TWINS.contains(&phase) {
                continue;
            }
            let values = [(OURS, ours / operations), (RDMA_CORE, theirs / operations)];
            let row = format!("{name}{suffix}");
            Record::new("c-abi", row, "instructions", RDMA_CORE, values)
                .ratio_at_most("at most 0.9", 0.9)
                .print()?;
        }
    }
    Ok(())
}
