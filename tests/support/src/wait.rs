//! How long tests wait.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Result, fail};

/// How long anything that must happen may take. Under emulation everything is slow; only a hang takes this
/// long.
pub const LIMIT: Duration = Duration::from_secs(20);

/// How long a process may take from its start to its end: programs are large, and the guest reads them over a
/// share of the host's files.
pub const PROCESS: Duration = Duration::from_secs(120);

/// How long a test waits for what must not happen.
pub const QUIET: Duration = Duration::from_millis(100);

/// Asks until there is an answer, at most [`LIMIT`]; `what` says what did not come.
///
/// # Errors
/// The question's own, or that the time is over.
pub fn until<T>(what: &str, ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    until_within(LIMIT, what, ask)
}

/// As [`until`], with a limit of choice.
///
/// # Errors
/// As of [`until`].
pub fn until_within<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        // Before the question: a thread that had no processor until the time was over asks once more.
        let is_over = Instant::now() > deadline;
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if is_over {
            return fail(format!("not within {limit:?}: {what}"));
        }
        thread::yield_now();
    }
}

/// Asks every 20 ms until it is so, at most so long: for questions that cost a process or a connection each.
///
/// # Errors
/// As of [`until`].
pub fn until_so(limit: Duration, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result {
    until_within(limit, what, || {
        let answer = is_so()?.then_some(());
        if answer.is_none() {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(answer)
    })
}
