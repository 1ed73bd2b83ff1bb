//! Producer and consumer against a queue of the standard library, under random operations.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::memory::*;
use super::ring::{consumer, fill, producer, waiting};

#[derive(Clone, Copy, Debug)]
enum Produce {
    /// Fill this number of slots, or as many as are free.
    Fill(u32),
    Publish,
    Abandon,
    /// The kernel consumes at most this number.
    Consume(u32),
}

fn produce() -> impl Strategy<Value = Produce> {
    prop_oneof![
        (1..40u32).prop_map(Produce::Fill),
        Just(Produce::Publish),
        Just(Produce::Abandon),
        (1..40u32).prop_map(Produce::Consume),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Consume {
    Put(u32),
    Take(u32),
}

fn consume() -> impl Strategy<Value = Consume> {
    prop_oneof![
        (1..40u32).prop_map(Consume::Put),
        (1..40u32).prop_map(Consume::Take),
    ]
}

/// A ring's size and where its indices start.
fn geometry() -> impl Strategy<Value = (u32, u32)> {
    (1..6u32).prop_flat_map(|log2| (Just(1 << log2), 0..1u32 << log2))
}

/// Miri is a hundred times slower.
fn config() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_producer_is_a_queue(
        (slots, start) in geometry(),
        operations in prop::collection::vec(produce(), 1..100),
    ) {
        let memory = Memory::ring_at(slots, 3, start);
        let mut ring = producer(&memory, 8).unwrap();
        let mut kernel = KernelConsumer::new(&memory);
        let (mut published, mut pending) = (VecDeque::new(), VecDeque::new());
        let mut number = 0;
        for operation in operations {
            match operation {
                Produce::Fill(count) => for _ in 0..count {
                    let room = published.len() + pending.len() < slots as usize - 1;
                    if room {
                        fill(&mut ring, number);
                        pending.push_back(number);
                        number += 1;
                    } else {
                        prop_assert_eq!(ring.take_slot(), None);
                    }
                },
                Produce::Publish => {
                    ring.publish();
                    published.append(&mut pending);
                }
                Produce::Abandon => {
                    ring.abandon();
                    pending.clear();
                }
                Produce::Consume(count) => for _ in 0..count {
                    prop_assert_eq!(kernel.take(), published.pop_front());
                },
            }
            prop_assert_eq!(ring.pending() as usize, pending.len());
            prop_assert_eq!(ring.in_flight() as usize, published.len());
        }
    }

    #[test]
    fn a_consumer_is_a_queue(
        (slots, start) in geometry(),
        operations in prop::collection::vec(consume(), 1..100),
    ) {
        let memory = Memory::ring_at(slots, 3, start);
        let mut ring = consumer(&memory, 8).unwrap();
        let mut kernel = KernelProducer::new(&memory);
        // What was put in and not taken.
        let mut queue = VecDeque::new();
        let mut number = 0u64;
        for operation in operations {
            match operation {
                Consume::Put(count) => for _ in 0..count {
                    let room = queue.len() < slots as usize - 1;
                    prop_assert_eq!(kernel.put(number), room);
                    if room {
                        queue.push_back(number);
                        number += 1;
                    }
                },
                Consume::Take(count) => {
                    let mut waiting = waiting(&mut ring).unwrap();
                    for _ in 0..count {
                        // SAFETY: the elements of the ring have 8 bytes.
                        prop_assert_eq!(unsafe { waiting.take() }, queue.pop_front());
                        prop_assert_eq!(waiting.is_empty(), queue.is_empty());
                    }
                }
            }
        }
    }

    #[test]
    fn a_random_head_is_refused_or_safe(
        length in 1..4096usize,
        log2: u32,
        mask: u32,
        small in 0..12u32,
        indices: (u32, u32),
        element in 1..512usize,
    ) {
        let memory = Memory::bare(length);
        // Half of the headers have sizes that could be right.
        let (log2, mask) = match log2 % 2 {
            0 => (log2, mask),
            _ => (small, (1 << (mask % 12)) - 1),
        };
        for (offset, value) in [
            (LOG2_ELEM_SIZE, log2),
            (INDEX_MASK, mask),
            (PRODUCER_INDEX, indices.0 & 0xf),
            (CONSUMER_INDEX, indices.1 & 0xf),
        ] {
            if offset + 4 <= length {
                memory.set(offset, value);
            }
        }
        if let Ok(mut ring) = producer(&memory, element) {
            for _ in 0..ring.capacity() {
                let Some(slot) = ring.take_slot() else { break };
                // SAFETY: a free slot has room for an element.
                unsafe { slot.write_bytes(0xa5, element) };
            }
            ring.publish();
        }
        if let Ok(mut ring) = consumer(&memory, element) {
            let capacity = ring.capacity();
            let mut waiting = waiting(&mut ring).unwrap();
            let mut taken = 0;
            // SAFETY: the elements of the ring have at least a byte.
            while unsafe { waiting.take::<u8>() }.is_some() {
                taken += 1;
            }
            prop_assert!(taken <= capacity);
        }
    }
}
