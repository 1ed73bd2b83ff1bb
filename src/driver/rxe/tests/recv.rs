//! The receive queue's work requests, byte for byte.

use std::sync::Arc;

use uverbs_uapi::rxe::{DmaInfo, RecvWqe, Sge};
use zerocopy::IntoBytes;

use super::memory::*;
use super::ring::raw_producer;
use crate::driver::contract::methods::*;
use crate::driver::contract::receiving;
use crate::driver::rxe::recv::RecvQueue;
use crate::work::{LocalKey, LocalSlice, PdTag, PostError};

/// Slots of 128 bytes: room for 5 slices.
const LOG2: u32 = 7;

fn queue(memory: &Arc<Memory>, max_sge: u32) -> RecvQueue {
    let ring = raw_producer(memory, size_of::<RecvWqe>()).unwrap();
    RecvQueue::new(ring, max_sge, None)
}

fn slices(count: usize) -> Vec<LocalSlice<'static>> {
    let slice = |number: usize| {
        LocalSlice::new(
            0x1000 * number as u64,
            10 + number as u32,
            LocalKey(0x100 + number as u32),
            PdTag::new(3, 1),
        )
    };
    (0..count).map(slice).collect()
}

/// Would catch a sum that wraps: the kernel would take the receive for one of a few bytes, and refuse
/// messages for which there is room.
#[test]
fn slices_of_more_than_the_kernel_counts() {
    let memory = Memory::ring(4, LOG2);
    let mut queue = queue(&memory, 5);
    let slice = |length| LocalSlice::new(0x1000, length, LocalKey(1), PdTag::new(3, 1));
    let lists: [(&[u32], u32); 4] = [
        (&[1 << 31, 1 << 31], u32::MAX),
        (&[1 << 31, 1 << 31, 1], u32::MAX),
        (&[1 << 31, (1 << 31) - 1], u32::MAX),
        (&[1 << 31, (1 << 31) - 2], u32::MAX - 1),
    ];
    for (index, (lengths, expected)) in (0..).zip(lists) {
        let slices: Vec<_> = lengths.iter().map(|length| slice(*length)).collect();
        let mut batch = receiving(&mut queue);
        batch.write(7, &slices).unwrap();
        batch.ring();
        let dma: DmaInfo = memory.read(index, std::mem::offset_of!(RecvWqe, dma));
        assert_eq!((dma.length, dma.resid), (expected, expected), "{lengths:?}");
        memory.set(CONSUMER_INDEX, (index + 1) & 3);
    }
}

#[test]
fn every_count_of_slices_in_a_dirty_slot() {
    for count in 0..=5 {
        let memory = Memory::ring(4, LOG2);
        memory.fill(0, 0xa5);
        // What neither side ever writes is still 0.
        memory.write(0, 8, 0u64);
        let mut queue = queue(&memory, 5);
        let mut queue = receiving(&mut queue);
        queue.write(0xfeed_0000_0000_0002, &slices(count)).unwrap();
        queue.ring();
        let sges: Vec<Sge> = (0..count)
            .map(|number| Sge {
                addr: 0x1000 * number as u64,
                length: 10 + number as u32,
                lkey: 0x100 + number as u32,
            })
            .collect();
        let length = sges.iter().map(|sge| sge.length).sum();
        let wqe = RecvWqe {
            wr_id: 0xfeed_0000_0000_0002,
            dma: DmaInfo {
                length,
                resid: length,
                num_sge: count as u32,
                ..DmaInfo::default()
            },
            ..RecvWqe::default()
        };
        let mut expected = wqe.as_bytes().to_vec();
        expected.extend_from_slice(sges.as_bytes());
        expected.resize(1 << LOG2, 0xa5);
        assert_eq!(memory.bytes(0), expected);
        assert_eq!(memory.get(PRODUCER_INDEX), 1);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_takes_no_slot() {
    let memory = Memory::ring(4, LOG2);
    let mut queue = queue(&memory, 2);
    let mut queue = receiving(&mut queue);
    assert_eq!(
        queue.write(1, &slices(3)),
        Err(PostError::TooManySges { given: 3, max: 2 })
    );
    assert_eq!(queue.pending(), 0);
    (0..3).for_each(|id| queue.write(id, &slices(2)).unwrap());
    assert_eq!(
        queue.write(3, &[]),
        Err(PostError::QueueFull { capacity: 3 })
    );
    assert_eq!((queue.pending(), queue.in_flight()), (3, 0));
    queue.ring();
    assert_eq!((queue.pending(), queue.in_flight()), (0, 3));
}

#[test]
fn what_is_granted_beyond_the_slots_does_not_count() {
    let memory = Memory::ring(4, LOG2);
    assert_eq!(queue(&memory, u32::MAX).max_sge(), 5);
}

#[test]
fn receives_come_in_order_and_abandoned_ones_never() {
    let memory = Memory::ring(4, LOG2);
    let mut queue = queue(&memory, 1);
    let mut queue = receiving(&mut queue);
    let mut kernel = KernelConsumer::new(&memory);
    for round in 0..10 {
        queue.write(99, &[]).unwrap();
        queue.begin();
        queue.write(round, &[]).unwrap();
        queue.write(round + 1, &[]).unwrap();
        queue.ring();
        // The id is the element's first word.
        assert_eq!(kernel.take(), Some(round));
        assert_eq!(kernel.take(), Some(round + 1));
        assert_eq!(kernel.take(), None);
    }
}
