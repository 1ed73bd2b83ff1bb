//! What the sample driver has, for tests of the objects that stand on drivers.

use std::sync::Arc;

use super::contract::{Driver as _, Nothing};
use super::sample::Sample;
use super::{CqBacking, Device, OneOf, QpBacking, SendQueue};
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

/// A send queue of each driver that has such, over memory that nobody reads, for 7 requests with 2 slices or
/// 32 inline bytes.
pub(crate) fn send_queues() -> Vec<SendQueue> {
    vec![
        #[cfg(feature = "mlx5")]
        OneOf::Mlx5(super::mlx5::sample_send_queue()),
        #[cfg(feature = "rxe")]
        OneOf::Rxe(super::rxe::sample_send_queue()),
    ]
}
