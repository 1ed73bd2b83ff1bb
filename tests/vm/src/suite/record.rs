//! Where each test of the guests ran when it was last tried everywhere: what a run that deals them knows
//! before it begins.
//!
//! A file of one line for each test. The page for people (`crate::support`) is made from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::deal::{Cell, Device};

/// What the file begins with.
const HEAD: &str = "\
# Where each test of the guests ran, by which `cargo vm test` chooses a kernel for each device. Written by
# `cargo vm test --support docs/support.md`; do not edit. A word for each kernel, in it S: it ran on soft-RoCE,
# I: on InfiniBand ports, R: on RoCE ports, E: on an EFA; a dot: it skipped itself there, or is not for that device.
";

/// What was found out by runs that tried a test in all cells.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Record {
    /// The kernels' series.
    kernels: Vec<String>,
    /// The cells in which each test ran, by its name with the program it is in.
    ran: BTreeMap<String, BTreeSet<Cell>>,
}

impl Record {
    /// An empty one for these kernels.
    pub(crate) fn new(kernels: Vec<String>) -> Self {
        Self {
            kernels,
            ran: BTreeMap::new(),
        }
    }

    /// Notes that a test was tried in a cell, and whether it ran there.
    pub(crate) fn note(&mut self, test: &str, cell: Cell, ran: bool) {
        let cells = self.ran.entry(test.to_owned()).or_default();
        if ran {
            cells.insert(cell);
        }
    }

    /// The kernels' series.
    pub(crate) fn kernels(&self) -> &[String] {
        &self.kernels
    }

    /// Takes the tests that another record of the same kernels has, each in the place of the test of that
    /// name.
    pub(crate) fn take(&mut self, other: Self) {
        self.ran.extend(other.ran);
    }

    /// As [`take`](Self::take), of a run that tried these cells alone: what is known of the others stays.
    /// Tests that are in no line yet stay out, for they have to be tried on every device.
    pub(crate) fn take_in(&mut self, tried: &BTreeSet<Cell>, other: Self) {
        for (test, ran) in other.ran {
            if let Some(known) = self.ran.get_mut(&test) {
                known.retain(|cell| !tried.contains(cell));
                known.extend(ran);
            }
        }
    }

    /// Keeps the tests whose names are wanted.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.ran.retain(|test, _| is_wanted(test));
    }

    /// Whether a test of this name was tried.
    pub(crate) fn has(&self, test: &str) -> bool {
        self.ran.contains_key(test)
    }

    /// Whether it is known where a test of this name can run.
    pub(crate) fn knows(&self, test: &str) -> bool {
        self.ran.get(test).is_some_and(|ran| !ran.is_empty())
    }

    /// Whether a test is known to have run in one of these cells.
    pub(crate) fn ran_in(&self, test: &str, cells: &[Cell]) -> bool {
        let ran = self.ran.get(test);
        ran.is_some_and(|ran| cells.iter().any(|cell| ran.contains(cell)))
    }

    /// Whether a test is known to have skipped itself everywhere, as those do that only a run in full has.
    pub(crate) fn ran_nowhere(&self, test: &str) -> bool {
        self.ran.get(test).is_some_and(BTreeSet::is_empty)
    }

    /// Of these cells, with kernels of these series: those that a test must be dealt among, and those that it
    /// must run in as well, since it is not known whether it can run there.
    ///
    /// A test that is not in the record must run in all; and on a kernel of another series than the record's,
    /// every test must. One that is known to skip itself everywhere is dealt among all: it says why in one.
    pub(crate) fn split(
        &self,
        test: &str,
        cells: &[Cell],
        kernels: &[String],
    ) -> (Vec<Cell>, Vec<Cell>) {
        let Some(ran) = self.ran.get(test) else {
            return (Vec::new(), cells.to_vec());
        };
        let is_known = |cell: &Cell| {
            let series = kernels.get(cell.kernel);
            series.is_some() && series == self.kernels.get(cell.kernel)
        };
        let (known, unknown): (Vec<Cell>, Vec<Cell>) = cells.iter().copied().partition(is_known);
        let may_run = |cell: &Cell| ran.is_empty() || ran.contains(cell);
        let open = known.into_iter().filter(may_run);
        (open.collect(), unknown)
    }

    /// Reads the file; without a file nothing is known.
    ///
    /// # Errors
    /// If it cannot be read, or is not of this form.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("reading {}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let kernels = lines.next().unwrap_or_default().split_whitespace();
        let mut record = Self::new(kernels.map(str::to_owned).collect());
        for line in lines {
            let mut words = line.splitn(record.kernels.len() + 1, ' ');
            let marks: Vec<&str> = words.by_ref().take(record.kernels.len()).collect();
            let Some(test) = words.next().filter(|test| !test.is_empty()) else {
                bail!("no test in the line `{line}`");
            };
            let mut ran = BTreeSet::new();
            for (kernel, marks) in marks.into_iter().enumerate() {
                for mark in marks.chars().filter(|mark| *mark != '.') {
                    let device = Device::ALL
                        .into_iter()
                        .find(|device| letter(*device) == mark);
                    let device =
                        device.with_context(|| format!("no device is `{mark}`: `{line}`"))?;
                    ran.insert(Cell { kernel, device });
                }
            }
            record.ran.insert(test.to_owned(), ran);
        }
        Ok(record)
    }

    /// The file's text.
    pub(crate) fn text(&self) -> String {
        let lines = self.ran.iter().map(|(test, ran)| {
            let word = |kernel| -> String {
                let marks = Device::ALL.into_iter().map(|device| {
                    let ran = ran.contains(&Cell { kernel, device });
                    if ran { letter(device) } else { '.' }
                });
                marks.collect()
            };
            let words: Vec<String> = (0..self.kernels.len()).map(word).collect();
            format!("{} {test}\n", words.join(" "))
        });
        format!(
            "{HEAD}{}\n{}",
            self.kernels.join(" "),
            lines.collect::<String>()
        )
    }
}

