//! The page of what works where, made of test results so that it cannot say more than was tried.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::arch::Arch;
use crate::results::{Case, Verdict};
use crate::suite::Device;

/// Text that comes before the tables.
const HEAD: &str = "# What works where

Made by `cargo vm test --full --support docs/support.md`; do not edit. A row is a module of a test program, and the
number in it says how many of its tests passed in a guest with that kernel. `13 of 15 (4, 7)`: two could not run
there, for the reasons in notes 4 and 7 at the end. `–`: the module is not for that device.
[support.txt](support.txt) has each test.
";

/// What ran on one kernel with one device.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    /// What the kernel is compiled for.
    pub(crate) arch: Arch,
    /// The kernel's series.
    pub(crate) kernel: String,
    /// The device.
    pub(crate) device: Device,
    /// The tests.
    pub(crate) cases: Vec<Case>,
}

/// The page as Markdown: a section for each device, with a column for each kernel in the order in which they
/// come, and notes that say why tests could not run.
pub(crate) fn page(columns: &[Column]) -> String {
    let mut text = String::from(HEAD);
    let mut notes = Vec::new();
    let sections = [Arch::X86_64, Arch::Arm64].into_iter().flat_map(|arch| {
        let devices = Device::ALL.into_iter();
        devices.map(move |device| (arch, device))
    });
    for (arch, device) in sections {
        let columns: Vec<&Column> = columns
            .iter()
            .filter(|column| (column.arch, column.device) == (arch, device))
            .collect();
        if !columns.is_empty() {
            let title = match arch {
                Arch::X86_64 => title(device).to_owned(),
                Arch::Arm64 => format!("{}, arm64", title(device)),
            };
            // Writing to a string does not fail.
            let _ = write!(text, "\n## {title}\n\n{}", table(&columns, &mut notes));
        }
    }
    if !notes.is_empty() {
        text.push_str("\n## Notes\n\n");
    }
    for (index, note) in notes.iter().enumerate() {
        let _ = writeln!(text, "{}. {note}", index + 1);
    }
    text
}

fn title(device: Device) -> &'static str {
    match device {
        Device::SoftRoce => "Soft-RoCE",
        Device::InfiniBand => "mlx5 on the adapter made of software, InfiniBand ports",
        Device::Roce => "mlx5 on the adapter made of software, RoCE ports",
    }
}

/// A row for each module, a column for each kernel.
fn table<'a>(columns: &[&'a Column], notes: &mut Vec<&'a str>) -> String {
    let mut kernels: Vec<&str> = Vec::new();
    for column in columns {
        if !kernels.contains(&column.kernel.as_str()) {
            kernels.push(&column.kernel);
        }
    }
    let cases = || columns.iter().flat_map(|column| &column.cases);
    let modules: BTreeSet<&str> = cases().map(|case| module(&case.name)).collect();
    let mut text = format!("| module | Linux {} |\n", kernels.join(" | "));
    let _ = writeln!(text, "|---|{}", "---|".repeat(kernels.len()));
    for row in modules {
        let _ = write!(text, "| `{row}` |");
        for kernel in &kernels {
            let columns = columns.iter().filter(|column| column.kernel == *kernel);
            let cases = columns.flat_map(|column| &column.cases);
            let cases: Vec<&Case> = cases.filter(|case| module(&case.name) == row).collect();
            let _ = write!(text, " {} |", cell(&cases, notes));
        }
        text.push('\n');
    }
    text
}

/// The module that a test is in, with its program: `verbs mr` for `verbs mr::rereg`.
fn module(test: &str) -> &str {
    let Some((program, path)) = test.split_once(' ') else {
        return test;
    };
    match path.split_once("::") {
        Some((module, _)) => &test[..program.len() + 1 + module.len()],
        // An example is a row of its own; a test outside of all modules is in its program's.
        None if program == "example" => test,
        None => program,
    }
}

