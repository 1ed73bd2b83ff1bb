//! The corpus through the targets, and a minute of libFuzzer.
//!
//! libFuzzer is led by coverage, which stable Rust has (`-C passes=sancov-module`); the sanitizers are for
//! nightly only, so what is found are panics, overflows, failed assertions, hangs, and faults at guard pages.

use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

fn main() {
    let mut tests: Vec<Trial> = fuzz::TARGETS
        .into_iter()
        .map(|(name, target)| Trial::test(format!("corpus::{name}"), move || corpus(name, target)))
        .collect();
    tests.push(Trial::ignorable_test("fuzz::a_minute", a_minute));
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of a target's corpus. Those that begin with `crash-` were findings.
fn files(name: &str) -> Result<Vec<PathBuf>, Failed> {
    let directory = package().join("corpus").join(name);
    let entries =
        fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// Catches a target without corpus, and what once was found: each file, whole and cut off at each place, must
/// come back.
fn corpus(name: &str, target: fn(&[u8])) -> Result<(), Failed> {
    let files = files(name)?;
    if files.is_empty() {
        return Err("no files".into());
    }
    for file in files {
        let bytes = fs::read(&file)?;
        target(&bytes);
        for end in 0..bytes.len().min(512) {
            target(&bytes[..end]);
        }
    }
    Ok(())
}

/// How long to fuzz, over all targets, in seconds.
fn seconds() -> Result<usize, Failed> {
    match std::env::var("UVERBS_FUZZ_SECONDS") {
        Ok(text) => Ok(text.parse()?),
        Err(_) => Ok(60),
    }
}

/// Catches bytes that nobody thought of.
fn a_minute() -> Result<Completion, Failed> {
    if Command::new("c++").arg("--version").output().is_err() {
        return Ok(Completion::ignored_with(
            "no C++ compiler (c++), which libFuzzer's sources need",
        ));
    }
    let program = build()?;
    let each = seconds()?.div_ceil(fuzz::TARGETS.len());
    let findings = package().join("../../target/fuzz/findings");
    fs::create_dir_all(&findings)?;
    // libFuzzer has one thread, and the compiler before it has left no CPU idle.
    let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let waiting = Mutex::new(fuzz::TARGETS.into_iter());
    let next = || waiting.lock().ok()?.next();
    let wrong = Mutex::new(String::new());
    thread::scope(|scope| {
        for _ in 0..cpus {
            scope.spawn(|| {
                while let Some((name, _)) = next() {
                    if let Err(why) = fuzz_target(&program, name, each, &findings)
                        && let Ok(mut wrong) = wrong.lock()
                    {
                        *wrong += &format!("{name}: {}\n", why.message().unwrap_or_default());
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner()?;
    match wrong.is_empty() {
        true => Ok(Completion::Completed),
        false => Err(wrong.into()),
    }
}

/// Builds the program with coverage, in a target directory of its own: the flags would have all built anew.
fn build() -> Result<PathBuf, Failed> {
    // Flags for the host itself are only kept from build scripts if it is named as a target.
    const FLAGS: &str = "-Cpasses=sancov-module \
        -Cllvm-args=-sanitizer-coverage-level=4 \
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
        -Cllvm-args=-sanitizer-coverage-pc-table \
        -Cllvm-args=-sanitizer-coverage-trace-compares \
        -Copt-level=1 -Cdebug-assertions=on -Coverflow-checks=on";
    let triple = triple()?;
    let directory = package().join("../../target/fuzz");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command
        .current_dir(package())
        .env("RUSTFLAGS", FLAGS)
        .args([
            "build",
            "--quiet",
            "--features",
            "libfuzzer",
            "--bin",
            "fuzz",
        ])
        .args(["--target", &triple])
        .arg("--target-dir")
        .arg(&directory);
    succeeded(command.output()?)?;
    Ok(directory.join(triple).join("debug/fuzz"))
}

/// The host's target triple.
fn triple() -> Result<String, Failed> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let said = succeeded(Command::new(rustc).arg("-vV").output()?)?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc does not name its host")?.to_owned())
}

fn succeeded(output: Output) -> Result<String, Failed> {
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(format!(
            "{}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}

/// Fuzzes one target for so many seconds, from the corpus on; what is new goes into a directory that is
/// thrown away.
fn fuzz_target(program: &Path, name: &str, seconds: usize, findings: &Path) -> Result<(), Failed> {
    let scratch = tempfile::tempdir()?;
    let run = |arguments: &[String]| {
        Command::new(program)
            .env("UVERBS_FUZZ_TARGET", name)
            .arg(format!("-artifact_prefix={}/{name}-", findings.display()))
            .args(["-timeout=60", "-max_len=4096", "-rss_limit_mb=1024"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
    };
    let output = run(&[
        format!("-max_total_time={seconds}"),
        scratch.path().display().to_string(),
        package().join("corpus").join(name).display().to_string(),
    ])?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = |what: &str| {
        said.lines()
            .rev()
            .find(|line| line.contains(what))
            .map(str::to_owned)
    };
    println!(
        "{name}: {} {}",
        last("DONE").unwrap_or_default(),
        last("Done ").unwrap_or_default()
    );
    if output.status.success() {
        return Ok(());
    }
    // "Test unit written to FILE"; a smaller one that fails as well is easier to understand.
    let found = said.lines().find_map(|line| {
        line.split_once("Test unit written to ")
            .map(|parts| parts.1)
    });
    let Some(found) = found else {
        return Err(format!("{}\n{said}", output.status).into());
    };
    let small = format!("{found}.min");
    let options = ["-minimize_crash=1", "-max_total_time=5"].map(str::to_owned);
    let exact = format!("-exact_artifact_path={small}");
    run(&[options.as_slice(), &[exact, found.to_owned()]].concat())?;
    // What was made smaller must still fail by itself.
    let fails = Path::new(&small).exists() && !run(std::slice::from_ref(&small))?.status.success();
    let smallest = if fails { &small } else { found };
    let bytes = fs::read(smallest)?;
    Err(format!("{said}\nto be put into the corpus as crash-*: {smallest}\n{bytes:02x?}").into())
}
