//! Commands that the device has refused: its status, and what that is as an errno.

use crate::error::{Errno, Error, Subject, Verb};

/// The errno of a command's status (`MLX5_CMD_STAT_*`), as libmlx5 and the kernel's driver translate it.
pub(crate) fn errno(status: u8) -> Errno {
    match status {
        // BAD_OP, BAD_PARAM, BAD_RES, BAD_RES_STATE, IX, BAD_QP_STATE, BAD_PKT, BAD_SIZE_OUTS_CQES.
        0x2 | 0x3 | 0x5 | 0x9 | 0xa | 0x10 | 0x30 | 0x40 => Errno::INVAL,
        // RES_BUSY.
        0x6 => Errno::BUSY,
        // LIM.
        0x8 => Errno::NOMEM,
        // NO_RES.
        0xf => Errno::AGAIN,
        // Errors within, BAD_SYS_STATE, wrong lengths, and what nobody knows.
        _ => Errno::IO,
    }
}

/// What the answer to a refused command says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    status: u8,
    syndrome: u32,
}

/// The answer to a command of the device's own. The kernel says only that it was refused (`EREMOTEIO`).
pub(super) type Answer<T> = std::result::Result<T, Refused>;

impl Refused {
    /// Takes the answer's bytes, if they are no refusal.
    pub(super) fn granted(bytes: &[u8]) -> Answer<&[u8]> {
        match *bytes {
            [status, _, _, _, a, b, c, d, ..] if status != 0 => Err(Self {
                status,
                syndrome: u32::from_be_bytes([a, b, c, d]),
            }),
            _ => Ok(bytes),
        }
    }

    /// As an error.
    pub(super) fn error(self, verb: Verb, subject: Subject) -> Error {
        let Self { status, syndrome } = self;
        let detail = format!("the device's status is {status:#x}, its syndrome {syndrome:#x}");
        Error::os(verb, subject, errno(status)).with_detail(detail)
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
                assert_eq!(errno(*status), expected, "{status:#x}");
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
        assert!(error.to_string().contains("0x2bc71f"), "{error}");
    }
}
