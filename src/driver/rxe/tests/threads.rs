//! Producer and consumer on two threads: every element is seen whole and in order.
//!
//! A store that overtakes the index which hands it over shows as an element with old words in it, on
//! hardware that reorders and under Miri, which looks for data races besides.

use std::thread;

use super::memory::*;
use super::ring::{consumer, producer};

/// Elements through each ring.
const COUNT: u64 = if cfg!(miri) { 300 } else { 300_000 };
/// Ring sizes: the smallest, one that is often full or empty, one that is seldom.
const SLOTS: [u32; 3] = [2, 16, 1024];
/// An element: as many words as a completion has.
type Element = [u64; 6];

fn element(number: u64) -> Element {
    std::array::from_fn(|word| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64)
}

#[test]
fn what_is_produced_here_is_seen_whole_there() {
    for slots in SLOTS {
        let memory = Memory::ring(slots, 6);
        let mut producer = producer(&memory, size_of::<Element>()).unwrap();
        let mut kernel = KernelConsumer::new(&memory);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..COUNT {
                    let slot = loop {
                        match producer.free_slot() {
                            Some(slot) => break slot,
                            None => {
                                producer.publish();
                                thread::yield_now();
                            }
                        }
                    };
                    // SAFETY: a free slot is the producer's, and has room for an element.
                    unsafe { slot.cast::<Element>().write(element(number)) };
                    producer.advance();
                    // Batches of different lengths.
                    if number % 7 == 0 || number == COUNT - 1 {
                        producer.publish();
                    }
                }
            });
            for number in 0..COUNT {
                let slot = loop {
                    match kernel.head() {
                        Some(slot) => break slot,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(memory.read::<Element>(slot, 0), element(number));
                memory.write(slot, 0, [u64::MAX; 6]);
                kernel.advance();
            }
        });
    }
}

#[test]
fn what_is_produced_there_is_seen_whole_here() {
    for slots in SLOTS {
        let memory = Memory::ring(slots, 6);
        let mut consumer = consumer(&memory, size_of::<Element>()).unwrap();
        let mut kernel = KernelProducer::new(&memory);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..COUNT {
                    while !kernel.put(element(number)) {
                        thread::yield_now();
                    }
                }
            });
            let mut number = 0;
            while number < COUNT {
                let filled = consumer.filled().unwrap();
                if consumer.is_at(filled) {
                    thread::yield_now();
                }
                while let Some(slot) = consumer.take(filled) {
                    // SAFETY: a taken slot is the consumer's, and was filled with an element.
                    assert_eq!(unsafe { slot.cast::<Element>().read() }, element(number));
                    number += 1;
                }
                consumer.release();
            }
        });
    }
}
