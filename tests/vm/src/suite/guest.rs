//! The guest's part: each test in a process of its own, all in one boot for each kernel.
//!
//! A process for each test keeps what tests do to their limits, their files and their devices apart, and lets
//! one that hangs be killed alone. A guest that dies is booted anew for the tests that are left.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::build::Sanitizer;
use super::c;
use super::example_agent;
use super::job::Job;
use super::round::{Place, Round};
use super::signals::{self, Counts, Signals};
use crate::arch::Arch;
use crate::fetch::Parts;
use crate::guest::protocol::{Ending, Spec};
use crate::guest::{self, Guest, Options, Outcome};
use crate::hca::Hca;
use crate::klog;
use crate::results::{self, Group, Verdict};
use crate::store::Store;

/// How many times a guest may die before its kernel's remaining tests are given up.
const DEATHS: u32 = 3;

/// The variable by which a test in the guest finds the emulator that runs the guest: it is a client of
/// librdmacm. Its value is a [`Qemu`](crate::qemu::Qemu) in JSON.
const EMULATOR: &str = "VM_EMULATOR";

/// How tests run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// The time limit of one test.
    pub(crate) test: Duration,
    /// All that a test has, not a small set of it.
    pub(crate) full: bool,
    /// Other tests run at the same time, so that each line says whose it is.
    pub(crate) beside_others: bool,
    /// What the programs were built with.
    pub(crate) sanitizer: Option<Sanitizer>,
    /// How programs are interrupted, where they are.
    pub(crate) signals: Option<&'a Signals>,
}

/// Runs the tests of a round, showing each result as it comes.
///
/// # Errors
/// If QEMU cannot be started. What goes wrong in the guest is a result.
pub(crate) fn run(
    store: &Store,
    parts: &Parts,
    options: &Options,
    round: &Round,
    limits: Limits<'_>,
) -> Result<Group> {
    let group = Group::new(name(&parts.kernel.name, &round.place));
    let whose = match limits.beside_others {
        true => format!("{}: ", group.name),
        false => String::new(),
    };
    let mut run = Run {
        whose,
        store,
        parts,
        options,
        limits,
        guest: None,
        second: None,
        deaths: 0,
        interrupted: Counts::new(),
        group,
    };
    let signals = limits.signals.map(|signals| signals.seed);
    let signals = signals.map_or_else(String::new, |seed| format!(", --signal-seed {seed}"));
    let seed = options.hca.as_ref().and_then(Hca::seed);
    let seed = seed.map_or_else(String::new, |seed| format!(", --hca-seed {seed}"));
    println!(
        "\n{} ({:?}{seed}{signals})",
        name(&parts.kernel.release, &round.place),
        options.accelerator
    );
    let started = Instant::now();
    for of_program in round.jobs.chunk_by(|a, b| a.program.name == b.program.name) {
        for job in of_program {
            run.job(job);
        }
        run.tell_interrupted(&of_program[0]);
    }
    run.end();
    run.group.took = Some(started.elapsed());
    Ok(run.group)
}

/// What a guest with that kernel in that place is called.
pub(crate) fn name(kernel: &str, place: &Place) -> String {
    match place {
        Place::One => format!("Linux {kernel}"),
        Place::Two => format!("Linux {kernel}, two hosts"),
        Place::Adapter(hca) if hca.guests() > 1 => {
            format!("Linux {kernel}, {}, two guests", hca.kind_name())
        }
        Place::Adapter(hca) => format!("Linux {kernel}, {}", hca.kind_name()),
        Place::Signals(None) => format!("Linux {kernel}, signals"),
        Place::Signals(Some(hca)) => format!("Linux {kernel}, {}, signals", hca.kind_name()),
    }
}

struct Run<'a> {
    /// What each line begins its name with.
    whose: String,
    store: &'a Store,
    parts: &'a Parts,
    options: &'a Options,
    limits: Limits<'a>,
    guest: Option<Guest>,
    /// The one that shares the adapter of the other.
    second: Option<Guest>,
    deaths: u32,
    /// The system calls that signals have interrupted in the guest and were told.
    interrupted: Counts,
    group: Group,
}

/// What a test did.
struct Done {
    /// How its process ended in each guest, and what it said.
    ended: Vec<(Outcome, String)>,
    /// What the adapter had to complain about meanwhile.
    complaints: Vec<String>,
    took: Duration,
}

