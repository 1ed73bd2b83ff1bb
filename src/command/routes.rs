//! Which ways to the kernel an open file has, found out as commands fail and then remembered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Spelling;
use crate::error::{Errno, Verb};

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

    /// How to send `verb` next; `native` if it has a native method. It may turn out to have no write command.
    pub(crate) fn choose(&self, verb: Verb, native: bool) -> Option<(Spelling, Carrier)> {
        let ioctl = self.allowed != Route::Write;
        if native && ioctl && !self.lacks_native(verb) {
            return Some((Spelling::Native, Carrier::Ioctl));
        }
        if ioctl && !self.no_invoke_write.load(Ordering::Relaxed) {
            return Some((Spelling::Write, Carrier::Ioctl));
        }
        (self.allowed != Route::Ioctl).then_some((Spelling::Write, Carrier::Write))
    }

    /// Learns from a failure that the kernel lacks a way; true if another try makes sense.
    ///
    /// `invokes_write` asks the kernel whether it has `INVOKE_WRITE`, where the failure leaves that open.
    pub(crate) fn learn(
        &self,
        verb: Verb,
        spelling: Spelling,
        carrier: Carrier,
        errno: Errno,
        invokes_write: impl FnOnce() -> bool,
    ) -> bool {
        match (carrier, spelling, errno) {
            (Carrier::Ioctl, Spelling::Native, Errno::NOTTY) => {
                self.without_native(verb);
                self.without_invoke_write();
                true
            }
            (Carrier::Ioctl, Spelling::Native, Errno::PROTONOSUPPORT) => {
                self.without_native(verb);
                true
            }
            (Carrier::Ioctl, Spelling::Write, Errno::NOTTY | Errno::PROTONOSUPPORT) => {
                // EPROTONOSUPPORT may be the command's own answer: the probe tells.
                let lacks = errno == Errno::NOTTY || !invokes_write();
                if lacks {
                    self.without_invoke_write();
                }
                lacks
            }
            _ => false,
        }
    }

    /// The kernel lacks the native method of `verb`.
    fn without_native(&self, verb: Verb) {
        let (word, bit) = place(verb);
        self.no_native[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// The kernel carries no write commands by ioctl.
    fn without_invoke_write(&self) {
        self.no_invoke_write.store(true, Ordering::Relaxed);
    }

    /// How to ring a doorbell that is a write command: write(2) costs the kernel less than the ioctl.
    #[allow(
        dead_code,
        reason = "not every driver has a doorbell that is a system call"
    )]
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

    /// Whether the kernel is known to lack the native method of `verb`.
    pub(crate) fn lacks_native(&self, verb: Verb) -> bool {
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
            routes.choose(Verb::CreateCq, true),
            Some((Spelling::Native, Carrier::Ioctl))
        );
        routes.without_native(Verb::CreateCq);
        assert_eq!(
            routes.choose(Verb::CreateCq, true),
            Some((Spelling::Write, Carrier::Ioctl))
        );
        assert_eq!(
            routes.choose(Verb::CreateQp, true),
            Some((Spelling::Native, Carrier::Ioctl))
        );
        routes.without_invoke_write();
        assert_eq!(
            routes.choose(Verb::CreateCq, true),
            Some((Spelling::Write, Carrier::Write))
        );
    }

    #[test]
    fn keeps_to_what_is_allowed() {
        let ioctl = Routes::new(Route::Ioctl);
        ioctl.without_invoke_write();
        assert_eq!(ioctl.choose(Verb::AllocPd, false), None);
        let write = Routes::new(Route::Write);
        assert_eq!(
            write.choose(Verb::CreateCq, true),
            Some((Spelling::Write, Carrier::Write))
        );
    }

    /// What a failure of CREATE_CQ teaches: whether to try again, and how that and another verb go then.
    fn lesson(
        spelling: Spelling,
        carrier: Carrier,
        errno: Errno,
        probe: Option<bool>,
    ) -> (bool, [Option<(Spelling, Carrier)>; 2]) {
        let routes = Routes::new(Route::Best);
        let asked = || probe.expect("the failure is clear without asking the kernel");
        let again = routes.learn(Verb::CreateCq, spelling, carrier, errno, asked);
        let next = [Verb::CreateCq, Verb::CreateQp].map(|verb| routes.choose(verb, true));
        (again, next)
    }

    const NATIVE: Option<(Spelling, Carrier)> = Some((Spelling::Native, Carrier::Ioctl));
    const INVOKE: Option<(Spelling, Carrier)> = Some((Spelling::Write, Carrier::Ioctl));
    const WRITE: Option<(Spelling, Carrier)> = Some((Spelling::Write, Carrier::Write));

    #[test]
    fn a_method_that_is_missing_is_asked_for_once() {
        let lesson = lesson(
            Spelling::Native,
            Carrier::Ioctl,
            Errno::PROTONOSUPPORT,
            None,
        );
        assert_eq!(lesson, (true, [INVOKE, NATIVE]));
    }

    #[test]
    fn a_file_without_the_ioctl_has_write_only() {
        let lesson = lesson(Spelling::Native, Carrier::Ioctl, Errno::NOTTY, None);
        // Another verb's method is tried once itself: the flags are kept for each verb.
        assert_eq!(lesson, (true, [WRITE, NATIVE]));
    }

    #[test]
    fn whether_invoke_write_is_missing_is_asked_where_it_is_not_clear() {
        let learn = |errno, probe| {
            let routes = Routes::new(Route::Best);
            let asked = std::cell::Cell::new(false);
            let again = routes.learn(
                Verb::AllocPd,
                Spelling::Write,
                Carrier::Ioctl,
                errno,
                || {
                    asked.set(true);
                    probe
                },
            );
            (again, routes.choose(Verb::AllocPd, false), asked.get())
        };
        assert_eq!(learn(Errno::NOTTY, true), (true, WRITE, false));
        assert_eq!(learn(Errno::PROTONOSUPPORT, false), (true, WRITE, true));
        assert_eq!(learn(Errno::PROTONOSUPPORT, true), (false, INVOKE, true));
    }

    #[test]
    fn other_failures_teach_nothing() {
        let errnos = [
            Errno::INVAL,
            Errno::NOSPC,
            Errno::OPNOTSUPP,
            Errno::ACCESS,
            Errno::BUSY,
        ];
        for errno in errnos {
            for spelling in [Spelling::Native, Spelling::Write] {
                let lesson = lesson(spelling, Carrier::Ioctl, errno, None);
                assert_eq!(lesson, (false, [NATIVE, NATIVE]), "{errno}");
            }
        }
        for errno in [Errno::NOTTY, Errno::PROTONOSUPPORT] {
            let lesson = lesson(Spelling::Write, Carrier::Write, errno, None);
            assert_eq!(lesson, (false, [NATIVE, NATIVE]), "{errno}");
        }
    }
}
