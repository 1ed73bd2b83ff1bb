//! Latency of an awaited WRITE by how its completion is waited for, next to one that is not awaited.

use anyhow::Result;

use super::server::{Scheduling, Server};
use super::{AWAITED, OURS, Plan, Record, median};

/// How to wait with `aio`, the same without it, and how the process is scheduled where there is one
/// processor, for the reasons in `super::transfer`.
const WAYS: [(&str, &str, Scheduling); 3] = [
    ("park", "events", Scheduling::Fifo),
    ("adaptive", "polling", Scheduling::Idle),
    ("spin", "polling", Scheduling::Idle),
];

/// WRITEs before, which are not told: they go round all rings.
const WARM_UP: usize = 600;

/// Milliseconds that it may take: the number ends it, not the time.
const LONG: u32 = 3_600_000;

pub(super) fn run(plan: &Plan) -> Result<()> {
    for (way, bare, scheduling) in WAYS {
        let mut server = Server::scheduled(plan.own(), &plan.device, scheduling)?;
        let samples = plan.rounds(100, 500);
        let mut middle = |request: &str| -> Result<f64> {
            server.ask(&format!("{request} {WARM_UP} {LONG}"))?;
            let samples = server.ask(&format!("{request} {samples} {LONG}"))?;
            Ok(median(&samples).unwrap_or_default() as f64)
        };
        let awaited = middle(&format!("awaited {way}"))?;
        let bare = middle(&format!("transfer write 64 1 {bare}"))?;
        Record::new(
            "latency of awaiting",
            format!("WRITE of 64 B, {way}"),
            "ns",
            OURS,
            [(AWAITED, awaited), (OURS, bare)],
        )
        .paired(Some(awaited / bare))
        .print()?;
    }
    Ok(())
}
