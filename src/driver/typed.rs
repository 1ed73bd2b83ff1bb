//! Work on a driver's own types, where the driver was chosen before.
//!
//! The rest of the crate has a batch or a poll in its hands for a while, and the compiler knows its variant
//! there. A function for C programs has it for one call, or finds it in memory where an earlier call left it.
//! But programs call such functions by pointers, in the context or in the object itself: they are chosen when
//! that is made ([`ForDriver`]).

use super::{Device, Listed};

/// What is made for a device's driver: tables of functions, which need not ask then.
pub(crate) trait ForDriver {
    type Output;
    fn run<D: Listed>(self) -> Self::Output;
}

impl Device {
    pub(crate) fn with<W: ForDriver>(&self, work: W) -> W::Output {
        dispatch!(self, D(_) => work.run::<D>())
    }
}
