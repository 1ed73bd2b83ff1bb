//! Running the programs and turning what they say into records.

mod awaited;
mod c_abi;
mod callgrind;
mod control;
mod instructions;
mod perf;
mod perftest;
mod scale;
mod server;
mod start_up;
mod transfer;
mod waits;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;
use uverbs::{Rc, transport::Dc};

use crate::instructions as instructions_of;

/// The name of a program's column.
pub const OURS: &str = "uverbs";
/// As [`OURS`], linked statically.
pub const OURS_STATIC: &str = "uverbs, static";
/// As [`OURS`], with all rings in an arena.
pub const OURS_ARENA: &str = "uverbs, arena";
/// The agent of a queue that [`OURS`] has handed over.
pub const AGENT: &str = "agent";
/// rdma-core's interface of old: `ibv_post_send`, `ibv_poll_cq`.
pub const RDMA_CORE: &str = "rdma-core";
/// rdma-core's newer interface: `ibv_wr_start` to `ibv_wr_complete`, `ibv_start_poll` to `ibv_end_poll`.
pub const RDMA_CORE_EX: &str = "rdma-core, ibv_wr_*";
/// As [`OURS`], awaited: `uverbs::aio`.
pub const AWAITED: &str = "uverbs, aio";
/// What 99% of [`OURS`] keep to.
pub const OURS_99: &str = "uverbs, 99%";
/// What 99% of [`RDMA_CORE`] keep to.
pub const RDMA_CORE_99: &str = "rdma-core, 99%";
/// perftest's programs.
pub const PERFTEST: &str = "perftest";
/// What 99% of [`PERFTEST`] keep to.
pub const PERFTEST_99: &str = "perftest, 99%";
/// The bare system calls.
pub const BARE: &str = "bare calls";

/// What is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum Group {
    /// Instructions of user space for each operation of the data path
    Instructions,
    /// The same of a C program, on this project's libibverbs.so.1 and on rdma-core's
    CAbi,
    /// What `aio` adds to an operation
    Awaited,
    /// Latency of an awaited operation, by how it is waited for
    Waits,
    /// From exec to the first protection domain and the first completion
    StartUp,
    /// Making and destroying objects
    Control,
    /// Latency and rate of WRITE, READ and SEND
    Transfer,
    /// Latency and rate between two processes, beside perftest
    Perftest,
    /// What `uverbs perf` says, beside what perftest says
    Perf,
    /// Many queue pairs and many regions
    Scale,
}

/// How to measure.
pub struct Plan {
    device: String,
    programs: PathBuf,
    own: PathBuf,
    /// Requests are reliable datagrams: the device has no connections.
    is_connectionless: bool,
    /// Fewer rounds.
    pub quick: bool,
    /// Of the times of waiting for events, only those count at which the process did not sleep.
    pub awake: bool,
    /// The one way of waiting that transfers are measured with, if not all.
    pub wait: Option<String>,
}

