//! Many objects, ours and rdma-core's: what each takes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::json;

use super::{OURS, Plan, RDMA_CORE, Record};

const QUEUE_PAIRS: [usize; 5] = [1, 10, 100, 1_000, 10_000];
const REGIONS: [usize; 3] = [100, 10_000, 100_000];

/// What a program prints, in its order: what it is of, the unit and how many of what is printed it has.
type Number = (&'static str, &'static str, f64);

const OF_QUEUE_PAIRS: [Number; 4] = [
    ("set up, each", "us", 1e3),
    ("resident memory, each", "bytes", 1.0),
    ("a post", "ns", 1.0),
    ("a completion polled", "ns", 1.0),
];
const OF_REGIONS: [Number; 2] = [
    ("set up, each", "us", 1e3),
    ("resident memory, each", "bytes", 1.0),
];

/// What a time may differ by from one run to the next.
const NOISE: f64 = 1.01;

pub(super) fn run(plan: &Plan) -> Result<()> {
    let most = plan.rounds(1_000, usize::MAX);
    of(
        "qp",
        "queue pairs",
        &QUEUE_PAIRS,
        &OF_QUEUE_PAIRS,
        plan,
        most,
    )?;
    of("mr", "regions", &REGIONS, &OF_REGIONS, plan, most)
}

fn of(
    what: &str,
    name: &str,
    counts: &[usize],
    numbers: &[Number],
    plan: &Plan,
    most: usize,
) -> Result<()> {
    for count in counts.iter().copied().filter(|count| *count <= most) {
        let ours = || counted(plan.own(), plan, what, count);
        let theirs = || counted(&plan.program("rdma_core"), plan, what, count);
        // The first run does not count: behind it the kernel has pages and keys at hand, whoever comes next.
        let both = ours().and_then(|_| Ok([ours()?, theirs()?]));
        let [ours, theirs] = match both {
            Ok(both) => both,
            Err(error) => {
                Record::new("scale", format!("{count} {name}"), "", RDMA_CORE, [])
                    .detail("skipped", json!(format!("{error:#}")))
                    .print()?;
                continue;
            }
        };
        let pairs = numbers.iter().zip(ours.iter().zip(&theirs));
        for ((label, unit, scale), (ours, theirs)) in pairs {
            let values = [(OURS, ours / scale), (RDMA_CORE, theirs / scale)];
            let row = format!("{count} {name}: {label}");
            let (text, bound) = match *unit {
                "bytes" => ("not more", 1.0),
                _ => ("never slower", NOISE),
            };
            Record::new("scale", row, unit, RDMA_CORE, values)
                .ratio_at_most(text, bound)
                .print()?;
        }
    }
    Ok(())
}

/// Has a program make so many and gives its numbers. It runs until it sleeps, so that no work of the kernel's
/// is counted as a post's.
fn counted(program: &Path, plan: &Plan, what: &str, count: usize) -> Result<Vec<f64>> {
    let output = Command::new("chrt")
        .args(["--fifo", "1"])
        .arg(program)
        .args(["scale", &plan.device, what, &count.to_string()])
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    numbers(&String::from_utf8_lossy(&output.stdout))
}

fn numbers(line: &str) -> Result<Vec<f64>> {
    let words = line.split_whitespace();
    words
        .map(|word| {
            word.parse()
                .with_context(|| format!("{line:?} is no numbers"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_numbers() {
        assert_eq!(numbers("12 3456 7\n").unwrap(), [12.0, 3456.0, 7.0]);
        assert!(numbers("12 x").is_err());
    }
}
