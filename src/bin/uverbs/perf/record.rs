//! The document of a result: conditions, plans, and the results of each round.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::conditions::Conditions;
use super::memory::MemoryKind;
use super::plan::{Goal, Plan};
use super::recorder::{Outcome, Times, sum};
use crate::failure::{Failure, Kind, Result};
use crate::output::Foreign;

/// A result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) client: Conditions,
    pub(super) server: Conditions,
    pub(super) runs: Vec<Run>,
}

/// A plan and its rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) plan: Plan,
    /// The summary of the rounds, for readers of the document.
    pub(super) summary: Summary,
    pub(super) rounds: Vec<Round>,
}

/// The outcomes of both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Round {
    pub(super) client: Outcome,
    pub(super) server: Outcome,
}

/// The summary of all rounds of a run. Times are in microseconds: of round trips, or of batches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) messages: u64,
    /// Messages per second of both sides, the mean of the rounds.
    pub(super) rate: f64,
    /// Bits of messages per second, of both sides.
    pub(super) bits: f64,
    /// The share of the bandwidth of the client's port in one direction, in %.
    pub(super) of_port: Option<f64>,
    /// The share of the bandwidth of the client's PCI link, in %.
    pub(super) of_pci: Option<f64>,
    /// The fewest messages in an interval, as a share of the mean in %, which shows a stall.
    pub(super) least_interval: f64,
    pub(super) min: f64,
    pub(super) median: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) p9999: f64,
    pub(super) max: f64,
    /// Microseconds of the client's processor time per message, without the kernel's own threads.
    pub(super) cpu: f64,
    /// The same for the server, per message of the client.
    pub(super) server_cpu: f64,
    /// Messages that were sent and did not arrive, warm-up included; unknown where nothing tells that one
    /// has arrived.
    pub(super) lost: Option<u64>,
    /// Messages that both sides checked byte by byte.
    pub(super) checked: u64,
}

/// A quantity of rounds, by which runs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    Rate,
    Median,
    P99,
}

impl Metric {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rate => "messages/s",
            Self::Median => "median µs",
            Self::P99 => "99% µs",
        }
    }

    /// The metrics that matter for a goal.
    pub(super) fn of(goal: Goal) -> &'static [Self] {
        match goal {
            Goal::Latency => &[Self::Median, Self::P99],
            Goal::Bandwidth => &[Self::Rate, Self::Median],
        }
    }

    pub(super) fn is_better_if_less(self) -> bool {
        self != Self::Rate
    }
}

impl Round {
    /// Messages per second of both sides.
    pub(super) fn rate(&self) -> f64 {
        self.client.rate() + self.server.rate()
    }

    pub(super) fn value(&self, metric: Metric) -> Result<f64> {
        let quantile = |share| -> Result<f64> {
            let histogram = self.client.times.histogram()?;
            Ok(histogram.value_at_quantile(share) as f64 / 1e3)
        };
        match metric {
            Metric::Rate => Ok(self.rate()),
            Metric::Median => quantile(0.5),
            Metric::P99 => quantile(0.99),
        }
    }
}

impl Run {
    pub(super) fn new(plan: Plan, rounds: Vec<Round>, client: &Conditions) -> Result<Self> {
        let summary = summary(&plan, &rounds, client)?;
        Ok(Self {
            plan,
            summary,
            rounds,
        })
    }

    /// The times of all rounds.
    pub(super) fn times(&self) -> Times {
        Times::joined(self.rounds.iter().map(|round| &round.client.times))
    }

    /// The run, as text.
    pub(super) fn title(&self) -> String {
        let Plan {
            goal,
            operation,
            transport,
            size,
            memory,
            ..
        } = self.plan;
        let goal = match goal {
            Goal::Latency => "latency",
            Goal::Bandwidth => "bandwidth",
        };
        let memory = match memory {
            MemoryKind::Ordinary => String::new(),
            memory => format!(" of {memory} memory"),
        };
        format!("{goal}, {operation} over {transport}, {size} bytes{memory}")
    }

    /// The title, with what tells it from one of the others that has the same title.
    pub(super) fn title_beside(&self, others: &[&Self]) -> String {
        let title = self.title();
        match others.iter().find(|other| other.title() == title) {
            Some(other) => format!("{title} ({})", self.plan.differences(&other.plan)),
            None => title,
        }
    }

    /// Points of the rate over time, the rounds one after the other: seconds, and messages per second of the
    /// client.
    pub(super) fn rates(&self) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let mut start = 0.0;
        for round in &self.rounds {
            let rates = &round.client.rates;
            for (at, count) in rates.whole().iter().enumerate() {
                let time = start + at as f64 * rates.interval;
                points.push((time, *count as f64 / rates.interval));
            }
            start += round.client.seconds;
        }
        points
    }
}

