//! Tests, and the programs that they make up.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::device::settle;
use crate::lacks::lack;
use crate::outcome::Skip;
use crate::{Efa, Hca, Objects, Result};

/// A test with its name. Outside the guest it is ignored: only there may a test make and break devices.
pub fn test(name: impl Into<String>, run: impl FnOnce() -> Result + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || match in_guest() {
        true => verdict(run),
        false => Ok(Completion::ignored_with(
            "needs an RDMA device: run `cargo vm test`",
        )),
    })
}

/// A test behind which the kernel must have as many objects as before it.
pub fn test_without_leaks(
    name: impl Into<String>,
    run: impl FnOnce() -> Result + Send + 'static,
) -> Trial {
    test(name, move || {
        for device in uverbs::devices()? {
            settle(device.name())?;
        }
        let before = Objects::of_all_devices()?;
        run()?;
        before.await_back()
    })
}

/// A test of the adapter made of software. Where there is none it is ignored.
pub fn test_on_adapter(
    name: impl Into<String>,
    run: impl FnOnce(Hca) -> Result + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || match Hca::of_guest() {
        Some(hca) => verdict(|| run(hca)),
        None => Ok(Completion::ignored_with(
            "no adapter here: run `cargo vm test --hca connectx`",
        )),
    })
}

/// A test of the EFA made of software. Where there is none it is ignored.
pub fn test_on_efa(
    name: impl Into<String>,
    run: impl FnOnce(Efa) -> Result + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, move || match Efa::of_guest() {
        Some(efa) => verdict(|| run(efa)),
        None => Ok(Completion::ignored_with(
            "no EFA here: run `cargo vm test --hca efa`",
        )),
    })
}

/// Runs the tests that the command line chooses, one at a time: they share the guest's devices, and count
/// what is on them.
pub fn run_all(modules: impl IntoIterator<Item = Vec<Trial>>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests = modules.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, tests).exit_code()
}

/// Whether all of a test is to run (`cargo vm test --full`), or as much as every run can pay for.
pub fn is_full() -> bool {
    std::env::var_os("VM_FULL").is_some()
}

/// Whether the program was built with a sanitizer (`cargo vm test --sanitizer`), which maps memory on its own
/// account.
pub fn is_sanitized() -> bool {
    let options = ["ASAN_OPTIONS", "TSAN_OPTIONS"];
    options.iter().any(|name| std::env::var_os(name).is_some())
}

/// Whether this is a guest of `cargo vm`.
fn in_guest() -> bool {
    std::env::var_os("VM_GUEST").is_some()
}

/// Runs a test. If its error or its panic says that the device lacks what it may lack, the test is skipped.
fn verdict(run: impl FnOnce() -> Result) -> std::result::Result<Completion, Failed> {
    let ended = catch_unwind(AssertUnwindSafe(run));
    let error = match ended {
        Ok(Ok(())) => return Ok(Completion::Completed),
        Ok(Err(error)) => error,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            match text.and_then(lack) {
                Some(reason) => return Ok(Completion::ignored_with(reason)),
                None => resume_unwind(panic),
            }
        }
    };
    if let Some(Skip(reason)) = error.downcast_ref::<Skip>() {
        return Ok(Completion::ignored_with(reason));
    }
    match lack(&error.to_string()) {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => Err(error.into()),
    }
}