/// How the tests of one module went.
fn cell<'a>(cases: &[&'a Case], notes: &mut Vec<&'a str>) -> String {
    if cases.is_empty() {
        return "–".to_owned();
    }
    let passed = cases.iter().filter(|case| case.verdict == Verdict::Passed);
    let passed = passed.count();
    let mut text = match passed == cases.len() {
        true => passed.to_string(),
        false => format!("{passed} of {}", cases.len()),
    };
    let failed = |case: &&&Case| matches!(case.verdict, Verdict::Failed(_));
    let failed = cases.iter().filter(failed).count();
    if failed > 0 {
        let _ = write!(text, ", {failed} failed");
    }
    let mut why = BTreeSet::new();
    for case in cases {
        if let Verdict::Skipped(reason) = &case.verdict {
            why.insert(number(notes, reason));
        }
    }
    if !why.is_empty() {
        let why: Vec<String> = why.iter().map(ToString::to_string).collect();
        let _ = write!(text, " ({})", why.join(", "));
    }
    text
}

/// The number of a note, counted from 1; a new one if it has not been made yet.
fn number<'a>(notes: &mut Vec<&'a str>, note: &'a str) -> usize {
    match notes.iter().position(|known| *known == note) {
        Some(index) => index + 1,
        None => {
            notes.push(note);
            notes.len()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::results::Group;

    fn column(kernel: &str, device: Device, cases: &[(&str, Option<Verdict>)]) -> Column {
        let mut group = Group::new("");
        for (name, verdict) in cases {
            let verdict = verdict.clone().unwrap_or(Verdict::Passed);
            group.add_timed((*name).to_owned(), verdict, Duration::ZERO);
        }
        Column {
            arch: match kernel.contains("arm64") {
                true => Arch::Arm64,
                false => Arch::X86_64,
            },
            kernel: kernel.to_owned(),
            device,
            cases: group.cases,
        }
    }

    fn skipped(why: &str) -> Option<Verdict> {
        Some(Verdict::Skipped(why.to_owned()))
    }

    #[test]
    fn a_row_for_each_module_and_a_note_for_each_reason() {
        let old = [
            ("verbs mr::a", None),
            ("verbs mr::b", skipped("too old")),
            ("verbs mr::c", skipped("too small")),
            ("verbs cq::a", skipped("too old")),
        ];
        let new = [
            ("verbs mr::a", None),
            ("verbs mr::b", None),
            ("verbs mr::c", Some(Verdict::Failed("broken".to_owned()))),
        ];
        let two_hosts = [("soak ledger::a", None)];
        let text = page(&[
            column("6.1", Device::SoftRoce, &old),
            column("7.3", Device::SoftRoce, &new),
            column("6.1", Device::SoftRoce, &two_hosts),
            column("7.3", Device::Roce, &[("verbs cq::a", None)]),
            column("7.3 arm64", Device::Roce, &[("verbs cq::a", None)]),
            column("7.3 arm64 16K", Device::Roce, &[]),
        ]);
        let rows: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("| ") || line.starts_with("## "))
            .collect();
        assert_eq!(
            rows,
            [
                "## Soft-RoCE",
                "| module | Linux 6.1 | 7.3 |",
                "| `soak ledger` | 1 | – |",
                "| `verbs cq` | 0 of 1 (1) | – |",
                "| `verbs mr` | 1 of 3 (1, 2) | 2 of 3, 1 failed |",
                "## mlx5 on the adapter made of software, RoCE ports",
                "| module | Linux 7.3 |",
                "| `verbs cq` | 1 |",
                "## mlx5 on the adapter made of software, RoCE ports, arm64",
                "| module | Linux 7.3 arm64 | 7.3 arm64 16K |",
                "| `verbs cq` | 1 | – |",
                "## Notes",
            ]
        );
        assert!(text.ends_with("\n1. too old\n2. too small\n"), "{text}");
    }

    #[test]
    fn modules() {
        assert_eq!(module("verbs mr::rereg"), "verbs mr");
        assert_eq!(module("adapter perftest::bw::write"), "adapter perftest");
        assert_eq!(module("discovery without_netlink"), "discovery");
        assert_eq!(module("example first"), "example first");
        assert_eq!(module("odd"), "odd");
    }
}
