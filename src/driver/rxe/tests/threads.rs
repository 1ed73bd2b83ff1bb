//! Producer and consumer on two threads: every element is seen whole and in order.
//!
//! If a store of an element overtakes the store of the index that publishes it, the element has old words: on
//! hardware that reorders, and under Miri, which also looks for data races.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::types::Wc;

use super::memory::*;
use super::ring::{consumer, producer, waiting};
use crate::driver::contract::methods::*;
use crate::driver::rxe::cq::Cq;
use crate::driver::rxe::watch::Watch;

/// Elements through the larger rings.
const COUNT: u64 = if cfg!(miri) { 300 } else { 500_000 };
/// Ring sizes: the smallest, one that is often full or empty, and one that seldom is. The smallest makes the
/// threads alternate for each element, which takes long on few processors.
const RINGS: [(u32, u64); 3] = [(2, COUNT / 10), (16, COUNT), (1024, COUNT)];
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(60);
/// An element: as many words as a completion has.
type Element = [u64; 6];

fn element(number: u64) -> Element {
    std::array::from_fn(|word| number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word as u64)
}

/// Waits for something from the other thread, but not forever: that thread may have failed.
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
        let mut producer = producer(&memory, size_of::<Element>()).unwrap();
        let mut kernel = KernelConsumer::new(&memory);
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..count {
                    let slot = wait(|| {
                        let slot = producer.take_slot();
                        if slot.is_none() {
                            producer.publish();
                        }
                        slot
                    });
                    // SAFETY: a free slot is the producer's, and has room for an element.
                    unsafe { slot.cast::<Element>().write(element(number)) };
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
                wait(|| (!waiting(&mut consumer).unwrap().is_empty()).then_some(()));
                let mut waiting = waiting(&mut consumer).unwrap();
                // SAFETY: the kernel's side fills the ring with such elements, which are numbers.
                while let Some(taken) = unsafe { waiting.take::<Element>() } {
                    assert_eq!(taken, element(number));
                    number += 1;
                }
            }
        });
    }
}

/// Would catch a slot that is given out while nobody has taken the completion of its last request: a
/// completion queue that holds one more than the work queue would then lose some.
#[test]
fn no_more_completions_wait_than_the_queue_holds_requests() {
    const REQUESTS: u64 = if cfg!(miri) { 300 } else { 2_000_000 };
    const QPN: u32 = 17;
    let (work, completions) = (Memory::ring(16, 6), Memory::ring(32, 7));
    let mut queue = producer(&work, size_of::<u64>()).unwrap();
    let ring = consumer(&completions, size_of::<Wc>()).unwrap();
    let capacity = ring.capacity();
    let mut cq = Cq::new(ring, capacity, None);
    queue.heed(Watch::new(cq.shared(), QPN, false));
    let (mut kernel, mut reports) = (
        KernelConsumer::new(&work),
        KernelProducer::new(&completions),
    );
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..REQUESTS {
                let slot = wait(|| queue.take_slot());
                // SAFETY: a free slot is the producer's, and has room for the number.
                unsafe { slot.cast::<u64>().write(number) };
                queue.publish();
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        // The kernel finishes a request before it reports it.
        let kernel = scope.spawn(move || {
            for _ in 0..REQUESTS {
                let wr_id = wait(|| kernel.take());
                let told = reports.put(Wc {
                    wr_id,
                    qp_num: QPN,
                    opcode: WcOpcode::SEND.0,
                    status: WcStatus::SUCCESS.0,
                    ..Wc::default()
                });
                // A ring of 16 slots holds 15, and one request is in neither count for a moment.
                let waiting = reports.waiting();
                if !told || waiting > 16 {
                    is_over.store(true, Ordering::Relaxed);
                    return waiting;
                }
            }
            0
        });
        let (mut next, mut round) = (0, 0_usize);
        while next < REQUESTS && !is_over.load(Ordering::Relaxed) {
            let most = [1, 2, usize::MAX, 7][round % 4];
            round += 1;
            let mut polled = cq.poll().unwrap();
            for _ in 0..most {
                let Some(completion) = polled.next() else {
                    break;
                };
                assert_eq!(completion.wr_id(), next);
                next += 1;
            }
            if round.is_multiple_of(64) {
                thread::yield_now();
            }
        }
        assert_eq!((kernel.join().unwrap(), next), (0, REQUESTS), "completions");
    });
}
