//! Whether KVM works here: found out by a trial boot, and remembered.
//!
//! /dev/kvm can be there and yet hang a stock kernel at boot (nested virtualisation that is none), so its
//! presence says nothing.

use std::fs::File;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::arch::Arch;
use crate::fetch::Parts;
use crate::guest::{self, Options};
use crate::qemu::Accelerator;
use crate::store::Store;

/// How long the trial may take. With a KVM that works it takes two or three seconds.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// The stamp's name in the store.
pub(crate) const STAMP: &str = "accelerator";

/// What the user asks for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum Wish {
    /// KVM if a trial boot shows that it works, else TCG.
    #[default]
    Auto,
    /// KVM.
    Kvm,
    /// TCG.
    Tcg,
    /// TCG whose clock counts the instructions of all processors: a nanosecond each.
    Icount,
}

/// The trial's result, remembered.
#[derive(Debug, Deserialize, Serialize)]
struct Tried {
    accelerator: Accelerator,
    why: String,
    /// Another QEMU is another trial.
    qemu: std::path::PathBuf,
}

/// Chooses the accelerator, by a trial boot if none was made yet. For another architecture than this
/// machine's there is one only.
///
/// # Errors
/// If QEMU cannot be started.
pub(crate) fn choose(
    store: &Store,
    parts: &Parts,
    wish: Wish,
    options: &Options,
) -> Result<Accelerator> {
    match wish {
        Wish::Icount => return Ok(Accelerator::Icount),
        _ if parts.arch != Arch::X86_64 => return Ok(Accelerator::Tcg),
        Wish::Kvm => return Ok(Accelerator::Kvm),
        Wish::Tcg => return Ok(Accelerator::Tcg),
        Wish::Auto => {}
    }
    // Not remembered: a permission is soon changed, and the question costs nothing.
    if File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_err()
    {
        return Ok(Accelerator::Tcg);
    }
    if let Some(tried) = store.stamp::<Tried>(STAMP)
        && tried.qemu == parts.qemu.program
    {
        return Ok(tried.accelerator);
    }
    let tried = try_kvm(store, parts, options)?;
    eprintln!(
        "vm: {}; remembered (cargo vm clean --trial forgets it)",
        tried.why
    );
    store.write_stamp(STAMP, &tried)?;
    Ok(tried.accelerator)
}

fn try_kvm(store: &Store, parts: &Parts, options: &Options) -> Result<Tried> {
    eprintln!("vm: trying KVM, for at most {} s", TRIAL_LIMIT.as_secs());
    let options = Options {
        accelerator: Accelerator::Kvm,
        ..options.clone()
    };
    let (accelerator, why) = match guest::boots(store, parts, &options, TRIAL_LIMIT)? {
        Ok(()) => (Accelerator::Kvm, "KVM works here".to_owned()),
        Err(why) => (
            Accelerator::Tcg,
            format!("KVM does not work here ({why}), so TCG is used"),
        ),
    };
    Ok(Tried {
        accelerator,
        why,
        qemu: parts.qemu.program.clone(),
    })
}
