//! The contents of messages whose bytes are checked: each contains its number, and no two are equal.

use std::fmt;

/// The last byte of a message, which shows that a WRITE has arrived. It differs from the stamp of the message
/// before, and the first one from 0, with which memory begins.
pub(super) fn stamp(number: u64) -> u8 {
    (number as u8).wrapping_add(1)
}

/// Fills message `number`: its number, then words that depend on the number and their place, then the stamp.
pub(super) fn fill(message: &mut [u8], number: u64) {
    for (at, word) in message.chunks_mut(8).enumerate() {
        let bytes = match at {
            0 => number.to_le_bytes(),
            _ => mixed(number, at),
        };
        word.copy_from_slice(&bytes[..word.len()]);
    }
    if let Some(last) = message.last_mut() {
        *last = stamp(number);
    }
}

/// Eight bytes that no other place of no other message has (the finaliser of MurmurHash3).
fn mixed(number: u64, at: usize) -> [u8; 8] {
    let mut word = (number << 28) ^ at as u64;
    word ^= word >> 33;
    word = word.wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^= word >> 33;
    word = word.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (word ^ (word >> 33)).to_le_bytes()
}

/// The number in a message; its last byte may be the stamp.
pub(super) fn number(message: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = message.len().min(7);
    bytes[..length].copy_from_slice(&message[..length]);
    u64::from_le_bytes(bytes)
}

/// The difference between a message and what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Byte {
        number: u64,
        at: usize,
        is: u8,
        should: u8,
    },
    Number {
        is: u64,
        should: u64,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Byte {
                number,
                at,
                is,
                should,
            } => write!(
                f,
                "message {number}: byte {at} is {is:#04x} instead of {should:#04x}"
            ),
            Self::Number { is, should } => {
                write!(f, "message {is} is where message {should} should be")
            }
        }
    }
}

/// Compares messages with what they should be.
#[derive(Debug)]
pub(super) struct Checker {
    should: Vec<u8>,
}

impl Checker {
    pub(super) fn new(size: usize) -> Self {
        Self {
            should: vec![0; size],
        }
    }

    /// Compares a message with the expected number, or with the number that it contains.
    pub(super) fn check(&mut self, message: &[u8], expected: Option<u64>) -> Result<(), Wrong> {
        let is = number(message);
        if let Some(should) = expected
            && number(&should.to_le_bytes()) != is
        {
            return Err(Wrong::Number { is, should });
        }
        fill(&mut self.should, is);
        let mut pairs = message.iter().zip(&self.should).enumerate();
        match pairs.find(|(_, (is, should))| is != should) {
            None => Ok(()),
            Some((at, (&is, &should))) => Err(Wrong::Byte {
                number: number(message),
                at,
                is,
                should,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(size: usize, number: u64) -> Vec<u8> {
        let mut message = vec![0xee; size];
        fill(&mut message, number);
        message
    }

    #[test]
    fn right_messages_pass() {
        for size in [8, 9, 15, 16, 4096, 65537] {
            let mut checker = Checker::new(size);
            for number in [0, 1, 255, 256, 1 << 40] {
                let message = message(size, number);
                assert_eq!(checker.check(&message, Some(number)), Ok(()), "{size}");
                assert_eq!(checker.check(&message, None), Ok(()), "{size}");
                assert_eq!(message[size - 1], stamp(number));
            }
        }
    }

    #[test]
    fn wrong_messages_are_found() {
        let size = 8192;
        let mut shifted = message(size, 7);
        shifted.copy_within(1024..2048, 3072);
        let mut mixed = message(size, 7);
        mixed[4096..].copy_from_slice(&message(size, 6)[4096..]);
        for wrong in [shifted, mixed, vec![0; size]] {
            assert!(Checker::new(size).check(&wrong, None).is_err());
        }
        let again = Checker::new(size).check(&message(size, 6), Some(7));
        assert_eq!(again, Err(Wrong::Number { is: 6, should: 7 }));
    }
}
