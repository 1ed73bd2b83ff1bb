//! Queues over memory that plays the device.

mod completions;
mod directory;
mod layout;
mod order;
mod receives;
mod sends;

use std::sync::Arc;

use uverbs_uapi::efa::DeviceCaps;
use uverbs_uapi::enums::QpType;
use uverbs_uapi::types::QpCap;
use zerocopy::FromBytes;

use super::Limits;
use super::format::BLOCK;
use super::qp::{recv_layout, send_layout};
use super::recv::RecvQueue;
use super::ring::Register;
use super::send::{DeviceRing, SendQueue};
use crate::driver::kit::ledger::NumberedLedger;
use crate::driver::kit::map::Map;

/// The limits of a device, as large as those of real ones.
const LIMITS: Limits = Limits {
    caps: DeviceCaps::RDMA_READ.union(DeviceCaps::RDMA_WRITE),
    max_send_wr: 4096,
    max_recv_wr: 32768,
    max_send_sge: 2,
    max_recv_sge: 3,
    max_rdma_bytes: 1 << 30,
    inline: 32,
    wide_inline: 80,
    max_ring_bytes: 1 << 18,
    max_batch_blocks: 0,
    min_sq_wr: 0,
    sub_cqs: 2,
    qpn_mask: 0xff,
};

const CAP: QpCap = QpCap {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline_data: 32,
};

/// Memory of the device that a test looks at.
struct Device {
    ring: Arc<Map>,
    doorbell: Arc<Map>,
}

/// Where the doorbell lies in its page.
const DOORBELL: u32 = 0x40;

impl Device {
    fn new(bytes: usize) -> Self {
        Self {
            ring: Arc::new(Map::of_memory(bytes)),
            doorbell: Arc::new(Map::of_memory(1)),
        }
    }

    fn register(&self) -> Register {
        Register::new(Arc::clone(&self.doorbell), DOORBELL).unwrap()
    }

    /// The value that was stored to the doorbell last.
    fn rung(&self) -> u32 {
        self.register().stored()
    }

    /// Bytes of the ring.
    fn read<T: FromBytes>(&self, at: usize) -> T {
        assert!(at + size_of::<T>() <= self.ring.length());
        // SAFETY: the bytes lie in the map, which nobody writes meanwhile; every bit pattern is a `T`.
        unsafe { self.ring.base().add(at).cast::<T>().read_unaligned() }
    }
}

/// A send queue, with its ledger and the device's side.
fn send_queue(
    transport: QpType,
    cap: &QpCap,
    limits: &Limits,
) -> (SendQueue, Arc<NumberedLedger>, Device) {
    let layout = send_layout(transport, false, cap, limits).unwrap();
    let bytes = (layout.depth * layout.blocks) as usize * BLOCK;
    let device = Device::new(bytes);
    let ring = DeviceRing {
        first: device.ring.base(),
        _map: Arc::clone(&device.ring),
        doorbell: device.register(),
    };
    let ledger = Arc::new(NumberedLedger::new(layout.depth, 0));
    (
        SendQueue::new(layout, Arc::clone(&ledger), ring),
        ledger,
        device,
    )
}

/// As [`send_queue`], for receives.
fn recv_queue(cap: &QpCap) -> (RecvQueue, Arc<NumberedLedger>, Device) {
    let layout = recv_layout(cap, &LIMITS).unwrap();
    let device = Device::new(layout.bytes());
    let ledger = Arc::new(NumberedLedger::new(layout.capacity, 0));
    let (ring, doorbell) = (Arc::clone(&device.ring), device.register());
    let queue = RecvQueue::new(layout, Arc::clone(&ledger), ring, doorbell);
    (queue, ledger, device)
}
