//! The ways to the kernel that an open file has. Commands that fail show which are missing; that is
//! remembered.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Errno, Verb};

/// The ways that commands may take to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// The verb's own ioctl method, else the ioctl `INVOKE_WRITE`, else write(2). Frequent commands without a
    /// method use write(2) as long as the kernel accepts that from this process: changes of queue pairs, and
    /// rxe's doorbell.
    #[default]
    Best,
    /// Only ioctl, for a file that another process opened or a sandbox that forbids write(2).
    Ioctl,
    /// Only `write(2)`, as before Linux 5.0; verbs without a write command are then not supported.
    Write,
}

/// One way to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The verb's own ioctl method.
    Method,
    /// Its write command in the ioctl `INVOKE_WRITE`.
    InvokeWrite,
    /// Its write command by write(2).
    Write,
}

/// The ways that a file lacks, as far as they are known.
///
/// The flags only change from false to true and guard no other memory, so every access is relaxed: a thread
/// that reads an old value tries the kernel once more and gets the same answer.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    allowed: Route,
    /// The kernel has no uverbs ioctl at all, or no `INVOKE_WRITE`.
    no_invoke_write: AtomicBool,
    /// The kernel refuses write(2) from this process: another one opened the file.
    no_write: AtomicBool,
    /// Verbs whose native method the kernel lacks: a bit for each verb's number.
    no_native: [AtomicU64; 2],
}

impl Routes {
    pub(crate) fn new(allowed: Route) -> Self {
        Self {
            allowed,
            ..Self::default()
        }
    }

    /// Whether to try the native method of `verb`.
    #[inline]
    pub(crate) fn takes_method(&self, verb: Verb) -> bool {
        self.may_ioctl() && !self.lacks_native(verb)
    }

    /// How to send a write command.
    #[inline]
    pub(crate) fn for_write(&self) -> Option<Way> {
        if self.may_ioctl() && !self.no_invoke_write.load(Ordering::Relaxed) {
            return Some(Way::InvokeWrite);
        }
        (self.allowed != Route::Ioctl).then_some(Way::Write)
    }

