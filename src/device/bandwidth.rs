//! How many bits per second a link carries.

use std::fmt;

use uverbs_uapi::enums::{LinkSpeed, LinkWidth};

/// How many bits per second a link carries in one direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Bandwidth(u64);

impl Bandwidth {
    /// From a number of Mb/s.
    pub const fn from_megabits(megabits: u64) -> Self {
        Self(megabits)
    }

    /// In Mb/s.
    pub const fn megabits(self) -> u64 {
        self.0
    }

    /// In Gb/s.
    pub fn gigabits(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// The bandwidth of a port with these attributes, rounded as in the kernel (`ib_port_attr_to_speed_info`
    /// in `drivers/infiniband/core/verbs.c`); `None` if a code is unknown.
    pub(crate) fn of_port(speed: LinkSpeed, width: LinkWidth) -> Option<Self> {
        let lanes = match width {
            LinkWidth::X1 => 1,
            LinkWidth::X2 => 2,
            LinkWidth::X4 => 4,
            LinkWidth::X8 => 8,
            LinkWidth::X12 => 12,
            _ => return None,
        };
        let lane = match speed {
            LinkSpeed::SDR => 2_500,
            LinkSpeed::DDR => 5_000,
            LinkSpeed::QDR | LinkSpeed::FDR10 => 10_000,
            LinkSpeed::FDR => 14_000,
            LinkSpeed::EDR => 25_000,
            LinkSpeed::HDR => 50_000,
            LinkSpeed::NDR => 100_000,
            LinkSpeed::XDR => 200_000,
            _ => return None,
        };
        Some(Self(lane * lanes))
    }

    /// From a decimal number of units of `unit` Mb/s, with up to three digits after the point.
    pub(in crate::device) fn parse(number: &str, unit: u64) -> Option<Self> {
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if part.is_empty() || part.len() > 3 || !is_number(whole) || !is_number(part) {
            return None;
        }
        let thousandths = part.parse::<u64>().ok()? * 10u64.pow(3 - part.len() as u32);
        let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
        whole.checked_add(thousandths * unit / 1000).map(Self)
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // PCI links carry odd numbers of megabits; the difference does not matter.
        let tenths = self.0 / 100 + u64::from(self.0 % 100 >= 50);
        match tenths % 10 {
            0 => write!(f, "{} Gb/s", tenths / 10),
            rest => write!(f, "{}.{rest} Gb/s", tenths / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a panic for a value that nothing has but anybody may make.
    #[test]
    fn the_highest_is_shown() {
        let shown = Bandwidth(u64::MAX).to_string();
        assert_eq!(shown, "18446744073709551.6 Gb/s");
        assert_eq!(Bandwidth(150).to_string(), "0.2 Gb/s");
    }

    #[test]
    fn is_told_in_gigabits() {
        for (megabits, text) in [
            (400_000, "400 Gb/s"),
            (2_500, "2.5 Gb/s"),
            (252_061, "252.1 Gb/s"),
            (0, "0 Gb/s"),
        ] {
            let bandwidth = Bandwidth::from_megabits(megabits);
            assert_eq!(bandwidth.to_string(), text);
        }
    }

    #[test]
    fn numbers_are_read_to_the_thousandth() {
        let parsed = |text| Bandwidth::parse(text, 1000).map(Bandwidth::megabits);
        assert_eq!(parsed("100"), Some(100_000));
        assert_eq!(parsed("2.5"), Some(2_500));
        assert_eq!(parsed("10.25"), Some(10_250));
        for wrong in [
            "",
            "x",
            "1.",
            "1.0000",
            "-1",
            "+1",
            "1.x",
            "99999999999999999999",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn of_a_port_is_lanes_times_speed() {
        let of = |speed, width| Bandwidth::of_port(speed, width).map(Bandwidth::megabits);
        assert_eq!(of(LinkSpeed::EDR, LinkWidth::X4), Some(100_000));
        assert_eq!(of(LinkSpeed::SDR, LinkWidth::X1), Some(2_500));
        assert_eq!(of(LinkSpeed::XDR, LinkWidth::X4), Some(800_000));
        assert_eq!(of(LinkSpeed(0), LinkWidth::X4), None);
        assert_eq!(of(LinkSpeed::EDR, LinkWidth(3)), None);
    }
}
