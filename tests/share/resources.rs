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

/// How many objects of each of these kinds there are on all devices.
pub(crate) fn numbers<const N: usize>(kinds: [&str; N]) -> Outcome<[usize; N]> {
    let text = count()?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |kind| -> Outcome<usize> {
        let pairs = words.iter().zip(words.iter().skip(1));
        let found = pairs.filter(|(name, _)| **name == kind);
        Ok(found
            .map(|(_, number)| number.parse::<usize>())
            .sum::<Result<_, _>>()?)
    };
    let mut numbers = [0; N];
    for (place, kind) in numbers.iter_mut().zip(kinds) {
        *place = number(kind)?;
    }
    Ok(numbers)
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
