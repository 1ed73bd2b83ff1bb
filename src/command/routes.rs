//! Which ways to the kernel an open file has, found out as commands fail and then remembered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Spelling;
use crate::error::Verb;

/// The ways that commands may take to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// The verb's own ioctl method, else the ioctl `INVOKE_WRITE`, else write(2).
    #[default]
    Best,
    /// Only ioctl, for a file that another process opened or a sandbox that forbids write(2).
    Ioctl,
    /// Only `write(2)`, as before Linux 5.0; what has no write command is then not supported.
    Write,
}

/// The two carriers of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Ioctl,
    Write,
}

/// What is known of a file.
///
/// The flags only ever go from false to true and guard no other memory, so every access is relaxed: a
/// thread that reads an old value tries the kernel once more and learns the same.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    allowed: Route,
    /// The kernel has no uverbs ioctl at all, or no `INVOKE_WRITE`.
    no_invoke_write: AtomicBool,
    /// Verbs of which the kernel lacks the native method: a bit by the verb's number.
    no_native: [AtomicU64; 2],
}

impl Routes {
    pub(crate) fn new(allowed: Route) -> Self {
        Self {
            allowed,
            ..Self::default()
        }
    }

    /// How to send `verb` next, given the spellings that it has.
    pub(crate) fn choose(
        &self,
        verb: Verb,
        native: bool,
        write: bool,
    ) -> Option<(Spelling, Carrier)> {
        let ioctl = self.allowed != Route::Write;
        if native && ioctl && !self.lacks_native(verb) {
            return Some((Spelling::Native, Carrier::Ioctl));
        }
        if !write {
            return None;
        }
        if ioctl && !self.no_invoke_write.load(Ordering::Relaxed) {
            return Some((Spelling::Write, Carrier::Ioctl));
        }
        (self.allowed != Route::Ioctl).then_some((Spelling::Write, Carrier::Write))
    }

    /// The kernel lacks the native method of `verb`.
    pub(crate) fn without_native(&self, verb: Verb) {
        let (word, bit) = place(verb);
        self.no_native[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// The kernel carries no write commands by ioctl.
    pub(crate) fn without_invoke_write(&self) {
        self.no_invoke_write.store(true, Ordering::Relaxed);
    }

    /// How to ring a doorbell that is a write command: write(2) costs the kernel less than the ioctl.
    pub(crate) fn doorbell(&self) -> Carrier {
        if self.allowed == Route::Ioctl {
            Carrier::Ioctl
        } else {
            Carrier::Write
        }
    }

    /// Whether commands may go by ioctl.
    pub(crate) fn may_ioctl(&self) -> bool {
        self.allowed != Route::Write
    }

    fn lacks_native(&self, verb: Verb) -> bool {
        let (word, bit) = place(verb);
        self.no_native[word].load(Ordering::Relaxed) & bit != 0
    }
}

fn place(verb: Verb) -> (usize, u64) {
    let number = verb as usize;
    (number / 64, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_has_a_bit() {
        assert!(Verb::ALL.iter().all(|&verb| place(verb).0 < 2));
    }

    #[test]
    fn goes_down_the_ladder_one_step_at_a_time() {
        let routes = Routes::new(Route::Best);
        assert_eq!(
            routes.choose(Verb::CreateCq, true, true),
            Some((Spelling::Native, Carrier::Ioctl))
        );
        routes.without_native(Verb::CreateCq);
        assert_eq!(
            routes.choose(Verb::CreateCq, true, true),
            Some((Spelling::Write, Carrier::Ioctl))
        );
        assert_eq!(
            routes.choose(Verb::CreateQp, true, true),
            Some((Spelling::Native, Carrier::Ioctl))
        );
        routes.without_invoke_write();
        assert_eq!(
            routes.choose(Verb::CreateCq, true, true),
            Some((Spelling::Write, Carrier::Write))
        );
        assert_eq!(routes.choose(Verb::CreateCq, true, false), None);
    }

    #[test]
    fn keeps_to_what_is_allowed() {
        let ioctl = Routes::new(Route::Ioctl);
        ioctl.without_invoke_write();
        assert_eq!(ioctl.choose(Verb::AllocPd, false, true), None);
        let write = Routes::new(Route::Write);
        assert_eq!(
            write.choose(Verb::CreateCq, true, true),
            Some((Spelling::Write, Carrier::Write))
        );
        assert_eq!(write.choose(Verb::QueryGidTable, true, false), None);
    }
}
