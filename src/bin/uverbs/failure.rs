//! The cause of a failure, as a message for a person and an exit code for a script.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use uverbs::cm::{Failed, RejectReason};
use uverbs::error::{Errno, Verb};
use uverbs::{Cause, Error};

use crate::output;

/// The result of a subcommand.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// The exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  failure: the kernel, the device or the system refused
  2  usage: invalid options
  3  not found: no such device, port or GID, or no device at all
  4  not permitted: this user may not open the device
  5  peer: unreachable, violated the protocol, disconnected, or did not answer in time
  6  check: a message arrived corrupted
  141  output: whoever read standard output has gone, as `head` does
";

/// The exit codes, by kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    NotPermitted = 4,
    Peer = 5,
    Check = 6,
    /// As shells report the signal SIGPIPE, which Rust's runtime ignores.
    Unread = 128 + 13,
}

/// Why a subcommand ends early.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    is_of_output: bool,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Display) -> Self {
        Self {
            kind,
            message: message.to_string(),
            is_of_output: false,
        }
    }

    /// Names the peer, if the failure is about something that the peer did.
    pub(crate) fn of_peer(mut self, peer: impl Display) -> Self {
        if matches!(self.kind, Kind::Peer | Kind::Check) {
            self.message = format!("{peer}: {}", self.message);
        }
        self
    }

    /// Whether it is of this kind.
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind == kind
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// The failure that the command's own output could not be written. If the reader has gone, such as
    /// `head`, there is no message: the process exits as if the signal SIGPIPE had ended it.
    pub(crate) fn of_output(error: &io::Error) -> Self {
        let failure = match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Kind::Unread, ""),
            _ => Self::new(
                Kind::Failed,
                format_args!("cannot write to standard output: {error}"),
            ),
        };
        Self {
            is_of_output: true,
            ..failure
        }
    }

    /// Whether the output could not be written. A server ends then; after other failures the next client may
    /// succeed.
    pub(crate) fn is_of_output(&self) -> bool {
        self.is_of_output
    }

    /// Prints the message and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            output::complain(&self.message);
        }
        ExitCode::from(self.kind as u8)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(kind_of(&error), error)
    }
}

/// The failure of a step of a connection: in most cases the peer caused it.
pub(crate) fn peer<B>(step: Failed<B>) -> Failure {
    Failure::new(Kind::Peer, step.error)
}

/// Whether no program listened where a connection was requested.
pub(crate) fn is_nobody(error: &Error) -> bool {
    matches!(error.cause(), Cause::Refused(refusal) if refusal.reason == RejectReason::NoListener)
}

/// Why a peer did not do what it was requested to do.
#[derive(Clone, Debug)]
pub(crate) enum Unanswered {
    /// It refused the connection, or the lookup.
    Refused(Error),
    /// It did not answer, or gave a wrong answer, or this side failed.
    Failed(Failure),
}

impl Unanswered {
    /// For a step of a connection, as [`peer`].
    pub(crate) fn of_peer<B>(step: Failed<B>) -> Self {
        match step.error.cause() {
            Cause::Refused(_) => Self::Refused(step.error),
            _ => Self::Failed(peer(step)),
        }
    }
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Refused(error) => Self::new(Kind::Peer, error),
            Unanswered::Failed(failure) => failure,
        }
    }
}

fn kind_of(error: &Error) -> Kind {
    match (error.cause(), error.verb()) {
        (Cause::NotFound(_), _) => Kind::NotFound,
        // An address that leads nowhere: link-local without its network device, or that of the loopback.
        (Cause::Invalid(_), Verb::ResolveAddr) => Kind::Usage,
        (Cause::Os(Errno::NOENT | Errno::NXIO | Errno::NODEV), Verb::OpenDevice) => Kind::NotFound,
        (Cause::Os(Errno::INVAL | Errno::NODATA), Verb::QueryGid | Verb::QueryPort) => {
            Kind::NotFound
        }
        (Cause::Os(Errno::ACCESS | Errno::PERM), _) => Kind::NotPermitted,
        _ => Kind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_does_not_exist_is_not_found() {
        let error = uverbs::device::Discovery::Sysfs("/nowhere".into())
            .find("no_such_device")
            .unwrap_err();
        assert_eq!(Failure::from(error).kind(), Kind::NotFound);
    }

    #[test]
    fn only_what_the_peer_did_has_its_name() {
        let text = |kind| Failure::new(kind, "gone").of_peer("10.9.0.1:7").to_string();
        assert_eq!(text(Kind::Peer), "10.9.0.1:7: gone");
        assert_eq!(text(Kind::Check), "10.9.0.1:7: gone");
        assert_eq!(text(Kind::Failed), "gone");
    }

    #[test]
    fn every_exit_code_is_documented() {
        for kind in [
            Kind::Failed,
            Kind::Usage,
            Kind::NotFound,
            Kind::NotPermitted,
            Kind::Peer,
            Kind::Check,
            Kind::Unread,
        ] {
            assert!(EXIT_CODES.contains(&format!("\n  {}  ", kind as u8)));
        }
    }
}
