//! What `uverbs perf` says, held against what perftest says of the same traffic: both poll, at both ends.
//!
//! Each end has a processor, and the kernel's workers have a third one. Where time is a count of
//! instructions, the processors run in turn, and the host is asked for turns that are short beside a message.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use uverbs::query::LinkLayer;

use super::perftest::{await_listener, told};
use super::{OURS, PERFTEST, Plan, Record, median};

/// Pairs of runs that count.
const PAIRS: usize = 5;

/// What both may differ by.
const WITHIN: f64 = 0.03;

/// How long a program may run, in seconds.
const LIMIT: &str = "60";

/// The processors of the server and of the client.
const CPUS: [&str; 2] = ["1", "0"];

/// A size of messages.
struct Size {
    bytes: usize,
    name: &'static str,
    /// Microseconds in which each processor has had its turn.
    turn: u32,
    /// Round trips, and messages of a stream. A stream lasts so long that what its beginning takes, such as
    /// first uses of pages, hardly counts.
    counts: [usize; 2],
    /// Messages in flight, and those of a batch.
    queue: [usize; 2],
}

const SIZES: [Size; 3] = [
    Size {
        bytes: 2,
        name: "2 B",
        turn: 1,
        counts: [200, 8192],
        queue: [64, 16],
    },
    Size {
        bytes: 4 << 10,
        name: "4 KiB",
        turn: 3,
        counts: [100, 1024],
        queue: [64, 16],
    },
    Size {
        bytes: 1 << 20,
        name: "1 MiB",
        turn: 100,
        counts: [6, 32],
        queue: [4, 2],
    },
];

/// READs that the peer answers at a time.
const READS: usize = 16;

/// What is measured.
struct Row<'a> {
    operation: &'static str,
    is_latency: bool,
    size: &'a Size,
}

pub(super) fn run(plan: &Plan) -> Result<()> {
    let link = uverbs::open(&plan.device)?.query_port(1)?.link_layer;
    let has_gid = link == LinkLayer::ETHERNET;
    let mut port = 18_700;
    for size in &SIZES {
        println!("turn {}", size.turn);
        for operation in ["send", "write", "read"] {
            for is_latency in [true, false] {
                let row = Row {
                    operation,
                    is_latency,
                    size,
                };
                let ends = Ends { plan, has_gid };
                row.measure(&ends, &mut port)?.print()?;
            }
        }
    }
    Ok(())
}

