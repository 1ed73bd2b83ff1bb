//! Tests under signals: programs whose system calls end with `EINTR` again and again.
//!
//! The library of `tests/signals` is preloaded into them. The guest's kernel counts which system calls were
//! interrupted (a histogram trigger of its tracing), so that it shows whether the signals hit anything.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use super::{build, c};
use crate::guest::protocol::{Ending, Spec};
use crate::guest::{self, Guest, Outcome};
use crate::qemu::Accelerator;
use crate::store::Store;

/// What the library in the programs reads.
const VARIABLE: &str = "VM_SIGNALS";

/// How long asking the guest may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Has the kernel count the system calls that end because of a signal: with `EINTR`, or with one of the codes
/// that become `EINTR` when a handler without `SA_RESTART` has run.
const COUNT: &str = "\
cd /sys/kernel/tracing && { [ -d events ] || mount -t tracefs tracefs .; } && cd /sys/kernel/tracing && \
echo 'hist:keys=id.syscall:size=4096 if ret == -4 || ret == -512 || ret == -514 || ret == -516' \
> events/raw_syscalls/sys_exit/trigger";

/// Prints the counts.
const TELL: &str = "cat /sys/kernel/tracing/events/raw_syscalls/sys_exit/hist";

/// Calls in which the library waits. Others, such as those of locks, are interrupted in every program.
const WAITS: [&str; 9] = [
    "read",
    "poll",
    "ppoll",
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "recvmsg",
    "recvfrom",
    "ioctl",
];

/// How programs are interrupted.
#[derive(Clone, Debug)]
pub(crate) struct Signals {
    /// What the times and the threads follow from.
    pub(crate) seed: u64,
    library: PathBuf,
    directories: Vec<PathBuf>,
}

/// How often each system call was interrupted.
pub(super) type Counts = BTreeMap<String, u64>;

impl Signals {
    /// Builds the library. Without a seed there is another one in each run.
    ///
    /// # Errors
    /// If it does not build.
    pub(crate) fn new(store: &Store, seed: Option<u64>) -> Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seed = seed.unwrap_or_else(|| since.map_or(1, |since| u64::from(since.subsec_nanos())));
        let library = build::signals(store.workspace())?;
        let programs = library.parent().map(Into::into);
        Ok(Self {
            seed,
            directories: programs.into_iter().chain([c::directory(store)]).collect(),
            library,
        })
    }

    /// The variables of a program that is interrupted: under emulation about every millisecond.
    pub(super) fn variables(&self, accelerator: Accelerator) -> [(String, String); 2] {
        let gap = match accelerator {
            Accelerator::Kvm => 100,
            Accelerator::Tcg | Accelerator::Icount => 1000,
        };
        let mut how = format!("{}:{gap}", self.seed);
        for directory in &self.directories {
            how.push_str(&format!(":{}", directory.display()));
        }
        [
            (VARIABLE.to_owned(), how),
            ("LD_PRELOAD".to_owned(), self.library.display().to_string()),
        ]
    }
}

/// Has a guest count what is interrupted in it.
///
/// # Errors
/// If its kernel does not.
pub(super) fn count(guest: &mut Guest, release: &str) -> Result<()> {
    ask(guest, release, COUNT).map(drop)
}

/// What was interrupted in a guest so far.
///
/// # Errors
/// If it does not say.
pub(super) fn counts(guest: &mut Guest, release: &str) -> Result<Counts> {
    Ok(parse(&ask(guest, release, TELL)?))
}

/// Runs a line of shell in the guest, and gives its output.
fn ask(guest: &mut Guest, release: &str, line: &str) -> Result<String> {
    let spec = Spec {
        words: ["sh", "-c", line].map(str::to_owned).to_vec(),
        environment: guest::environment(release, None, &[]),
        directory: "/".to_owned(),
        ..Spec::default()
    };
    let process = guest.start(&spec)?;
    let mut output = Vec::new();
    let outcome = guest::to_end(guest, process, Some(Instant::now() + LIMIT), |_, bytes| {
        output.extend_from_slice(bytes)
    })?;
    let output = String::from_utf8_lossy(&output).into_owned();
    match outcome {
        Outcome::Ended(Ending::Exited(0)) => Ok(output),
        outcome => bail!("counting interrupted system calls: {outcome:?}: {output}"),
    }
}

/// Reads lines such as `{ id: sys_read                      [  0] } hitcount:          3`.
fn parse(histogram: &str) -> Counts {
    let line = |line: &str| {
        let mut words = line.strip_prefix("{ id: ")?.split_whitespace();
        // What returns from the handler has the interrupted call's result, and no name.
        let name = words.next()?.strip_prefix("sys_")?.to_owned();
        let count = line.split_once("hitcount:")?.1.trim().parse().ok()?;
        Some((name, count))
    };
    histogram.lines().filter_map(line).collect()
}

/// What was interrupted since these counts, as text, the most often first. An error if no call was among it
/// in which the library waits: the signals hit nothing.
pub(super) fn since(before: &Counts, now: &Counts) -> Result<String, String> {
    let mut grown: Vec<(u64, &str)> = now
        .iter()
        .map(|(name, count)| {
            let more = count.saturating_sub(before.get(name).copied().unwrap_or(0));
            (more, name.as_str())
        })
        .filter(|(more, _)| *more > 0)
        .collect();
    grown.sort_unstable_by(|a, b| b.cmp(a));
    let words: Vec<String> = grown
        .iter()
        .map(|(count, name)| format!("{name} {count}"))
        .collect();
    match grown.iter().any(|(_, name)| WAITS.contains(name)) {
        true => Ok(words.join(", ")),
        false => Err(format!(
            "no wait of the library was interrupted, only: {}",
            words.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_read_and_one_without_waits_is_a_failure() {
        let before = parse(
            "# event histogram\n#\n\n{ id: sys_read                      [  0] } hitcount:          3\n\
             { id: sys_futex                     [202] } hitcount:         12\n\
             { id: unknown_syscall               [ -1] } hitcount:         99\n\nTotals:\n    Hits: 15\n",
        );
        assert_eq!(
            before,
            Counts::from([("read".into(), 3), ("futex".into(), 12)])
        );
        let mut now = before.clone();
        now.insert("futex".into(), 20);
        assert!(since(&before, &now).is_err_and(|why| why.contains("futex 8")));
        now.insert("poll".into(), 30);
        assert_eq!(since(&before, &now), Ok("poll 30, futex 8".into()));
        assert!(since(&before, &before).is_err());
    }
}
