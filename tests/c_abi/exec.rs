//! `uverbs exec`: programs with our library in front.

use std::process::{Command, Output};

use libtest_mimic::Trial;
use support::{Result, fail, program, same, says, test};

use support::library::Library;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("exec::a_program_runs_on_it", a_program_runs_on_it),
        test("exec::what_is_not_there", what_is_not_there),
    ]
}

fn exec(words: &[&str]) -> Result<Output> {
    let mut command = Command::new(program::uverbs()?);
    Ok(command.arg("exec").args(words).output()?)
}

/// Catches a library that is found by another path, and an exit code that gets lost.
fn a_program_runs_on_it() -> Result {
    let Library::Ours(directory) = Library::ours()? else {
        return fail("no library of ours");
    };
    let named = directory.join("libibverbs.so.1").display().to_string();
    // With a sanitizer the program lies in another directory, from where it does not find the library.
    let is_sanitized = std::env::var_os("ASAN_OPTIONS").is_some();
    let front: &[&str] = match is_sanitized {
        true => &["--library", &named],
        false => &[],
    };
    let words = ["--", "sh", "-c", "printf %s \"$LD_LIBRARY_PATH\"; exit 7"];
    let output = exec(&[front, &words].concat())?;
    same(output.status.code(), Some(7), "the exit code")?;
    let path = String::from_utf8(output.stdout)?;
    let expected = match Library::ours_with_rdmacm() {
        Ok(Library::OursWithRdmacm(_, rdmacm)) => {
            format!("{}:{}", rdmacm.display(), directory.display())
        }
        _ => directory.display().to_string(),
    };
    same(path, expected, "the library path")?;
    let ours = exec(&["--library", &named, "--", "ibv_devices"])?;
    let said = String::from_utf8_lossy(&ours.stdout).into_owned();
    match ours.status.success() {
        true => says(&said, &[support::device().name()]),
        false => fail(format!("ibv_devices: {ours:?}")),
    }
}

/// Catches a program that runs on libibverbs because ours is not there.
fn what_is_not_there() -> Result {
    let output = exec(&["--library", "/nowhere", "--", "true"])?;
    same(output.status.code(), Some(3), "the exit code")?;
    says(&String::from_utf8(output.stderr)?, &["/nowhere"])?;
    let Library::Ours(directory) = Library::ours()? else {
        return fail("no library of ours");
    };
    let library = directory.display().to_string();
    let output = exec(&["--library", &library, "--", "no-such-program"])?;
    same(output.status.code(), Some(3), "the exit code")?;
    says(&String::from_utf8(output.stderr)?, &["no-such-program"])
}