impl Row<'_> {
    /// Both programs in turn.
    fn measure(&self, ends: &Ends<'_>, port: &mut u16) -> Result<Record> {
        let pairs = if ends.plan.quick { 1 } else { PAIRS };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            *port += 2;
            let one = self.ours(ends, *port)?;
            let other = self.theirs(ends, *port + 1)?;
            ours.push(one);
            theirs.push(other);
        }
        // Of times, in both groups.
        let ratios: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .map(|(one, other)| self.ratio(*one, *other))
            .collect();
        let middle = |values: &[f64]| median(values).context("no pair");
        let (group, unit) = match self.is_latency {
            true => ("perf, latency", "us"),
            false => ("perf, bandwidth", "messages/s"),
        };
        let row = format!("{} of {}", self.operation.to_uppercase(), self.size.name);
        let ratio = middle(&ratios)?;
        let is_within = (ratio - 1.0).abs() <= WITHIN;
        let values = [(OURS, middle(&ours)?), (PERFTEST, middle(&theirs)?)];
        Ok(Record::new(group, row, unit, PERFTEST, values)
            .paired(Some(ratio))
            .goal("within 3%", is_within)
            .detail("ratios", json!(ratios)))
    }

    fn ratio(&self, ours: f64, theirs: f64) -> f64 {
        match self.is_latency {
            true => ours / theirs,
            false => theirs / ours,
        }
    }

    fn is_read(&self) -> bool {
        self.operation == "read"
    }

    fn count(&self) -> usize {
        self.size.counts[usize::from(!self.is_latency)]
    }

    /// Messages in flight, and those of a batch.
    fn queue(&self) -> [usize; 2] {
        let [depth, batch] = self.size.queue;
        match self.is_read() {
            true => [depth.min(READS), batch.min(READS / 4)],
            false => [depth, batch],
        }
    }

    /// The median in microseconds, for a SEND or WRITE of one way, as perftest has it; or messages a second.
    fn ours(&self, ends: &Ends<'_>, port: u16) -> Result<f64> {
        let program = ends.plan.program("uverbs");
        let own = ["--device", &ends.plan.device, "--port", &port.to_string()];
        let mut server = ends.command(&program, 0);
        server.args(["perf", "serve", "--once"]).args(own);
        let mut client = ends.command(&program, 1);
        let goal = if self.is_latency {
            "latency"
        } else {
            "bandwidth"
        };
        client.args([
            "perf",
            goal,
            self.operation,
            "127.0.0.1",
            "--json",
            "--spin",
            // perftest takes soft-RoCE for a device without inline data.
            "--inline",
            "0",
            "--rounds",
            "1",
        ]);
        client.args(own);
        client.args(["--sizes", &self.size.bytes.to_string()]);
        client.args(["--count", &self.count().to_string()]);
        if !self.is_latency {
            let [depth, batch] = self.queue();
            client.args(["--depth", &depth.to_string(), "--batch", &batch.to_string()]);
        }
        let said = ends.play(server, client, port)?;
        let found: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        let name = if self.is_latency { "median" } else { "rate" };
        let value = found.pointer(&format!("/runs/0/summary/{name}"));
        let value = value
            .and_then(Value::as_f64)
            .with_context(|| said.clone())?;
        let is_both_ways = self.is_latency && !self.is_read();
        Ok(if is_both_ways { value / 2.0 } else { value })
    }

    /// The same of perftest.
    fn theirs(&self, ends: &Ends<'_>, port: u16) -> Result<f64> {
        let what = if self.is_latency { "lat" } else { "bw" };
        let program = format!("ib_{}_{what}", self.operation);
        let side = |end| {
            let mut command = ends.command(Path::new(&program), end);
            let mut option = |name: &str, value: String| {
                command.args([name, &value]);
            };
            option("-d", ends.plan.device.clone());
            if ends.has_gid {
                // As in `crate::awaited`: that of RoCE v2 on IPv4.
                option("-x", "1".into());
            }
            option("-s", self.size.bytes.to_string());
            option("-n", self.count().to_string());
            option("-p", port.to_string());
            if self.is_read() {
                option("-o", READS.to_string());
            }
            if !self.is_latency {
                let [depth, batch] = self.queue();
                option("-t", depth.to_string());
                option("-l", batch.to_string());
                option("-Q", batch.to_string());
            }
            if self.operation == "send" {
                // As many receives as `uverbs perf` keeps posted: with more than messages perftest posts none
                // again.
                let depth = if self.is_latency { 1 } else { self.queue()[0] };
                option("-r", (2 * depth).to_string());
            }
            // -F: the processor's frequency does not matter.
            command.arg("-F");
            command
        };
        let mut client = side(1);
        client.arg("127.0.0.1");
        let said = ends.play(side(0), client, port)?;
        let told = told(&said, self.size.bytes, self.is_latency);
        Ok(told
            .with_context(|| format!("{program} has told nothing: {said}"))?
            .0)
    }
}

/// Where both programs run.
struct Ends<'a> {
    plan: &'a Plan,
    /// Whether an end of a connection needs a GID.
    has_gid: bool,
}

impl Ends<'_> {
    /// A command at the end of this number that does not run for ever.
    fn command(&self, program: &Path, end: usize) -> Command {
        let mut command = Command::new("timeout");
        command
            .args([LIMIT, "taskset", "-c", CPUS[end]])
            .arg(program);
        command
    }

    /// Runs both, and gives what the client says.
    fn play(&self, mut server: Command, mut client: Command, port: u16) -> Result<String> {
        let mut server = server
            .stdout(Stdio::null())
            .spawn()
            .context("starting a server")?;
        await_listener(&mut server, port)?;
        let output = client.output().context("starting a client")?;
        let status = server.wait()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(
            status.success() && output.status.success(),
            "{client:?}: {said}{complaint}"
        );
        Ok(said)
    }
}
