//! Compares every struct, field and number of the crate with the C headers of the system.
//!
//! The headers are `/usr/include` and each directory named in `UVERBS_HEADERS` (separated by colons), for
//! headers of other kernels. Each set is read three times: a parser lists its declarations, a C program built
//! with it prints sizes, offsets and values, and `linux/version.h` gives the kernel's version. What the crate
//! has and the headers lack must be newer than the headers by [`history`]; what the headers have and the
//! crate lacks must be out of scope by [`history`], with a reason.
//!
//! Without a C compiler or without headers the tests are reported as ignored, with the reason.

mod check;
mod constants;
mod header;
mod history;
mod probe;
mod structs;

use header::Declared;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use probe::{Set, Unusable, Version};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let mut trials = vec![
        Trial::test("history: no entry is stale", check::history_is_used),
        Trial::test("names: no id occurs twice", check::ids_are_unique),
    ];
    for (dir, named) in header_dirs() {
        let set = Arc::new(Set::new(dir, named));
        trials.push(trial(&set, "structs", check::structs));
        trials.push(trial(&set, "constants", check::constants));
        trials.push(trial(&set, "nothing is left out", check::nothing_left_out));
        trials.push(trial(&set, "infiniband/verbs.h", check::verbs_h));
        trials.push(trial(&set, "rdma/rdma_cma.h", check::rdma_cma_h));
    }
    libtest_mimic::run(&args, trials).exit_code()
}

/// A check of one set of headers, with their version and declarations.
type Check = fn(&Set, Version, &Declared) -> Result<Completion, Failed>;

/// Runs a check if its headers can be used.
fn trial(set: &Arc<Set>, what: &str, check: Check) -> Trial {
    let name = format!("{}: {what}", set.dir.display());
    let set = Arc::clone(set);
    Trial::ignorable_test(name, move || match set.declared() {
        Ok((version, declared)) => check(&set, *version, declared),
        Err(Unusable::Skip(reason)) => Ok(Completion::ignored_with(reason)),
        Err(Unusable::Fail(message)) => Err(message.into()),
    })
}

/// The directories to test, and whether the user named them: then they must be usable.
fn header_dirs() -> Vec<(PathBuf, bool)> {
    let named = std::env::var_os("UVERBS_HEADERS").unwrap_or_default();
    let named = std::env::split_paths(&named).filter(|dir| !dir.as_os_str().is_empty());
    std::iter::once((PathBuf::from("/usr/include"), false))
        .chain(named.map(|dir| (dir, true)))
        .collect()
}
