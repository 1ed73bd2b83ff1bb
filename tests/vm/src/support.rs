//! The table of what works on which kernel, made of test results so that it cannot say more than was tried.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::results::{Group, Verdict};

/// Text that comes before the table in its file.
const HEAD: &str = "# What works on which kernel\n\n\
    Made by `cargo vm test --support docs/support.md`; do not edit. A row is a test that ran in a guest:\n\
    `yes` it passed, `no` it failed, a number: it could not run there, and the note below says why, `–` it does not exist there.\n";

/// The page as Markdown: a section with a table for soft-RoCE, and one for the adapter made of software.
pub(crate) fn page(soft: &[Group], adapter: &[Group]) -> String {
    let mut text = String::from(HEAD);
    let sections = [
        ("soft-RoCE", soft),
        ("mlx5, on the adapter made of software", adapter),
    ];
    for (title, groups) in sections.iter().filter(|(_, groups)| !groups.is_empty()) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n## {title}\n{}", table(groups));
    }
    text
}

/// A row for each test of the guests, a column for each kernel, and notes for what could not run.
fn table(kernels: &[Group]) -> String {
    let mut text = String::new();
    let mut notes: Vec<&str> = Vec::new();
    let names: BTreeSet<&str> = kernels
        .iter()
        .flat_map(|group| &group.cases)
        .map(|case| case.name.as_str())
        .collect();
    let _ = write!(text, "\n| test |");
    for group in kernels {
        let _ = write!(text, " {} |", group.name);
    }
    let _ = write!(text, "\n|---|{}", "---|".repeat(kernels.len()));
    for name in names {
        let _ = write!(text, "\n| `{name}` |");
        for group in kernels {
            let case = group.cases.iter().find(|case| case.name == name);
            let _ = match case.map(|case| &case.verdict) {
                Some(Verdict::Passed) => write!(text, " yes |"),
                Some(Verdict::Failed(_)) => write!(text, " no |"),
                Some(Verdict::Skipped(reason)) => write!(text, " {} |", number(&mut notes, reason)),
                None => write!(text, " – |"),
            };
        }
    }
    text.push('\n');
    for (index, note) in notes.iter().enumerate() {
        let _ = write!(text, "\n{}. {note}", index + 1);
    }
    if !notes.is_empty() {
        text.push('\n');
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
    use super::*;

    #[test]
    fn a_row_for_each_test_and_a_note_for_each_reason() {
        let mut old = Group::new("Linux 6.1");
        old.add("b", Verdict::Skipped("too old".into()));
        old.add("a", Verdict::Passed);
        let mut new = Group::new("Linux 7.2");
        new.add("b", Verdict::Failed("broken".into()));
        new.add("c", Verdict::Skipped("too old".into()));
        let text = page(&[], &[old, new]);
        let rows: Vec<_> = text
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        assert_eq!(
            rows,
            ["| `a` | yes | – |", "| `b` | 1 | no |", "| `c` | – | 1 |"]
        );
        assert!(text.ends_with("\n1. too old\n"), "{text}");
        assert!(
            text.contains("## mlx5") && !text.contains("## soft-RoCE"),
            "{text}"
        );
    }
}
