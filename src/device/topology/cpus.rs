//! Lists of CPUs.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::error::ParseError;

/// CPUs by their numbers, in the kernel's notation: `0-15,32-47`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuList(Vec<RangeInclusive<u32>>);

impl CpuList {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it contains this CPU.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.iter().any(|range| range.contains(&cpu))
    }

    /// Their numbers.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().cloned().flatten()
    }
}

/// The expected text.
const NO_LIST: ParseError = ParseError::new("not a list of CPUs such as 0-15,32-47");

impl FromStr for CpuList {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let number = |text: &str| text.parse().map_err(|_| NO_LIST);
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(NO_LIST);
            }
            Ok(first..=last)
        };
        match text.trim() {
            "" => Ok(Self::default()),
            text => text
                .split(',')
                .map(range)
                .collect::<Result<_, _>>()
                .map(Self),
        }
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, range) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_lists_are_read_and_written() {
        for text in ["", "0", "0-3", "0-15,32-47", "1,3,5-4294967295"] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), text);
        }
        for wrong in ["x", "3-1", "1,", "-", "1-2-3", "4294967296"] {
            assert_eq!(wrong.parse::<CpuList>(), Err(NO_LIST), "{wrong}");
        }
    }

    #[test]
    fn members() {
        let cpus: CpuList = "0-2,8\n".parse().unwrap();
        assert_eq!(cpus.iter().collect::<Vec<_>>(), [0, 1, 2, 8]);
        assert!(cpus.contains(8) && !cpus.contains(3));
        assert!(!cpus.is_empty() && CpuList::default().is_empty());
    }
}
