//! The key of an offer: 64 bits that are compared in constant time and never printed.

use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::ParseError;

/// The key that a process must have to join an offer.
///
/// Its `Debug` form hides it, and it has no `Display` form. Pass it by a file that other users cannot read,
/// by a pipe, or by an inherited descriptor; ps(1) shows command-line arguments to everyone.
#[derive(Clone)]
pub struct ShareKey(u64);

impl ShareKey {
    /// The key with this number, for example one agreed on by programs written for `ibv_share_pd(3)`.
    pub const fn new(key: u64) -> Self {
        Self(key)
    }

    /// A key from the kernel's random numbers.
    ///
    /// # Errors
    ///
    /// A sandbox forbids getrandom(2).
    pub fn random() -> Result<Self, Errno> {
        let mut bytes = [0; 8];
        // The kernel fills requests of up to 256 bytes completely.
        rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
        Ok(Self(u64::from_ne_bytes(bytes)))
    }

    /// The key as a number, to pass it on.
    pub const fn expose(&self) -> u64 {
        self.0
    }

    /// Whether the keys are equal, in a time that does not depend on how many bits are.
    pub(super) fn matches(&self, other: &Self) -> bool {
        // No early exit: on 32-bit machines a plain comparison might stop after the first half.
        let difference = black_box(self.0 ^ other.0);
        let folded = (difference | difference >> 32) as u32;
        black_box(folded) == 0
    }
}

impl fmt::Debug for ShareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShareKey(hidden)")
    }
}

/// The expected text.
const NO_KEY: ParseError = ParseError::new("not a key: expected 16 hexadecimal digits");

impl FromStr for ShareKey {
    type Err = ParseError;

    /// Reads 16 hexadecimal digits, as written by `format!("{:016x}", key.expose())`.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(text, 16) {
            Ok(key) if digits => Ok(Self(key)),
            _ => Err(NO_KEY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let key = ShareKey::new(0x0123_4567_89ab_cdef);
        assert!(key.matches(&key.clone()));
        for bit in 0..64 {
            assert!(
                !key.matches(&ShareKey::new(key.expose() ^ 1 << bit)),
                "{bit}"
            );
        }
    }

    #[test]
    fn is_not_shown() {
        let text = format!("{:?}", ShareKey::new(0xdead_beef_dead_beef));
        assert_eq!(text, "ShareKey(hidden)");
        let error = "deadbeefdeadbee".parse::<ShareKey>().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("deadbeef"));
    }

    #[test]
    fn text_is_sixteen_digits() {
        let key: ShareKey = "00000000000000ff".parse().unwrap();
        assert_eq!(key.expose(), 255);
        for bad in [
            "",
            "ff",
            "+0000000000000ff",
            "0x000000000000ff",
            "00000000000000fff",
        ] {
            assert!(bad.parse::<ShareKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn random_keys_differ() {
        let (a, b) = (ShareKey::random().unwrap(), ShareKey::random().unwrap());
        assert!(!a.matches(&b));
    }
}
