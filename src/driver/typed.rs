//! Work on a driver's own types, where the driver was chosen before.
//!
//! The rest of the crate has a batch or a poll in its hands for a while, and the compiler knows its variant
//! there. A function for C programs has it for one call, or finds it in memory where an earlier call left it.
//! But programs call such functions by pointers, in the context or in the object itself: they are chosen when
//! that is made ([`ForDriver`]).

use super::contract;
use super::contract::methods::*;
use super::{Cq, Device, Kind, Lent, Listed};

/// A completion that a C program looks at.
pub(crate) type Shown = Lent<Showns>;

#[derive(Debug)]
pub(crate) enum Showns {}

impl Kind for Showns {
    type Of<D: contract::Driver> = ShownOf<D>;
}

/// A completion that a C program looks at, as driver `D` has it.
pub(crate) type ShownOf<D> = <<D as contract::Driver>::Cq as contract::Cq>::Shown;

/// Completions that are being taken, as driver `D` has them.
pub(crate) type PolledOf<'q, D> = <<D as contract::Driver>::Cq as contract::Cq>::Polled<'q>;

/// What is made for a device's driver: tables of functions, which need not ask then.
pub(crate) trait ForDriver {
    type Output;
    fn run<D: Listed>(self) -> Self::Output;
}

impl Cq {
    /// Nothing that is shown.
    pub(crate) fn show_nothing(&self) -> Shown {
        dispatch!(self, D(cq) => D::lend(cq.show_nothing()))
    }
}

impl Device {
    pub(crate) fn with<W: ForDriver>(&self, work: W) -> W::Output {
        dispatch!(self, D(_) => work.run::<D>())
    }
}
