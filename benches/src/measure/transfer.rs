//! Latency and rate end to end, ours and rdma-core's in turn.

use anyhow::Result;
use hdrhistogram::Histogram;
use serde_json::json;

use super::server::{Scheduling, Server};
use super::{OURS, OURS_99, Plan, RDMA_CORE, RDMA_CORE_99, Record, median};

/// Lengths of messages, and how the tables name them.
pub(super) const SIZES: [(usize, &str); 5] = [
    (2, "2 B"),
    (64, "64 B"),
    (4 << 10, "4 KiB"),
    (64 << 10, "64 KiB"),
    (1 << 20, "1 MiB"),
];

/// Messages that are posted with one doorbell.
const BATCHES: [usize; 2] = [1, 32];

const OPERATIONS: [&str; 3] = ["write", "read", "send"];

/// Messages of each kind before the first row: they go round all rings, whose memory is then there.
const WARM_UP: usize = 600;

/// Milliseconds that a turn may take: its number of batches ends it, not the time.
const LONG: u32 = 3_600_000;

/// The same where batches count only if the process did not sleep, which may be few.
const LONG_AWAKE: u32 = 20_000;

/// Who takes a row's turns.
const PROGRAMS: [&str; 2] = [OURS, RDMA_CORE];

/// Turns that each program takes in a row, where so many batches are measured.
const TURNS: usize = 5;

/// How completions are awaited, and how the processes that do so are scheduled where there is one processor:
/// a process that polls yields to whatever work the kernel has, so that it measures that work and not when
/// the scheduler gets to it; one that waits for events runs until it sleeps, so that it does sleep each time.
const WAITS: [(&str, Scheduling); 2] =
    [("polling", Scheduling::Idle), ("events", Scheduling::Fifo)];

/// Bytes that take about as long as a message does without its bytes.
const MESSAGE: usize = 2 << 10;

/// What a pair of medians may differ by: the timer's interrupts do not fall on the same places.
const NOISE: f64 = 1.01;

pub(super) fn run(plan: &Plan) -> Result<()> {
    let wanted = |name: &str| plan.wait.as_deref().is_none_or(|wanted| wanted == name);
    for (name, scheduling) in WAITS.into_iter().filter(|(name, _)| wanted(name)) {
        let (wait, long) = match plan.awake && name == "events" {
            true => ("awake", LONG_AWAKE),
            false => (name, LONG),
        };
        let mut servers = [
            Server::scheduled(plan.own(), &plan.device, scheduling)?,
            Server::scheduled(&plan.program("rdma_core"), &plan.device, scheduling)?,
        ];
        for server in &mut servers {
            for operation in OPERATIONS {
                server.ask(&format!("transfer {operation} 2 1 {wait} {WARM_UP} {long}"))?;
            }
        }
        for batch in BATCHES {
            for operation in OPERATIONS {
                for (size, size_name) in SIZES {
                    let request = format!("transfer {operation} {size} {batch} {wait}");
                    let cell = Cell {
                        name: format!("{} of {size_name}", operation.to_uppercase()),
                        wait: name,
                        size,
                        batch,
                    };
                    let most = plan.rounds(1 << 20, 4 << 20);
                    let samples = samples(most, size, batch, plan.awake);
                    measure(&mut servers, &request, samples, long)?
                        .record(&cell)
                        .print()?;
                }
            }
        }
    }
    Ok(())
}

/// How many batches of such messages are measured by each program, if they may take as long as so many bytes.
/// A few are enough where they take long, and they take long unless the device takes no time.
fn samples(bytes: usize, size: usize, batch: usize, takes_no_time: bool) -> usize {
    let is_soon_done = batch == 1 || takes_no_time;
    let least = if is_soon_done { 3 * TURNS } else { 3 };
    (bytes / ((size + MESSAGE) * batch)).clamp(least, 500)
}

/// A row: what is moved and how.
struct Cell {
    name: String,
    wait: &'static str,
    size: usize,
    batch: usize,
}

/// The times of a row's batches.
struct Times {
    /// Nanoseconds, by program.
    of: [Histogram<u64>; 2],
    /// Of the medians of each pair of turns.
    ratios: Vec<f64>,
}

