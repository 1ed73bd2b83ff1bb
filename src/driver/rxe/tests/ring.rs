//! What a ring's header must contain, and how a ring fills, empties and wraps around.

use std::ptr::NonNull;
use std::sync::Arc;

use uverbs_uapi::rxe::QueueBuf;

use super::memory::*;
use crate::driver::rxe::ring::{BadIndex, BadRing, Consumer, Producer, Waiting};
use crate::driver::rxe::watch::Watch;

/// All ring sizes up to 1024 slots.
fn sizes() -> impl Iterator<Item = u32> {
    let largest = if cfg!(miri) { 5 } else { 10 };
    (1..=largest).map(|log2| 1 << log2)
}

pub(super) fn producer(memory: &Arc<Memory>, element: usize) -> Result<Filling, BadRing> {
    raw_producer(memory, element).map(Filling::new)
}

pub(super) fn raw_producer(memory: &Arc<Memory>, element: usize) -> Result<Producer, BadRing> {
    // SAFETY: the tests keep the memory as long as the producer and have one for each memory.
    unsafe { Producer::new(memory.base(), memory.length(), element) }
}

pub(super) fn consumer(memory: &Arc<Memory>, element: usize) -> Result<Consumer, BadRing> {
    // SAFETY: as in `producer`.
    unsafe { Consumer::new(memory.base(), memory.length(), element) }
}

/// What both sides report of a header; they must agree.
fn refusal(memory: &Arc<Memory>, element: usize) -> BadRing {
    let refused = producer(memory, element).unwrap_err();
    assert_eq!(consumer(memory, element).unwrap_err(), refused);
    refused
}

#[test]
fn memory_shorter_than_the_head_is_refused() {
    for length in [1, 4, 128, size_of::<QueueBuf>() - 1] {
        let memory = Memory::bare(length);
        assert_eq!(refusal(&memory, 8), BadRing::TooShort { length });
    }
}

#[test]
fn a_mask_that_is_not_one_less_than_a_power_of_two_is_refused() {
    let memory = Memory::ring(8, 6);
    for index_mask in [0, 2, 4, 5, 6, 8, 0x7fff_fffe, u32::MAX - 1, u32::MAX] {
        memory.set(INDEX_MASK, index_mask);
        assert_eq!(refusal(&memory, 64), BadRing::Slots { index_mask });
    }
}

#[test]
fn slots_too_small_or_absurdly_large_are_refused() {
    let memory = Memory::ring(8, 6);
    for log2 in [0, 1, 2, 3, 5, 21, 31, 32, 63, 64, u32::MAX] {
        memory.set(LOG2_ELEM_SIZE, log2);
        assert_eq!(
            refusal(&memory, 64),
            BadRing::SlotSize { log2, element: 64 }
        );
    }
}

#[test]
fn slots_beyond_the_memory_are_refused() {
    let memory = Memory::ring(8, 6);
    let length = memory.length();
    for (index_mask, log2) in [(15, 6), (7, 7), (0x7fff_ffff, 20)] {
        memory.set(INDEX_MASK, index_mask);
        memory.set(LOG2_ELEM_SIZE, log2);
        let slots = (u64::from(index_mask) + 1) << log2;
        let needed = size_of::<QueueBuf>() as u64 + slots;
        assert_eq!(refusal(&memory, 64), BadRing::Beyond { needed, length });
    }
}

#[test]
fn a_slot_may_be_larger_than_its_element_and_the_memory_than_its_slots() {
    let memory = Memory::ring(8, 7);
    assert_eq!(producer(&memory, 48).unwrap().slot_size(), 128);
    memory.set(INDEX_MASK, 3);
    assert_eq!(consumer(&memory, 48).unwrap().capacity(), 3);
}

#[test]
fn an_index_beyond_the_mask_is_refused() {
    for offset in [PRODUCER_INDEX, CONSUMER_INDEX] {
        for index in [8, 9, u32::MAX] {
            let memory = Memory::ring(8, 6);
            memory.set(offset, index);
            let bad = BadRing::Index(BadIndex {
                index,
                index_mask: 7,
            });
            assert_eq!(refusal(&memory, 64), bad);
        }
    }
}

#[test]
fn a_refusal_says_what_is_wrong() {
    let memory = Memory::ring(8, 6);
    memory.set(INDEX_MASK, 6);
    assert_eq!(
        refusal(&memory, 64).to_string(),
        "the ring's index mask is 0x6"
    );
}

