//! Values of the sample driver, for tests of the objects above drivers.

use std::mem;
use std::sync::Arc;

use super::contract::Driver as _;
use super::sample::{self, Sample};
use super::{CqBacking, Device, OneOf, QpBacking, RecvQueue, SendQueue};
use crate::device::DriverId;

pub(crate) const ID: DriverId = Sample::ID;

/// A device, in which a seed decides the order of execution.
pub(crate) fn device(seed: u64) -> Device {
    OneOf::Sample(Arc::new(Sample::of(sample::Device::new(seed))))
}

pub(crate) fn cq_backing() -> CqBacking {
    OneOf::Sample(sample::samples().0)
}

pub(crate) fn qp_backing() -> QpBacking {
    OneOf::Sample(sample::samples().1.backing)
}

/// A receive queue of a driver that checks no state.
pub(crate) fn recv_queue() -> RecvQueue {
    let qp = sample::samples().1;
    // It is not destroyed: the queue is used.
    mem::forget(qp.backing);
    OneOf::Sample(qp.recv.unwrap())
}

/// The send queues of the drivers in the list that have such a sample.
macro_rules! send_queues_of {
    ({ $(($($built_in:tt)*) $Variant:ident $Driver:ty,)* }) => {{
        let mut queues = Vec::new();
        $(
            #[cfg($($built_in)*)]
            queues.extend(<$Driver>::sample_send_queue().map(OneOf::$Variant));
        )*
        queues
    }};
}

/// A send queue of each driver that has one: see
/// [`sample_send_queue`](super::contract::Driver::sample_send_queue).
pub(crate) fn send_queues() -> Vec<SendQueue> {
    drivers!(send_queues_of)
}
