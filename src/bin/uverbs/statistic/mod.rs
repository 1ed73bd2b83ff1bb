//! `uverbs statistic`: the counters of devices and ports, and the owners of objects.
//!
//! | | |
//! |---|---|
//! | [`read`] | counters from sysfs and netlink, objects from netlink |
//! | [`openmetrics`] | the same as text for Prometheus |

mod openmetrics;
mod read;

use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::complete;
use crate::failure::{Failure, Kind, Result};
use crate::files::Files;
use crate::{number, output, select};
use read::{Reading, readings};

const NOTES: &str = "\
Counters of ports and devices come from sysfs, with the names that the driver gives them. What they mean is in
the kernel's Documentation/ABI/stable/sysfs-class-infiniband and in the driver's manual. port_xmit_data and
port_rcv_data count words of 4 bytes; --openmetrics has them in bytes.

Examples:
  uverbs statistic                      what has counted, on all ports
  uverbs statistic port -d mlx5_0 -w    rates, once a second
  uverbs statistic object               who has how many objects, and how much registered memory
  uverbs statistic qp                   queue pairs that have counters (see rdma-statistic(8))
  uverbs statistic --openmetrics > new.prom && mv new.prom rdma.prom     for node_exporter

";

/// Show what devices and ports have counted, and who has which objects.
#[derive(Debug, Args)]
#[command(after_help = NOTES.to_owned() + crate::failure::EXIT_CODES)]
pub(crate) struct Options {
    /// What is counted; by default port and object
    #[arg(value_enum)]
    of: Option<Of>,

    /// The device; all by default
    #[arg(short, long, add = complete::devices())]
    device: Option<String>,

    /// Show what is 0, too
    #[arg(short, long, conflicts_with_all = ["json", "openmetrics", "watch"])]
    all: bool,

    /// Print what changes, as rates a second, at intervals of so many seconds, until interrupted
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = number::seconds)]
    watch: Option<Duration>,

    /// Watch for this many seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "watch", value_parser = number::seconds)]
    limit: Option<Duration>,

    /// Print JSON; with --watch a line for each interval
    #[arg(long)]
    json: bool,

    /// Print text for Prometheus, as for the textfile collector of node_exporter
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    openmetrics: bool,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Of {
    /// Counters of ports, and of devices as a whole
    Port,
    /// Queue pairs with counters of their own
    Qp,
    /// Objects by process, and the memory they have registered
    Object,
}

impl Options {
    /// The readings. If nobody has said which, those that can be read, with the reason why others cannot.
    fn read(&self) -> Result<(Vec<Reading>, Option<Failure>)> {
        let devices = select::devices(self.device.as_deref())?;
        let files = Files::of_this_host();
        let of = match self.of {
            Some(of) => vec![of],
            None => vec![Of::Port, Of::Object],
        };
        let (mut all, mut missing) = (Vec::new(), None);
        for device in &devices {
            for of in &of {
                match readings(&files, device, *of) {
                    Ok(readings) => all.extend(readings),
                    // The device has gone meanwhile, and its readings with it.
                    Err(_) if uverbs::device::find(device.name()).is_err() => {}
                    Err(failure) if self.of.is_none() => missing = missing.or(Some(failure)),
                    Err(failure) => return Err(failure),
                }
            }
        }
        match missing {
            Some(failure) if all.is_empty() => Err(failure),
            missing => Ok((all, missing)),
        }
    }

    /// The readings, with a message about those that are missing.
    fn first(&self) -> Result<Vec<Reading>> {
        let (readings, missing) = self.read()?;
        if let Some(failure) = missing {
            output::complain(format_args!("not everything is shown: {failure}"));
        }
        Ok(readings)
    }