impl Run<'_> {
    fn job(&mut self, job: &Job) {
        let done = self.execute(job);
        self.record(
            job.name(),
            done.map(|done| (verdict(job, &done), done.took)),
        );
    }

    /// Runs a test in the guest, which is booted if need be. The error is what a failed test is to say.
    fn execute(&mut self, job: &Job) -> Result<Done, String> {
        if self.deaths >= DEATHS {
            return Err(format!("not run: the guest died {DEATHS} times"));
        }
        let result = self.try_execute(job);
        result.map_err(|error| {
            self.deaths += 1;
            // The two have one adapter.
            self.second = None;
            let complaints = self
                .guest
                .take()
                .map(|guest| all_findings(guest.log()))
                .unwrap_or_default();
            format!("{error:#}\n{complaints}")
        })
    }

    fn try_execute(&mut self, job: &Job) -> Result<Done> {
        let program = &job.program;
        let guest = match &mut self.guest {
            Some(guest) => guest,
            none => {
                let mut guest = Guest::boot(self.store, self.parts, self.options)?;
                if self.limits.signals.is_some() {
                    signals::count(&mut guest, &self.parts.kernel.release)?;
                    self.interrupted.clear();
                }
                none.insert(guest)
            }
        };
        if self.second.is_none()
            && self
                .options
                .hca
                .as_ref()
                .is_some_and(|hca| hca.guests() > 1)
        {
            let second = Guest::boot_second(self.store, self.parts, self.options, guest)?;
            self.second = Some(second);
        }
        let path = program.path.display().to_string();
        let directory = program.directory.display().to_string();
        let mut extra = vec![("CARGO_MANIFEST_DIR".to_owned(), directory.clone())];
        if self.limits.full {
            extra.push(("VM_FULL".to_owned(), "1".to_owned()));
        }
        let agent = example_agent::path(self.store, self.parts.arch);
        extra.push((
            example_agent::VARIABLE.to_owned(),
            agent.display().to_string(),
        ));
        // They are compiled for this machine alone.
        if self.parts.arch == Arch::X86_64 {
            let c_programs = c::directory(self.store).display().to_string();
            extra.push((c::VARIABLE.to_owned(), c_programs));
            let qemu = serde_json::to_string(&self.parts.qemu)?;
            extra.push((EMULATOR.to_owned(), qemu));
        }
        if let Some(sanitizer) = self.limits.sanitizer {
            let (name, value) = sanitizer.variable(self.store.workspace());
            extra.push((name.to_owned(), value));
            // A backtrace reads symbols, which takes minutes there.
            extra.push(("RUST_BACKTRACE".to_owned(), "0".to_owned()));
        }
        if let Some(signals) = self.limits.signals {
            extra.extend(signals.variables(self.options.accelerator));
        }
        let spec = Spec {
            words: std::iter::once(path)
                .chain(job.arguments().into_iter().map(str::to_owned))
                .collect(),
            environment: guest::environment(
                &self.parts.kernel.release,
                self.options.hca.as_ref(),
                &extra,
            ),
            directory,
            ..Spec::default()
        };
        let started = Instant::now();
        let deadline = Some(started + self.limits.test);
        let process = guest.start(&spec)?;
        let in_second = match &mut self.second {
            Some(second) => {
                let mut spec = spec.clone();
                spec.environment
                    .insert("VM_GUEST".to_owned(), "2".to_owned());
                Some((second.start(&spec)?, second))
            }
            None => None,
        };
        let to_end = |guest: &mut Guest, process| -> Result<(Outcome, String)> {
            let mut output = Vec::new();
            let outcome = guest::to_end(guest, process, deadline, |_, bytes| {
                output.extend_from_slice(bytes)
            })?;
            Ok((outcome, String::from_utf8_lossy(&output).into_owned()))
        };
        let mut ended = vec![to_end(guest, process)?];
        if let Some((process, second)) = in_second {
            ended.push(to_end(second, process)?);
        }
        Ok(Done {
            ended,
            complaints: guest.take_adapter_violations(),
            took: started.elapsed(),
        })
    }

    /// Shows and keeps a result.
    fn record(&mut self, name: String, result: Result<(Verdict, Duration), String>) {
        let (verdict, took) = result.unwrap_or_else(|why| (Verdict::Failed(why), Duration::ZERO));
        let whose = &self.whose;
        match &verdict {
            Verdict::Passed => println!("ok       {whose}{name} ({:.1} s)", took.as_secs_f64()),
            Verdict::Skipped(reason) => println!("skipped  {whose}{name}: {reason}"),
            Verdict::Failed(why) => println!("FAILED   {whose}{name}\n{}", indented(why)),
        }
        self.group.add_timed(name, verdict, took);
    }

    /// Records which system calls of a program signals have interrupted. One in which they hit nothing has
    /// not been tested.
    fn tell_interrupted(&mut self, job: &Job) {
        let (Some(signals), Some(guest)) = (self.limits.signals, &mut self.guest) else {
            return;
        };
        let what = format!("{}: interrupted system calls", job.program.name);
        let told = match signals::counts(guest, &self.parts.kernel.release) {
            Ok(now) => {
                let told = signals::since(&self.interrupted, &now);
                self.interrupted = now;
                told
            }
            Err(error) => Err(format!("{error:#}")),
        };
        match told {
            Ok(calls) => {
                println!("         {}{what}: {calls}", self.whose);
                self.group.add(what, Verdict::Passed);
            }
            Err(why) => self.fail(&what, format!("{why} (--signal-seed {})", signals.seed)),
        }
    }

    /// Ends the guests. What their kernels have to complain about is one more failure.
    fn end(&mut self) {
        for guest in [self.second.take(), self.guest.take()]
            .into_iter()
            .flatten()
        {
            let why = match guest.shut_down() {
                Ok((log, violations)) => {
                    if !violations.is_empty() {
                        self.fail("the adapter", violations.join("\n"));
                    }
                    let findings = klog::scan(log.iter().map(String::as_str));
                    self.note(&klog::known_faults(&findings));
                    klog::complaints(&findings)
                }
                Err(error) => format!("{error:#}"),
            };
            if !why.is_empty() {
                self.fail("the kernel's log", why);
            }
        }
    }

    /// Shows and keeps the known faults of the kernel that its log tells.
    fn note(&mut self, faults: &[klog::Known]) {
        for known in faults {
            let (whose, why) = (&self.whose, known.fault.why);
            println!("known    {whose}the kernel's log: {known}\n    {why}");
            self.group.known_faults.push(known.to_string());
        }
    }

    /// Records a failure of something that is no test.
    fn fail(&mut self, what: &str, why: String) {
        self.record(what.to_owned(), Ok((Verdict::Failed(why), Duration::ZERO)));
    }
}

