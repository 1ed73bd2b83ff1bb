//! The host's part: `cargo test` on the whole workspace, its output shown as it comes and counted.

use std::io::{BufRead, BufReader, PipeReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use super::Suite;
use super::build::{self, Sanitized};
use crate::process;
use crate::results::{Group, Verdict, parse_line};

/// Runs the host's tests whose names contain one of the filters (all without filters).
///
/// Programs with libtest-mimic take one filter and no more, so each filter has a run of its own. A test that
/// several mean is run by each, and counted once if it passes.
///
/// With a sanitizer these are the library's unit tests. Beside others, the lines of a program are shown
/// together, when it has ended.
///
/// # Errors
/// If cargo cannot be started. Tests that fail or do not build are results.
pub(crate) fn run(
    workspace: &Path,
    suites: &[Suite],
    filters: &[String],
    sanitized: Option<&Sanitized>,
    beside_others: bool,
) -> Result<Group> {
    let started = Instant::now();
    let filters: Vec<Option<&String>> = match filters {
        [] => vec![None],
        filters => filters.iter().map(Some).collect(),
    };
    let mut all = Group::new("host");
    for filter in filters {
        let group = run_filtered(workspace, suites, filter, sanitized, beside_others)?;
        for case in group.cases {
            if !all.cases.contains(&case) {
                all.cases.push(case);
            }
        }
    }
    all.took = Some(started.elapsed());
    Ok(all)
}

fn run_filtered(
    workspace: &Path,
    suites: &[Suite],
    filter: Option<&String>,
    sanitized: Option<&Sanitized>,
    beside_others: bool,
) -> Result<Group> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--no-fail-fast", "--color=never"]);
    match sanitized {
        None => {
            command.arg("--workspace");
        }
        Some(sanitized) => {
            build::sanitize(&mut command, sanitized);
            let (name, value) = sanitized.by.variable(workspace);
            command
                .args(["--package", "uverbs", "--lib"])
                .env(name, value);
        }
    }
    command.arg("--").args(filter);
    command.current_dir(workspace).stdin(Stdio::null());
    let step = format!(
        "running the host's tests: `{}`",
        process::describe(&command)
    );
    // One pipe for both streams, so that a program's name, on the one, stays before its results, on the
    // other.
    let (reader, writer) = std::io::pipe().with_context(|| step.clone())?;
    command
        .stdout(writer.try_clone().with_context(|| step.clone())?)
        .stderr(writer);
    let mut child = command.spawn().with_context(|| step.clone())?;
    // The command holds the pipe's other end too, and would keep it open.
    drop(command);
    let mut counter = Counter::new(suites);
    show(reader, &mut counter, beside_others);
    let status = child.wait().with_context(|| step.clone())?;
    let mut group = counter.group;
    if !status.success() && !counter.failed {
        group.add(
            "cargo test",
            Verdict::Failed(format!(
                "ended with {status}, without a failed test; see its output above"
            )),
        );
    }
    Ok(group)
}

/// Shows and counts lines until the end; those of one program at once if others write too.
fn show(reader: PipeReader, counter: &mut Counter, beside_others: bool) {
    let mut of_program = String::new();
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        let is_next = program_of(&line).is_some();
        let shown = counter.line(&line);
        if is_next {
            print!("{}", std::mem::take(&mut of_program));
        }
        if shown {
            of_program.push_str(&line);
            of_program.push('\n');
        }
        if !beside_others {
            print!("{}", std::mem::take(&mut of_program));
        }
    }
    print!("{of_program}");
}

/// Counts results, but for programs that belong into the guest: on the host these skip everything.
struct Counter<'a> {
    suites: &'a [Suite],
    program: String,
    of_guest: bool,
    failed: bool,
    group: Group,
}

impl<'a> Counter<'a> {
    fn new(suites: &'a [Suite]) -> Self {
        Self {
            suites,
            program: String::new(),
            of_guest: false,
            failed: false,
            group: Group::new("host"),
        }
    }

    /// Takes a line, and gives whether to show it.
    fn line(&mut self, line: &str) -> bool {
        if let Some(program) = program_of(line) {
            self.of_guest = self.suites.iter().any(|suite| suite.is_for_guest(&program));
            self.program = program;
        } else if let Some(case) = parse_line(line) {
            self.failed |= matches!(case.verdict, Verdict::Failed(_));
            if !self.of_guest {
                self.group
                    .add(format!("{} {}", self.program, case.name), case.verdict);
            }
        }
        !self.of_guest
    }
}

/// The program that a line of cargo announces: `Running tests/abi.rs (target/debug/deps/abi-0a1b2c)` is
/// `abi`, and `Doc-tests uverbs` is `doc uverbs`.
fn program_of(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("doc {name}"));
    }
    let path = line
        .strip_prefix("Running ")?
        .strip_suffix(')')?
        .rsplit_once('(')?
        .1;
    let file = Path::new(path).file_name()?.to_str()?;
    Some(file.rsplit_once('-')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_guest_are_neither_shown_nor_counted() {
        let suite = Suite {
            directory: "/w".into(),
            tests: vec!["verbs".to_owned()],
            two_hosts_tests: Vec::new(),
            hca_tests: vec!["adapter".to_owned()],
            efa_tests: Vec::new(),
            pair_tests: Vec::new(),
            signal_tests: Vec::new(),
            c_programs: Vec::new(),
            arm64_tests: Vec::new(),
            arm64_always: Vec::new(),
            examples: Vec::new(),
        };
        let suites = [suite];
        let mut counter = Counter::new(&suites);
        let output = "     Running unittests src/lib.rs (target/debug/deps/uverbs-0123456789abcdef)\n\
                      test ring::wraps ... ok\n\
                      \x20    Running tests/verbs.rs (target/debug/deps/verbs-0123456789abcdef)\n\
                      test pd::alloc ... ignored, no guest\n\
                      \x20    Running tests/adapter/main.rs (target/debug/deps/adapter-0123456789abcdef)\n\
                      \x20  Doc-tests uverbs\n\
                      test src/lib.rs - (line 9) ... FAILED\n";
        let shown: Vec<bool> = output.lines().map(|line| counter.line(line)).collect();
        assert_eq!(shown, [true, true, false, false, false, true, true]);
        let names: Vec<&str> = counter
            .group
            .cases
            .iter()
            .map(|case| case.name.as_str())
            .collect();
        assert_eq!(
            names,
            ["uverbs ring::wraps", "doc uverbs src/lib.rs - (line 9)"]
        );
        assert!(counter.failed);
    }
}
