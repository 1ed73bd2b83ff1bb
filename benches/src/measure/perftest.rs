//! perftest's programs and ours in the same shape, in turn: two processes that wait for events.
//!
//! WRITE has no place here: perftest has no events for it, and two processes that poll one processor measure
//! the scheduler.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use uverbs::query::LinkLayer;

use super::transfer::SIZES;
use super::{OURS, OURS_99, PERFTEST, PERFTEST_99, Plan, Record};
use crate::perf::{READS, RECEIVES, SENDS, SIGNALED};

/// A program of perftest, and what ours is asked for.
struct Pair {
    program: &'static str,
    work: &'static str,
    /// Whether it tells how long a message takes, and not how many there are in a second.
    tells_latency: bool,
}

const PAIRS: [Pair; 4] = [
    pair("ib_send_lat", "send-latency", true),
    pair("ib_read_lat", "read-latency", true),
    pair("ib_send_bw", "send-rate", false),
    pair("ib_read_bw", "read-rate", false),
];

const fn pair(program: &'static str, work: &'static str, tells_latency: bool) -> Pair {
    Pair {
        program,
        work,
        tells_latency,
    }
}

impl Pair {
    fn is_read(&self) -> bool {
        self.program.starts_with("ib_read")
    }

    fn group(&self) -> &'static str {
        match self.tells_latency {
            true => "perftest, latency",
            false => "perftest, rate",
        }
    }

    fn row(&self, size: &str) -> String {
        let operation = if self.is_read() { "READ" } else { "SEND" };
        format!("{operation} of {size}, {}", self.program)
    }

    /// How both programs are scheduled, for the reasons in `super::transfer`. Those of perftest that SEND
    /// take the events of one queue for those of another, and stall, unless the kernel's work comes first.
    fn scheduling(&self) -> [&'static str; 2] {
        match self.is_read() {
            true => ["--fifo", "1"],
            false => ["--idle", "0"],
        }
    }
}

/// What both run on.
struct Device<'a> {
    plan: &'a Plan,
    /// Whether an end of a connection needs a GID.
    has_gid: bool,
}

/// How long a program may run, in seconds.
const LIMIT: &str = "20";

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a pair of medians may differ by.
const NOISE: f64 = 1.01;

/// Bytes that take about as long as a message does without its bytes.
const MESSAGE: usize = 2 << 10;

/// The median in microseconds and what 99% keep to; or messages in a second, and nothing.
pub(super) type Told = (f64, Option<f64>);

pub(super) fn run(plan: &Plan) -> Result<()> {
    let link = uverbs::open(&plan.device)?.query_port(1)?.link_layer;
    let device = Device {
        plan,
        has_gid: link == LinkLayer::ETHERNET,
    };
    let mut port = 18_600;
    for pair in &PAIRS {
        for (size, name) in SIZES {
            let count = messages(plan.rounds(2 << 20, 8 << 20), size, pair.tells_latency);
            port += 1;
            let both = device
                .theirs(pair, size, count, port)
                .and_then(|theirs| Ok([device.ours(pair, size, count)?, theirs]));
            let record = match both {
                Ok(both) => record(pair, name, both),
                Err(error) => Record::new(pair.group(), pair.row(name), "", PERFTEST, [])
                    .detail("skipped", json!(format!("{error:#}"))),
            };
            record.detail("messages", json!(count)).print()?;
        }
    }
    Ok(())
}

/// How many messages there are.
fn messages(bytes: usize, size: usize, is_latency: bool) -> usize {
    let least = if is_latency { 15 } else { 64 };
    (bytes / (size + MESSAGE)).clamp(least, 1000)
}

fn record(pair: &Pair, size: &str, [ours, theirs]: [Told; 2]) -> Record {
    let columns = [(OURS, OURS_99, ours), (PERFTEST, PERFTEST_99, theirs)];
    let values = columns.into_iter().flat_map(|(name, name_99, of)| {
        let most = of.1.map(|most| (name_99, most));
        [Some((name, of.0)), most].into_iter().flatten()
    });
    // A ratio of times, in both groups.
    let (unit, ratio) = match pair.tells_latency {
        true => ("us", ours.0 / theirs.0),
        false => ("messages/s", theirs.0 / ours.0),
    };
    Record::new(pair.group(), pair.row(size), unit, PERFTEST, values)
        .paired(Some(ratio))
        .ratio_at_most("never slower", NOISE)
}

/// A command that does not run for ever.
fn command(pair: &Pair, program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args([LIMIT, "chrt"]).args(pair.scheduling());
    command.arg(program);
    command
}

