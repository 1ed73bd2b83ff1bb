//! Running a program under callgrind and reading how many instructions it took.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Instructions of user space of a whole program, from exec to its end.
///
/// # Errors
/// If valgrind or the program fails.
pub(super) fn whole(program: &Path, arguments: &[&str]) -> Result<u64> {
    let (files, _) = run(&[], program, arguments)?;
    let last = files.last().context("callgrind wrote nothing")?;
    total(last)
}

/// Instructions inside the functions `op_*`, for each phase: the phase's name and its number of calls as the
/// program printed them, and the instructions.
///
/// # Errors
/// If valgrind or the program fails, or they disagree on the number of phases.
pub(super) fn phases(program: &Path, arguments: &[&str]) -> Result<Vec<(String, f64)>> {
    let options = ["--toggle-collect=op_*", "--dump-after=phase_end"];
    let (files, output) = run(&options, program, arguments)?;
    let mut phases = Vec::new();
    for (line, file) in output.lines().zip(&files) {
        // A warm-up is a dash: its instructions are not of interest.
        if let Some((name, calls)) = line.split_once(' ') {
            let calls: f64 = calls.parse().context("reading the number of calls")?;
            phases.push((name.to_owned(), total(file)? as f64 / calls));
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
fn run(options: &[&str], program: &Path, arguments: &[&str]) -> Result<(Vec<PathBuf>, String)> {
    let directory = std::env::temp_dir().join(format!("callgrind-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).context("making a directory for profiles")?;
    let base = directory.join("profile");
    let output = Command::new("valgrind")
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

/// The sum of a profile.
fn total(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals: "));
    let number = line.with_context(|| format!("{} has no total", file.display()))?;
    number.trim().parse().context("reading a total")
}
