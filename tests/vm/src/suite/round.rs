//! Rounds: the tests that run in one boot of a kernel, and how they are dealt to them.

use std::collections::BTreeMap;

use connectx::PortKind;

use super::build::Ground;
use super::deal::{Cell, Dealer, Device, Meet, Save};
use super::job::Job;
use super::record::Record;
use crate::hca::{Hca, Kind};

/// Where programs run: one host or two with soft-RoCE, or one or two guests with an adapter.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// One host with soft-RoCE.
    One,
    /// Two hosts with soft-RoCE.
    Two,
    /// As many guests with this adapter as it is shared by.
    Adapter(Hca),
    /// One host whose programs are interrupted by signals, with this adapter or soft-RoCE.
    Signals(Option<Hca>),
}

impl Place {
    /// The adapter, if it has one.
    pub(crate) fn hca(&self) -> Option<&Hca> {
        match self {
            Place::One | Place::Two => None,
            Place::Adapter(hca) => Some(hca),
            Place::Signals(hca) => hca.as_ref(),
        }
    }

    /// Which programs run there.
    pub(crate) fn ground(&self) -> Ground {
        match self {
            Place::One => Ground::SoftRoce,
            Place::Two => Ground::TwoHosts,
            Place::Adapter(hca) if hca.guests() > 1 => Ground::Pair,
            Place::Adapter(hca) if hca.kind() == Kind::Efa => Ground::Efa,
            Place::Adapter(_) => Ground::Adapter,
            Place::Signals(_) => Ground::Signals,
        }
    }

    /// Which device programs find there.
    pub(crate) fn device(&self) -> Device {
        match self.hca().map(Hca::kind) {
            None => Device::SoftRoce,
            Some(Kind::ConnectX(PortKind::InfiniBand)) => Device::InfiniBand,
            Some(Kind::ConnectX(PortKind::Roce)) => Device::Roce,
            Some(Kind::Efa) => Device::Efa,
        }
    }
}

/// Tests to be run in one boot of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// Where they run.
    pub(crate) place: Place,
    /// The kernel's place among those of the run.
    pub(crate) kernel: usize,
    /// The tests.
    pub(crate) jobs: Vec<Job>,
}

impl Round {
    /// The kernel and the device.
    pub(crate) fn cell(&self) -> Cell {
        Cell {
            kernel: self.kernel,
            device: self.place.device(),
        }
    }

    /// About how long it takes, to compare with that of others: two guests at a time take twice the CPU.
    pub(crate) fn weight(&self) -> usize {
        let guests = self.place.hca().map_or(1, Hca::guests);
        self.jobs.len() * usize::from(guests)
    }
}

/// Tests of one name that differ in what they run on: two hosts or two guests are not another cell of the
/// same test.
type Test = (bool, String);

fn test(round: &Round, job: &Job) -> Test {
    let is_pair = matches!(round.place.ground(), Ground::TwoHosts | Ground::Pair);
    (is_pair, job.name())
}

/// Programs whose tests are dear and whose subject is not the kernel: the programs of others on our libraries
/// or on our devices, connections, and what runs for long. A third of them runs on each kernel.
const ONCE_ON_EACH_DEVICE: [&str; 6] = ["adapter", "c_abi", "cm", "example", "fabric", "soak"];

/// What a test has to meet. Two hosts, or two guests that boot at a time, are dear whatever runs there.
fn meet((is_pair, test): &Test) -> Meet {
    let program = test.split(' ').next().unwrap_or_default();
    match *is_pair || ONCE_ON_EACH_DEVICE.contains(&program) {
        true => Meet::Devices,
        false => Meet::KernelsAndDevices,
    }
}

