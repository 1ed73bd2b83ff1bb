//! From exec to the first protection domain, and to the first completion.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::{BARE, OURS, OURS_STATIC, Plan, RDMA_CORE, Record, callgrind, median};

/// The system call that a program makes first of all in `main`, and that nothing else makes.
const MARK: &str = "getppid(";

/// A program and its arguments.
struct Start {
    column: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
}

/// What strace saw.
#[derive(Default)]
struct Calls {
    all: f64,
    /// Since the program made its mark at the start of `main`.
    from_main: f64,
    files: f64,
    libraries: f64,
}

pub(super) fn run(plan: &Plan) -> Result<()> {
    for (goal, what) in [("pd", "first PD"), ("completion", "first completion")] {
        let starts = starts(plan, goal);
        let calls: Vec<_> = starts.iter().map(calls).collect::<Result<_>>()?;
        let by = |value: fn(&Calls) -> f64| {
            let columns = starts.iter().map(|start| start.column);
            columns.zip(calls.iter().map(value)).collect::<Vec<_>>()
        };
        let row = |name: &str, unit, values| {
            Record::new(
                "start-up",
                format!("{name} to the {what}"),
                unit,
                RDMA_CORE,
                values,
            )
        };
        let all = row("system calls", "calls", by(|calls| calls.all));
        match goal {
            "pd" => all.ours_at_most("at most 40", 40.0).print()?,
            _ => all.print()?,
        }
        row(
            "system calls, from main",
            "calls",
            by(|calls| calls.from_main),
        )
        .print()?;
        row("files opened", "files", by(|calls| calls.files)).print()?;
        row("libraries loaded", "files", by(|calls| calls.libraries)).print()?;
        let mut instructions = Vec::new();
        let mut memory = Vec::new();
        for start in &starts {
            let arguments: Vec<&str> = start.arguments.iter().map(String::as_str).collect();
            let counted = callgrind::whole(&start.program, &arguments)?;
            instructions.push((start.column, counted as f64));
            memory.push((start.column, resident(start)?));
        }
        row("instructions", "instructions", instructions).print()?;
        row("resident memory", "KiB", memory).print()?;
        time(plan, &starts, what)?;
    }
    Ok(())
}

fn starts(plan: &Plan, goal: &str) -> Vec<Start> {
    let start = |column, program: &str, first: &[&str]| Start {
        column,
        program: plan.program(program),
        arguments: first
            .iter()
            .chain(&[plan.device.as_str(), goal])
            .map(|&word| word.to_owned())
            .collect(),
    };
    let mut starts = vec![
        start(OURS, "start-up", &[]),
        start(OURS_STATIC, "start-up-static", &[]),
        start(RDMA_CORE, "rdma_core", &["start-up"]),
    ];
    if goal == "pd" {
        starts.push(start(BARE, "bare", &[]));
    }
    starts
}

/// Counts system calls up to the program's end by itself.
fn calls(start: &Start) -> Result<Calls> {
    let trace = std::env::temp_dir().join(format!("strace-{}", std::process::id()));
    let status = Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(&trace)
        .arg(&start.program)
        .args(&start.arguments)
        .status()
        .context("starting strace")?;
    ensure!(
        status.success(),
        "{} ended with {status}",
        start.program.display()
    );
    let text = fs::read_to_string(&trace).context("reading what strace saw")?;
    let mut calls = Calls::default();
    for line in text.lines() {
        // "PID name(...) = result"; other lines tell of signals and exits, or end a call that was cut in two.
        let Some((_, call)) = line.split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        if !call.starts_with(|letter: char| letter.is_ascii_lowercase()) || call.starts_with("exit")
        {
            continue;
        }
        if call.starts_with(MARK) {
            calls.from_main = 0.0;
            continue;
        }
        calls.all += 1.0;
        calls.from_main += 1.0;
        if call.starts_with("open") && !call.contains(" = -1 ") {
            calls.files += 1.0;
            if call.contains(".so") {
                calls.libraries += 1.0;
            }
        }
    }
    Ok(calls)
}

/// The most memory that was resident, in KiB, as the program itself tells.
fn resident(start: &Start) -> Result<f64> {
    let output = Command::new(&start.program)
        .args(&start.arguments)
        .arg("memory")
        .output()
        .with_context(|| format!("starting {}", start.program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text
        .split_whitespace()
        .nth(1)
        .and_then(|word| word.parse().ok());
    number.with_context(|| format!("{} told no memory: {text:?}", start.program.display()))
}

/// Times the programs in turn, and prints the row.
fn time(plan: &Plan, starts: &[Start], what: &str) -> Result<()> {
    let mut times = vec![Vec::new(); starts.len()];
    for _ in 0..plan.rounds(10, 40) {
        for (start, times) in starts.iter().zip(&mut times) {
            let before = Instant::now();
            let status = Command::new(&start.program)
                .args(&start.arguments)
                .stdout(Stdio::null())
                .status()
                .with_context(|| format!("starting {}", start.program.display()))?;
            times.push(before.elapsed().as_secs_f64() * 1e6);
            if !status.success() {
                bail!("{} ended with {status}", start.program.display());
            }
        }
    }
    let column = |name: &str| starts.iter().position(|start| start.column == name);
    let paired = |ours: &str, other: &str| {
        let (ours, other) = (&times[column(ours)?], &times[column(other)?]);
        let ratios: Vec<f64> = ours
            .iter()
            .zip(other)
            .map(|(ours, other)| ours / other)
            .collect();
        median(&ratios)
    };
    let medians = starts
        .iter()
        .zip(&times)
        .filter_map(|(start, times)| Some((start.column, median(times)?)));
    let row = |against| {
        Record::new(
            "start-up",
            format!("time to the {what}, against {against}"),
            "us",
            against,
            medians.clone(),
        )
        .paired(paired(OURS, against))
    };
    row(RDMA_CORE).print()?;
    if column(BARE).is_some() {
        let ratio = paired(OURS_STATIC, BARE);
        let met = ratio.is_some_and(|ratio| ratio <= 1.2);
        let mut record = row(BARE).paired(ratio);
        record.row = format!("time to the {what}, static against {BARE}");
        record.goal = Some(super::Goal {
            text: "within 20%",
            met,
        });
        record.print()?;
    }
    Ok(())
}
