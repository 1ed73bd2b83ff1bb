//! `cargo vm test`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::c_abi;
use super::options::{Adapter, Architecture, Machine};
use crate::arch::Arch;
use crate::fetch::{self, Missing, Parts};
use crate::guest::{self, protocol::Network};
use crate::hca::{self, Hca};
use crate::results::{self, Case, Group, Verdict};
use crate::store::Store;
use crate::suite::{
    self, Built, Cell, Device, Ground, Job, Kept, Limits, Place, Record, Round, Sanitized,
    Sanitizer, Signals, Suite, Target,
};
use crate::support;

/// What is known of where tests run, in the workspace.
const RECORD: &str = "docs/support.txt";

/// Run the tests: those of the host, and those of the guest on three kernels and four devices
///
/// The last line is `N passed, N failed, N skipped`, over everything. A skipped test says why. The guest's
/// tests are the programs that [package.metadata.vm] in Cargo.toml lists, and what a kernel has to complain
/// about in its log is a failure too. Without options and names each test of the guest runs once on each
/// kernel and at least once on each device (soft-RoCE, an adapter with InfiniBand ports, one with RoCE
/// ports, an EFA), and a few run on arm64 as well; with --full, a name, --kernel, --hca or --no-hca, it runs
/// on all kernels and devices that these leave. --full also runs some once more while signals interrupt their
/// system calls; --signals runs these alone. N of --hca is 2 if it is not given.
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  cargo vm test\n  cargo vm test mr::\n  cargo vm test --kernel 6.1 --no-hca mr::\n  cargo vm test --hca connectx,roce --kernel latest\n  \
    cargo vm test --arch arm64 --kernel latest-16k domain\n  \
    cargo vm test --signals --kernel latest cm::\n  \
    cargo vm test --full --support docs/support.md\n  cargo vm test --support docs/support.md perf::"
)]
pub(crate) struct Test {
    /// A kernel series (6.1, 6.12, latest for the newest that backports has, or another that Debian has), the
    /// path of a system kernel, or all of the three; on arm64 latest, latest-16k, or both
    #[arg(long, value_name = "K", default_value = "all")]
    kernel: String,
    #[command(flatten)]
    architecture: Architecture,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    adapter: Adapter,
    /// Every test of the guest on every kernel and every device
    #[arg(long)]
    full: bool,
    /// Go on with a run in full that was cut off or had failures: in guests where none has failed, tests that
    /// have run are not run again
    #[arg(long, requires = "full", conflicts_with_all = ["names", "list", "sanitizer"])]
    resume: bool,
    /// Show which test of the guest runs where, and run none
    #[arg(long, conflicts_with = "support")]
    list: bool,
    /// How many guests run at a time, the host's part counted as one; if not given, one for each CPU, at most
    /// 4
    #[arg(long, value_name = "N")]
    guests_at_a_time: Option<NonZeroUsize>,
    /// Build with this sanitizer, and run the library's unit tests and the guest's tests so, which take
    /// longer; system calls and memory of the process are not counted then
    #[arg(long, value_name = "WHICH", conflicts_with_all = ["arch", "support"])]
    sanitizer: Option<Sanitizer>,
    /// Only the tests that run while signals interrupt them, on these kernels, with soft-RoCE or this adapter
    #[arg(long, conflicts_with_all = ["arch", "sanitizer", "support", "resume"])]
    signals: bool,
    /// When signals come follows from this number; another one in each run if it is not given
    #[arg(long, value_name = "NUMBER")]
    signal_seed: Option<u64>,
    /// Leave out the host's part
    #[arg(long)]
    no_host: bool,
    /// Leave out the adapters: soft-RoCE alone
    #[arg(long, conflicts_with = "hca")]
    no_hca: bool,
    /// The time limit of one test in the guest, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    test_timeout: u64,
    /// Write what worked where to this file, as Markdown, and which test ran where beside it, as FILE.txt: of
    /// all tests with --full, otherwise of the named ones, or of those that the record did not know yet. With
    /// --hca or --no-hca that is of tests that the record knows, and of these devices
    #[arg(long, value_name = "FILE")]
    support: Option<PathBuf>,
    /// Only tests whose names contain one of these
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// A kernel of the run.
struct Kernel {
    arch: Arch,
    /// What the command line calls it.
    wanted: String,
    /// Its series, or what it is called in reports.
    series: String,
}

/// The kernels of the run, which are there.
struct Fetched {
    kernels: Vec<Kernel>,
    /// Those of arm64 in a run of everything, or why that part cannot run.
    of_arm64: Option<Result<Vec<Kernel>>>,
}

/// What a guest is made of.
type Prepared = (Parts, guest::Options);

/// A guest that can be booted.
struct Boot {
    prepared: Prepared,
    /// What is to be run.
    round: Round,
    /// What an earlier run has of the guest.
    before: Group,
}

/// The host's part, which runs already.
type RunningHost<'scope> = ScopedJoinHandle<'scope, Result<Group>>;

impl Test {
    /// Runs them.
    ///
    /// # Errors
    /// If they cannot be run at all. Tests that fail are a status.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if self.support.is_some() && self.kernel != "all" {
            bail!("--support is for a run on all kernels");
        }
        if self.support.is_some() && self.arch() != Arch::X86_64 {
            bail!("--support is for a run that begins with this machine's architecture");
        }
        let store = Store::open()?;
        let suites = suite::read(store.workspace())?;
        let record = Record::read(&store.workspace().join(RECORD))?;
        if self.full && self.arch() == Arch::X86_64 {
            fetch::full_tools(&store)?;
        }
        let sanitized = self.sanitized(&store)?;
        let (fetched, built) = thread::scope(|scope| {
            // The network and cargo do not wait for each other.
            let fetched = scope.spawn(|| self.fetch(&store));
            let built = self.build(&store, &suites, sanitized.as_ref());
            (joined(fetched), built)
        });
        let (fetched, built) = (fetched?, built?);
        thread::scope(|scope| {
            // It has what it needs now. The guests need more, which is made meanwhile.
            let host = self.with_host() && !self.list;
            let host =
                host.then(|| scope.spawn(|| self.run_host(&store, &suites, sanitized.as_ref())));
            self.run_guests(&store, &suites, record, fetched, &built, host)
        })
    }

    /// Runs the guests' part, and reports on both.
    fn run_guests(
        &self,
        store: &Store,
        suites: &[Suite],
        record: Record,
        fetched: Fetched,
        built: &Built,
        host: Option<RunningHost<'_>>,
    ) -> Result<ExitCode> {
        let (kernels, rounds, absent) = self.plan(store, suites, &record, fetched, built)?;
        if !self.list
            && rounds.iter().any(|round| {
                let is_here = kernels[round.kernel].arch == Arch::X86_64;
                is_here && round.place.ground() == Ground::Efa
            })
        {
            // This machine's perftest knows less of an EFA.
            fetch::newer_programs(store)?;
        }
        if self.list {
            print!("{}", listed(&kernels, &rounds));
            return Ok(ExitCode::SUCCESS);
        }
        if self.keeps() && !self.resume {
            let names = rounds
                .iter()
                .map(|round| suite::name_of_guest(&kernels[round.kernel].series, &round.place));
            Kept(store).forget(names)?;
        }
        let (host, of_guests) = self.run_all(store, suites, &kernels, &rounds, host)?;
        let columns = columns(&kernels, &rounds, &of_guests);
        if let Some(path) = &self.support {
            match results::totals(&of_guests).clean() {
                true => self.write_support(path, record.clone(), &kernels, &rounds, &columns)?,
                false => println!("tests failed, so {} is not written", path.display()),
            }
        }
        let nowhere = ran_nowhere(&record, &rounds, &columns);
        let groups: Vec<Group> = host.into_iter().chain(of_guests).chain(absent).collect();
        print!(
            "\nslowest tests of the guests\n{}{nowhere}\n{}",
            results::slowest(&groups),
            results::summary(&groups)
        );
        Ok(if results::totals(&groups).clean() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Fetches what the guests are made of.
    fn fetch(&self, store: &Store) -> Result<Fetched> {
        Ok(Fetched {
            kernels: self.kernels(store, self.arch())?,
            of_arm64: (!self.selects()).then(|| self.fetch_arm64(store)),
        })
    }

    /// Fetches what the part on arm64 needs in a run of everything, and gives its kernels.
    fn fetch_arm64(&self, store: &Store) -> Result<Vec<Kernel>> {
        fetch::cross(store)?;
        self.kernels(store, Arch::Arm64)
    }

    /// The kernels that were asked for. What they are is known when they are there.
    fn kernels(&self, store: &Store, arch: Arch) -> Result<Vec<Kernel>> {
        let kernel = |wanted: &str| {
            let parts = fetch::parts(store, arch, wanted, self.machine.qemu.as_deref())?;
            Ok(Kernel {
                arch,
                wanted: wanted.to_owned(),
                series: parts.kernel.name,
            })
        };
        let asked_for = fetch::kernel::asked_for(arch, &self.kernel);
        asked_for.into_iter().map(kernel).collect()
    }

    /// The rounds, with the kernels of this machine's architecture and of others; and of what cannot run here
    /// the reason, as a result.
    ///
    /// A run of everything has a part on arm64 after that on this machine's architecture.
    fn plan(
        &self,
        store: &Store,
        suites: &[Suite],
        record: &Record,
        Fetched {
            mut kernels,
            of_arm64,
        }: Fetched,
        built: &Built,
    ) -> Result<(Vec<Kernel>, Vec<Round>, Option<Group>)> {
        if self.arch() == Arch::Arm64 {
            let rounds = self.arm64_rounds(store, suites, built, kernels.len(), true)?;
            return Ok((kernels, rounds, None));
        }
        let mut rounds = self.rounds(suites, built, &kernels, record)?;
        let Some(of_arm64) = of_arm64 else {
            return Ok((kernels, rounds, None));
        };
        let planned = of_arm64.and_then(|further| {
            let rounds = self.arm64_rounds(store, suites, built, further.len(), self.full)?;
            Ok((further, rounds))
        });
        match planned {
            Ok((further, of_arm64)) => {
                let first = kernels.len();
                kernels.extend(further);
                rounds.extend(of_arm64.into_iter().map(|round| Round {
                    kernel: first + round.kernel,
                    ..round
                }));
                Ok((kernels, rounds, None))
            }
            Err(error) => {
                let mut group = Group::new("arm64");
                let verdict = match error.downcast_ref::<Missing>() {
                    Some(missing) => Verdict::Skipped(missing.to_string()),
                    None => Verdict::Failed(format!("{error:#}")),
                };
                group.add("all tests", verdict);
                Ok((kernels, rounds, Some(group)))
            }
        }
    }

    /// The rounds on arm64: all tests for it on each kernel and device, or those that run always, on
    /// soft-RoCE with the first kernel and on the adapter with the last.
    ///
    /// Its programs do not run here, so those of this machine, `here`, tell what tests there are.
    fn arm64_rounds(
        &self,
        store: &Store,
        suites: &[Suite],
        here: &Built,
        kernels: usize,
        all: bool,
    ) -> Result<Vec<Round>> {
        let part = match all {
            true => Suite::for_arm64,
            false => Suite::for_arm64_always,
        };
        let suites: Vec<Suite> = suites.iter().map(part).collect();
        let always: Vec<&String> = suites
            .iter()
            .flat_map(|suite| &suite.arm64_always)
            .collect();
        let places = self.places_on_arm64(all);
        let cross = fetch::cross(store)?;
        let target = Target::Arm64(&cross);
        let built = Built::some(store.workspace(), target, &suites, &grounds(&places))?;
        let mut rounds = Vec::new();
        for place in places {
            let mut jobs = Vec::new();
            let programs = built.programs(&suites, place.ground())?;
            let here = here.programs(&suites, place.ground())?;
            for (program, here) in programs.into_iter().zip(here) {
                jobs.extend(Job::all(&Arc::new(program), &here)?);
            }
            jobs.retain(|job| job.is_wanted(&self.names));
            if !all {
                jobs.retain(|job| always.contains(&&job.name()));
            }
            let its = match place.device() {
                _ if all => 0..kernels,
                Device::SoftRoce => 0..1,
                Device::Roce => kernels - 1..kernels,
                Device::InfiniBand | Device::Efa => 0..0,
            };
            rounds.extend(its.map(|kernel| Round {
                place: place.clone(),
                kernel,
                jobs: jobs.clone(),
            }));
        }
        rounds.retain(|round| !round.jobs.is_empty());
        Ok(rounds)
    }

    /// Where tests run.
    fn places(&self) -> Vec<Place> {
        if self.signals {
            let hca = self.adapter.wanted();
            return vec![Place::Signals(
                hca.map(|hca| hca.or_functions(hca::FOR_TESTS)),
            )];
        }
        let adapters = match self.adapter.wanted() {
            Some(hca) => vec![hca.or_functions(hca::FOR_TESTS)],
            None if self.no_hca => Vec::new(),
            None => hca::Kind::ALL.map(Hca::for_tests).to_vec(),
        };
        let mut places = match self.adapter.wanted() {
            Some(_) => Vec::new(),
            None => vec![Place::One, Place::Two],
        };
        places.extend(adapters.iter().cloned().map(Place::Adapter));
        // Those of an EFA show little that functions in one guest do not: they are for who asks.
        let shared = adapters
            .into_iter()
            .filter(|hca| hca.kind() != hca::Kind::Efa || self.full || self.selects());
        let shared = shared.map(|hca| hca.shared_by(2));
        places.extend(shared.map(Place::Adapter));
        if self.keeps() && self.adapter.wanted().is_none() {
            let roce = Hca::for_tests(hca::Kind::ConnectX(connectx::PortKind::Roce));
            places.extend([None, Some(roce)].map(Place::Signals));
        }
        places
    }

    /// Where tests run on arm64: all of them, or those that run always. An EFA is no place of these.
    fn places_on_arm64(&self, all: bool) -> Vec<Place> {
        let mut places = self.places();
        places.retain(|place| match place.ground() {
            Ground::SoftRoce | Ground::Adapter => true,
            Ground::Efa => all,
            Ground::TwoHosts | Ground::Pair | Ground::Signals => false,
        });
        places
    }

    /// Whether the host's part runs.
    fn with_host(&self) -> bool {
        !self.no_host
            && !self.signals
            && self.adapter.wanted().is_none()
            && self.arch() == Arch::X86_64
    }

    fn arch(&self) -> Arch {
        self.architecture.arch
    }

    /// Whether less than everything was asked for.
    fn selects(&self) -> bool {
        let asks = !self.names.is_empty() || self.no_hca || self.adapter.wanted().is_some();
        asks || self.signals
            || self.sanitizer.is_some()
            || self.kernel != "all"
            || self.arch() != Arch::X86_64
    }

    /// Whether the results of each guest are kept for a run that goes on with this one.
    fn keeps(&self) -> bool {
        self.full && !self.signals && self.names.is_empty() && self.sanitizer.is_none()
    }

    /// Whether tests are dealt to kernels and devices: who asks for less than all has a question about that.
    fn deals(&self) -> bool {
        !self.full && !self.selects()
    }

    /// What to build with, fetched if it is not there.
    fn sanitized(&self, store: &Store) -> Result<Option<Sanitized>> {
        let Some(by) = self.sanitizer else {
            return Ok(None);
        };
        let library = match by.needs_library() {
            true => Some(fetch::standard_library(store)?),
            false => None,
        };
        Ok(Some(Sanitized { by, library }))
    }

    /// Builds the programs as this machine runs them.
    fn build(
        &self,
        store: &Store,
        suites: &[Suite],
        sanitized: Option<&Sanitized>,
    ) -> Result<Built> {
        let workspace = store.workspace();
        if self.arch() == Arch::Arm64 {
            let suites: Vec<Suite> = suites.iter().map(Suite::for_arm64).collect();
            let grounds = grounds(&self.places_on_arm64(true));
            return Built::some(workspace, Target::Here, &suites, &grounds);
        }
        let grounds = grounds(&self.places());
        match sanitized {
            Some(by) => Built::some(workspace, Target::Sanitized(by), suites, &grounds),
            None if self.with_host() => Built::all(workspace),
            None => Built::some(workspace, Target::Here, suites, &grounds),
        }
    }

    /// Plans which tests run in which boot. Rounds without tests are left out.
    fn rounds(
        &self,
        suites: &[Suite],
        built: &Built,
        kernels: &[Kernel],
        record: &Record,
    ) -> Result<Vec<Round>> {
        let mut rounds = Vec::new();
        for place in self.places() {
            let mut jobs = Vec::new();
            for program in built.programs(suites, place.ground())? {
                let program = Arc::new(program);
                jobs.extend(Job::all(&program, &program)?);
            }
            // In a run of everything, once: on the newest.
            let its = match place {
                Place::Signals(_) if !self.signals => kernels.len() - 1..kernels.len(),
                _ => 0..kernels.len(),
            };
            rounds.extend(its.map(|kernel| Round {
                place: place.clone(),
                kernel,
                jobs: jobs.clone(),
            }));
        }
        if !self.selects() {
            let series: Vec<String> = kernels.iter().map(|kernel| kernel.series.clone()).collect();
            // What only a run in full has is dear, and is dealt there.
            suite::deal(&mut rounds, record, &series, |test| {
                !self.full || record.ran_nowhere(test)
            });
        }
        for round in &mut rounds {
            round.jobs.retain(|job| job.is_wanted(&self.names));
        }
        rounds.retain(|round| !round.jobs.is_empty());
        Ok(rounds)
    }

    /// Runs the host's part.
    fn run_host(
        &self,
        store: &Store,
        suites: &[Suite],
        sanitized: Option<&Sanitized>,
    ) -> Result<Group> {
        println!("host");
        suite::run_on_host(
            store.workspace(),
            suites,
            &self.names,
            sanitized,
            self.at_a_time() > 1,
        )
    }

    /// How many parts run at a time: as many as there are CPUs, at most four, if it was not said. A guest
    /// whose CPUs are emulated keeps about one CPU busy, and so does the host's part.
    fn at_a_time(&self) -> usize {
        let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.guests_at_a_time.map_or(cpus.min(4), NonZeroUsize::get)
    }

    /// Runs the rounds, some at a time, the host's part counted as one; gives its results, and those of the
    /// rounds in their order. A round begins as soon as it is prepared.
    fn run_all(
        &self,
        store: &Store,
        suites: &[Suite],
        kernels: &[Kernel],
        rounds: &[Round],
        mut host: Option<RunningHost<'_>>,
    ) -> Result<(Option<Group>, Vec<Group>)> {
        let interrupts = |round: &Round| matches!(round.place, Place::Signals(_));
        let signals = match rounds.iter().any(interrupts) {
            true => Some(Signals::new(store, self.signal_seed)?),
            false => None,
        };
        let parts = rounds.len() + usize::from(host.is_some());
        let beside_others = self.at_a_time() > 1 && parts > 1;
        let groups: Mutex<Vec<Option<Group>>> = Mutex::new(rounds.iter().map(|_| None).collect());
        let put = |index: usize, group| locked(&groups, |groups| groups[index] = Some(group));
        let (ready, waiting) = mpsc::channel::<(usize, Box<Boot>)>();
        let waiting = Mutex::new(waiting);
        let lane = |host: Option<RunningHost<'_>>| {
            let of_host = host.map(joined);
            while let Ok((index, boot)) = locked(&waiting, |waiting| waiting.recv()) {
                let kernel = &kernels[boot.round.kernel];
                let signals = signals.as_ref();
                put(
                    index,
                    self.run_round(store, *boot, kernel, beside_others, signals),
                );
            }
            of_host
        };
        let of_host = thread::scope(|scope| {
            let lane = &lane;
            let lanes: Vec<_> = (0..self.at_a_time())
                .map(|_| host.take())
                .map(|host| scope.spawn(move || lane(host)))
                .collect();
            self.prepare_all(store, suites, kernels, rounds, |index, prepared| {
                match prepared {
                    // The lanes take what comes until the sender is gone.
                    Ok(boot) => _ = ready.send((index, boot)),
                    Err(group) => put(index, group),
                }
            });
            drop(ready);
            lanes.into_iter().find_map(joined)
        });
        let groups = groups.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((of_host.transpose()?, groups.into_iter().flatten().collect()))
    }

    /// Prepares the rounds one after the other, for a trial boot may be made, and hands over each by its
    /// number; of one that does not run, the results. What takes longest comes first, so that no CPU is idle
    /// in the end while another has much to do.
    fn prepare_all(
        &self,
        store: &Store,
        suites: &[Suite],
        kernels: &[Kernel],
        rounds: &[Round],
        mut hand_over: impl FnMut(usize, std::result::Result<Box<Boot>, Group>),
    ) {
        let mut order: Vec<usize> = (0..rounds.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(rounds[*index].weight()));
        let of_library = |job: &Job| job.program.name == c_abi::TESTS;
        if rounds.iter().any(|round| round.jobs.iter().any(of_library))
            && let Err(error) = c_abi::build(store)
        {
            // Its tests say so.
            eprintln!("vm: no C library: {error:#}");
        }
        let of_newer = |job: &Job| of_library(job) && job.name().contains(c_abi::NEWER_TESTS);
        if rounds.iter().any(|round| round.jobs.iter().any(of_newer))
            && let Err(error) = fetch::newer_programs(store)
        {
            // The tests say so.
            eprintln!("vm: no programs of newer suites: {error:#}");
        }
        let of_watched = |job: &Job| of_library(job) && job.name().contains(c_abi::SANITIZED_TEST);
        if (self.full || !self.names.is_empty())
            && rounds.iter().any(|round| round.jobs.iter().any(of_watched))
            && let Err(error) = c_abi::build_sanitized(store)
        {
            // The test says so.
            eprintln!("vm: no C library with the thread sanitizer: {error:#}");
        }
        for index in order {
            let round = &rounds[index];
            let kernel = &kernels[round.kernel];
            let (round, before) = self.left(store, round, kernel);
            if round.jobs.is_empty() {
                hand_over(index, Err(before));
                continue;
            }
            let prepared = match self.prepare(store, suites, &round, kernel) {
                Ok(prepared) => Ok(Box::new(Boot {
                    prepared,
                    round,
                    before,
                })),
                Err(error) => Err(failed(&round, kernel, &error)),
            };
            hand_over(index, prepared);
        }
    }

    /// What is to be run of a round: all, or what is left if this run goes on with one that was cut off,
    /// whose results come with it.
    fn left(&self, store: &Store, round: &Round, kernel: &Kernel) -> (Round, Group) {
        let name = suite::name_of_guest(&kernel.series, &round.place);
        let (mut round, mut before) = (round.clone(), Group::new(&*name));
        if self.resume {
            before = Kept(store).take_from(&mut round, &name).unwrap_or(before);
            let (ran, left) = (before.cases.len(), round.jobs.len());
            println!("{name}: {ran} tests have run, {left} are left");
        }
        (round, before)
    }

    fn prepare(
        &self,
        store: &Store,
        suites: &[Suite],
        round: &Round,
        kernel: &Kernel,
    ) -> Result<Prepared> {
        let (machine, arch) = (&self.machine, kernel.arch);
        let kernel = &kernel.wanted;
        let prepared = match &round.place {
            Place::One | Place::Signals(None) => {
                machine.prepare(store, arch, kernel, Network::OneHost)
            }
            Place::Two => machine.prepare(store, arch, kernel, Network::TwoHosts),
            Place::Adapter(hca) | Place::Signals(Some(hca)) => {
                machine.prepare_with_adapter(store, arch, kernel, hca.clone())
            }
        };
        let (parts, options) = prepared?;
        if arch == Arch::X86_64 {
            suite::compile_c_programs(store, suites, &parts.tools.root)?;
        }
        if round.jobs.iter().any(suite::has_example_agent) {
            suite::build_example_agent(store, arch)?;
        }
        Ok((parts, options))
    }

    /// The guest's tests on one kernel. A kernel that cannot be booted is a failure, and the others go on.
    fn run_round(
        &self,
        store: &Store,
        Boot {
            prepared: (parts, options),
            round,
            before,
        }: Boot,
        kernel: &Kernel,
        beside_others: bool,
        signals: Option<&Signals>,
    ) -> Group {
        let limits = Limits {
            test: Duration::from_secs(self.test_timeout),
            full: self.full || !self.names.is_empty(),
            beside_others,
            sanitizer: self.sanitizer,
            signals: signals.filter(|_| matches!(round.place, Place::Signals(_))),
        };
        let ran = suite::run_in_guest(store, &parts, &options, &round, limits);
        let ran = ran.unwrap_or_else(|error| failed(&round, kernel, &error));
        let group = before.and(ran);
        if self.keeps()
            && let Err(error) = Kept(store).keep(&group)
        {
            eprintln!("vm: {} would run again: {error:#}", group.name);
        }
        group
    }

    /// Writes what the next run that deals tests must know, and beside it the page for people, made from it.
    /// No test has failed, so a test that ran has passed.
    ///
    /// # Errors
    /// If a file cannot be written, or other kernels than the record's were tried with less than all tests.
    fn write_support(
        &self,
        path: &Path,
        mut record: Record,
        kernels: &[Kernel],
        rounds: &[Round],
        columns: &[Column],
    ) -> Result<()> {
        let dealt = kernels.iter().filter(|kernel| kernel.arch == Arch::X86_64);
        let mut of_run = Record::new(dealt.map(|kernel| kernel.series.clone()).collect());
        for (round, column) in of_deal(rounds, columns) {
            for case in &column.cases {
                let ran = !matches!(case.verdict, Verdict::Skipped(_));
                // Where only a run in full has a test, no other run should look for it.
                let is_dear = self.full && record.ran_nowhere(&case.name);
                of_run.note(&case.name, round.cell(), ran && !is_dear);
            }
        }
        let some_devices = self.no_hca || self.adapter.wanted().is_some();
        if !self.full || some_devices {
            if of_run.kernels() != record.kernels() {
                bail!(
                    "the record is of Linux {}, and this run was on {}: run all with --full",
                    record.kernels().join(", "),
                    of_run.kernels().join(", ")
                );
            }
            if self.deals() {
                record.keep(|test| of_run.has(test));
                of_run.keep(|test| !record.knows(test));
            }
            match some_devices {
                true => record.take_in(&rounds.iter().map(Round::cell).collect(), of_run),
                false => record.take(of_run),
            }
            of_run = record;
        }
        for (path, text) in [
            (path.to_path_buf(), support::page(&of_run)),
            (path.with_extension("txt"), of_run.text()),
        ] {
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Which programs run in these places.
fn grounds(places: &[Place]) -> Vec<Ground> {
    places.iter().map(Place::ground).collect()
}

/// The tests of each round, and how many there are.
fn listed(kernels: &[Kernel], rounds: &[Round]) -> String {
    let mut text = String::new();
    for round in rounds {
        let name = suite::name_of_guest(&kernels[round.kernel].series, &round.place);
        for job in &round.jobs {
            text.push_str(&format!("{name}: {}\n", job.name()));
        }
        text.push_str(&format!("{name}: {} tests\n\n", round.jobs.len()));
    }
    text
}

/// The result of a round that could not be run.
fn failed(round: &Round, kernel: &Kernel, error: &anyhow::Error) -> Group {
    let name = suite::name_of_guest(&kernel.series, &round.place);
    println!("\n{name}\nFAILED   {error:#}");
    let mut group = Group::new(name);
    group.add("boot", Verdict::Failed(format!("{error:#}")));
    group
}

/// What ran on one kernel with one device.
#[derive(Clone, Debug)]
struct Column {
    /// What the kernel is compiled for.
    arch: Arch,
    /// The tests.
    cases: Vec<Case>,
}

/// The results of tests by kernel and device. What else is in a group, such as what the kernel complained
/// about, is left out.
fn columns(kernels: &[Kernel], rounds: &[Round], groups: &[Group]) -> Vec<Column> {
    let column = |(round, group): (&Round, &Group)| {
        let names: BTreeSet<String> = round.jobs.iter().map(Job::name).collect();
        let cases = group.cases.iter();
        Column {
            arch: kernels[round.kernel].arch,
            cases: cases
                .filter(|case| names.contains(&case.name))
                .cloned()
                .collect(),
        }
    };
    rounds.iter().zip(groups).map(column).collect()
}

/// The rounds that tests are dealt to, which those of arm64 and those under signals are not, and what they
/// gave.
fn of_deal<'a>(
    rounds: &'a [Round],
    columns: &'a [Column],
) -> impl Iterator<Item = (&'a Round, &'a Column)> {
    let both = rounds.iter().zip(columns);
    both.filter(|(round, column)| {
        column.arch == Arch::X86_64 && round.place.ground() != Ground::Signals
    })
}

/// The tests that skipped themselves in every cell that they were dealt to, although they have run in one of
/// them before: a run in full tells where they run now. Empty if there is none.
fn ran_nowhere(record: &Record, rounds: &[Round], columns: &[Column]) -> String {
    let mut tests: BTreeMap<&str, (bool, Vec<Cell>)> = BTreeMap::new();
    for (round, column) in of_deal(rounds, columns) {
        for case in &column.cases {
            let (ran, cells) = tests.entry(&case.name).or_default();
            *ran |= !matches!(case.verdict, Verdict::Skipped(_));
            cells.push(round.cell());
        }
    }
    let skipped = tests
        .into_iter()
        .filter(|(test, (ran, cells))| !ran && record.ran_in(test, cells));
    let lines = skipped.map(|(test, _)| {
        format!("note: {test} ran nowhere, where {RECORD} has that it can run; `cargo vm test {test:?}`\n")
    });
    lines.collect()
}

/// What a thread gives, when it has ended.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => resume_unwind(panic),
    }
}

/// Does something under the lock, and lets go of it.
fn locked<T, R>(mutex: &Mutex<T>, work: impl FnOnce(&mut T) -> R) -> R {
    work(&mut mutex.lock().unwrap_or_else(PoisonError::into_inner))
}
