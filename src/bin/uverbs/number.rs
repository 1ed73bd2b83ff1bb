//! Numbers on the command line: decimal or hexadecimal, sizes with K, M or G, times in seconds.

use std::time::Duration;

/// Reads a size in bytes: `4096`, `0x1000`, `4K`.
pub(crate) fn size(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let number = number.map_err(|_| "a number such as 4096, 0x1000 or 64K (or M or G)")?;
    match number.checked_mul(unit) {
        Some(0) => Err("at least 1 byte".into()),
        Some(bytes) => Ok(bytes),
        None => Err("4 GiB or more".into()),
    }
}

/// The longest time in seconds, some thirty years: adding it to a clock does not overflow.
const LONGEST: f64 = 1e9;

/// Reads a time in seconds: `10`, `0.5`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if seconds <= LONGEST => Ok(time),
        _ => Err(format!("from 0 to {LONGEST} seconds")),
    }
}

/// Reads a time in which something is to happen: in no time nothing does.
pub(crate) fn positive_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        Duration::ZERO => Err("more than 0 seconds".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("1", 1),
            ("4096", 4096),
            ("0x10", 16),
            ("64K", 65536),
            ("1m", 1 << 20),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "0", "0x", "-1", "4G", "4294967296", "1é", "1.5K"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(positive_seconds("0.25"), Ok(Duration::from_millis(250)));
        assert!(positive_seconds("0").is_err() && positive_seconds("1e-99").is_err());
        for text in ["", "-1", "NaN", "inf", "1e300", "1e19", "10s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
