//! The page in which the kernel relates the device's clock to time of day.
//!
//! It writes there about every second, while `sign` is odd (`mlx5_update_clock_info_page` in
//! `drivers/net/ethernet/mellanox/mlx5/core/lib/clock.c`).

use std::hint;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use rustix::param::page_size;
use uverbs_uapi::mlx5::MmapCmd;

use super::clock::map;
use super::map::Map;
use crate::command::CommandFd;
use crate::error::{Error, Result, Subject, Verb};
use crate::work::WallClock;

/// The page's form, version 1 (`struct ib_uverbs_clock_info`), with fields that change while they are read.
#[derive(Debug, Default)]
#[repr(C)]
struct Shared {
    sign: AtomicU32,
    reserved: u32,
    nsec: AtomicU64,
    cycles: AtomicU64,
    frac: AtomicU64,
    mult: AtomicU32,
    shift: AtomicU32,
    mask: AtomicU64,
    overflow_period: AtomicU64,
}

/// How often a page that is being written is read before it counts as broken: the kernel writes a few words.
const LOOKS: u32 = 100_000;

impl Shared {
    /// The contents; `None` if they are being written all the time.
    fn read(&self) -> Option<WallClock> {
        for _ in 0..LOOKS {
            // Acquire pairs with the kernel's barrier before it makes `sign` even again.
            let sign = self.sign.load(Ordering::Acquire);
            let clock = WallClock {
                nsec: self.nsec.load(Ordering::Relaxed),
                cycles: self.cycles.load(Ordering::Relaxed),
                frac: self.frac.load(Ordering::Relaxed),
                mult: self.mult.load(Ordering::Relaxed),
                shift: self.shift.load(Ordering::Relaxed),
                mask: self.mask.load(Ordering::Relaxed),
            };
            // Pairs with the kernel's barrier after it has made `sign` odd: a thread that saw a new field
            // also sees that.
            fence(Ordering::Acquire);
            if sign & 1 == 0 && self.sign.load(Ordering::Relaxed) == sign {
                return Some(clock);
            }
            hint::spin_loop();
        }
        None
    }
}

/// The mapped page.
#[derive(Debug)]
pub(super) struct ClockInfo(Map);

impl ClockInfo {
    /// Maps the page.
    pub(super) fn map(fd: &CommandFd) -> Result<Self> {
        let page = page_size();
        map(fd, Verb::GetClockInfo, MmapCmd::CLOCK_INFO, page).map(Self)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the page is mapped as long as `self` is, and holds this struct at its start.
        unsafe { self.0.base().cast().as_ref() }
    }

    /// The contents now.
    pub(super) fn read(&self) -> Result<WallClock> {
        let clock = self.shared().read();
        let malformed = |what: &str| {
            Error::malformed(
                Verb::GetClockInfo,
                Subject::the("device's clock"),
                what.to_owned(),
            )
        };
        match clock {
            Some(clock) if clock.shift < u64::BITS => Ok(clock),
            Some(_) => Err(malformed("a scale of 64 bits or more")),
            None => Err(malformed("a page that is never complete")),
        }
    }
}

#[cfg(feature = "c-abi")]
impl ClockInfo {
    /// Nanoseconds within which the page must be read again, before the clock wraps around.
    pub(super) fn period(&self) -> u64 {
        // No ordering is needed: the kernel sets it once, before the page can be mapped.
        self.shared().overflow_period.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use uverbs_uapi::types as abi;

    use super::*;

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        assert_eq!(offset_of!(Shared, nsec), offset_of!(abi::ClockInfo, nsec));
        assert_eq!(offset_of!(Shared, mult), offset_of!(abi::ClockInfo, mult));
        assert_eq!(offset_of!(Shared, mask), offset_of!(abi::ClockInfo, mask));
        assert_eq!(size_of::<Shared>(), size_of::<abi::ClockInfo>());
    }

    #[test]
    fn a_page_that_is_being_written_is_read_again() {
        let shared = Shared::default();
        shared.sign.store(1, Ordering::Relaxed);
        assert_eq!(shared.read(), None, "never complete");
        shared.sign.store(2, Ordering::Relaxed);
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..20_000_u64 {
                    shared.sign.fetch_add(1, Ordering::Relaxed);
                    fence(Ordering::Release);
                    shared.nsec.store(round, Ordering::Relaxed);
                    shared.cycles.store(round, Ordering::Relaxed);
                    shared.sign.fetch_add(1, Ordering::Release);
                }
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                if let Some(clock) = shared.read() {
                    assert_eq!(clock.nsec, clock.cycles, "of two rounds");
                }
            }
        });
        assert_eq!(shared.read().map(|clock| clock.nsec), Some(19_999));
    }
}
