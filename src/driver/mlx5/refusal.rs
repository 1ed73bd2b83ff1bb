//! Commands that the device has refused: its status, what that means, and what it is as an errno.
#![cfg_attr(
    not(feature = "mlx5-direct"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "direct verbs alone show all of it"
    )
)]

use std::fmt;

use crate::error::{Errno, Error, Subject, Verb};

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

impl Status {
    /// The errno by which libmlx5 and the kernel's driver tell it.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::BAD_OP_ERR
            | Self::BAD_PARAM_ERR
            | Self::BAD_RES_ERR
            | Self::BAD_RES_STATE_ERR
            | Self::IX_ERR
            | Self::BAD_QP_STATE_ERR
            | Self::BAD_PKT_ERR
            | Self::BAD_SIZE_OUTS_CQES_ERR => Errno::INVAL,
            Self::RES_BUSY => Errno::BUSY,
            Self::LIM_ERR => Errno::NOMEM,
            Self::NO_RES_ERR => Errno::AGAIN,
            // Errors within, BAD_SYS_STATE_ERR, wrong lengths, and what nobody knows.
            _ => Errno::IO,
        }
    }
}

/// What the answer to a refused command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    status: Status,
    syndrome: u32,
}

/// The answer to a command of the device's own. The kernel says only that it was refused (`EREMOTEIO`).
pub(super) type Answer<T> = std::result::Result<T, Refused>;

impl Refused {
    /// Takes the answer's bytes, if they are no refusal.
    pub(super) fn granted(bytes: &[u8]) -> Answer<&[u8]> {
        match *bytes {
            [status, _, _, _, a, b, c, d, ..] if status != 0 => Err(Self {
                status: Status(status),
                syndrome: u32::from_be_bytes([a, b, c, d]),
            }),
            _ => Ok(bytes),
        }
    }

    /// As an error.
    pub(super) fn error(self, verb: Verb, subject: Subject) -> Error {
        let Self { status, syndrome } = self;
        let detail = format!("the device refuses: {status}; syndrome {syndrome:#x}");
        Error::os(verb, subject, status.errno()).with_detail(detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch an errno by which a program does not see what the device lacks: of memory keys that have
    /// run out EAGAIN is expected.
    #[test]
    fn a_status_is_told_as_by_libmlx5() {
        for (statuses, expected) in [
            (&[0x1, 0x4, 0x50, 0x51, 0x7, 0x77][..], Errno::IO),
            (&[0x2, 0x3, 0x5, 0x9, 0xa, 0x10, 0x30, 0x40], Errno::INVAL),
            (&[0x6], Errno::BUSY),
            (&[0x8], Errno::NOMEM),
            (&[0xf], Errno::AGAIN),
        ] {
            for status in statuses {
                assert_eq!(Status(*status).errno(), expected, "{status:#x}");
            }
        }
    }

    /// Would catch a refusal that is taken for an answer.
    #[test]
    fn a_refusal_is_seen_in_the_answer() {
        let granted = [0, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(Refused::granted(&granted), Ok(&granted[..]));
        let refused = [0xf, 0, 0, 0, 0, 0x2b, 0xc7, 0x1f, 9];
        let refused = Refused::granted(&refused).unwrap_err();
        let error = refused.error(Verb::DevxQpModify, Subject::numbered("QP", 7));
        assert_eq!(error.errno(), Some(Errno::AGAIN));
        let text = error.to_string();
        for part in ["no room left", "NO_RES_ERR", "0xf", "0x2bc71f"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