/// Has the programs take turns until each has done its share.
fn measure(servers: &mut [Server; 2], request: &str, samples: usize, long: u32) -> Result<Times> {
    let mut times = Times {
        of: [histogram()?, histogram()?],
        ratios: Vec::new(),
    };
    let turns = TURNS.min(samples);
    let request = format!("{request} {} {long}", samples.div_ceil(turns));
    for round in 0..turns {
        let mut medians = [0; 2];
        for turn in 0..2 {
            // Who goes first changes, for the first may find colder caches.
            let who = (round + turn) % 2;
            let samples = servers[who].ask(&request)?;
            medians[who] = median(&samples).unwrap_or_default();
            for sample in samples {
                times.of[who].saturating_record(sample);
            }
        }
        times.ratios.push(medians[0] as f64 / medians[1] as f64);
    }
    Ok(times)
}

/// Nanoseconds up to a minute, four digits of them.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 4)?)
}

impl Times {
    fn record(&self, cell: &Cell) -> Record {
        if cell.batch == 1 {
            self.latency(cell)
        } else {
            self.rate(cell)
        }
    }

    /// From posting a message to its completion: the median, and what 99% kept to.
    fn latency(&self, cell: &Cell) -> Record {
        let columns = [(PROGRAMS, 0.5), ([OURS_99, RDMA_CORE_99], 0.99)];
        let values = columns.into_iter().flat_map(|(names, quantile)| {
            let at = |times: &Histogram<u64>| times.value_at_quantile(quantile) as f64 / 1e3;
            [0, 1].map(|who| (names[who], at(&self.of[who])))
        });
        let group = format!("latency, {}", cell.wait);
        self.finish(
            cell,
            Record::new(&group, &cell.name, "us", RDMA_CORE, values),
        )
    }

    /// Messages a second, of batches of a median length.
    fn rate(&self, cell: &Cell) -> Record {
        let rate =
            |times: &Histogram<u64>| cell.batch as f64 * 1e9 / times.value_at_quantile(0.5) as f64;
        let values = [0, 1].map(|who| (PROGRAMS[who], rate(&self.of[who])));
        let group = format!("rate, {}", cell.wait);
        let row = format!("{} x {}", cell.batch, cell.name);
        self.finish(
            cell,
            Record::new(&group, row, "messages/s", RDMA_CORE, values),
        )
    }

    /// Adds what rows of both kinds have: a ratio of times, and their distributions.
    fn finish(&self, cell: &Cell, record: Record) -> Record {
        let record = record
            .paired(median(&self.ratios))
            .ratio_at_most("never slower", NOISE);
        let bytes = (cell.size * cell.batch) as f64;
        PROGRAMS
            .into_iter()
            .zip(&self.of)
            .fold(record, |record, (name, times)| {
                let quantiles = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0];
                let distribution: Vec<_> = quantiles
                    .into_iter()
                    .map(|quantile| (quantile, times.value_at_quantile(quantile) as f64 / 1e3))
                    .collect();
                let middle = times.value_at_quantile(0.5).max(1) as f64;
                record.detail(
                    name,
                    json!({
                        "samples": times.len(),
                        "bytes": cell.size,
                        "batch": cell.batch,
                        "MB per second": bytes * 1e3 / middle,
                        "us": distribution,
                    }),
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_bytes_are_moved_often_and_many_seldom() {
        assert_eq!(samples(8 << 20, 2, 1, false), 500);
        assert_eq!(samples(8 << 20, 64 << 10, 1, false), 124);
        assert_eq!(samples(8 << 20, 1 << 20, 1, false), 15);
        assert_eq!(samples(8 << 20, 1 << 20, 32, false), 3);
        assert_eq!(samples(8 << 20, 1 << 20, 32, true), 15);
    }

    #[test]
    fn a_rate_is_of_the_median_and_the_ratio_of_the_times() {
        let mut times = Times {
            of: [histogram().unwrap(), histogram().unwrap()],
            ratios: vec![0.5, 0.4, 0.9],
        };
        times.of[0].record_n(16_000, 3).unwrap();
        times.of[1].record_n(32_000, 3).unwrap();
        let mut cell = Cell {
            name: "WRITE of 2 B".to_owned(),
            wait: "polling",
            size: 2,
            batch: 32,
        };
        let record = times.record(&cell);
        assert_eq!(record.values[OURS], 2e6);
        assert_eq!(record.values[RDMA_CORE], 1e6);
        assert_eq!(record.ratio, Some(0.5));
        assert!(record.goal.unwrap().met);
        cell.batch = 1;
        let record = times.record(&cell);
        assert_eq!(record.values[OURS], 16.0);
        assert_eq!(record.values[RDMA_CORE_99], 32.0);
    }
}