/// A test has passed if it has in each guest.
fn verdict(job: &Job, done: &Done) -> Verdict {
    if !done.complaints.is_empty() {
        let complaints = done.complaints.join("\n");
        let said: String = done.ended.iter().map(|(_, said)| said.as_str()).collect();
        return Verdict::Failed(format!(
            "the adapter complained: {complaints}\nits output:\n{said}"
        ));
    }
    let mut verdicts = done
        .ended
        .iter()
        .map(|(outcome, said)| of_one(job, outcome, said, done.took));
    let other = verdicts.find(|verdict| !matches!(verdict, Verdict::Passed));
    other.unwrap_or(Verdict::Passed)
}

fn of_one(job: &Job, outcome: &Outcome, said: &str, took: Duration) -> Verdict {
    let how = match outcome {
        Outcome::Ended(Ending::Exited(0)) => {
            return match job.test {
                Some(_) => results::of_one(said),
                None => Verdict::Passed,
            };
        }
        Outcome::Ended(Ending::Exited(status)) => match results::failure(said) {
            Some(message) => message.to_owned(),
            None => format!("ended with status {status}"),
        },
        Outcome::Ended(Ending::Signalled(signal)) => format!("ended by signal {signal}"),
        Outcome::NotStarted(reason, _) => format!("not started: {reason}"),
        Outcome::TimedOut => format!("killed after {:.0} s", took.as_secs_f64()),
    };
    Verdict::Failed(format!("{how}\nits output:\n{said}"))
}

/// What is wrong in the log of a kernel that died, known faults too, as text; empty if nothing.
fn all_findings(log: &[String]) -> String {
    klog::scan(log.iter().map(String::as_str))
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn indented(text: &str) -> String {
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| format!("    {line}\n"))
        .collect()
}
