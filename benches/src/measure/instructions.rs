//! Instructions of user space for each operation of the data path.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{AGENT, OURS, OURS_ARENA, Plan, RDMA_CORE, RDMA_CORE_EX, Record, callgrind};

/// Requests of the batch, whose row is for each of them.
const BATCH: f64 = 32.0;

/// The phases of the programs, what they are called in the table, and how many operations each call is.
pub(super) const ROWS: [(&str, &str, f64); 19] = [
    ("post_write", "post a signaled WRITE of 64 bytes", 1.0),
    (
        "one_write",
        "post a signaled WRITE of 64 bytes in one call",
        1.0,
    ),
    (
        "domain_write",
        "post a signaled WRITE of 64 bytes in a thread domain",
        1.0,
    ),
    (
        "domain_one_write",
        "post a signaled WRITE of 64 bytes in a thread domain, in one call",
        1.0,
    ),
    (
        "dc_write",
        "post a signaled WRITE of 64 bytes of a DC initiator",
        1.0,
    ),
    ("post_read", "post a signaled READ of 64 bytes", 1.0),
    ("post_inline", "post an inline SEND of 32 bytes", 1.0),
    (
        "one_inline",
        "post an inline SEND of 32 bytes in one call",
        1.0,
    ),
    ("post_batch", "post a batch of 32 WRITEs, each", BATCH),
    (
        "post_reads",
        "post a batch of 32 signaled READs, each",
        BATCH,
    ),
    ("post_receive", "post a receive", 1.0),
    ("poll_one", "poll a completion", 1.0),
    ("poll_many", "poll 16 completions", 1.0),
    ("poll_nothing", "poll nothing", 1.0),
    ("poll_received", "poll a completion of a receive", 1.0),
    ("poll_received_many", "poll 16 completions of receives", 1.0),
    ("post_shared", "post a receive to a shared queue", 1.0),
    (
        "poll_shared",
        "poll a completion of a shared queue's receive",
        1.0,
    ),
    (
        "poll_shared_many",
        "poll 16 completions of a shared queue's receives",
        1.0,
    ),
];

pub(super) fn run(plan: &Plan) -> Result<()> {
    let device = plan.device.as_str();
    let rdma_core = plan.rdma_core();
    let mut with_ex = callgrind::phases(&rdma_core, &["instructions-ex", device])?;
    if let Some(dc) = plan.rdma_core_dc()? {
        with_ex.extend(callgrind::phases(&dc, &["instructions-ex", device])?);
    }
    let ours = callgrind::phases(plan.own(), &["instructions", device])?;
    let arena = callgrind::phases(plan.own(), &["instructions", device, "--arena"])?;
    let counted = [
        (OURS, ours),
        (OURS_ARENA, arena),
        (
            RDMA_CORE,
            callgrind::phases(&rdma_core, &["instructions", device])?,
        ),
        (RDMA_CORE_EX, with_ex),
    ];
    let counted =
        counted.map(|(column, phases)| (column, phases.into_iter().collect::<BTreeMap<_, _>>()));
    for (phase, name, operations) in ROWS {
        let values = counted
            .iter()
            .filter_map(|(column, phases)| Some((*column, phases.get(phase)? / operations)));
        let values: Vec<_> = values.collect();
        // What the device has no operation for.
        if values.is_empty() {
            continue;
        }
        let best = |column: &'static str| {
            let value = values.iter().find(|(name, _)| *name == column);
            value.map_or(f64::INFINITY, |(_, value)| *value)
        };
        let against = if best(RDMA_CORE_EX) < best(RDMA_CORE) {
            RDMA_CORE_EX
        } else {
            RDMA_CORE
        };
        // What rdma-core's programs do not count has no goal.
        let is_compared = best(against).is_finite();
        let record = Record::new("instructions", name, "instructions", against, values);
        match is_compared {
            true => record.ratio_at_most("at most half of the better", 0.5),
            false => record,
        }
        .print()?;
    }
    let [(_, owner), ..] = &counted;
    agent(plan, owner)
}

/// What an agent does of these phases, and what that is called.
const OF_AN_AGENT: [(&str, &str); 2] = [
    ("one_write", "an agent posts a signaled WRITE of 64 bytes"),
    ("poll_one", "an agent polls a completion"),
];

/// The rows of an agent beside the owner's, where queues can be handed over.
fn agent(plan: &Plan, owner: &BTreeMap<String, f64>) -> Result<()> {
    let arguments = ["instructions", plan.device.as_str(), "--agent"];
    let counted = callgrind::phases(plan.own(), &arguments)?;
    let counted: BTreeMap<_, _> = counted.into_iter().collect();
    for (phase, name) in OF_AN_AGENT {
        let (Some(agent), Some(owner)) = (counted.get(phase), owner.get(phase)) else {
            continue;
        };
        let values = [(AGENT, *agent), (OURS, *owner)];
        Record::new("instructions", name, "instructions", AGENT, values)
            .goal("at most the owner's", agent <= owner)
            .print()?;
    }
    Ok(())
}
