//! Producer and consumer on two threads: every element is seen whole and in order.
//!
//! A store that overtakes the index which hands it over shows as an element with old words in it, on
//! hardware that reorders and under Miri, which looks for data races besides.

use std::thread;
use std::time::{Duration, Instant};

use super::memory::*;
use super::ring::{Filling, consumer};

/// Elements through the larger rings.
const COUNT: u64 = if cfg!(miri) { 300 } else { 500_000 };
/// Ring sizes: the smallest, one that is often full or empty, one that is seldom. The smallest goes from
/// thread to thread for each element, which takes long where processors are few.
const RINGS: [(u32, u64); 3] = [(2, COUNT / 10), (16, COUNT), (1024, COUNT)];
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);
/// An element: as many words as a completion has.
type Element = [u64; 6];

fn element(number: u64) -> Element {
    std::array::from_fn(|word| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64)
}

/// Waits for something of the other thread, but not forever: that one may have failed.
fn wait<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let mut start = None;
    loop {
        if let Some(found) = look() {
            return found;
        }
        let start: &mut Instant = start.get_or_insert_with(Instant::now);
        assert!(start.elapsed() < PATIENCE, "the other side does nothing");
        thread::yield_now();
    }
}

#[test]
fn what_is_produced_here_is_seen_whole_there() {
    for (slots, count) in RINGS {
        let memory = Memory::ring(slots, 6);
        let mut producer = Filling::new(&memory, size_of::<Element>()).unwrap();
        let mut kernel = KernelConsumer::new(&memory);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    let (slot, behind) = wait(|| {
                        let slot = producer.free_slot();
                        if slot.is_none() {
                            producer.publish();
                        }
                        slot
                    });
                    // SAFETY: a free slot is the producer's, and has room for an element.
                    unsafe { slot.cast::<Element>().write(element(number)) };
                    producer.advance(behind);
                    // Batches of different lengths.
                    if number % 7 == 0 || number == count - 1 {
                        producer.publish();
                    }
                }
            });
            for number in 0..count {
                let slot = wait(|| kernel.head());
                assert_eq!(memory.read::<Element>(slot, 0), element(number));
                memory.write(slot, 0, [u64::MAX; 6]);
                kernel.advance();
            }
        });
    }
}

#[test]
fn what_is_produced_there_is_seen_whole_here() {
    for (slots, count) in RINGS {
        let memory = Memory::ring(slots, 6);
        let mut consumer = consumer(&memory, size_of::<Element>()).unwrap();
        let mut kernel = KernelProducer::new(&memory);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    wait(|| kernel.put(element(number)).then_some(()));
                }
            });
            let mut number = 0;
            while number < count {
                wait(|| (!consumer.waiting().unwrap().is_empty()).then_some(()));
                let mut waiting = consumer.waiting().unwrap();
                // SAFETY: the kernel's side fills the ring with such elements, which are numbers.
                while let Some(taken) = unsafe { waiting.take::<Element>() } {
                    assert_eq!(taken, element(number));
                    number += 1;
                }
            }
        });
    }
}
