//! The bytes of messages. Each message has a key that no other has, and its bytes follow from it.

use std::sync::OnceLock;

use super::plan::{HEADER, SLOT};

/// Which message it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) pair: u16,
    /// The side that sends it.
    pub(crate) side: u8,
    /// The number of the request on that side, over the whole run.
    pub(crate) serial: u32,
}

impl Key {
    fn number(self) -> u64 {
        u64::from(self.pair) << 40 | u64::from(self.side) << 32 | u64::from(self.serial)
    }

    /// The message with this key: the key and the length, then bytes that depend on both; cut off where it
    /// ends.
    pub(crate) fn message(self, length: u32) -> Vec<u8> {
        let mut hash = self.number() << 16 ^ u64::from(length);
        let noise = noise();
        let room = (noise.len() - SLOT as usize) as u64;
        let start = (split_mix(&mut hash) % room) as usize;
        let mut bytes = Vec::with_capacity(length as usize + HEADER as usize);
        bytes.extend(self.number().to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(SIGN);
        let rest = (length as usize).saturating_sub(HEADER as usize);
        bytes.extend_from_slice(&noise[start..start + rest]);
        bytes.truncate(length as usize);
        bytes
    }

    /// The key in a received message, and the length that it says it has. `None` if it is no message.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, u32)> {
        let header = bytes.first_chunk::<{ HEADER as usize }>()?;
        let number = u64::from_le_bytes(*header.first_chunk()?);
        let key = Self {
            pair: u16::try_from(number >> 40).ok()?,
            side: (number >> 32) as u8,
            serial: number as u32,
        };
        let length = u32::from_le_bytes(*header[8..].first_chunk()?);
        (header[12..] == SIGN).then_some((key, length))
    }
}

const SIGN: [u8; 4] = *b"soak";

/// Random bytes, the same always. Each message has a piece of them: copying is quick also where nothing is
/// optimised.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut state = 0;
        let words = (0..SLOT).map(|_| split_mix(&mut state));
        words.flat_map(u64::to_le_bytes).collect()
    })
}

/// The generator of Steele, Lea and Flood, which has a new number for each state.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Fails unless the bytes are those expected; tells where they differ first.
pub(crate) fn check(got: &[u8], expected: &[u8]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let differ = got.iter().zip(expected).position(|(a, b)| a != b);
    let at = differ.unwrap_or(got.len().min(expected.len()));
    let show = |bytes: &[u8]| {
        format!(
            "{:02x?}",
            &bytes[at.min(bytes.len())..(at + 24).min(bytes.len())]
        )
    };
    Err(format!(
        "corrupted at byte {at} of {}: {}, expected {} (of {})",
        got.len(),
        show(got),
        show(expected),
        expected.len()
    ))
}
