//! What all tests use: how a test is declared, deadlines, devices, queue pairs in pairs, completions as values.

pub(crate) mod completion;
pub(crate) mod device;
pub(crate) mod pair;
pub(crate) mod role;
pub(crate) mod trace;

use std::error::Error;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Trial};

use crate::device::{Device, device};

pub(crate) use completion::{Wc, completion, completions};
pub(crate) use pair::{Pair, Setup};

/// The result of anything here. Whatever went wrong, the test failed; except for [`Skip`].
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long anything that must happen may take. Under emulation everything is slow; only a hang takes this long.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Why a test cannot run on this kernel.
#[derive(Debug)]
pub(crate) struct Skip(pub(crate) String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Skip {}

/// Ends a test of what soft-RoCE alone has or does, with the reason, if the device is another.
pub(crate) fn only_on_rxe(why: &str) -> Result {
    match device() {
        Device::Rxe => Ok(()),
        Device::Mlx5 { .. } => Err(Skip(why.to_owned()).into()),
    }
}

/// A test with its name. Outside the guest it is ignored.
pub(crate) fn test(name: &str, run: fn() -> Result) -> Trial {
    let runner = move || {
        if !in_guest() {
            return Ok(Completion::ignored_with(
                "no RDMA device here: run `cargo vm test`",
            ));
        }
        match run() {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(Skip(reason)) => Ok(Completion::ignored_with(reason)),
                None => Err(error.into()),
            },
        }
    };
    Trial::ignorable_test(name, runner)
}

/// Whether this is the guest that `cargo vm` boots: only there may a test make and break devices.
fn in_guest() -> bool {
    std::env::var_os("VM_GUEST").is_some()
}

/// The version of the running kernel, as (7, 2).
pub(crate) fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Asks until there is an answer, at most [`LIMIT`]; `what` says what did not come.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(format!("not within {LIMIT:?}: {what}").into());
        }
        thread::yield_now();
    }
}

/// `length` bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // Xorshift: bytes that repeat or are shifted are noticed, which is all that is needed.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}
