//! Work in a driver's own types, where the driver was selected earlier.
//!
//! In the rest of the crate a batch or a poll lives for a while, and the compiler knows its variant. A
//! function for C programs has it for one call only, or finds it in memory where an earlier call left it. But
//! C programs call such functions by pointers, in the context or in the object itself. These pointers are
//! chosen when the context or object is made ([`ForDriver`]).

use super::{Device, Listed};

/// Something that is made for a device's driver: tables of functions, which then need not select the driver.
pub(crate) trait ForDriver {
    type Output;
    fn run<D: Listed>(self) -> Self::Output;
}

impl Device {
    pub(crate) fn with<W: ForDriver>(&self, work: W) -> W::Output {
        dispatch!(self, D(_) => work.run::<D>())
    }
}