    /// The readings of a watch, which goes on when the device has gone.
    fn read_again(&self) -> Result<Vec<Reading>> {
        match self.read() {
            Ok((readings, _)) => Ok(readings),
            Err(failure) if failure.is(Kind::NotFound) => Ok(Vec::new()),
            Err(failure) => Err(failure),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(interval) = options.watch {
        return watch(options, interval.max(Duration::from_millis(10)));
    }
    let readings = options.first()?;
    if options.openmetrics {
        return output::raw(openmetrics::text(&readings)?.as_bytes());
    }
    let shown: Vec<&Reading> = readings
        .iter()
        .filter(|reading| options.all || options.json || reading.value > 0)
        .collect();
    if options.json {
        return output::json(&shown.into_iter().map(to_json).collect());
    }
    if shown.is_empty() {
        output::complain("nothing has counted (-a shows what could)");
        return Ok(());
    }
    let row = |reading: &&Reading| {
        [
            reading.device.clone(),
            output::Foreign(&reading.of.to_string()).to_string(),
            reading.counter.clone(),
            reading.value.to_string(),
        ]
    };
    output::table(
        ["DEVICE", "OF", "COUNTER", "VALUE"],
        shown.iter().map(row).collect(),
    )
}

fn to_json(reading: &Reading) -> Value {
    let owner = reading.of.owner();
    json!({
        "device": reading.device,
        "port": reading.of.port(),
        "set": reading.of.set().map(|(set, _)| set),
        "qps": reading.of.set().map(|(_, qps)| qps),
        "pid": owner.and_then(|owner| owner.pid),
        "comm": owner.and_then(|owner| owner.comm.as_deref()),
        "counter": reading.counter,
        "value": reading.value,
    })
}

/// Prints the changes, once in each interval.
fn watch(options: &Options, interval: Duration) -> Result<()> {
    let start = Instant::now();
    let (mut before, mut last) = (options.first()?, start);
    let end = options.limit.map(|limit| start + limit);
    let mut next = start + interval;
    loop {
        next = end.map_or(next, |end| next.min(end));
        sleep(next.saturating_duration_since(Instant::now()));
        next += interval;
        let (readings, now) = (options.read_again()?, Instant::now());
        let changed = changes(&before, &readings, now - last);
        let time = start.elapsed().as_secs_f64();
        if options.json {
            let changed: Vec<Value> = changed
                .iter()
                .map(|(reading, rate)| {
                    let mut value = to_json(reading);
                    value["rate"] = json!(rate);
                    value
                })
                .collect();
            output::line(json!({ "seconds": time, "changes": changed }))?;
        } else {
            for (reading, rate) in changed {
                let Reading {
                    device,
                    of,
                    counter,
                    value,
                    ..
                } = reading;
                let of = of.to_string();
                let of = output::Foreign(&of);
                output::line(format_args!(
                    "{time:9.3}  {device}  {of}  {counter}  {value}  {rate:+.1}/s"
                ))?;
            }
        }
        if options.limit.is_some_and(|limit| start.elapsed() >= limit) {
            return Ok(());
        }
        (before, last) = (readings, now);
    }
}

/// The readings that have changed, with their rates per second. A new reading counts as 0 before, and one
/// that has disappeared as 0 now.
fn changes(before: &[Reading], now: &[Reading], time: Duration) -> Vec<(Reading, f64)> {
    let is_gone = |old: &&Reading| !now.iter().any(|reading| reading.is_same(old));
    let gone = before.iter().filter(is_gone).map(|old| Reading {
        value: 0,
        ..old.clone()
    });
    let mut changes = Vec::new();
    for reading in now.iter().cloned().chain(gone) {
        let old = before.iter().find(|old| old.is_same(&reading));
        let old = old.map_or(0, |old| old.value);
        if old != reading.value {
            let difference = reading.value as f64 - old as f64;
            changes.push((reading, difference / time.as_secs_f64().max(1e-9)));
        }
    }
    changes
}

/// The failure to make a text.
fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Failed, error)
}

#[cfg(test)]
mod tests {
    use super::read::Source;
    use super::*;
    use crate::owner::Owner;

    fn reading(counter: &str, value: u64) -> Reading {
        Reading {
            device: "rxe0".into(),
            of: Source::Port(1),
            counter: counter.into(),
            value,
        }
    }

    #[test]
    fn rates_are_those_of_what_changes() {
        let before = [
            reading("sent_pkts", 10),
            reading("rcvd_pkts", 7),
            reading("gone", 4),
        ];
        let now = [
            reading("sent_pkts", 30),
            reading("rcvd_pkts", 7),
            reading("new", 5),
        ];
        let changes = changes(&before, &now, Duration::from_secs(2));
        let told: Vec<(&str, f64)> = changes
            .iter()
            .map(|(reading, rate)| (reading.counter.as_str(), *rate))
            .collect();
        assert_eq!(told, [("sent_pkts", 10.0), ("new", 2.5), ("gone", -2.0)]);
    }

    /// Catches a set of counters that is told as another, from 0, when a queue pair joins it, and a process
    /// that is told as another when it changes its name.
    #[test]
    fn a_reading_stays_the_same_when_its_queue_pairs_or_its_owners_name_change() {
        let owner = |comm: &str| Owner {
            pid: Some(7),
            comm: Some(comm.into()),
        };
        let set = |set, qps: &[u32], comm, value| Reading {
            of: Source::QueuePairs {
                set,
                port: 1,
                qps: qps.into(),
                owner: owner(comm),
            },
            ..reading("rx_write_requests", value)
        };
        let objects = |comm, value| Reading {
            of: Source::Owner(owner(comm)),
            ..reading("qp", value)
        };
        let before = [set(5, &[17], "a", 100), objects("a", 1)];
        let now = [set(5, &[17, 18], "b", 110), objects("b", 2)];
        let rates = |before: &[Reading], now: &[Reading]| -> Vec<f64> {
            let changes = changes(before, now, Duration::from_secs(1));
            changes.into_iter().map(|(_, rate)| rate).collect()
        };
        assert_eq!(rates(&before, &now), [10.0, 1.0]);
        let other = [set(6, &[17], "a", 3)];
        assert_eq!(rates(&before[..1], &other), [3.0, -100.0]);
        let json = to_json(&now[0]);
        assert_eq!((&json["set"], &json["qps"]), (&json!(5), &json!([17, 18])));
    }
}
