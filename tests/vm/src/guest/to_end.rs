//! Running one process of a guest to its end, or to its deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::libc::SIGKILL;

use super::protocol::Ending;
use super::session::{Event, Guest, Stream};

/// How long a killed process may take to be gone; one that takes longer is stuck in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(60);

/// How a process ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// By itself or by a signal.
    Ended(Ending),
    /// It never ran: the reason, and the status that a shell gives for it.
    NotStarted(String, i32),
    /// It was killed at its deadline.
    TimedOut,
}

/// Waits for the process to end and passes on what it writes. At the deadline it is killed, with its
/// children.
///
/// # Errors
/// If the guest is gone or hangs, or the killed process is stuck; the error shows the guest's console.
pub(crate) fn to_end(
    guest: &mut Guest,
    process: u32,
    deadline: Option<Instant>,
    mut write: impl FnMut(Stream, &[u8]),
) -> Result<Outcome> {
    let mut deadline = deadline;
    let mut killed = false;
    loop {
        match guest.next(deadline)? {
            Event::Wrote(from, stream, bytes) if from == process => write(stream, &bytes),
            Event::Ended(who, _) if who == process && killed => return Ok(Outcome::TimedOut),
            Event::Ended(who, ending) if who == process => return Ok(Outcome::Ended(ending)),
            Event::NotStarted(who, reason, status) if who == process => {
                return Ok(Outcome::NotStarted(reason, status));
            }
            Event::Deadline if killed => {
                bail!(
                    "the process cannot be killed: it is stuck in the kernel\n{}",
                    guest.console()
                );
            }
            Event::Deadline => {
                guest.signal(process, SIGKILL)?;
                killed = true;
                deadline = Some(Instant::now() + KILL_LIMIT);
            }
            // Of a process that was started earlier and has left children behind.
            Event::Wrote(..) | Event::Ended(..) | Event::NotStarted(..) => {}
        }
    }
}