#[test]
fn holds_one_less_than_its_slots() {
    for slots in sizes() {
        let memory = Memory::ring(slots, 3);
        let mut producer = producer(&memory, 8).unwrap();
        assert_eq!(producer.capacity(), slots - 1);
        for filled in 0..slots - 1 {
            assert_eq!(producer.pending(), filled);
            let _ = producer.take_slot().unwrap();
        }
        assert_eq!(producer.take_slot(), None);
        producer.publish();
        assert_eq!(producer.take_slot(), None);
        assert_eq!(producer.in_flight(), slots - 1);
    }
}

#[test]
fn elements_come_in_order_over_several_rounds() {
    for slots in sizes() {
        let memory = Memory::ring(slots, 3);
        let mut producer = producer(&memory, 8).unwrap();
        let mut kernel = KernelConsumer::new(&memory);
        for number in 0..u64::from(slots) * 3 {
            fill(&mut producer, number);
            producer.publish();
            assert_eq!(kernel.take(), Some(number));
            assert_eq!(kernel.take(), None);
        }
    }
}

/// A producer that keeps where the next slot is, as a batch does.
#[derive(Debug)]
pub(super) struct Filling {
    producer: Producer,
    tail: u32,
}

impl Filling {
    pub(super) fn new(producer: Producer) -> Self {
        let tail = producer.published();
        Self { producer, tail }
    }

    pub(super) fn take_slot(&mut self) -> Option<NonNull<u8>> {
        let slot = self.producer.slot(self.tail)?;
        self.tail = self.tail.wrapping_add(1);
        Some(slot)
    }

    pub(super) fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.producer.published())
    }

    pub(super) fn abandon(&mut self) {
        self.tail = self.producer.published();
    }

    pub(super) fn publish(&mut self) {
        self.producer.publish(self.tail);
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.producer.in_flight()
    }

    pub(super) fn capacity(&self) -> u32 {
        self.producer.capacity()
    }

    pub(super) fn slot_size(&self) -> usize {
        self.producer.slot_size()
    }

    pub(super) fn heed(&mut self, watch: Watch) {
        self.producer.heed(watch);
    }
}

/// Fills the next slot, which must be free, with a number.
pub(super) fn fill(producer: &mut Filling, number: u64) {
    let slot = producer.take_slot().unwrap();
    // SAFETY: a free slot is the producer's, and has at least 8 bytes.
    unsafe { slot.cast::<u64>().write(number) };
}

#[test]
fn wraps_around_wherever_it_starts() {
    for start in 0..8 {
        let memory = Memory::ring_at(8, 3, start);
        let mut producer = producer(&memory, 8).unwrap();
        let mut kernel = KernelConsumer::new(&memory);
        for round in 0..3 {
            (0..7).for_each(|number| fill(&mut producer, round * 7 + number));
            assert_eq!(producer.take_slot(), None);
            producer.publish();
            (0..7).for_each(|number| assert_eq!(kernel.take(), Some(round * 7 + number)));
        }
        assert_eq!(producer.in_flight(), 0);
    }
}

#[test]
fn what_the_kernel_has_not_consumed_when_the_ring_is_mapped_is_kept() {
    let memory = Memory::ring(4, 3);
    memory.set(PRODUCER_INDEX, 2);
    memory.set(CONSUMER_INDEX, 0);
    let mut producer = producer(&memory, 8).unwrap();
    assert_eq!(producer.in_flight(), 2);
    fill(&mut producer, 0);
    assert_eq!(producer.take_slot(), None);
}

#[test]
fn what_is_abandoned_is_not_seen_and_its_slots_are_free() {
    let memory = Memory::ring(8, 3);
    let mut producer = producer(&memory, 8).unwrap();
    let mut kernel = KernelConsumer::new(&memory);
    (0..3).for_each(|number| fill(&mut producer, number));
    producer.publish();
    (3..7).for_each(|number| fill(&mut producer, number));
    assert_eq!((producer.pending(), producer.take_slot()), (4, None));
    producer.abandon();
    assert_eq!((producer.pending(), producer.in_flight()), (0, 3));
    fill(&mut producer, 9);
    producer.publish();
    let seen: Vec<u64> = std::iter::from_fn(|| kernel.take()).collect();
    assert_eq!(seen, [0, 1, 2, 9]);
}

#[test]
fn a_published_index_is_never_taken_back() {
    let memory = Memory::ring(8, 3);
    let mut producer = producer(&memory, 8).unwrap();
    fill(&mut producer, 0);
    producer.publish();
    for _ in 0..2 {
        producer.abandon();
        producer.publish();
        assert_eq!(memory.get(PRODUCER_INDEX), 1);
    }
}

