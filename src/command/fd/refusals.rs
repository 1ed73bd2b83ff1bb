//! Refusals of a kernel that a test plays.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::CommandFd;
use crate::error::{Errno, Verb};

/// What comes next of some verbs: each entry is for one command of its verb.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<VecDeque<(Verb, Result<(), Errno>)>>);

impl Refusals {
    /// The kernel's part for a command of this verb, if it is played.
    pub(super) fn play(&self, verb: Verb) -> Option<Result<(), Errno>> {
        let mut next = self.0.lock().unwrap();
        let at = next.iter().position(|(played, _)| *played == verb)?;
        let (_, result) = next.remove(at)?;
        Some(result)
    }
}

impl CommandFd {
    /// Has the next `times` commands of the verb refused with this errno. They are not sent.
    pub(crate) fn refuse(&self, verb: Verb, errno: Errno, times: usize) {
        let mut next = self.refusals.0.lock().unwrap();
        next.extend(std::iter::repeat_n((verb, Err(errno)), times));
    }

    /// Has the next command of the verb succeed, without an answer. It is not sent.
    pub(crate) fn allow(&self, verb: Verb) {
        self.refusals.0.lock().unwrap().push_back((verb, Ok(())));
    }

    /// How many commands are left that are not sent.
    pub(crate) fn refusals_left(&self) -> usize {
        self.refusals.0.lock().unwrap().len()
    }
}
