//! What awaiting an operation adds to it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use super::callgrind::{self, Phase};
use super::{AWAITED, OURS, Plan, Record};

/// The parts of an awaited WRITE, and what they are called in the table.
const PARTS: [(&str, &str); 5] = [
    ("awaited_post", "of it: post"),
    ("awaited_wait", "of it: poll the future, which waits"),
    ("awaited_pump", "of it: take the completion, and wake"),
    ("awaited_take", "of it: poll the future, which is ready"),
    ("awaited_drop", "of it: drop the future"),
];

/// What the same takes over the bare data path.
const BARE_PARTS: [&str; 2] = ["bare_post", "bare_poll"];

/// The parts of sixteen that are under way at once, which one task awaits.
const MANY_PARTS: [&str; 4] = [
    "awaited_post_many",
    "awaited_wait_many",
    "awaited_pump_many",
    "awaited_take_many",
];

/// What the same takes over the bare data path.
const BARE_MANY_PARTS: [&str; 2] = ["bare_post_many", "bare_poll_many"];

/// How many they are.
const MANY: f64 = 16.0;

/// Instructions that awaiting may add.
const MOST: f64 = 150.0;

pub(super) fn run(plan: &Plan) -> Result<()> {
    let arguments = ["awaited-instructions", plan.device.as_str()];
    let phases = callgrind::counted(plan.own(), &arguments)?;
    let phases: BTreeMap<&str, &Phase> = phases
        .iter()
        .map(|phase| (phase.name.as_str(), phase))
        .collect();
    let phase = |name: &str| {
        let found = phases.get(name).copied();
        found.with_context(|| format!("{name} was not counted"))
    };
    // Or else nothing would be, whatever allocates.
    ensure!(
        phase("allocating")?.allocations >= 1.0,
        "callgrind does not see what is allocated"
    );
    let (mut awaited, mut bare, mut allocations) = (0.0, 0.0, 0.0);
    for (name, _) in PARTS {
        awaited += phase(name)?.instructions;
        allocations += phase(name)?.allocations;
    }
    for name in BARE_PARTS {
        bare += phase(name)?.instructions;
    }
    let sum = |parts: &[&str]| -> Result<f64> {
        let counts = parts
            .iter()
            .map(|name| Ok(phase(name)?.instructions / MANY));
        counts.sum()
    };
    let many = (sum(&MANY_PARTS)?, sum(&BARE_MANY_PARTS)?);
    for name in MANY_PARTS {
        allocations += phase(name)?.allocations;
    }
    let record = |row, unit, value| Record::new("awaited", row, unit, "", [(AWAITED, value)]);
    Record::new(
        "awaited",
        "a WRITE of 64 bytes and its completion",
        "instructions",
        OURS,
        [(AWAITED, awaited), (OURS, bare)],
    )
    .paired(Some(awaited / bare))
    .goal("at most 150 more", awaited - bare <= MOST)
    .print()?;
    for (name, row) in PARTS {
        record(row, "instructions", phase(name)?.instructions).print()?;
    }
    Record::new(
        "awaited",
        "each of 16 at once, with one doorbell and one task",
        "instructions",
        OURS,
        [(AWAITED, many.0), (OURS, many.1)],
    )
    .paired(Some(many.0 / many.1))
    .goal("at most 150 more", many.0 - many.1 <= MOST)
    .print()?;
    record("their allocations", "calls", allocations)
        .goal("none", allocations == 0.0)
        .print()?;
    let buffer = phase("awaited_buffer")?;
    record(
        "take a buffer from its pool and give it back",
        "instructions",
        buffer.instructions,
    )
    .print()?;
    record("its allocations", "calls", buffer.allocations)
        .goal("none", buffer.allocations == 0.0)
        .print()
}