impl Device<'_> {
    fn ours(&self, pair: &Pair, size: usize, count: usize) -> Result<Told> {
        let output = command(pair, self.plan.own())
            .args(["perf", &self.plan.device, pair.work])
            .args([size.to_string(), count.to_string()])
            .output()
            .context("starting ours")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let times = text.split_whitespace().map(str::parse);
        let mut times: Vec<f64> = times.collect::<Result<_, _>>().context("reading times")?;
        times.sort_by(f64::total_cmp);
        let last = times.len().checked_sub(1).with_context(|| {
            let error = String::from_utf8_lossy(&output.stderr);
            format!("{} has told nothing: {error}", pair.work)
        })?;
        Ok(match pair.tells_latency {
            true => (times[last / 2] / 1e3, Some(times[last * 99 / 100] / 1e3)),
            false => (count as f64 * 1e9 / times[0], None),
        })
    }

    fn theirs(&self, pair: &Pair, size: usize, count: usize, port: u16) -> Result<Told> {
        let mut server = self
            .perftest(pair, size, count, port)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", pair.program))?;
        await_listener(&mut server, port)?;
        let output = self
            .perftest(pair, size, count, port)
            .arg("127.0.0.1")
            .output()?;
        let status = server.wait()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            status.success() && output.status.success(),
            "{} has failed: {text}",
            pair.program
        );
        told(&text, size, pair.tells_latency)
            .with_context(|| format!("{} has told nothing: {text}", pair.program))
    }

    /// A side of a program of perftest; the queues are as large as ours.
    fn perftest(&self, pair: &Pair, size: usize, count: usize, port: u16) -> Command {
        let mut command = command(pair, Path::new(pair.program));
        let mut option = |name: &str, value: &str| {
            command.args([name, value]);
        };
        option("-d", &self.plan.device);
        if self.has_gid {
            // As in `crate::awaited`: that of RoCE v2 on IPv4.
            option("-x", "1");
        }
        option("-s", &size.to_string());
        option("-n", &count.to_string());
        option("-p", &port.to_string());
        if pair.is_read() {
            option("-o", &READS.to_string());
        }
        if !pair.tells_latency {
            option("-t", &SENDS.to_string());
            option("-Q", &SIGNALED.to_string());
        }
        match pair.program {
            "ib_send_bw" => option("-r", &RECEIVES.to_string()),
            "ib_send_lat" => option("-I", "0"),
            _ => {}
        }
        // -F: the processor's frequency does not matter.
        command.args(["-e", "-F"]);
        command
    }
}

/// Waits until something listens on a port.
pub(super) fn await_listener(server: &mut Child, port: u16) -> Result<()> {
    let started = Instant::now();
    let local = format!(":{port:04X}");
    loop {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
        let tables = tables.map(|path| fs::read_to_string(path).unwrap_or_default());
        let listens = tables.iter().flat_map(|table| table.lines()).any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let address = words.next().unwrap_or_default();
            // 0A is the state LISTEN.
            address.ends_with(&local) && words.nth(1) == Some("0A")
        });
        if listens {
            return Ok(());
        }
        if let Some(status) = server.try_wait()? {
            bail!("the server has ended with {status}");
        }
        ensure!(started.elapsed() < PATIENCE, "nothing listens");
        // Asleep: the server may be at idle priority.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What the line of numbers says that follows the one with their names.
pub(super) fn told(text: &str, size: usize, tells_latency: bool) -> Option<Told> {
    let lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let line = lines.skip(1).find(|line| !line.trim().is_empty())?;
    let numbers: Vec<f64> = line
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    Some(match tells_latency {
        // Bytes, iterations, least, most, typical, average, deviation, 99%, 99.9%.
        true => (*numbers.get(4)?, Some(*numbers.get(7)?)),
        // Bytes, iterations, most and average in MiB a second, messages in a microsecond: each has so many
        // digits behind the point, and the one that has more before it is more exact.
        false if size < MESSAGE => (numbers.get(4)? * 1e6, None),
        false => (numbers.get(3)? * (1 << 20) as f64 / size as f64, None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_perftest_prints_is_read() {
        let latency = " local address: LID 0000\n---\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 2       1000          38.10          60.00        39.50     \t       40.00 \t\t0.10 \t\t44.00 \t\t60.00 \n---\n";
        assert_eq!(told(latency, 2, true), Some((39.5, Some(44.0))));
        let rate = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 4096       1000             51.00              50.00     \t\t   0.012800\n";
        assert_eq!(told(rate, 4096, false), Some((12_800.0, None)));
        assert_eq!(
            told(&rate.replace("4096", "2"), 2, false),
            Some((12_800.0, None))
        );
        assert_eq!(told("nothing", 2, true), None);
    }

    #[test]
    fn a_rate_has_the_ratio_of_the_times() {
        let told = [(20.0, None), (10.0, None)];
        assert_eq!(record(&PAIRS[2], "2 B", told).ratio, Some(0.5));
        let told = [(20.0, Some(30.0)), (10.0, Some(11.0))];
        let record = record(&PAIRS[0], "2 B", told);
        assert_eq!(record.ratio, Some(2.0));
        assert_eq!(record.values[PERFTEST_99], 11.0);
        assert!(!record.goal.unwrap().met);
    }
}
