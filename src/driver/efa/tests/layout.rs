//! The layout of rings, and what a device can do.

use std::fs::File;
use std::os::fd::{OwnedFd, RawFd};

use uverbs_uapi::efa::{AllocUcontextResp, CreateCqResp, DeviceCaps, QueryDeviceResp};
use uverbs_uapi::enums::QpType;
use uverbs_uapi::handle::CqHandle;
use uverbs_uapi::types::QpCap;
use zerocopy::IntoBytes;

use super::super::format::Entry;
use super::super::qp::{recv_layout, send_layout};
use super::super::ring::RingMemory;
use super::super::{Efa, Limits, create_cq, map_cq};
use super::{CAP, LIMITS};
use crate::command::{CommandFd, CreateCq, CreateCqReply, DriverData, DriverReply, Route};
use crate::device::DriverClue;
use crate::driver::contract::Driver as _;
use crate::driver::kit::map::Map;
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
    assert_eq!(cut(32768, 2), None, "the device counts descriptors");
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

/// Would catch a number of retries that the device cannot be told and is asked to have, or the other way
/// round.
#[test]
fn retries_are_a_capability_of_the_device() {
    for (caps, sets) in [
        (DeviceCaps::RDMA_READ, false),
        (DeviceCaps::RNR_RETRY, true),
    ] {
        assert_eq!(Efa::new(Limits { caps, ..LIMITS }).sets_rnr_retry(), sets);
    }
}

/// Would catch limits that a request's format does not have, requests of two blocks that the device does not
/// know, and a device that says nothing of READs and has them.
#[test]
fn what_a_device_says_is_held_within_the_formats() {
    let mut context = AllocUcontextResp {
        inline_buf_size: 32,
        inline_buf_size_ex: 32,
        max_llq_size: 1 << 16,
        ..AllocUcontextResp::default()
    };
    let device = QueryDeviceResp {
        max_sq_sge: 3,
        max_sq_wr: 4096,
        ..QueryDeviceResp::default()
    };
    let limits = Limits::of(&context, &device, 256);
    assert_eq!((limits.inline, limits.wide_inline), (32, 0));
    assert_eq!((limits.max_send_sge, Limits::RDMA_SGES), (2, 1));
    // C programs are told what the device says, and requests have no limit then.
    assert_eq!(limits.max_rdma_bytes, 0);
    let layout = send_layout(QpType::DRIVER, false, &CAP, &limits).unwrap();
    assert_eq!(layout.rdma.max_bytes, u32::MAX);
    assert_eq!(Efa::new(limits).max_requests(4096), 1024);
    for (inline, wide, expected) in [(32, 0, (32, 0)), (32, 96, (32, 80)), (64, 0, (32, 64))] {
        (context.inline_buf_size, context.inline_buf_size_ex) = (inline, wide);
        let limits = Limits::of(&context, &device, 256);
        assert_eq!((limits.inline, limits.wide_inline), expected);
    }
}

/// A file that answers no command.
fn no_device() -> CommandFd {
    let file = OwnedFd::from(File::open("/dev/null").unwrap());
    CommandFd::new(file, Efa::ID.0, Route::Best)
}

fn with_channel(channel: Option<RawFd>) -> CreateCq {
    CreateCq {
        cqe: 1,
        user_handle: 0,
        channel,
        comp_vector: 0,
        flags: 0,
        event_fd: None,
        driver: DriverData::default(),
    }
}

/// Would catch a command that makes the kernel's driver look for an event queue that the device does not
/// have.
#[test]
fn events_that_a_device_lacks_are_refused_by_name() {
    let error = create_cq(&LIMITS, &no_device(), with_channel(Some(0)), None).unwrap_err();
    assert!(
        error.to_string().contains("events of completion queues"),
        "{error}"
    );
}

/// Would catch a queue whose events are refused when it is armed, for want of a channel, which it has.
#[test]
fn a_queue_with_events_has_a_doorbell() {
    let fd = no_device();
    let created = |channel| {
        let command = with_channel(channel);
        let reply = CreateCqReply {
            handle: CqHandle(1),
            cqe: 4,
            driver: DriverReply::from_slice(CreateCqResp::default().as_bytes()),
        };
        let rings = usize::from(LIMITS.sub_cqs) * 4 * Entry::BYTES;
        let mut memory = Some(RingMemory::Mapped(Map::of_memory(rings)));
        map_cq(&LIMITS, &fd, &command, &reply, &mut memory)
    };
    assert!(created(None).is_ok());
    let error = created(Some(0)).unwrap_err().to_string();
    assert!(
        error.contains("no doorbell for a queue with events"),
        "{error}"
    );
}

#[test]
fn a_device_is_known_by_its_bus_driver() {
    let is_behind = |name: &str| Efa::is_behind(&DriverClue::Bus(name.into()));
    assert!(is_behind("efa") && !is_behind("efa2") && !is_behind("mlx5_core"));
    assert!(!Efa::is_behind(&DriverClue::Parent));
}
