//! The kernel's own count of the objects of all devices, as iproute2's `rdma` shows it.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::Outcome;

/// How many objects of each kind there are on each device, as text to be compared.
pub(crate) fn count() -> Outcome<String> {
    let output = Command::new("rdma").args(["resource", "show"]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Looks until the counts are these: what a process has left behind is destroyed soon after its end.
pub(crate) fn wait_for(expected: &str) -> Outcome {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let now = count()?;
        if now == expected {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!("left in the kernel:\n{now}expected:\n{expected}").into());
        }
    }
}