fn summary(plan: &Plan, rounds: &[Round], client: &Conditions) -> Result<Summary> {
    let times = Times::joined(rounds.iter().map(|round| &round.client.times));
    let histogram = times.histogram()?;
    // The histogram rounds up.
    let at = |share| histogram.value_at_quantile(share).min(times.max) as f64 / 1e3;
    let sum = |of: fn(&Round) -> u64| sum(rounds.iter().map(of));
    let rate = rounds.iter().map(Round::rate).sum::<f64>() / rounds.len().max(1) as f64;
    let bits = rate * f64::from(plan.size) * 8.0;
    let one_way = if plan.both { bits / 2.0 } else { bits };
    let share = |megabits: Option<u64>| {
        let megabits = megabits.filter(|megabits| *megabits > 0)?;
        Some(one_way / (megabits as f64 * 1e4))
    };
    let cpu = |seconds: f64, messages: u64| match messages {
        0 => 0.0,
        _ => seconds * 1e6 / messages as f64,
    };
    let server_cpu = rounds.iter().map(|round| round.server.cpu_seconds).sum();
    let lost = rounds.iter().map(|round| {
        let there = round.client.sent.saturating_sub(round.server.received);
        there.saturating_add(round.server.sent.saturating_sub(round.client.received))
    });
    let cpus = rounds.iter().map(|round| round.client.cpu_per_message());
    Ok(Summary {
        messages: sum(|round| round.client.messages + round.server.messages),
        rate,
        bits,
        of_port: share(client.port_megabits),
        of_pci: share(client.pci_megabits),
        least_interval: least_interval(rounds),
        min: times.min as f64 / 1e3,
        median: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        p9999: at(0.9999),
        max: times.max as f64 / 1e3,
        cpu: cpus.sum::<f64>() * 1e6 / rounds.len().max(1) as f64,
        server_cpu: cpu(server_cpu, sum(|round| round.client.sent)),
        lost: match plan.operation.takes_receive() {
            true => Some(super::recorder::sum(lost)),
            // A run in which one is lost fails.
            false if plan.transport.is_reliable() || plan.is_exchange() => Some(0),
            false => None,
        },
        checked: sum(|round| round.client.checked + round.server.checked),
    })
}

/// The interval with the fewest messages of all rounds, in % of the mean.
fn least_interval(rounds: &[Round]) -> f64 {
    let counts = rounds.iter().flat_map(|round| round.client.rates.whole());
    let (mut all, mut sum, mut least) = (0_u64, 0_u64, u64::MAX);
    for &count in counts {
        (all, sum, least) = (all + 1, sum.saturating_add(count), least.min(count));
    }
    match sum {
        0 => 0.0,
        sum => 100.0 * least as f64 * all as f64 / sum as f64,
    }
}

impl Record {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::new(Kind::NotFound, of_file("read", path, &error)),
            _ => of_file("read", path, &error),
        })?;
        let record = Self::parse(&bytes).and_then(Self::validated);
        record.map_err(|why| Failure::new(Kind::Failed, format_args!("{} {why}", path.display())))
    }

    /// What is wrong continues a sentence that begins with the name of the file.
    fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.trim_ascii().is_empty() {
            return Err("is empty".into());
        }
        serde_json::from_slice(bytes).map_err(|error| match error.is_eof() {
            true => format!("is cut off after {} bytes", bytes.len()),
            false => format!(
                "is no result of `uverbs perf --save` or `--json`: {}",
                Foreign(&error.to_string())
            ),
        })
    }

    /// The record, if it can be one, with the summary of its rounds whatever summary it tells.
    fn validated(mut self) -> Result<Self, String> {
        for run in &mut self.runs {
            run.plan
                .validate()
                .map_err(|failure| format!("has a plan that no run has: {failure}"))?;
            for outcome in run.rounds.iter().flat_map(|it| [&it.client, &it.server]) {
                let nonsense = |why| format!("has an outcome that no run has: {why}");
                outcome.validate().map_err(nonsense)?;
            }
            let summary = summary(&run.plan, &run.rounds, &self.client);
            run.summary = summary.map_err(|failure| failure.to_string())?;
        }
        Ok(self)
    }

    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|error| Failure::new(Kind::Failed, error))?;
        write(path, &text)
    }
}

/// Writes a file as a whole: it has the new content, or what it had before.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = match is_replaced(path) {
        true => beside(path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.persist(path).map(drop).map_err(io::Error::from)
        }),
        false => std::fs::write(path, bytes),
    };
    written.map_err(|error| of_file("write", path, &error))
}

