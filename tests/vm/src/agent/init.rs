//! Process 1 of the guest: starts the agent, reaps what is orphaned, and powers off when the agent has ended.

use std::convert::Infallible;
use std::process::Command;

use anyhow::{Context, Result};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::Pid;

/// The word that makes this program the agent.
pub(crate) const AGENT: &str = "guest-agent";

/// Runs the guest until the agent ends, then powers it off.
///
/// # Errors
/// If the agent cannot be started or the machine not be powered off; the kernel then panics, which ends the
/// guest too.
pub(crate) fn main() -> Result<Infallible> {
    let program = std::env::current_exe().context("finding the agent's executable")?;
    let agent = Command::new(program)
        .arg(AGENT)
        .spawn()
        .context("starting the agent")?;
    let agent = Pid::from_raw(agent.id().cast_signed());
    // `wait` fails with ECHILD only when there is no child left, which is the end too.
    while let Ok(status) = wait() {
        if status.pid() == Some(agent) {
            if status != WaitStatus::Exited(agent, 0) {
                eprintln!("vm-init: the agent ended: {status:?}");
            }
            break;
        }
    }
    reboot(RebootMode::RB_POWER_OFF).context("powering off")
}