/// Leaves each test in those rounds that it is dealt to, and in all if it is not to be dealt; under signals
/// all run. `kernels` are the series of the kernels of this run.
pub(crate) fn deal(
    rounds: &mut [Round],
    record: &Record,
    kernels: &[String],
    is_dealt: impl Fn(&str) -> bool,
) {
    // In the order of the rounds and of the programs, which is the same in each run.
    let mut tests: Vec<(Test, Vec<Cell>)> = Vec::new();
    let mut known: BTreeMap<Test, usize> = BTreeMap::new();
    let is_dealt_to = |round: &&mut Round| round.place.ground() != Ground::Signals;
    let mut rounds: Vec<_> = rounds.iter_mut().filter(is_dealt_to).collect();
    for round in &rounds {
        for job in &round.jobs {
            let test = test(round, job);
            let index = *known.entry(test.clone()).or_insert(tests.len());
            if index == tests.len() {
                tests.push((test, Vec::new()));
            }
            tests[index].1.push(round.cell());
        }
    }
    // Two guests that boot at a time, or two hosts, for a handful of tests.
    let mut for_pairs = Dealer::new(Save::Cells);
    let mut for_others = Dealer::new(Save::Time);
    let mut dealt: BTreeMap<Test, Vec<Cell>> = BTreeMap::new();
    for (test, cells) in tests {
        let (open, mut chosen) = match is_dealt(&test.1) {
            true => record.split(&test.1, &cells, kernels),
            false => (Vec::new(), cells),
        };
        let dealer = match test.0 {
            true => &mut for_pairs,
            false => &mut for_others,
        };
        chosen.extend(dealer.deal(meet(&test), &open));
        dealt.insert(test, chosen);
    }
    for round in &mut rounds {
        let cell = round.cell();
        let mut jobs = std::mem::take(&mut round.jobs);
        jobs.retain(|job| {
            let chosen = dealt.get(&test(round, job));
            chosen.is_some_and(|cells| cells.contains(&cell))
        });
        round.jobs = jobs;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::build::{self, Program};
    use super::*;

    fn rounds(program: &str, tests: &[&str], places: &[Place]) -> Vec<Round> {
        let program = Arc::new(Program {
            name: program.to_owned(),
            kind: build::Kind::Tests,
            path: "/nonexistent".into(),
            directory: "/nonexistent".into(),
        });
        let job = |test: &&str| Job {
            program: Arc::clone(&program),
            test: Some((*test).to_owned()),
        };
        let jobs: Vec<Job> = tests.iter().map(job).collect();
        let round = |(place, kernel): (&Place, usize)| Round {
            place: place.clone(),
            kernel,
            jobs: jobs.clone(),
        };
        let places = places.iter();
        places
            .flat_map(|place| (0..3).map(move |kernel| (place, kernel)))
            .map(round)
            .collect()
    }

    fn adapters() -> [Place; 2] {
        [PortKind::InfiniBand, PortKind::Roce]
            .map(|port| Place::Adapter(Hca::for_tests(Kind::ConnectX(port))))
    }

    fn cells(rounds: &[Round], name: &str) -> Vec<Cell> {
        let has = |round: &&Round| round.jobs.iter().any(|job| job.name() == name);
        rounds.iter().filter(has).map(Round::cell).collect()
    }

    fn series() -> Vec<String> {
        ["6.1", "6.12", "7.3"].map(str::to_owned).to_vec()
    }

    #[test]
    fn a_known_test_has_three_cells_and_a_new_one_all() {
        let [infiniband, roce] = adapters();
        let mut rounds = rounds("verbs", &["a", "new"], &[Place::One, infiniband, roce]);
        let mut record = Record::new(series());
        for cell in rounds.iter().map(Round::cell) {
            record.note("verbs a", cell, true);
        }
        deal(&mut rounds, &record, &series(), |_| true);
        let dealt = cells(&rounds, "verbs a");
        assert_eq!(dealt.len(), 3);
        for device in [Device::SoftRoce, Device::InfiniBand, Device::Roce] {
            assert!(dealt.iter().any(|cell| cell.device == device), "{device}");
        }
        assert_eq!(cells(&rounds, "verbs new").len(), 9);
    }

    #[test]
    fn in_full_what_no_other_run_has_is_dealt_and_the_others_run_everywhere() {
        let [infiniband, roce] = adapters();
        let mut rounds = rounds("verbs", &["a", "dear"], &[Place::One, infiniband, roce]);
        let mut record = Record::new(series());
        for cell in rounds.iter().map(Round::cell) {
            record.note("verbs a", cell, true);
            record.note("verbs dear", cell, false);
        }
        let is_dealt = |test: &str| record.ran_nowhere(test);
        deal(&mut rounds, &record, &series(), is_dealt);
        assert_eq!(cells(&rounds, "verbs a").len(), 9);
        assert_eq!(cells(&rounds, "verbs dear").len(), 3);
    }

    #[test]
    fn a_test_runs_where_it_has_run_and_two_hosts_are_not_another_cell() {
        let mut rounds = rounds("soak", &["a"], &[Place::Two]);
        rounds.extend(self::rounds("soak", &["a"], &adapters()));
        let mut record = Record::new(series());
        // On one cell of the newest kernel alone.
        let only = Cell {
            kernel: 2,
            device: Device::SoftRoce,
        };
        record.note("soak a", only, true);
        deal(&mut rounds, &record, &series(), |_| true);
        assert_eq!(cells(&rounds, "soak a"), [only]);
    }
}
