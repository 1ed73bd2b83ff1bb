//! Receive descriptors field by field.

use uverbs_uapi::types::QpCap;

use super::super::format::Descriptor;
use super::{CAP, recv_queue};
use crate::driver::contract::{RecvQueue as _, receiving};
use crate::work::{LocalKey, LocalSlice, PdTag, PostError};

fn slice(address: u64, length: u32, lkey: u32) -> LocalSlice<'static> {
    LocalSlice::new(address, length, LocalKey(lkey), PdTag::new(0, 0))
}

const FIRST: u32 = 1 << 30;
const LAST: u32 = 1 << 31;

fn descriptor(address: u64, number: u16, length: u16, lkey_control: u32) -> Descriptor {
    Descriptor {
        address: address.into(),
        number: number.into(),
        length: length.into(),
        lkey_control: lkey_control.into(),
    }
}

#[test]
fn a_receive_takes_a_descriptor_for_each_slice() {
    let (mut queue, ledger, device) = recv_queue(&CAP);
    let slices = [
        slice(0x1122_3344_5566_7788, 100, 0x12_3456),
        slice(8, 70_000, 7),
    ];
    let mut batch = receiving(&mut queue);
    batch.write(5, &slices).unwrap();
    batch.write(6, &[]).unwrap();
    batch.write(7, &slices[..1]).unwrap();
    assert_eq!(device.rung(), 0);
    batch.ring();
    assert_eq!(device.rung(), 4, "descriptors, not receives");
    let expected = [
        descriptor(0x1122_3344_5566_7788, 0, 100, 0x12_3456 | FIRST),
        descriptor(8, 0, u16::MAX, 7 | LAST),
        descriptor(0, 1, 0, FIRST | LAST),
        descriptor(0x1122_3344_5566_7788, 2, 100, 0x12_3456 | FIRST | LAST),
        descriptor(0, 0, 0, 0),
    ];
    assert_eq!(device.read::<[Descriptor; 5]>(0), expected);
    assert_eq!(ledger.finish(2).map(|noted| noted.id), Some(7));
    assert!(ledger.names(ledger.progress(), 7));
}

#[test]
fn the_ring_goes_round_and_a_full_one_refuses() {
    let (mut queue, ledger, device) = recv_queue(&CAP);
    assert_eq!((queue.capacity(), queue.max_sge()), (4, 2));
    let two = [slice(16, 1, 1), slice(32, 2, 2)];
    for lap in 0..10_u16 {
        let mut batch = receiving(&mut queue);
        for wr_id in 0..4 {
            batch.write(wr_id, &two).unwrap();
        }
        let full = batch.write(4, &two);
        assert_eq!(full, Err(PostError::QueueFull { capacity: 4 }));
        batch.ring();
        assert_eq!(device.rung(), u32::from(lap + 1) * 8);
        for number in (0..4).rev() {
            assert!(ledger.finish(number).is_some());
        }
        assert_eq!(queue.in_flight(), 0);
    }
    let three = [two[0], two[1], two[0]];
    let refused = receiving(&mut queue).write(1, &three);
    assert_eq!(refused, Err(PostError::TooManySges { given: 3, max: 2 }));
}

/// Would catch a doorbell with more bits than the device takes, and a count that wraps where they do.
#[test]
fn counts_go_on_beyond_16_bits() {
    let (mut queue, ledger, device) = recv_queue(&CAP);
    let two = [slice(16, 1, 1), slice(32, 2, 2)];
    for count in 0..40_000_u32 {
        let mut batch = receiving(&mut queue);
        batch.write(1, &two).unwrap();
        batch.ring();
        assert_eq!(device.rung(), (2 * (count + 1)) & 0xffff);
        let number = (count % 4) as u16;
        let place = (count % 4) as usize * 2 * size_of::<Descriptor>();
        let first = device.read::<Descriptor>(place);
        assert_eq!(first, descriptor(16, number, 1, 1 | FIRST));
        assert!(ledger.finish(number).is_some());
    }
}

/// Would catch a small queue that is full although only one receive is in flight: the device leaves the first
/// behind and fills those after it.
#[test]
fn one_that_is_left_behind_does_not_stop_a_small_queue() {
    let cap = QpCap {
        max_recv_wr: 2,
        ..CAP
    };
    let (mut queue, notes, _device) = recv_queue(&cap);
    assert_eq!(queue.capacity(), 2);
    let mut batch = receiving(&mut queue);
    batch.write(0, &[]).unwrap();
    batch.write(1, &[]).unwrap();
    batch.ring();
    for count in 1..1000 {
        let noted = notes.finish(1).map(|noted| noted.id);
        assert_eq!(noted, Some(count));
        let mut batch = receiving(&mut queue);
        batch.write(count + 1, &[]).unwrap();
        let full = batch.write(0, &[]);
        assert_eq!(full, Err(PostError::QueueFull { capacity: 2 }));
        batch.ring();
    }
}

/// Would catch descriptors of a batch that was given up in front of those of the next.
#[test]
fn a_batch_that_is_forgotten_leaves_no_descriptors() {
    let (mut queue, _, device) = recv_queue(&CAP);
    receiving(&mut queue)
        .write(1, &[slice(1, 1, 1), slice(2, 2, 2)])
        .unwrap();
    let mut batch = receiving(&mut queue);
    batch.write(2, &[slice(3, 3, 3)]).unwrap();
    batch.ring();
    assert_eq!(device.rung(), 1);
    let expected = descriptor(3, 0, 3, 3 | FIRST | LAST);
    assert_eq!(device.read::<Descriptor>(0), expected);
}

#[test]
fn capacities_that_are_no_power_of_two_have_room() {
    let cap = QpCap {
        max_recv_wr: 5,
        max_recv_sge: 3,
        ..CAP
    };
    let (queue, ..) = recv_queue(&cap);
    // 16 descriptors.
    assert_eq!((queue.capacity(), queue.max_sge()), (5, 3));
    let none = QpCap {
        max_recv_wr: 0,
        max_recv_sge: 0,
        ..CAP
    };
    let (queue, ..) = recv_queue(&none);
    assert_eq!((queue.capacity(), queue.max_sge()), (1, 1));
}
