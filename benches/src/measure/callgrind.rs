//! Running a program under callgrind and reading how many instructions it took.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Instructions of user space of a whole program, from exec to its end.
///
/// # Errors
/// If valgrind or the program fails.
pub(super) fn whole(program: &Path, arguments: &[&str]) -> Result<u64> {
    let (files, _) = run(&[], None, program, arguments)?;
    let last = files.last().context("callgrind wrote nothing")?;
    total(&read(last)?)
}

/// Instructions inside the functions `op_*`, for each phase: the phase's name as the program printed it, and
/// the instructions of a call.
///
/// # Errors
/// As for [`counted`].
pub(super) fn phases(program: &Path, arguments: &[&str]) -> Result<Vec<(String, f64)>> {
    Ok(instructions(counted(program, arguments)?))
}

/// As [`phases`], of a program that gets its libraries from a directory first.
///
/// # Errors
/// As for [`counted`].
pub(super) fn phases_on(
    library: &Path,
    program: &Path,
    arguments: &[&str],
) -> Result<Vec<(String, f64)>> {
    Ok(instructions(counted_on(Some(library), program, arguments)?))
}

fn instructions(counted: Vec<Phase>) -> Vec<(String, f64)> {
    let counted = counted.into_iter();
    counted
        .map(|phase| (phase.name, phase.instructions))
        .collect()
}

/// What was counted inside the functions `op_*` in a phase, for each call.
pub(super) struct Phase {
    /// Its name, as the program printed it.
    pub(super) name: String,
    pub(super) instructions: f64,
    /// Calls of the C library's allocator.
    pub(super) allocations: f64,
}

/// Counts inside the functions `op_*`, for each phase.
///
/// # Errors
/// If valgrind or the program fails, or they disagree on the number of phases.
pub(super) fn counted(program: &Path, arguments: &[&str]) -> Result<Vec<Phase>> {
    counted_on(None, program, arguments)
}

fn counted_on(library: Option<&Path>, program: &Path, arguments: &[&str]) -> Result<Vec<Phase>> {
    let options = ["--toggle-collect=op_*", "--dump-after=phase_end"];
    let (files, output) = run(&options, library, program, arguments)?;
    let mut phases = Vec::new();
    for (line, file) in output.lines().zip(&files) {
        // A warm-up is a dash: its instructions are not of interest.
        if let Some((name, calls)) = line.split_once(' ') {
            let calls: f64 = calls.parse().context("reading the number of calls")?;
            let profile = read(file)?;
            phases.push(Phase {
                name: name.to_owned(),
                instructions: total(&profile)? as f64 / calls,
                allocations: allocations(&profile)? as f64 / calls,
            });
        }
    }
    // The last file is of the time after the last phase.
    if output.lines().count() + 1 != files.len() {
        bail!(
            "{} phases and {} profiles",
            output.lines().count(),
            files.len()
        );
    }
    Ok(phases)
}

/// Runs the program and gives the profiles in their order, and its output.
fn run(
    options: &[&str],
    library: Option<&Path>,
    program: &Path,
    arguments: &[&str],
) -> Result<(Vec<PathBuf>, String)> {
    let directory = std::env::temp_dir().join(format!("callgrind-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).context("making a directory for profiles")?;
    let base = directory.join("profile");
    let mut command = Command::new("valgrind");
    if let Some(library) = library {
        command.env("LD_LIBRARY_PATH", library);
    }
    let output = command
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", base.display()))
        .args(options)
        .arg(program)
        .args(arguments)
        // Reading symbols for a backtrace takes a minute under valgrind.
        .env_remove("RUST_BACKTRACE")
        .output()
        .context("starting valgrind")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} {arguments:?} under valgrind: {}\n{said}",
            program.display(),
            output.status
        );
    }
    // profile.1, profile.2, ..., and at the end profile.
    let numbered = (1..).map(|number| directory.join(format!("profile.{number}")));
    let mut files: Vec<PathBuf> = numbered.take_while(|path| path.exists()).collect();
    files.push(base);
    Ok((files, String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

/// The sum of a profile.
fn total(profile: &str) -> Result<u64> {
    let line = profile
        .lines()
        .find_map(|line| line.strip_prefix("totals: "));
    let number = line.context("a profile without a total")?;
    number.trim().parse().context("reading a total")
}

/// Functions of the C library that allocate.
const ALLOCATORS: [&str; 5] = [
    "malloc",
    "calloc",
    "realloc",
    "posix_memalign",
    "aligned_alloc",
];

/// Calls of allocators in a profile: a line names the function that is called, as `cfn=(ID) NAME` or by the
/// id that it got where it was named first, and the next line that begins with `calls=` has how often.
fn allocations(profile: &str) -> Result<u64> {
    let mut names = HashMap::new();
    let (mut called, mut count) = (None, 0);
    for line in profile.lines() {
        let function = line
            .strip_prefix("cfn=")
            .or_else(|| line.strip_prefix("fn="));
        if let Some((id, name)) = function.map(|name| name.split_once(' ').unwrap_or((name, ""))) {
            if !name.is_empty() {
                names.insert(id, name);
            }
            called = names.get(id).copied();
        } else if let Some(calls) = line.strip_prefix("calls=")
            && called.is_some_and(|name| ALLOCATORS.contains(&name))
        {
            let calls = calls.split(' ').next().unwrap_or_default();
            count += calls.parse::<u64>().context("reading a number of calls")?;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_allocators_are_found_by_name_and_by_id() {
        let profile = "fn=(1) op_a\n1 5\ncfn=(2) malloc\ncalls=3 0x1\n1 30\ncfn=(4) free\ncalls=3 0x2\n1 9\n\n\
                       fn=(5) op_b\ncfn=(2)\ncalls=2 0x1\n1 20\ntotals: 64\n";
        assert_eq!(allocations(profile).unwrap(), 5);
        assert_eq!(total(profile).unwrap(), 64);
    }
}
