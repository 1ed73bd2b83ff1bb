//! Why the device did not do what a command asked.

use std::fmt;

#[cfg(feature = "c-abi")]
use crate::driver::mlx5::refusal::errno;
#[cfg(feature = "c-abi")]
use crate::error::Errno;
use crate::error::{Error, Subject, Verb};

/// The status of a command, by the device's number (`MLX5_CMD_STAT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u8);

macro_rules! statuses {
    ($($(#[$doc:meta])* $NAME:ident = $number:literal: $meaning:literal;)*) => {
        impl Status {
            $(
                #[doc = concat!($meaning, ".")]
                pub const $NAME: Self = Self($number);
            )*

            /// The kernel's name without its prefix, and what it means; `None` for a number that has none.
            pub const fn meaning(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($number => Some((stringify!($NAME), $meaning)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    INT_ERR = 0x1: "an error within the device";
    BAD_OP_ERR = 0x2: "the device does not know the command, or not this variant of it";
    BAD_PARAM_ERR = 0x3: "a parameter is wrong, or the device does not support it";
    BAD_SYS_STATE_ERR = 0x4: "the system's state does not allow it";
    BAD_RES_ERR = 0x5: "there is no such object, or it is another user's";
    RES_BUSY = 0x6: "the object is in use";
    NOT_READY = 0x7: "the device is not ready";
    LIM_ERR = 0x8: "a limit of the device is exceeded";
    BAD_RES_STATE_ERR = 0x9: "the object's state does not allow it";
    IX_ERR = 0xa: "the index is out of range";
    NO_RES_ERR = 0xf: "the device has no room left for it";
    BAD_QP_STATE_ERR = 0x10: "the queue pair's state does not allow it";
    BAD_PKT_ERR = 0x30: "the packet of a management datagram is malformed";
    BAD_SIZE_OUTS_CQES_ERR = 0x40: "the new completion queue is too small for the entries that wait";
    BAD_INP_LEN_ERR = 0x50: "the input has another length than the command";
    BAD_OUTP_LEN_ERR = 0x51: "the output has another length than the answer";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some((name, meaning)) => write!(f, "{meaning} ({name}, {:#x})", self.0),
            None => write!(f, "status {:#x}", self.0),
        }
    }
}

#[cfg(feature = "c-abi")]
impl Status {
    /// The errno by which libmlx5 tells it.
    pub(crate) fn errno(self) -> Errno {
        errno(self.0)
    }
}

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