/// The fuzzer found that slots of a batch were filled twice.
#[test]
fn a_consumer_index_ahead_of_what_was_published_frees_nothing() {
    let memory = Memory::ring(8, 3);
    let mut ring = producer(&memory, 8).unwrap();
    for ahead in [1, 3, 7] {
        memory.set(CONSUMER_INDEX, 0);
        while ring.take_slot().is_some() {
            assert!(ring.pending() <= ring.capacity());
            memory.set(CONSUMER_INDEX, ahead);
        }
        assert_eq!(ring.pending(), ring.capacity());
        ring.abandon();
    }
}

#[test]
fn a_consumer_index_gone_mad_gives_no_slot_outside_the_ring() {
    let memory = Memory::ring(4, 3);
    let mut producer = producer(&memory, 8).unwrap();
    let slots = memory.base().as_ptr() as usize + size_of::<QueueBuf>();
    for index in [4, 5, 1000, u32::MAX, 2, 3] {
        memory.set(CONSUMER_INDEX, index);
        for _ in 0..10 {
            let Some(slot) = producer.take_slot() else {
                break;
            };
            assert!((slots..slots + 32).contains(&(slot.as_ptr() as usize)));
        }
        assert!(producer.in_flight() <= 3 && producer.pending() <= 3);
        producer.publish();
    }
}

/// All elements in the ring.
pub(super) fn waiting(consumer: &mut Consumer) -> Result<Waiting<'_>, BadIndex> {
    let filled = consumer.filled();
    consumer.waiting(filled)
}

/// The next element.
///
/// # Safety
///
/// Elements have at least 8 bytes.
unsafe fn take(waiting: &mut Waiting<'_>) -> Option<u64> {
    // SAFETY: by this function's contract.
    unsafe { waiting.take() }
}

#[test]
fn a_consumer_gives_each_slot_back_as_it_takes_it() {
    for slots in sizes() {
        let memory = Memory::ring_at(slots, 7, slots / 2);
        let mut consumer = consumer(&memory, 48).unwrap();
        let mut kernel = KernelProducer::new(&memory);
        assert!(waiting(&mut consumer).unwrap().is_empty());
        for round in 0..3u64 {
            let numbers = (0..u64::from(slots - 1)).map(|number| round << 32 | number);
            numbers
                .clone()
                .for_each(|number| assert!(kernel.put(number)));
            assert!(kernel.tail().is_none(), "the ring is full");
            let mut waiting = waiting(&mut consumer).unwrap();
            for number in numbers {
                let before = memory.get(CONSUMER_INDEX);
                // SAFETY: a slot has 128 bytes.
                assert_eq!(unsafe { take(&mut waiting) }, Some(number));
                assert_eq!(memory.get(CONSUMER_INDEX), (before + 1) % slots);
                assert!(kernel.tail().is_some());
            }
            // SAFETY: as above.
            assert_eq!(unsafe { take(&mut waiting) }, None);
        }
    }
}

#[test]
fn a_consumer_takes_nothing_that_came_after_it_looked() {
    let memory = Memory::ring(8, 7);
    let mut consumer = consumer(&memory, 48).unwrap();
    let mut kernel = KernelProducer::new(&memory);
    kernel.put(1u64);
    let mut waiting = waiting(&mut consumer).unwrap();
    kernel.put(2u64);
    // SAFETY: a slot has 128 bytes.
    unsafe {
        assert_eq!(take(&mut waiting), Some(1));
        assert_eq!(take(&mut waiting), None);
    }
    assert_eq!(memory.get(CONSUMER_INDEX), 1);
}

#[test]
fn a_producer_index_gone_mad_is_an_error_and_the_ring_stays_usable() {
    let memory = Memory::ring(8, 7);
    let mut consumer = consumer(&memory, 48).unwrap();
    let mut kernel = KernelProducer::new(&memory);
    for index in [8, 1 << 31, u32::MAX] {
        memory.set(PRODUCER_INDEX, index);
        let bad = waiting(&mut consumer).map(|_| ()).unwrap_err();
        let index_mask = 7;
        assert_eq!(bad, BadIndex { index, index_mask });
    }
    memory.set(PRODUCER_INDEX, 0);
    kernel.put(5u64);
    let mut waiting = waiting(&mut consumer).unwrap();
    // SAFETY: a slot has 128 bytes.
    assert_eq!(unsafe { take(&mut waiting) }, Some(5));
}
