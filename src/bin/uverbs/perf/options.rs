//! The options of `uverbs perf`, and the plans that they make.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::memory::MemoryKind;
use super::plan::{Goal, Operation, Plan, Transport, Until};
use super::show::Output;
use crate::complete;
use crate::failure::{Failure, Kind, Result};
use crate::number;

const NOTES: &str = "\
The server takes all that is measured from the client.

Examples:
  uverbs perf serve                                   on one host
  uverbs perf latency send 10.9.0.1                   on the other: round trips of 8 bytes
  uverbs perf latency write 10.9.0.1 -s 2..1M         sizes from 2 bytes to 1 MiB
  uverbs perf bandwidth read 10.9.0.1 -s 64K -q 4     four queue pairs
  uverbs perf bandwidth write 10.9.0.1 --both --plot  both directions, with the rate over time
  uverbs perf bandwidth write 10.9.0.1 -d mlx5_0,mlx5_1   two adapters at once, if they serve there too
  uverbs perf latency send 10.9.0.1 --save a.json     and again later:
  uverbs perf compare a.json b.json                   is there a difference?

";

/// Measure latency and bandwidth between two hosts, or on one.
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Be the peer of clients, one after the other
    ///
    /// It listens on all addresses, and does what any client asks: for networks that are trusted.
    Serve(Serve),
    /// Measure round trips: one message at a time for each queue pair
    ///
    /// The peer answers each SEND or WRITE with one of its own, and the time is that of both; perftest shows
    /// half of it. A READ or atomic operation is a round trip by itself.
    Latency(Client),
    /// Measure how much goes through, with many messages in flight
    ///
    /// The times are those of batches, from the doorbell to the completion.
    Bandwidth(Client),
    /// Show a saved result
    Show(Show),
    /// Compare two saved results: which differences are more than chance?
    ///
    /// The rounds of each measurement are its samples, and Welch's t-interval of their logarithms is the
    /// interval of the change. A measurement needs two rounds or more on each side. A machine whose load
    /// changed between the runs shows too, so compare several pairs before you believe a small difference.
    Compare(Compare),
}

/// The own end, if devices are named.
#[derive(Clone, Debug, Args)]
pub(super) struct Own {
    /// The device; by default the first. Several (mlx5_0,mlx5_1) share the queue pairs, of which the first
    /// here is connected to the first there, and so on
    #[arg(short, long = "device", value_name = "DEVICE", value_delimiter = ',', add = complete::devices())]
    pub(super) devices: Vec<String>,

    /// The device's port
    #[arg(short = 'i', long, value_name = "PORT", default_value_t = 1,
          value_parser = clap::value_parser!(u8).range(1..), add = complete::ports())]
    pub(super) ib_port: u8,

    /// Index of this side's GID (see `uverbs gids`); by default the best on Ethernet
    #[arg(short = 'g', long, value_name = "INDEX", add = complete::gids())]
    pub(super) gid_index: Option<u8>,

    /// TCP port by which the two sides agree; with --cm also the port of the connection manager
    #[arg(short, long, value_name = "PORT", default_value_t = 18516,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) port: u16,
}

impl Own {
    /// Checks that no device is named twice: what its port and its link carry would count twice.
    pub(super) fn validate(&self) -> Result<()> {
        let mut names = self.devices.iter().enumerate();
        match names.find(|(at, name)| self.devices[..*at].contains(*name)) {
            None => Ok(()),
            Some((_, name)) => Err(Failure::new(
                Kind::Usage,
                format_args!("--device names {name} twice"),
            )),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Serve {
    #[command(flatten)]
    pub(super) own: Own,

    /// End after one client
    #[arg(long)]
    pub(super) once: bool,
}

#[derive(Debug, Args)]
pub(super) struct Client {
    /// What a message is
    operation: Operation,

    /// Name or address of the server's host
    pub(super) server: String,

    #[command(flatten)]
    pub(super) own: Own,

    /// How queue pairs are connected
    #[arg(short, long, default_value = "rc")]
    transport: Transport,

    /// Bytes of a message: a number such as 4096 or 64K, a list, or a range of powers of two such as 2..1M;
    /// by default 8 for latency and for words of atomic operations, 64K for bandwidth, 1024 of it over ud
    #[arg(short, long, value_name = "BYTES", value_parser = sizes)]
    sizes: Option<Sizes>,

    /// Queue pairs; by default one a thread, and always so for latency
    #[arg(short = 'q', long, value_name = "N")]
    queue_pairs: Option<u32>,

    /// Threads on each side; by default one a device
    #[arg(long, value_name = "N")]
    threads: Option<u32>,

    /// Messages in flight on each queue pair, for bandwidth; 128 by default, or 64 MiB of them
    #[arg(long, value_name = "N")]
    depth: Option<u32>,

    /// Messages for each doorbell and completion, for bandwidth; 16 by default, or what the depth allows
    #[arg(short, long, value_name = "N")]
    batch: Option<u32>,

    /// Copy messages of up to so many bytes into their requests; by default as many as fit, 0 for none
    #[arg(long, value_name = "BYTES")]
    inline: Option<u32>,

    /// Wait for completion events instead of polling
    #[arg(short, long)]
    events: bool,

    /// Poll without a pause, as perftest does: a thread keeps its CPU although nothing completes, and does
    /// not hint to it that it waits
    #[arg(long, conflicts_with = "events")]
    spin: bool,

    /// Both sides send, for bandwidth
    #[arg(long)]
    both: bool,

    /// Seconds of a round
    #[arg(short = 'T', long, value_name = "SECONDS", default_value = "1",
          value_parser = number::positive_seconds)]
    time: Duration,

    /// Messages of a round for each queue pair, instead of a time
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "time",
          value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Rounds, each with new queue pairs
    #[arg(short, long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,

    /// Seconds before each round that do not count; 0.1 by default, or none with --count
    #[arg(long, value_name = "SECONDS", value_parser = number::seconds)]
    warm_up: Option<Duration>,

    /// Check every byte of every message (of WRITEs in flight together, of the last ones)
    #[arg(short = 'c', long)]
    check: bool,

    /// What memory messages lie in, on both sides
    #[arg(long, value_name = "KIND", default_value = "ordinary")]
    memory: MemoryKind,

    /// Keep each thread on a CPU, near the adapter if this process may use one there
    #[arg(long)]
    pin: bool,

    /// Connect by rdma_cm: SERVER is the address of a device's network interface
    #[arg(long, conflicts_with_all = ["devices", "ib_port", "gid_index", "mtu", "service_level"])]
    cm: bool,

    /// Bytes of the largest packet; the port's by default
    #[arg(short, long, value_name = "BYTES")]
    mtu: Option<u32>,

    /// Service level
    #[arg(short = 'l', long, value_name = "SL", default_value_t = 0,
          value_parser = clap::value_parser!(u8).range(..=15))]
    service_level: u8,

    /// Seconds without a completion after which the run fails, at most 600
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = number::positive_seconds)]
    timeout: Duration,

    /// Seconds that the client tries to reach the server
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = number::seconds)]
    pub(super) connect_timeout: Duration,

    /// Save the result as JSON, for `show` and `compare`
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,

    /// Keep each time in the result (up to 4 million a round and thread)
    #[arg(long)]
    pub(super) samples: bool,

    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// A file of --save or --json
    pub(super) file: PathBuf,

    #[command(flatten)]
    pub(super) output: Output,
}