/// Checks that a file can be written; its content stays.
pub(super) fn prepare(path: &Path) -> Result<()> {
    let opened = match is_replaced(path) {
        true => beside(path).map(drop),
        false => {
            let file = File::options().append(true).create(true).open(path);
            file.map(drop)
        }
    };
    opened.map_err(|error| of_file("write", path, &error))
}

/// Whether it is a file, or nothing yet: pipes and links stay what they are.
fn is_replaced(path: &Path) -> bool {
    path.symlink_metadata().map_or(true, |it| it.is_file())
}

/// A file in the same directory, which goes unless it takes the other's place.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    tempfile::Builder::new()
        // As files are made by default: it is not for this user alone.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory.unwrap_or(Path::new(".")))
}

fn of_file(verb: &str, path: &Path, error: &io::Error) -> Failure {
    let text = format_args!("cannot {verb} {}: {error}", path.display());
    Failure::new(Kind::Failed, text)
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::plan::tests::plan;
    use super::super::plan::{Operation, Transport};
    use super::super::recorder::{Rates, Recorder};
    use super::super::time::Time;
    use super::*;

    /// A round in which messages took these times, in microseconds, one after the other.
    pub(in super::super) fn round(times: impl IntoIterator<Item = u64>) -> Round {
        let start = Time::now();
        let mut recorder = Recorder::new(start, None, false).unwrap();
        let mut now = start;
        for time in times {
            let posted = now;
            now = now + Duration::from_micros(time);
            recorder.completed(1, posted, now);
        }
        let client = recorder.outcome();
        Round {
            client: Outcome {
                sent: client.messages,
                ..client
            },
            server: Outcome::default(),
        }
    }

    pub(in super::super) fn run(rounds: Vec<Round>) -> Run {
        let client = Conditions {
            port_megabits: Some(1000),
            ..Conditions::default()
        };
        Run::new(plan(), rounds, &client).unwrap()
    }

    #[test]
    fn a_summary_is_that_of_all_rounds() {
        let run = run(vec![round(vec![100; 1000]), round(vec![200; 1000])]);
        let summary = &run.summary;
        assert_eq!(summary.messages, 2000);
        assert!((summary.rate - 7500.0).abs() < 10.0, "{summary:?}");
        let of_port = 7500.0 * 4096.0 * 8.0 / 1e9 * 100.0;
        assert!(
            (summary.of_port.unwrap() - of_port).abs() < 0.1,
            "{summary:?}"
        );
        assert_eq!((summary.min, summary.max), (100.0, 200.0));
        assert!((summary.median - 100.0).abs() < 0.2, "{summary:?}");
        assert!((summary.p99 - 200.0).abs() < 0.3, "{summary:?}");
        assert_eq!(summary.lost, Some(2000));
    }

    /// Catches a run that tells that nothing was lost where nobody knows.
    #[test]
    fn what_is_lost_is_told_where_it_is_known() {
        let lost = |transport, operation, goal| {
            let plan = Plan {
                transport,
                operation,
                goal,
                ..plan()
            };
            let rounds = vec![round([100; 10])];
            Run::new(plan, rounds, &Conditions::default())
                .unwrap()
                .summary
                .lost
        };
        let (many, one) = (Goal::Bandwidth, Goal::Latency);
        assert_eq!(lost(Transport::Uc, Operation::Send, many), Some(10));
        assert_eq!(lost(Transport::Uc, Operation::Write, many), None);
        assert_eq!(lost(Transport::Uc, Operation::Write, one), Some(0));
        assert_eq!(lost(Transport::Rc, Operation::Write, many), Some(0));
    }

    #[test]
    fn a_stall_is_seen_in_the_least_interval() {
        let smooth = run(vec![round(vec![100; 2000])]).summary;
        assert!(smooth.least_interval > 90.0, "{smooth:?}");
        let mut times = vec![100; 2000];
        times[1000] = 50_000;
        let stalled = run(vec![round(times)]).summary;
        assert_eq!((stalled.least_interval, stalled.max), (0.0, 50_000.0));
    }

    /// Catches the words of the parser, which name lines and columns of a file that has one line.
    #[test]
    fn what_is_wrong_with_a_file_is_told() {
        let told = |text: &str| Record::parse(text.as_bytes()).unwrap_err();
        assert_eq!(told(" \n"), "is empty");
        assert_eq!(told("{\"client\": {"), "is cut off after 12 bytes");
        assert!(told("{}").starts_with("is no result of `uverbs perf --save`"));
        assert!(told("# notes").starts_with("is no result"));
    }

    /// Catches a failed run that leaves an empty file, or a broken one where a whole one was.
    #[test]
    fn a_file_is_written_as_a_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let names = || {
            let names = directory.path().read_dir().unwrap();
            names.map(|it| it.unwrap().file_name()).collect::<Vec<_>>()
        };
        let path = directory.path().join("a.json");
        prepare(&path).unwrap();
        assert!(names().is_empty());
        write(&path, b"old").unwrap();
        prepare(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        prepare(&link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(names().len(), 2);
        let nowhere = directory.path().join("no/a.json");
        assert_eq!(prepare(&nowhere).unwrap_err().kind(), Kind::Failed);
    }

    /// Numbers as a damaged or hostile file has them, many of them at the limits.
    fn any_number() -> impl Strategy<Value = u64> {
        prop_oneof![0..3_u64, any::<u64>(), Just(1 << 53), Just(u64::MAX)]
    }

    fn any_seconds() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(0.0),
            Just(5e-324),
            Just(1e-9),
            Just(0.005),
            Just(1.0),
            Just(1e9),
            Just(1e308),
            Just(-1.0),
            any::<f64>()
        ]
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        let numbers = || proptest::collection::vec(any_number(), 0..5);
        let seconds = [any_seconds(), any_seconds(), any_seconds()];
        (
            proptest::array::uniform4(any_number()),
            seconds,
            numbers(),
            numbers(),
        )
            .prop_map(
                |(
                    [messages, sent, received, checked],
                    [seconds, cpu_seconds, interval],
                    times,
                    counts,
                )| {
                    let (min, max) = (times.first().copied(), times.last().copied());
                    let times = serde_json::json!({
                        "min": min.unwrap_or(0),
                        "max": max.unwrap_or(0),
                        "counts": times.iter().map(|time| (time, time / 2)).collect::<Vec<_>>(),
                    });
                    Outcome {
                        messages,
                        seconds,
                        cpu_seconds,
                        sent,
                        received,
                        checked,
                        times: serde_json::from_value(times).unwrap(),
                        rates: Rates { interval, counts },
                        samples: Vec::new(),
                    }
                },
            )
    }

    fn any_run() -> impl Strategy<Value = Run> {
        let round = (any_outcome(), any_outcome());
        let rounds = proptest::collection::vec(
            round.prop_map(|(client, server)| Round { client, server }),
            0..3,
        );
        let size = prop_oneof![0..3_u32, any::<u32>()];
        (size, any_number(), rounds).prop_map(|(size, checked, rounds)| Run {
            plan: Plan { size, ..plan() },
            summary: Summary {
                checked,
                ..Summary::default()
            },
            rounds,
        })
    }

    proptest! {
        /// Catches a file that stops `perf show`: by an overflow, or by a plot without an end.
        #[test]
        fn what_is_accepted_can_be_shown(
            runs in proptest::collection::vec(any_run(), 0..3),
            port_megabits in proptest::option::of(any_number()),
        ) {
            let client = Conditions { port_megabits, ..Conditions::default() };
            let record = Record { client, runs, ..Record::default() };
            if let Ok(record) = record.validated() {
                super::super::svg::draw(&record).unwrap();
                super::super::show::plots(&record);
                let text = serde_json::to_string(&record).unwrap();
                serde_json::from_str::<Record>(&text).unwrap();
            }
        }
    }

    /// Each of these kept the plots busy without an end, or overflowed.
    #[test]
    fn numbers_that_no_run_has_are_refused() {
        let wrong: [fn(&mut Outcome); 6] = [
            |outcome| outcome.rates.interval = 0.0,
            |outcome| outcome.rates.interval = 5e-324,
            |outcome| outcome.rates.interval = 1e308,
            |outcome| outcome.seconds = 1e308,
            |outcome| outcome.rates.counts = vec![u64::MAX; 2],
            |outcome| outcome.sent = u64::MAX,
        ];
        for (number, change) in wrong.into_iter().enumerate() {
            let mut run = run(vec![round([100; 100])]);
            change(&mut run.rounds[0].client);
            let record = Record {
                runs: vec![run],
                ..Record::default()
            };
            assert!(record.validated().is_err(), "{number}");
        }
    }

    #[test]
    fn a_result_is_read_as_it_was_saved() {
        let client = Conditions {
            port_megabits: Some(1000),
            ..Conditions::default()
        };
        let record = Record {
            runs: vec![run(vec![round(vec![100; 10])])],
            client,
            ..Record::default()
        };
        let path = std::env::temp_dir().join(format!("perf-{}.json", std::process::id()));
        record.save(&path).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record);
        write(&path, b"{}").unwrap();
        assert!(Record::read(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Record::read(&path).unwrap_err().kind(), Kind::NotFound);
    }
}
