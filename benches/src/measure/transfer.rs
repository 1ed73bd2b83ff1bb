//! Latency and throughput end to end, ours and rdma-core's in turn.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::json;

use super::server::Server;
use super::{OURS, Plan, RDMA_CORE, Record, median};

const SIZES: [(usize, &str); 5] = [
    (2, "2 B"),
    (64, "64 B"),
    (4 << 10, "4 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
];

/// Messages of a batch, and the most batches of a turn.
const BATCHES: [(usize, usize); 2] = [(1, 400), (32, 100)];

/// How long a row may take, but for the turns that have begun.
const CELL: Duration = Duration::from_secs(4);

/// How much slower a pair of medians may seem by chance.
const NOISE: f64 = 1.05;

pub(super) fn run(plan: &Plan) -> Result<()> {
    let mut ours = Server::start(plan.own(), &plan.device)?;
    let mut rdma_core = Server::start(&plan.program("rdma_core"), &plan.device)?;
    let turn = plan.rounds(40, 80);
    for (batch, most) in BATCHES {
        for operation in ["write", "read", "send"] {
            for (size, size_name) in SIZES {
                let request = format!("transfer {operation} {size} {batch} {most} {turn}");
                let mut times = [histogram()?, histogram()?];
                let mut ratios = Vec::new();
                let started = Instant::now();
                for round in 0..plan.rounds(4, 10) {
                    if started.elapsed() > CELL && round % 2 == 0 {
                        break;
                    }
                    let mut quick = [0.0; 2];
                    for turn in 0..2 {
                        // Who goes first changes, for the first may find colder caches.
                        let who = (round + turn) % 2;
                        let server = if who == 0 { &mut ours } else { &mut rdma_core };
                        let samples = server.ask(&request)?;
                        quick[who] = quickest_tenth(&samples);
                        samples
                            .iter()
                            .for_each(|sample| times[who].saturating_record(*sample));
                    }
                    ratios.push(quick[0] / quick[1]);
                }
                let name = format!("{} of {size_name}", operation.to_uppercase());
                record(&name, size, batch, &times)
                    .paired(median(&ratios))
                    .ratio_at_most("never slower", NOISE)
                    .print()?;
            }
        }
    }
    Ok(())
}

/// The time that a tenth of the samples kept to. Where a poller waits for the scheduler most samples are of
/// that wait, which both programs have alike but never at the same times; the quickest are of the work.
fn quickest_tenth(samples: &[u64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 10).copied().unwrap_or(u64::MAX) as f64
}

/// Nanoseconds up to a minute, three digits of them.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

fn record(name: &str, size: usize, batch: usize, times: &[Histogram<u64>; 2]) -> Record {
    let microseconds = |time: u64| time as f64 / 1e3;
    let columns = [OURS, RDMA_CORE];
    let medians = columns.into_iter().zip(
        times
            .iter()
            .map(|times| microseconds(times.value_at_quantile(0.5))),
    );
    let group = if batch == 1 { "latency" } else { "throughput" };
    let row = if batch == 1 {
        name.to_owned()
    } else {
        format!("{batch} x {name}")
    };
    let mut record = Record::new(group, row, "us", RDMA_CORE, medians);
    for (column, times) in columns.into_iter().zip(times) {
        let middle = times.value_at_quantile(0.5).max(1) as f64;
        let messages = batch as f64 * 1e9 / middle;
        let quantiles = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0];
        let distribution: Vec<_> = quantiles
            .into_iter()
            .map(|quantile| (quantile, microseconds(times.value_at_quantile(quantile))))
            .collect();
        record = record.detail(
            column,
            json!({
                "samples": times.len(),
                "p99": microseconds(times.value_at_quantile(0.99)),
                "messages per second": messages,
                "MB per second": messages * size as f64 / 1e6,
                "quantiles": distribution,
            }),
        );
    }
    record
}
