//! The header of every message of a channel on the wire: 32 bytes, little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind |
//! | 1 | version, in a greeting; whether it was taken, in an answer |
//! | 2 | credits: receives that were posted since they were last announced |
//! | 4 | number of the offer |
//! | 8 | bytes of the message, or of a receive in a greeting |
//! | 16 | address of what is offered |
//! | 24 | its key |
//! | 28 | 0 |

use crate::work::{RemoteKey, RemoteSlice};

/// Bytes of a header.
pub(super) const HEADER: usize = 32;

/// The version of this format.
const VERSION: u8 = 1;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first message of each side: how long its receives are.
    Hello { size: u32 },
    /// The bytes after the header are a message of the user.
    Small,
    /// A message for the peer to read where it lies.
    Offer { number: u32, at: RemoteSlice },
    /// The offered message has been read, or was refused.
    Answer { number: u32, taken: bool },
    /// Only credits.
    Credit,
    /// The user sends no more messages.
    Bye,
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) credits: u16,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let (kind, flag, number, at) = match self.kind {
            Kind::Hello { size } => (1, VERSION, 0, slice(0, size.into(), 0)),
            Kind::Small => (2, 0, 0, slice(0, 0, 0)),
            Kind::Offer { number, at } => (3, 0, number, at),
            Kind::Answer { number, taken } => (4, taken.into(), number, slice(0, 0, 0)),
            Kind::Credit => (5, 0, 0, slice(0, 0, 0)),
            Kind::Bye => (6, 0, 0, slice(0, 0, 0)),
        };
        (bytes[0], bytes[1]) = (kind, flag);
        bytes[2..4].copy_from_slice(&self.credits.to_le_bytes());
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&at.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&at.address.to_le_bytes());
        bytes[24..28].copy_from_slice(&at.rkey.0.to_le_bytes());
        bytes
    }

    /// Reads a header; an error says what is wrong with it.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, &'static str> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err("a message is shorter than a header");
        };
        let half = |at| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let long = |at| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let (flag, number) = (bytes[1], word(4));
        let kind = match bytes[0] {
            1 if flag != VERSION => return Err("it speaks another version of the protocol"),
            1 => Kind::Hello {
                size: u32::try_from(long(8)).map_err(|_| "its receives have more than 4 GiB")?,
            },
            2 => Kind::Small,
            3 => Kind::Offer {
                number,
                at: slice(long(16), long(8), word(24)),
            },
            4 => Kind::Answer {
                number,
                taken: flag == 1,
            },
            5 => Kind::Credit,
            6 => Kind::Bye,
            _ => return Err("a message is of a kind that there is not"),
        };
        Ok(Self {
            kind,
            credits: half(2),
        })
    }
}

fn slice(address: u64, length: u64, rkey: u32) -> RemoteSlice {
    RemoteSlice {
        address,
        length,
        rkey: RemoteKey(rkey),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_go_both_ways() {
        let at = slice(0x1122_3344_5566_7788, 1 << 33, 0xaabb_ccdd);
        for kind in [
            Kind::Hello { size: 4096 },
            Kind::Small,
            Kind::Offer { number: 7, at },
            Kind::Answer {
                number: u32::MAX,
                taken: true,
            },
            Kind::Answer {
                number: 0,
                taken: false,
            },
            Kind::Credit,
            Kind::Bye,
        ] {
            let header = Header {
                kind,
                credits: 0x1234,
            };
            assert_eq!(Header::of(&header.to_bytes()), Ok(header));
        }
    }

    /// The wire format must not change.
    #[test]
    fn the_form_is_fixed() {
        let at = slice(0x0102_0304_0506_0708, 0x1112, 0x2122_2324);
        let kind = Kind::Offer { number: 9, at };
        let bytes = Header { kind, credits: 3 }.to_bytes();
        let should_be = [
            3, 0, 3, 0, 9, 0, 0, 0, 0x12, 0x11, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 0x24,
            0x23, 0x22, 0x21, 0, 0, 0, 0,
        ];
        assert_eq!(bytes, should_be);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(header) = Header::of(&bytes) {
                prop_assert_eq!(Header::of(&header.to_bytes()), Ok(header));
            }
        }
    }
}
