//! Results of tests: what a test program's output says, how results are shown, and the totals.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many of the slowest tests the report names.
const SLOWEST: usize = 15;

/// How one test went.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) enum Verdict {
    /// It passed.
    Passed,
    /// It failed; what there is to be said about it.
    Failed(String),
    /// It did not run, for this reason.
    Skipped(String),
}

/// One test.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Case {
    /// Its name, with the program it is in.
    pub(crate) name: String,
    /// How it went.
    pub(crate) verdict: Verdict,
    /// How long it took, where that is known.
    pub(crate) took: Option<Duration>,
}

/// The results of one place: the host, or a kernel.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Group {
    /// What the place is called.
    pub(crate) name: String,
    /// The tests, in the order they ran.
    pub(crate) cases: Vec<Case>,
    /// Known faults of the kernel that showed, as text. They fail nothing.
    pub(crate) known_faults: Vec<String>,
    /// How long all of it took, where that is known.
    pub(crate) took: Option<Duration>,
}

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Totals {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Group {
    /// An empty group.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Adds a test.
    pub(crate) fn add(&mut self, name: impl Into<String>, verdict: Verdict) {
        self.cases.push(Case {
            name: name.into(),
            verdict,
            took: None,
        });
    }

    /// Adds a test that took so long.
    pub(crate) fn add_timed(&mut self, name: String, verdict: Verdict, took: Duration) {
        self.cases.push(Case {
            name,
            verdict,
            took: Some(took),
        });
    }

    /// What ran in the same place, and then more.
    pub(crate) fn and(mut self, more: Self) -> Self {
        self.cases.extend(more.cases);
        self.known_faults.extend(more.known_faults);
        self.took = self.took.into_iter().chain(more.took).reduce(|a, b| a + b);
        self
    }

    /// Whether nothing failed in it.
    pub(crate) fn is_clean(&self) -> bool {
        self.totals().clean()
    }

    fn totals(&self) -> Totals {
        let count = |wanted: fn(&Verdict) -> bool| {
            self.cases
                .iter()
                .filter(|case| wanted(&case.verdict))
                .count()
        };
        Totals {
            passed: count(|verdict| matches!(verdict, Verdict::Passed)),
            failed: count(|verdict| matches!(verdict, Verdict::Failed(_))),
            skipped: count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        }
    }
}

impl Totals {
    /// Whether nothing failed.
    pub(crate) fn clean(self) -> bool {
        self.failed == 0
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            to,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// The sum over all groups.
pub(crate) fn totals(groups: &[Group]) -> Totals {
    groups
        .iter()
        .map(Group::totals)
        .fold(Totals::default(), |sum, group| Totals {
            passed: sum.passed + group.passed,
            failed: sum.failed + group.failed,
            skipped: sum.skipped + group.skipped,
        })
}

/// The report's end: each skip with its reason, each failure, each known fault of a kernel, the totals of
/// each group, and the sum as the last line.
pub(crate) fn summary(groups: &[Group]) -> String {
    let mut text = String::new();
    for group in groups {
        for case in &group.cases {
            // Writing to a string does not fail.
            let _ = match &case.verdict {
                Verdict::Passed => Ok(()),
                Verdict::Skipped(reason) => {
                    writeln!(text, "skipped  {}: {}: {reason}", group.name, case.name)
                }
                Verdict::Failed(why) => {
                    writeln!(
                        text,
                        "FAILED   {}: {}: {}",
                        group.name,
                        case.name,
                        why.lines().next().unwrap_or_default()
                    )
                }
            };
        }
        for fault in &group.known_faults {
            let _ = writeln!(text, "known    {}: the kernel's log: {fault}", group.name);
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    let width = group_width(groups);
    for group in groups {
        let took = group.took.map(|took| format!("  in {}", minutes(took)));
        let took = took.unwrap_or_default();
        let _ = writeln!(text, "{:width$}  {}{took}", group.name, group.totals());
    }
    let _ = writeln!(text, "\n{}", totals(groups));
    text
}

/// The slowest tests of all groups, one a line; empty if no test's time is known.
pub(crate) fn slowest(groups: &[Group]) -> String {
    let timed = groups.iter().flat_map(|group| {
        let cases = group.cases.iter();
        cases.filter_map(move |case| Some((case.took?, &group.name, &case.name)))
    });
    let mut timed: Vec<_> = timed.collect();
    timed.sort_by(|one, other| other.cmp(one));
    let line = |(took, group, case): &(Duration, &String, &String)| {
        format!("{:>6.1} s  {group}: {case}\n", took.as_secs_f64())
    };
    timed.iter().take(SLOWEST).map(line).collect()
}

/// Minutes and seconds.
fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

fn group_width(groups: &[Group]) -> usize {
    groups
        .iter()
        .map(|group| group.name.len())
        .max()
        .unwrap_or_default()
}

/// Reads one line of libtest's output (libtest-mimic's is nearly the same): `test NAME ... ok`. None for
/// other lines.
pub(crate) fn parse_line(line: &str) -> Option<Case> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let verdict = match verdict.trim() {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed("see its output above".to_owned()),
        "ignored" => Verdict::Skipped("marked #[ignore] without a reason".to_owned()),
        other => Verdict::Skipped(reason(other)?),
    };
    Some(Case {
        name: name.trim_end().to_owned(),
        verdict,
        took: None,
    })
}

/// The reason in `ignored, REASON` (libtest) or `ignored (REASON)` (libtest-mimic), at the end of a line.
fn reason(line: &str) -> Option<String> {
    let mimic = || line.strip_suffix(')')?.split_once("ignored (");
    let (_, reason) = mimic().or_else(|| line.split_once("ignored, "))?;
    Some(reason.to_owned())
}

/// The verdict in the output of a program that was to run one test, and has ended well.
pub(crate) fn of_one(output: &str) -> Verdict {
    let mut lines = output.lines().rev();
    let summary = lines.find(|line| line.starts_with("test result: "));
    match summary {
        Some(summary) if summary.contains(" 1 passed; 0 failed;") => Verdict::Passed,
        // The test may have written before it was ignored, so that the verdict is not on a line of the known
        // form.
        Some(summary) if summary.contains(" 0 failed; 1 ignored;") => {
            let reason = output.lines().rev().find_map(reason);
            Verdict::Skipped(reason.unwrap_or_else(|| "no reason given".to_owned()))
        }
        _ => Verdict::Failed("it has no test of this name".to_owned()),
    }
}

/// The message of the one test that failed, from the section `---- NAME ----`. None if there is none.
pub(crate) fn failure(output: &str) -> Option<&str> {
    let (_, section) = output.split_once("\n---- ")?;
    let (_, message) = section.split_once(" ----\n")?;
    let (message, _) = message.split_once("\nfailures:\n")?;
    Some(message.trim()).filter(|message| !message.is_empty())
}

/// The names in what a test program prints for `--list`.
pub(crate) fn listed(output: &str) -> Vec<String> {
    output
        .lines()
        .filter_map(|line| Some(line.strip_suffix(": test")?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_libtest() {
        let verdict = |line| parse_line(line).map(|case| case.verdict);
        assert_eq!(
            verdict("test apt::tests::status_lines ... ok"),
            Some(Verdict::Passed)
        );
        assert_eq!(
            verdict("test pd::leak ... ignored, needs 7.2"),
            Some(Verdict::Skipped("needs 7.2".to_owned()))
        );
        assert!(matches!(
            verdict("test pd::x ... FAILED"),
            Some(Verdict::Failed(_))
        ));
        assert_eq!(
            verdict("test result: ok. 3 passed; 0 failed; 0 ignored"),
            None
        );
        assert_eq!(
            verdict("test pd::slow has been running for over 60 seconds"),
            None
        );
        let doc = parse_line("test src/lib.rs - Pd::alloc (line 12) - compile fail ... ok");
        assert_eq!(
            doc.map(|case| case.name).as_deref(),
            Some("src/lib.rs - Pd::alloc (line 12) - compile fail")
        );
    }

    #[test]
    fn a_test_that_ignores_itself_at_run_time() {
        let output = "\nrunning 1 test\ntest mr::dmabuf ... opening rxe0\nignored, rxe has no dmabuf\n\n\
                      test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s\n";
        assert_eq!(
            of_one(output),
            Verdict::Skipped("rxe has no dmabuf".to_owned())
        );
        let passed =
            "test mr::alloc ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(of_one(passed), Verdict::Passed);
        let none = "\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
        assert!(matches!(of_one(none), Verdict::Failed(_)));
    }

    #[test]
    fn both_forms_of_a_reason_and_the_message_of_a_failure() {
        let mimic = "test mr::dmabuf ... ignored (rxe (soft-RoCE) has none)";
        assert_eq!(
            parse_line(mimic).map(|case| case.verdict),
            Some(Verdict::Skipped("rxe (soft-RoCE) has none".to_owned()))
        );
        let output = "test fail ... FAILED\n\nfailures:\n\n---- fail ----\nwent wrong\nbadly\n\n\nfailures:\n    fail\n";
        assert_eq!(failure(output), Some("went wrong\nbadly"));
        assert_eq!(failure("thread main panicked"), None);
    }

    #[test]
    fn names_of_a_list() {
        assert_eq!(
            listed("pd::alloc: test\n[qp] rc: test\npoll: bench\n"),
            ["pd::alloc", "[qp] rc"]
        );
    }

    #[test]
    fn the_slowest_tests_come_first_and_a_group_says_how_long_it_took() {
        let mut guest = Group::new("Linux 6.1");
        guest.add_timed("a".to_owned(), Verdict::Passed, Duration::from_millis(1500));
        guest.add("b", Verdict::Passed);
        guest.add_timed("c".to_owned(), Verdict::Passed, Duration::from_secs(20));
        guest.took = Some(Duration::from_secs(62));
        let groups = [guest];
        assert_eq!(
            slowest(&groups),
            "  20.0 s  Linux 6.1: c\n   1.5 s  Linux 6.1: a\n"
        );
        let text = summary(&groups);
        assert!(
            text.contains("3 passed, 0 failed, 0 skipped  in 1:02 min\n"),
            "{text}"
        );
    }

    #[test]
    fn the_summary_ends_in_the_sum_and_gives_each_reason() {
        let mut host = Group::new("host");
        host.add("a", Verdict::Passed);
        let mut guest = Group::new("Linux 6.1");
        guest.add("b", Verdict::Skipped("no reg_dmabuf_mr".to_owned()));
        guest.add("c", Verdict::Failed("assertion failed\nmore".to_owned()));
        guest.known_faults.push("it forgets (1 report)".to_owned());
        let text = summary(&[host, guest]);
        assert!(
            text.contains("skipped  Linux 6.1: b: no reg_dmabuf_mr\n"),
            "{text}"
        );
        assert!(
            text.contains("FAILED   Linux 6.1: c: assertion failed\n"),
            "{text}"
        );
        assert!(
            text.contains("known    Linux 6.1: the kernel's log: it forgets (1 report)\n"),
            "{text}"
        );
        assert_eq!(text.lines().last(), Some("1 passed, 1 failed, 1 skipped"));
    }
}
