//! What the sample driver has, for tests of the objects that stand on drivers.

use std::sync::Arc;

use super::contract::{Driver as _, Nothing};
use super::sample::Sample;
use super::{CqBacking, Device, OneOf, QpBacking};
use crate::device::DriverId;

pub(crate) const ID: DriverId = Sample::ID;

pub(crate) fn device() -> Device {
    OneOf::Sample(Arc::new(Sample))
}

pub(crate) fn cq_backing() -> CqBacking {
    OneOf::Sample(Nothing)
}

pub(crate) fn qp_backing() -> QpBacking {
    OneOf::Sample(Nothing)
}
