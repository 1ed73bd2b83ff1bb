//! A trial boot: does a stock kernel come up on this machine, with these options?

use std::time::Duration;

use anyhow::Result;

use super::Options;
use super::launch::Emulator;
use crate::fetch::Parts;
use crate::store::Store;

/// What init writes to the console when it is asked for nothing else.
const IT_BOOTS: &str = "vm-init: it boots";

/// Boots and powers off. Gives whether that worked within the limit, and if not, why.
///
/// # Errors
/// If QEMU cannot be started at all.
pub(crate) fn boots(
    store: &Store,
    parts: &Parts,
    options: &Options,
    limit: Duration,
) -> Result<Result<(), String>> {
    let mut emulator = Emulator::start_trial(store, parts, options)?;
    let ended = emulator.wait(limit);
    if emulator.console().contains(IT_BOOTS) {
        return Ok(Ok(()));
    }
    Ok(Err(match ended {
        Some(status) => format!("QEMU ended with {status}: {}", emulator.errors().trim()),
        None => format!("the kernel was not up after {} s", limit.as_secs()),
    }))
}
