//! Refusals of a kernel that a test plays.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::CommandFd;
use crate::error::{Errno, Verb};

/// What comes next of some verbs: each entry is for one command of its verb.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<VecDeque<(Verb, Errno)>>);

impl Refusals {
    /// Refuses a command of this verb if it is time to.
    pub(super) fn refuse(&self, verb: Verb) -> Result<(), Errno> {
        let mut next = self.0.lock().unwrap();
        let at = next.iter().position(|(refused, _)| *refused == verb);
        match at.and_then(|at| next.remove(at)) {
            Some((_, errno)) => Err(errno),
            None => Ok(()),
        }
    }
}

impl CommandFd {
    /// Has the next `times` commands of the verb refused with this errno. They are not sent.
    pub(crate) fn refuse(&self, verb: Verb, errno: Errno, times: usize) {
        let mut next = self.refusals.0.lock().unwrap();
        next.extend(std::iter::repeat_n((verb, errno), times));
    }

    /// How many refusals are left.
    pub(crate) fn refusals_left(&self) -> usize {
        self.refusals.0.lock().unwrap().len()
    }
}