    /// Learns from a failure that the kernel lacks a way; true if another try makes sense.
    ///
    /// `is_private`: the request had attributes of the driver's own. `invokes_write` checks whether the
    /// kernel has `INVOKE_WRITE`, if the failure does not decide that.
    pub(crate) fn learn(
        &self,
        verb: Verb,
        way: Way,
        errno: Errno,
        is_private: bool,
        invokes_write: impl FnOnce() -> bool,
    ) -> bool {
        match (way, errno) {
            (Way::Method, Errno::NOTTY) => {
                self.without_native(verb);
                self.without_invoke_write();
                true
            }
            // The kernel's answer is the same for a method that it lacks and for an attribute that it does
            // not know.
            (Way::Method, Errno::PROTONOSUPPORT) if is_private => false,
            (Way::Method, Errno::PROTONOSUPPORT) => {
                self.without_native(verb);
                true
            }
            (Way::InvokeWrite, Errno::NOTTY | Errno::PROTONOSUPPORT) => {
                // EPROTONOSUPPORT may be the command's own answer: the probe decides.
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

    /// The kernel does not accept write commands by ioctl.
    fn without_invoke_write(&self) {
        self.no_invoke_write.store(true, Ordering::Relaxed);
    }

    /// How to ring a doorbell that is a write command: write(2) costs the kernel less than the ioctl.
    #[allow(
        dead_code,
        reason = "not every driver has a doorbell that is a system call"
    )]
    pub(crate) fn doorbell(&self) -> Way {
        match self.allowed {
            Route::Ioctl => Way::InvokeWrite,
            Route::Best | Route::Write => Way::Write,
        }
    }

    /// Whether write(2) is worth a try: it costs the kernel less than the ioctl `INVOKE_WRITE`.
    #[inline]
    pub(crate) fn may_write(&self) -> bool {
        self.allowed != Route::Ioctl && !self.no_write.load(Ordering::Relaxed)
    }

    /// This process may not send commands by write(2).
    pub(crate) fn without_write(&self) {
        self.no_write.store(true, Ordering::Relaxed);
    }

    /// Whether commands may be sent by ioctl.
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

    /// The next way for a verb that has both encodings.
    fn next(routes: &Routes, verb: Verb) -> Option<Way> {
        match routes.takes_method(verb) {
            true => Some(Way::Method),
            false => routes.for_write(),
        }
    }

    const METHOD: Option<Way> = Some(Way::Method);
    const INVOKE: Option<Way> = Some(Way::InvokeWrite);
    const WRITE: Option<Way> = Some(Way::Write);

    #[test]
    fn goes_down_the_ladder_one_step_at_a_time() {
        let routes = Routes::new(Route::Best);
        assert_eq!(next(&routes, Verb::CreateCq), METHOD);
        routes.without_native(Verb::CreateCq);
        assert_eq!(next(&routes, Verb::CreateCq), INVOKE);
        assert_eq!(next(&routes, Verb::CreateQp), METHOD);
        routes.without_invoke_write();
        assert_eq!(next(&routes, Verb::CreateCq), WRITE);
    }

    #[test]
    fn keeps_to_what_is_allowed() {
        let ioctl = Routes::new(Route::Ioctl);
        ioctl.without_invoke_write();
        assert_eq!(ioctl.for_write(), None);
        let write = Routes::new(Route::Write);
        assert_eq!(next(&write, Verb::CreateCq), WRITE);
    }

    /// What `learn` makes of a failure of CREATE_CQ: whether to try again, and the next ways for that verb
    /// and for another.
    fn lesson(
        way: Way,
        errno: Errno,
        is_private: bool,
        probe: Option<bool>,
    ) -> (bool, [Option<Way>; 2]) {
        let routes = Routes::new(Route::Best);
        let asked = || probe.expect("the failure is clear without asking the kernel");
        let again = routes.learn(Verb::CreateCq, way, errno, is_private, asked);
        let next = [Verb::CreateCq, Verb::CreateQp].map(|verb| next(&routes, verb));
        (again, next)
    }

    #[test]
    fn a_method_that_is_missing_is_asked_for_once() {
        let lesson = lesson(Way::Method, Errno::PROTONOSUPPORT, false, None);
        assert_eq!(lesson, (true, [INVOKE, METHOD]));
    }

    #[test]
    fn an_attribute_that_is_unknown_is_no_missing_method() {
        let lesson = lesson(Way::Method, Errno::PROTONOSUPPORT, true, None);
        assert_eq!(lesson, (false, [METHOD, METHOD]));
    }

    #[test]
    fn a_file_without_the_ioctl_has_write_only() {
        for is_private in [false, true] {
            let lesson = lesson(Way::Method, Errno::NOTTY, is_private, None);
            // The method of another verb is tried once too: each verb has its own flag.
            assert_eq!(lesson, (true, [WRITE, METHOD]));
        }
    }

    #[test]
    fn whether_invoke_write_is_missing_is_asked_where_it_is_not_clear() {
        let learn = |errno, probe| {
            let routes = Routes::new(Route::Best);
            let asked = std::cell::Cell::new(false);
            let again = routes.learn(Verb::AllocPd, Way::InvokeWrite, errno, false, || {
                asked.set(true);
                probe
            });
            (again, routes.for_write(), asked.get())
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
            for way in [Way::Method, Way::InvokeWrite] {
                let lesson = lesson(way, errno, false, None);
                assert_eq!(lesson, (false, [METHOD, METHOD]), "{errno}");
            }
        }
        for errno in [Errno::NOTTY, Errno::PROTONOSUPPORT] {
            let lesson = lesson(Way::Write, errno, false, None);
            assert_eq!(lesson, (false, [METHOD, METHOD]), "{errno}");
        }
    }
}
