//! What the tests share: how one is declared, the device, the kernel's counts of objects.

pub(crate) mod script;
pub(crate) mod traffic;

use std::error::Error;
use std::process::Command;

use libtest_mimic::{Completion, Trial};
use uverbs::Context;

use crate::device::{device, settle};

/// The result of anything here.
pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The error of a test that the device cannot run, with the reason.
#[derive(Debug)]
struct Ignored(&'static str);

impl std::fmt::Display for Ignored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl Error for Ignored {}

/// Ends a test that the device cannot run.
pub(crate) fn ignore(why: &'static str) -> Result {
    Err(Ignored(why).into())
}

/// A test with its name. Outside the guest it is ignored.
pub(crate) fn test(name: &str, run: impl FnOnce() -> Result + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        if std::env::var_os("VM_GUEST").is_none() {
            return Ok(Completion::ignored_with(
                "needs an RDMA device: run `cargo vm test`",
            ));
        }
        settle(device().name())?;
        match run() {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => match error.downcast_ref::<Ignored>() {
                Some(Ignored(why)) => Ok(Completion::ignored_with(*why)),
                None => Err(error.into()),
            },
        }
    })
}

/// The device under test, opened.
pub(crate) fn open() -> Result<Context> {
    Ok(uverbs::open(device().name())?)
}

/// The kernel's own counts of its objects, the device's internal ones included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resources {
    pub(crate) pd: usize,
    pub(crate) cq: usize,
    pub(crate) qp: usize,
    pub(crate) mr: usize,
    pub(crate) srq: usize,
    pub(crate) ctx: usize,
}

impl Resources {
    /// What `rdma resource` says of the device now: a line like `0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0`.
    pub(crate) fn now() -> Result<Self> {
        let output = Command::new("rdma")
            .args(["resource", "show", device().name()])
            .output()?;
        let text = String::from_utf8(output.stdout)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let count = |name: &str| -> Result<usize> {
            let at = words.iter().position(|&word| word == name);
            let number = at.and_then(|at| words.get(at + 1));
            Ok(number.ok_or(format!("no {name} in {text:?}"))?.parse()?)
        };
        Ok(Self {
            pd: count("pd")?,
            cq: count("cq")?,
            qp: count("qp")?,
            mr: count("mr")?,
            srq: count("srq")?,
            ctx: count("ctx")?,
        })
    }
}
