//! Why the device did not do what a command asked.

use std::fmt;

use crate::driver::mlx5::refusal::Status;
use crate::error::{Error, Subject, Verb};

/// A command that the device refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the command.
    pub opcode: u16,
    /// What is wrong, roughly.
    pub status: Status,
    /// Which check in the firmware failed; its numbers are not published.
    pub syndrome: u32,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            opcode,
            status,
            syndrome,
        } = self;
        write!(
            f,
            "the device refuses command {opcode:#x}: {status}; syndrome {syndrome:#x}"
        )
    }
}

/// A command that was not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandError {
    /// The device refused it.
    #[non_exhaustive]
    Device {
        /// The command, and why.
        refusal: Refusal,
        /// The verb that gave the command.
        verb: Verb,
        /// What it was for.
        subject: Subject,
    },
    /// The kernel or this library refused it before it reached the device.
    Verb(Error),
}

impl CommandError {
    /// The device's refusal, if it refused.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Device { refusal, .. } => Some(*refusal),
            Self::Verb(_) => None,
        }
    }

    /// Names the object as users know it.
    pub(super) fn about(self, subject: Subject) -> Self {
        match self {
            Self::Device { refusal, verb, .. } => Self::Device {
                refusal,
                verb,
                subject,
            },
            Self::Verb(error) => Self::Verb(error.about(subject)),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device {
                refusal,
                verb,
                subject,
            } => write!(f, "{verb} on {subject}: {refusal}"),
            Self::Verb(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for CommandError {}

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        Self::Verb(error)
    }
}

/// For callers that have one error type: the refusal is a detail of `EREMOTEIO`.
impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Device {
                refusal,
                verb,
                subject,
            } => Error::os(verb, subject, rustix::io::Errno::REMOTEIO)
                .with_detail(refusal.to_string()),
            CommandError::Verb(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_it_means() {
        let refusal = Refusal {
            opcode: 0x400,
            status: Status::BAD_RES_ERR,
            syndrome: 0x2b_c71f,
        };
        let text = refusal.to_string();
        for part in ["0x400", "no such object", "BAD_RES_ERR", "0x5", "0x2bc71f"] {
            assert!(text.contains(part), "{text}");
        }
        let unknown = Refusal {
            status: Status(0x77),
            ..refusal
        };
        assert!(unknown.to_string().contains("status 0x77"));
        let refused = CommandError::Device {
            refusal,
            verb: Verb::DevxObjCreate,
            subject: Subject::the("DEVX object"),
        };
        let refused = refused.about(Subject::the("key"));
        let error = Error::from(refused.clone());
        assert_eq!(error.errno(), Some(rustix::io::Errno::REMOTEIO));
        for text in [refused.to_string(), error.to_string()] {
            for part in ["devx_obj_create on", "key", "no such object"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}
