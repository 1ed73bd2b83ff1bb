//! The GUID: the 64-bit number of a device, a port or a system. It is not an address: see `Gid`.

use std::fmt;
use std::str::FromStr;

use crate::error::ParseError;

/// A globally unique identifier (EUI-64), in host byte order.
///
/// Its text form is that of sysfs and of rdma-core's programs: four groups of four hexadecimal digits.
///
/// ```
/// # use uverbs::guid::Guid;
/// let guid = Guid(0x0011_2233_4455_6677);
/// assert_eq!(guid.to_string(), "0011:2233:4455:6677");
/// assert_eq!("0011:2233:4455:6677".parse(), Ok(guid));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Guid(pub u64);

/// The expected text.
const NO_GUID: ParseError = ParseError::new("not a GUID of the form 0011:2233:4455:6677");

impl FromStr for Guid {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut groups = text.split(':');
        let mut guid = 0;
        for _ in 0..4 {
            let group = groups.next().ok_or(NO_GUID)?;
            // `from_str_radix` alone would accept a sign.
            if group.len() > 4 || !group.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(NO_GUID);
            }
            let value = u16::from_str_radix(group, 16).map_err(|_| NO_GUID)?;
            guid = guid << 16 | u64::from(value);
        }
        match groups.next() {
            None => Ok(Self(guid)),
            Some(_) => Err(NO_GUID),
        }
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = |shift: u32| (self.0 >> shift) & 0xffff;
        write!(
            f,
            "{:04x}:{:04x}:{:04x}:{:04x}",
            group(48),
            group(32),
            group(16),
            group(0)
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_not_a_guid() {
        for text in [
            "",
            "0",
            "0:0:0",
            "0:0:0:0:0",
            "0:0:0:",
            "0:0:0:g",
            "0:0:0:+1",
            "0:0:0:00000",
        ] {
            assert_eq!(text.parse::<Guid>(), Err(NO_GUID), "{text}");
        }
    }

    #[test]
    fn every_number_survives_its_text() {
        for guid in [0, 1, u64::MAX, 0x0002_c903_00a1_b2c3].map(Guid) {
            assert_eq!(guid.to_string().parse(), Ok(guid));
        }
    }
}