#[derive(Debug, Args)]
pub(super) struct Compare {
    /// A file of --save or --json
    pub(super) before: PathBuf,

    /// Another
    pub(super) after: PathBuf,

    /// How sure a difference must be
    #[arg(long, value_name = "SHARE", default_value = "0.99", value_parser = share)]
    pub(super) confidence: f64,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Sizes of messages. Of its own type, so that clap does not take it for several options.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sizes(Vec<u32>);

fn sizes(text: &str) -> Result<Sizes, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        let Some((from, to)) = part.split_once("..") else {
            sizes.push(number::size(part)?);
            continue;
        };
        let (from, to) = (number::size(from)?, number::size(to)?);
        if from > to {
            return Err("a range begins with its least size".into());
        }
        let doubled = std::iter::successors(Some(from), |size| size.checked_mul(2));
        sizes.extend(doubled.take_while(|size| *size <= to));
    }
    Ok(Sizes(sizes))
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.5..1.0).contains(&share) => Ok(share),
        _ => Err("a number from 0.5 up to 1".into()),
    }
}

/// Messages in flight by default, and the limit of their bytes.
const DEPTH: u32 = 128;
const BYTES: u32 = 64 << 20;
const BATCH: u32 = 16;

impl Client {
    /// The measurements, in their order.
    pub(super) fn plans(&self, goal: Goal) -> Result<Vec<Plan>> {
        self.own.validate()?;
        let is_latency = goal == Goal::Latency;
        if is_latency && (self.depth.is_some() || self.batch.is_some()) {
            let text = "--depth and --batch are for bandwidth";
            return Err(Failure::new(Kind::Usage, text));
        }
        let sizes = match &self.sizes {
            Some(Sizes(sizes)) => sizes.clone(),
            None if is_latency || self.operation.is_atomic() => vec![8],
            None if self.transport == Transport::Ud => vec![1024],
            None => vec![64 << 10],
        };
        let plans = sizes.into_iter().map(|size| {
            let plan = self.plan(goal, size);
            plan.validate()?;
            Ok(plan)
        });
        plans.collect()
    }

    fn plan(&self, goal: Goal, size: u32) -> Plan {
        let most = (BYTES / size).clamp(2, DEPTH);
        let depth = match goal {
            Goal::Latency => 1,
            Goal::Bandwidth => self.depth.unwrap_or(most),
        };
        // At least two batches are in flight, so that the device works on one while the other is posted.
        let batch = self.batch.unwrap_or(BATCH.min(depth / 2).max(1));
        let default_warm_up = match self.count {
            Some(_) => Duration::ZERO,
            None => Duration::from_millis(100),
        };
        // Without a name the first device is used.
        let devices = self.own.devices.len().max(1) as u32;
        let threads = self.threads.unwrap_or(devices);
        Plan {
            goal,
            operation: self.operation,
            transport: self.transport,
            size,
            queue_pairs: self.queue_pairs.unwrap_or(threads),
            threads,
            devices,
            depth,
            batch,
            inline: self.inline,
            events: self.events,
            spin: self.spin,
            both: self.both,
            until: match self.count {
                Some(count) => Until::Messages(count),
                None => Until::Seconds(self.time.as_secs_f64()),
            },
            warm_up: self.warm_up.unwrap_or(default_warm_up).as_secs_f64(),
            check: self.check,
            memory: self.memory,
            pin: self.pin,
            by_address: self.cm,
            mtu: self.mtu,
            service_level: self.service_level,
            timeout: self.timeout.as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_lists_and_ranges() {
        let list = |text: &str| sizes(text).unwrap().0;
        assert_eq!(list("64K"), [65536]);
        assert_eq!(list("2..16"), [2, 4, 8, 16]);
        assert_eq!(list("1,3..10,1M"), [1, 3, 6, 1 << 20]);
        assert_eq!(list("2G..4095M").len(), 1);
        for text in ["", "16..2", "1K,16..2", "..", "1,", "x"] {
            assert!(sizes(text).is_err(), "{text}");
        }
    }
}
