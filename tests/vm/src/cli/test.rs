//! `cargo vm test`.

use std::collections::VecDeque;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use connectx::PortKind;

use super::options::{Adapter, Machine};
use crate::fetch::{self, Parts};
use crate::guest::{self, protocol::Network};
use crate::hca::{self, Hca};
use crate::results::{self, Group, Verdict};
use crate::store::Store;
use crate::suite::{self, Ground, Limits, Program, Suite};
use crate::support;

/// Run all tests: those of the host, then those of the guest on each kernel, on soft-RoCE and on the adapter
///
/// The last line is `N passed, N failed, N skipped`, over everything. A skipped test says why. The guest's tests are the
/// programs that [package.metadata.vm] in Cargo.toml lists, each kernel is booted once, and what it has to complain
/// about in its log is a failure too. With --hca only those tests run that are for the adapter, on the adapter named; N is 2
/// if it is not given.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm test\n  cargo vm test --kernel 6.1 mr::\n  cargo vm test --no-host --kernel latest\n  cargo vm test --hca connectx,roce --kernel 7.2"
)]
pub(crate) struct Test {
    /// A kernel series (6.1, 6.12, 7.2, latest for the last of these, or another that Debian has), the path of a system kernel, or all series
    #[arg(long, value_name = "K", default_value = "all")]
    kernel: String,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    adapter: Adapter,
    /// How many guests run at a time, each with tests of its own; if not given, one for each CPU, at most 4
    #[arg(long, value_name = "N")]
    guests_at_a_time: Option<NonZeroUsize>,
    /// Leave out the host's part
    #[arg(long)]
    no_host: bool,
    /// The time limit of one test in the guest, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    test_timeout: u64,
    /// Write what worked on which kernel to this file, as a Markdown table
    #[arg(long, value_name = "FILE")]
    support: Option<PathBuf>,
    /// Only tests whose names contain one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Where programs run: one host or two with soft-RoCE, or one with an adapter.
#[derive(Clone, Debug)]
enum Place {
    One,
    Two,
    Adapter(Hca),
}

impl Place {
    fn hca(&self) -> Option<&Hca> {
        match self {
            Place::One | Place::Two => None,
            Place::Adapter(hca) => Some(hca),
        }
    }
}

impl Test {
    /// Runs them.
    ///
    /// # Errors
    /// If they cannot be run at all. Tests that fail are a status.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let store = Store::open()?;
        let suites = suite::read(store.workspace())?;
        let hca = self.adapter.wanted();
        let mut groups = Vec::new();
        if !self.no_host && hca.is_none() {
            println!("host");
            groups.push(suite::run_on_host(store.workspace(), &suites, &self.names)?);
        }
        let of_host = groups.len();
        let build = |ground| suite::programs(store.workspace(), &suites, ground);
        let mut rounds = Vec::new();
        let mut soft = 0;
        if hca.is_none() {
            let [one, two] = [Ground::SoftRoce, Ground::TwoHosts].map(build);
            self.plan(&Place::One, one?, &mut rounds);
            soft = rounds.len();
            self.plan(&Place::Two, two?, &mut rounds);
        }
        let wired = rounds.len();
        let adapters = match hca {
            Some(hca) => vec![hca.or_functions(hca::FOR_TESTS)],
            None => [PortKind::InfiniBand, PortKind::Roce]
                .map(Hca::for_tests)
                .to_vec(),
        };
        for hca in &adapters {
            self.plan(
                &Place::Adapter(hca.clone()),
                build(Ground::Adapter)?,
                &mut rounds,
            );
        }
        for hca in adapters {
            let place = Place::Adapter(hca.shared_by(2));
            self.plan(&place, build(Ground::Pair)?, &mut rounds);
        }
        let mut of_guests = self.run_rounds(&store, &suites, rounds);
        // In the tables a kernel is one column.
        for (index, group) in of_guests
            .drain(soft..wired)
            .collect::<Vec<_>>()
            .into_iter()
            .enumerate()
        {
            if let Some(column) = of_guests.get_mut(index) {
                column.cases.extend(group.cases);
                column.known_faults.extend(group.known_faults);
            }
        }
        groups.extend(of_guests);
        let soft = of_host + soft;
        if let Some(path) = &self.support {
            fs::write(path, support::page(&groups[of_host..soft], &groups[soft..]))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        let totals = results::totals(&groups);
        print!("\n{}", results::summary(&groups));
        Ok(if totals.clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Plans a boot of each kernel that was asked for, for these programs.
    fn plan(&self, place: &Place, programs: Vec<Program>, rounds: &mut Vec<Round>) {
        if programs.is_empty() {
            return;
        }
        let kernels = fetch::kernel::asked_for(&self.kernel).into_iter();
        rounds.extend(kernels.map(|kernel| Round {
            place: place.clone(),
            kernel: kernel.to_owned(),
            programs: programs.clone(),
        }));
    }

    /// Runs the rounds, some at a time, and gives their results in the order of the rounds.
    ///
    /// A guest whose CPUs are emulated keeps about one CPU busy, since a test waits more than it computes.
    fn run_rounds(&self, store: &Store, suites: &[Suite], rounds: Vec<Round>) -> Vec<Group> {
        let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let at_a_time = self.guests_at_a_time.map_or(cpus.min(4), NonZeroUsize::get);
        let mut groups: Vec<Option<Group>> = rounds.iter().map(|_| None).collect();
        let mut waiting = VecDeque::new();
        // One after the other, for kernels are fetched and a trial boot may be made.
        for (index, round) in rounds.into_iter().enumerate() {
            match self.prepare(store, suites, &round) {
                Ok(prepared) => waiting.push_back((index, round, prepared)),
                Err(error) => groups[index] = Some(round.failed(&error)),
            }
        }
        let (waiting, results) = (Mutex::new(waiting), Mutex::new(groups));
        thread::scope(|scope| {
            for _ in 0..at_a_time {
                scope.spawn(|| {
                    while let Some((index, round, prepared)) = take(&waiting) {
                        let group = self.run_round(store, &round, &prepared, at_a_time > 1);
                        results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(group);
                    }
                });
            }
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_iter().flatten().collect()
    }

    fn prepare(
        &self,
        store: &Store,
        suites: &[Suite],
        round: &Round,
    ) -> Result<(Parts, guest::Options)> {
        let machine = &self.machine;
        let prepared = match &round.place {
            Place::One => machine.prepare(store, &round.kernel, Network::OneHost),
            Place::Two => machine.prepare(store, &round.kernel, Network::TwoHosts),
            Place::Adapter(hca) => machine.prepare_with_adapter(store, &round.kernel, hca.clone()),
        };
        let (parts, options) = prepared?;
        suite::compile_c_programs(store, suites, &parts.tools.root)?;
        Ok((parts, options))
    }

    /// The guest's tests on one kernel. A kernel that cannot be booted is a failure, and the others go on.
    fn run_round(
        &self,
        store: &Store,
        round: &Round,
        (parts, options): &(Parts, guest::Options),
        beside_others: bool,
    ) -> Group {
        let limits = Limits {
            filters: self.names.clone(),
            test: Duration::from_secs(self.test_timeout),
            beside_others,
        };
        suite::run_in_guest(store, parts, options, &round.programs, &limits)
            .unwrap_or_else(|error| round.failed(&error))
    }
}

/// Programs to be run in one boot of a kernel.
struct Round {
    place: Place,
    kernel: String,
    programs: Vec<Program>,
}

impl Round {
    /// The result of a round that could not be run.
    fn failed(&self, error: &anyhow::Error) -> Group {
        let name = suite::name_of_guest(&self.kernel, self.place.hca());
        println!("\n{name}\nFAILED   {error:#}");
        let mut group = Group::new(name);
        group.add("boot", Verdict::Failed(format!("{error:#}")));
        group
    }
}

/// Takes what is first, and lets go of the lock.
fn take<T>(queue: &Mutex<VecDeque<T>>) -> Option<T> {
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.pop_front()
}
