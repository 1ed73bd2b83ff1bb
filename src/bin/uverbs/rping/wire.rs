//! The messages of the two sides of `rping`: the place of memory, and the text of a ping.

use std::fmt;

use uverbs::RemoteSlice;
use uverbs::mr::RemoteKey;

use crate::output::Foreign;

/// Bytes of a message.
pub(super) const MESSAGE: usize = 16;

/// Encodes the place of memory, as the sides send it.
pub(super) fn encode(memory: RemoteSlice) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes[..8].copy_from_slice(&memory.address.to_be_bytes());
    bytes[8..12].copy_from_slice(&memory.rkey.0.to_be_bytes());
    // The size of a ping fits.
    bytes[12..].copy_from_slice(&(memory.length as u32).to_be_bytes());
    bytes
}

/// The place of memory in a message.
pub(super) fn decode(bytes: [u8; MESSAGE]) -> RemoteSlice {
    let word =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    RemoteSlice {
        address: u64::from(word(0)) << 32 | u64::from(word(4)),
        rkey: RemoteKey(word(8)),
        length: word(12).into(),
    }
}

/// The text of a ping with its end, a zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Text(pub(super) Vec<u8>);

impl Text {
    /// The text of the ping with this number: the number as text, then letters that begin at another one each
    /// time.
    pub(super) fn of_ping(number: u64, size: usize) -> Self {
        const LETTERS: u64 = 58;
        let mut text = format!("rdma-ping-{number}: ").into_bytes();
        text.truncate(size);
        let letters = (number % LETTERS..).map(|n| b'A' + (n % LETTERS) as u8);
        let missing = size - text.len();
        text.extend(letters.take(missing));
        if let Some(last) = text.last_mut() {
            *last = 0;
        }
        Self(text)
    }

    /// The text that was read into memory: up to the first zero, which it includes.
    pub(super) fn in_memory(bytes: &[u8]) -> Self {
        let end = bytes.iter().position(|byte| *byte == 0);
        let length = end.map_or(bytes.len(), |end| end + 1);
        Self(bytes[..length].to_vec())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.strip_suffix(&[0]).unwrap_or(&self.0);
        Foreign(&String::from_utf8_lossy(end)).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_go_both_ways() {
        let memory = RemoteSlice {
            address: 0x7f00_1234_5678_9abc,
            length: 100,
            rkey: RemoteKey(0x0102_0304),
        };
        let bytes = encode(memory);
        assert_eq!(bytes[..4], [0x7f, 0, 0x12, 0x34]);
        assert_eq!(bytes[8..], [1, 2, 3, 4, 0, 0, 0, 100]);
        assert_eq!(decode(bytes), memory);
    }

    #[test]
    fn pings_read_as_those_of_the_c_program() {
        let text = Text::of_ping(0, 30);
        assert_eq!(text.to_string(), "rdma-ping-0: ABCDEFGHIJKLMNOP");
        assert_eq!((text.0.len(), text.0[29]), (30, 0));
        let text = Text::of_ping(57, 30);
        assert_eq!(text.to_string(), "rdma-ping-57: zABCDEFGHIJKLMN");
        assert_eq!(Text::in_memory(b"ab\0cd"), Text(b"ab\0".to_vec()));
        assert_eq!(Text::in_memory(b"ab"), Text(b"ab".to_vec()));
    }

    #[test]
    fn a_text_does_not_command_the_terminal() {
        let text = Text(b"a\x1b[2J\\\xff\0".to_vec());
        assert_eq!(text.to_string(), "a\\u{1b}[2J\\\u{fffd}");
    }

    proptest! {
        /// Any bytes of a peer are a place of memory; and texts that it provides are printed without control
        /// characters and end at their first zero.
        #[test]
        fn any_bytes_are_read(message in any::<[u8; MESSAGE]>(), memory in vec(any::<u8>(), 0..200)) {
            let told = decode(message);
            prop_assert_eq!(encode(told), message);
            let text = Text::in_memory(&memory);
            prop_assert!(memory.starts_with(&text.0));
            let zeros = text.0.iter().filter(|byte| **byte == 0).count();
            prop_assert_eq!(zeros, usize::from(memory.contains(&0)));
            prop_assert!(!text.to_string().contains(char::is_control));
        }
    }
}