impl Plan {
    /// A plan for a device, with the programs in that directory.
    ///
    /// # Errors
    /// If the device cannot be opened and asked, or the path of this program cannot be found.
    pub fn new(device: String, programs: PathBuf) -> Result<Self> {
        let own = std::env::current_exe().context("finding this program")?;
        let is_connectionless = !instructions_of::has::<Rc>(&uverbs::open(&device)?)?;
        Ok(Self {
            device,
            programs,
            own,
            is_connectionless,
            quick: false,
            awake: false,
            wait: None,
        })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// The program through libibverbs for the transport of the device.
    fn rdma_core(&self) -> PathBuf {
        self.program(match self.is_connectionless {
            true => "srd",
            false => "rdma_core",
        })
    }

    /// The program for dynamic connections, if the device has them.
    fn rdma_core_dc(&self) -> Result<Option<PathBuf>> {
        let has = instructions_of::has::<Dc>(&uverbs::open(&self.device)?)?;
        Ok(has.then(|| self.program("dc")))
    }

    fn own(&self) -> &Path {
        &self.own
    }

    /// One number for a quick run, another for a thorough one.
    fn rounds(&self, quick: usize, thorough: usize) -> usize {
        if self.quick { quick } else { thorough }
    }
}

/// A row of a table.
#[derive(Debug, Serialize)]
pub struct Record {
    /// Which table.
    group: String,
    /// What was measured.
    row: String,
    /// What the numbers count.
    unit: &'static str,
    /// The number of each program, by the program's column.
    values: BTreeMap<&'static str, f64>,
    /// Ours over that of `against`; the median over paired runs where there are such.
    ratio: Option<f64>,
    /// The column that the ratio is over.
    against: &'static str,
    /// What is aimed at.
    goal: Option<Goal>,
    /// Other numbers, by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    details: BTreeMap<String, serde_json::Value>,
}

/// What is aimed at, and whether it was come to.
#[derive(Debug, Serialize)]
pub struct Goal {
    /// In words.
    text: &'static str,
    /// Whether the number is within it.
    met: bool,
}

impl Record {
    /// A row with the numbers of some programs, and the ratio of ours over one other.
    fn new(
        group: &str,
        row: impl Into<String>,
        unit: &'static str,
        against: &'static str,
        values: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> Self {
        let values: BTreeMap<_, _> = values.into_iter().collect();
        let ratio = match (values.get(OURS), values.get(against)) {
            (Some(ours), Some(other)) if *other > 0.0 => Some(ours / other),
            _ => None,
        };
        Self {
            group: group.to_owned(),
            row: row.into(),
            unit,
            values,
            ratio,
            against,
            goal: None,
            details: BTreeMap::new(),
        }
    }

    /// Gives the ratio as found over paired runs.
    fn paired(mut self, ratio: Option<f64>) -> Self {
        self.ratio = ratio;
        self
    }

    /// A goal for the ratio: at most so much.
    fn ratio_at_most(mut self, text: &'static str, most: f64) -> Self {
        let met = self.ratio.is_some_and(|ratio| ratio <= most);
        self.goal = Some(Goal { text, met });
        self
    }

    /// A goal for our own number: at most so much.
    fn ours_at_most(mut self, text: &'static str, most: f64) -> Self {
        let met = self.values.get(OURS).is_some_and(|ours| *ours <= most);
        self.goal = Some(Goal { text, met });
        self
    }

    /// A goal of another kind.
    fn goal(mut self, text: &'static str, met: bool) -> Self {
        self.goal = Some(Goal { text, met });
        self
    }

    /// Another number.
    fn detail(mut self, name: impl Into<String>, value: serde_json::Value) -> Self {
        self.details.insert(name.into(), value);
        self
    }

    /// Prints the record as a line of JSON.
    fn print(&self) -> Result<()> {
        println!("{}", serde_json::to_string(self)?);
        Ok(())
    }
}

/// Measures the groups, or all if none is named, and prints each record when it is there.
///
/// # Errors
/// If a program fails.
pub fn run(plan: &Plan, groups: &[Group]) -> Result<()> {
    let groups = if groups.is_empty() {
        Group::value_variants()
    } else {
        groups
    };
    for group in groups {
        match group {
            Group::Instructions => instructions::run(plan)?,
            Group::CAbi => c_abi::run(plan)?,
            Group::Awaited => awaited::run(plan)?,
            Group::Waits => waits::run(plan)?,
            Group::StartUp => start_up::run(plan)?,
            Group::Control => control::run(plan)?,
            Group::Transfer => transfer::run(plan)?,
            Group::Perftest => perftest::run(plan)?,
            Group::Perf => perf::run(plan)?,
            Group::Scale => scale::run(plan)?,
        }
    }
    Ok(())
}

/// The middle one, none of nothing.
fn median<T: Copy + PartialOrd>(values: &[T]) -> Option<T> {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    sorted.get(sorted.len() / 2).copied()
}
