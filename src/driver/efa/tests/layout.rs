//! How rings are cut, and what a device has.

use uverbs_uapi::efa::DeviceCaps;
use uverbs_uapi::enums::QpType;
use uverbs_uapi::types::QpCap;

use super::super::qp::{recv_layout, send_layout};
use super::super::{Efa, Limits};
use super::{CAP, LIMITS};
use crate::device::DriverClue;
use crate::driver::contract::Driver as _;
use crate::work::Operations;

fn sends(cap: QpCap, limits: &Limits) -> Option<(u32, u32, u32)> {
    let layout = send_layout(QpType::DRIVER, false, &cap, limits)?;
    Some((layout.depth, layout.blocks, layout.max_inline))
}

#[test]
fn send_rings_are_powers_of_two_within_the_devices_limits() {
    let sized = |max_send_wr| QpCap { max_send_wr, ..CAP };
    assert_eq!(sends(sized(0), &LIMITS), Some((1, 1, 32)));
    assert_eq!(sends(sized(5), &LIMITS), Some((8, 1, 32)));
    assert_eq!(sends(sized(4096), &LIMITS), Some((4096, 1, 32)));
    assert_eq!(sends(sized(4097), &LIMITS), None);
    assert_eq!(sends(sized(u32::MAX), &LIMITS), None);
    let least = Limits {
        min_sq_wr: 16,
        ..LIMITS
    };
    assert_eq!(sends(sized(5), &least), Some((16, 1, 32)));
    let inline = |max_send_wr, max_inline_data| QpCap {
        max_inline_data,
        max_send_wr,
        ..CAP
    };
    assert_eq!(sends(inline(8, 33), &LIMITS), Some((8, 2, 80)));
    assert_eq!(sends(inline(8, 81), &LIMITS), None);
    // Two blocks each are more than the ring's memory.
    assert_eq!(sends(inline(4096, 80), &LIMITS), None);
    let narrow = Limits {
        wide_inline: 0,
        ..LIMITS
    };
    assert_eq!(sends(inline(8, 33), &narrow), None);
    let slices = QpCap {
        max_send_sge: 3,
        ..CAP
    };
    assert_eq!(sends(slices, &LIMITS), None);
}

#[test]
fn receive_rings_have_a_descriptor_for_each_slice() {
    let cut = |max_recv_wr, max_recv_sge| {
        let cap = QpCap {
            max_recv_wr,
            max_recv_sge,
            ..CAP
        };
        let layout = recv_layout(&cap, &LIMITS)?;
        Some((layout.descriptors, layout.capacity))
    };
    assert_eq!(cut(4, 1), Some((4, 4)));
    assert_eq!(cut(5, 3), Some((16, 5)));
    assert_eq!(cut(32768, 1), Some((32768, 32768)));
    assert_eq!(cut(32769, 1), None);
    assert_eq!(cut(4, 4), None);
    assert_eq!(cut(u32::MAX, 3), None);
}

#[test]
fn each_operation_is_a_capability_of_the_device() {
    let datagrams = Operations::SEND | Operations::SEND_IMM;
    for (caps, more) in [
        (DeviceCaps::empty(), Operations::empty()),
        (DeviceCaps::RDMA_READ, Operations::READ),
        (
            DeviceCaps::RDMA_WRITE,
            Operations::WRITE | Operations::WRITE_IMM,
        ),
    ] {
        let limits = Limits { caps, ..LIMITS };
        assert_eq!(limits.operations(QpType::DRIVER), datagrams | more);
        assert_eq!(limits.operations(QpType::UD), datagrams);
        assert!(limits.operations(QpType::RC).is_empty());
    }
}

/// Would catch entries without room for what the device puts there.
#[test]
fn completions_have_room_for_what_the_device_tells() {
    for (caps, bytes) in [
        (DeviceCaps::empty(), 16),
        (DeviceCaps::RDMA_READ | DeviceCaps::CQ_NOTIFICATIONS, 16),
        (DeviceCaps::RDMA_WRITE, 32),
        (DeviceCaps::CQ_WITH_SGID, 32),
    ] {
        assert_eq!(Limits { caps, ..LIMITS }.entry_bytes(), bytes);
    }
}

#[test]
fn a_device_is_known_by_its_bus_driver() {
    let is_behind = |name: &str| Efa::is_behind(&DriverClue::Bus(name.into()));
    assert!(is_behind("efa") && !is_behind("efa2") && !is_behind("mlx5_core"));
    assert!(!Efa::is_behind(&DriverClue::Parent));
}
