//! The time of day of a device's clock.

/// The relation of a device's clock to the system's at one moment: it converts the device's time stamps to
/// time of day. It is accurate for stamps from shortly before and after; take a new one every second or so.
/// Manual page: `mlx5dv_get_clock_info(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    /// Time of day in nanoseconds since 1970, when the device's clock was at `cycles`.
    pub(crate) nsec: u64,
    /// The value of the device's clock at that moment.
    pub(crate) cycles: u64,
    /// The fraction of a nanosecond at that moment, in units of 2^-`shift`.
    pub(crate) frac: u64,
    /// Length of a tick, in the same units.
    pub(crate) mult: u32,
    /// The exponent of these units; below 64.
    pub(crate) shift: u32,
    /// A mask of the bits that the device's clock has.
    pub(crate) mask: u64,
}

impl WallClock {
    /// The time of day of a device's time stamp ([`Completion::timestamp`](crate::Completion::timestamp),
    /// [`Context::raw_clock`](crate::Context::raw_clock)), in nanoseconds since 1970. A stamp is taken for
    /// one of the past if it is further ahead of this than half of what the device can count.
    pub fn nanoseconds(&self, timestamp: u64) -> u64 {
        let ahead = timestamp.wrapping_sub(self.cycles) & self.mask;
        let behind = self.cycles.wrapping_sub(timestamp) & self.mask;
        // A product of the two fits in 128 bits.
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

    /// A clock of 16 bits with 4 ns per tick. It read 100 half a nanosecond after 1 s.
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
            // Rounding may lose half a nanosecond in either direction.
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
        // In 64 bits the products would overflow long before the clock does.
        let wide = WallClock {
            mask: u64::MAX,
            ..CLOCK
        };
        assert_eq!(wide.nanoseconds(100 + (1 << 60)), wide.nsec + (1 << 62));
    }
}