/// What a device is in the file.
fn letter(device: Device) -> char {
    match device {
        Device::SoftRoce => 'S',
        Device::InfiniBand => 'I',
        Device::Roce => 'R',
        Device::Efa => 'E',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S61: Cell = Cell {
        kernel: 0,
        device: Device::SoftRoce,
    };
    const S73: Cell = Cell {
        kernel: 1,
        device: Device::SoftRoce,
    };
    const R73: Cell = Cell {
        kernel: 1,
        device: Device::Roce,
    };

    fn series(names: [&str; 2]) -> Vec<String> {
        names.map(str::to_owned).to_vec()
    }

    fn record() -> Record {
        let mut record = Record::new(series(["6.1", "7.3"]));
        record.note("verbs mr::prefetch", S61, false);
        record.note("verbs mr::prefetch", S73, true);
        record.note("verbs mr::prefetch", R73, false);
        record.note("verbs [mr] a name with spaces", R73, true);
        record.note("verbs mr::never", R73, false);
        record
    }

    #[test]
    fn what_is_written_is_read() {
        let text = record().text();
        assert!(text.contains("\n6.1 7.3\n"), "{text}");
        assert!(text.contains("\n.... S... verbs mr::prefetch\n"), "{text}");
        assert_eq!(Record::parse(&text).expect("a record"), record());
        assert!(Record::parse("6.1 7.3\nS.. SXR verbs a\n").is_err());
        assert!(Record::parse("6.1 7.3\nS.. SIR\n").is_err());
    }

    #[test]
    fn what_is_not_known_runs_everywhere() {
        let record = record();
        let split = |test, kernels| record.split(test, &[S61, S73, R73], &series(kernels));
        assert_eq!(
            split("verbs mr::prefetch", ["6.1", "7.3"]),
            (vec![S73], vec![])
        );
        let all = vec![S61, S73, R73];
        let new = split("verbs mr::new", ["6.1", "7.3"]);
        assert_eq!(new, (vec![], all.clone()));
        // Catches a guest that boots for tests alone that skip themselves in each.
        let never = split("verbs mr::never", ["6.1", "7.3"]);
        assert_eq!(never, (all, vec![]));
        // Debian has moved on: nobody knows what the new kernel can do.
        assert_eq!(
            split("verbs mr::prefetch", ["6.1", "7.4"]),
            (vec![], vec![S73, R73])
        );
    }

    #[test]
    fn a_later_run_replaces_the_tests_that_it_tried() {
        let mut record = record();
        let mut later = Record::new(series(["6.1", "7.3"]));
        later.note("verbs mr::never", S61, true);
        later.note("verbs mr::prefetch", S73, false);
        record.take(later);
        assert!(record.ran_in("verbs mr::never", &[S61]));
        assert!(record.has("verbs mr::prefetch") && !record.knows("verbs mr::prefetch"));
        assert!(record.knows("verbs [mr] a name with spaces"));
        record.keep(|test| test.starts_with("verbs mr::"));
        assert!(!record.has("verbs [mr] a name with spaces"));
    }

    #[test]
    fn a_run_on_one_device_leaves_the_others_as_they_were() {
        let mut record = record();
        let mut later = Record::new(series(["6.1", "7.3"]));
        later.note("verbs mr::prefetch", R73, true);
        later.note("verbs [mr] a name with spaces", R73, false);
        later.note("verbs mr::new", R73, true);
        record.take_in(&BTreeSet::from([R73]), later);
        assert!(record.ran_in("verbs mr::prefetch", &[S73]));
        assert!(record.ran_in("verbs mr::prefetch", &[R73]));
        assert!(!record.knows("verbs [mr] a name with spaces"));
        assert!(!record.has("verbs mr::new"));
    }

    #[test]
    fn a_missing_file_knows_nothing() {
        let record = Record::read(Path::new("/nonexistent/support.txt")).expect("an empty record");
        assert_eq!(record, Record::default());
        assert!(!record.ran_in("verbs mr::prefetch", &[S73]));
    }
}
