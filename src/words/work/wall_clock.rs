//! What a device's clock means in time of day.

/// The relation of a device's clock to the system's, as it was at one moment: it turns the device's time
/// stamps into time of day. It is good for stamps of a while before and after; take a new one every second or
/// so. Manual page: `mlx5dv_get_clock_info(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    /// Time of day in nanoseconds since 1970, when the device's clock was at `cycles`.
    pub(crate) nsec: u64,
    /// The device's clock then.
    pub(crate) cycles: u64,
    /// Fraction of a nanosecond then, in units of 2^-`shift`.
    pub(crate) frac: u64,
    /// Length of a tick, in the same units.
    pub(crate) mult: u32,
    /// How small the units are; below 64.
    pub(crate) shift: u32,
    /// The bits that the device's clock has.
    pub(crate) mask: u64,
}

impl WallClock {
    /// The time of day of a device's time stamp ([`Completion::timestamp`](crate::Completion::timestamp),
    /// [`Context::raw_clock`](crate::Context::raw_clock)), in nanoseconds since 1970. A stamp is taken for
    /// one of the past if it is further ahead of this than half of what the device can count.
    pub fn nanoseconds(&self, timestamp: u64) -> u64 {
        let ahead = timestamp.wrapping_sub(self.cycles) & self.mask;
        let behind = self.cycles.wrapping_sub(timestamp) & self.mask;
        // 128 bits hold any product of the two.
        let units = |ticks: u64| u128::from(ticks) * u128::from(self.mult);
        let frac = u128::from(self.frac);
        if ahead > self.mask / 2 {
            let back = units(behind).saturating_sub(frac) >> self.shift;
            self.nsec.wrapping_sub(back as u64)
        } else {
            self.nsec
                .wrapping_add(((units(ahead) + frac) >> self.shift) as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of 16 bits with 4 ns a tick, which was at 100 half a nanosecond after 1 s.
    const CLOCK: WallClock = WallClock {
        nsec: 1_000_000_000,
        cycles: 100,
        frac: 1 << 7,
        mult: 4 << 8,
        shift: 8,
        mask: 0xffff,
    };

    #[test]
    fn stamps_lie_before_and_behind() {
        for (timestamp, offset) in [(100, 0), (101, 4), (99, -4), (0, -400), (0x1000, 15_984)] {
            let expected = CLOCK.nsec.wrapping_add_signed(offset);
            // Half a nanosecond is lost one way or the other.
            let is = CLOCK.nanoseconds(timestamp);
            assert!(
                is.abs_diff(expected) <= 1,
                "{timestamp}: {is}, not {expected}"
            );
        }
    }

    #[test]
    fn the_clock_wraps() {
        let late = WallClock {
            cycles: 0xfff0,
            frac: 0,
            ..CLOCK
        };
        assert_eq!(late.nanoseconds(0x10), late.nsec + 4 * 0x20);
        assert_eq!(late.nanoseconds(0xffe0), late.nsec - 4 * 0x10);
        // 64 bits overflow in products long before the clock does.
        let wide = WallClock {
            mask: u64::MAX,
            ..CLOCK
        };
        assert_eq!(wide.nanoseconds(100 + (1 << 60)), wide.nsec + (1 << 62));
    }
}
