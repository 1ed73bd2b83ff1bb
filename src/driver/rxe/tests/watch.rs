//! Completions that nobody has taken keep slots from being given out.

use std::sync::Arc;

use uverbs_uapi::enums::{WcOpcode, WcStatus};
use uverbs_uapi::types::Wc;

use super::memory::*;
use super::ring::{Filling, consumer, producer};
use crate::driver::contract::methods::*;
use crate::driver::rxe::cq::Cq;
use crate::driver::rxe::watch::Watch;
use crate::work::PollError;

/// x86's size of a completion slot.
const LOG2: u32 = 7;
const QPN: u32 = 17;

fn cq(memory: &Arc<Memory>) -> Cq {
    let ring = consumer(memory, size_of::<Wc>()).unwrap();
    let capacity = ring.capacity();
    Cq::new(ring, capacity, None)
}

fn completion(qp_num: u32, opcode: WcOpcode, status: WcStatus) -> Wc {
    Wc {
        qp_num,
        opcode: opcode.0,
        status: status.0,
        ..Wc::default()
    }
}

fn send() -> Wc {
    completion(QPN, WcOpcode::SEND, WcStatus::SUCCESS)
}

/// Fills all slots that are given out, and lets the kernel finish them.
fn run(queue: &mut Filling, kernel: &mut KernelConsumer) -> u32 {
    let mut count = 0;
    while queue.take_slot().is_some() {
        count += 1;
    }
    queue.publish();
    while kernel.head().is_some() {
        kernel.advance();
    }
    count
}

/// Would catch a slot that is given out while the completion of its last request waits, and one that is held
/// back because of completions of other queues.
#[test]
fn a_slot_is_free_when_its_completion_has_been_taken() {
    let (work, completions) = (Memory::ring(8, 7), Memory::ring(32, LOG2));
    let mut queue = producer(&work, 8).unwrap();
    let mut kernel = KernelConsumer::new(&work);
    let mut reports = KernelProducer::new(&completions);
    let mut cq = cq(&completions);
    queue.heed(Watch::new(cq.shared(), QPN, false));
    for _ in 0..3 {
        assert_eq!(run(&mut queue, &mut kernel), 7);
        for other in [
            completion(QPN + 1, WcOpcode::SEND, WcStatus::SUCCESS),
            completion(QPN, WcOpcode::RECV, WcStatus::SUCCESS),
        ] {
            assert!(reports.put(other));
        }
        for _ in 0..7 {
            assert!(reports.put(send()));
        }
        assert_eq!(run(&mut queue, &mut kernel), 0);
        // The other two come first and free nothing.
        for free in [0, 0, 1] {
            assert!(cq.poll().unwrap().next().is_some());
            assert_eq!(run(&mut queue, &mut kernel), free);
        }
        assert!(reports.put(send()));
        assert_eq!(run(&mut queue, &mut kernel), 0);
        let mut polled = cq.poll().unwrap();
        assert_eq!(std::iter::from_fn(|| polled.next()).count(), 7);
    }
}

/// Would catch slots of unsignaled requests that never become free.
#[test]
fn requests_without_completions_need_none() {
    let (work, completions) = (Memory::ring(8, 7), Memory::ring(8, LOG2));
    let mut queue = producer(&work, 8).unwrap();
    let mut kernel = KernelConsumer::new(&work);
    let mut reports = KernelProducer::new(&completions);
    let cq = cq(&completions);
    queue.heed(Watch::new(cq.shared(), QPN, false));
    assert_eq!(run(&mut queue, &mut kernel), 7);
    assert!(reports.put(send()));
    assert_eq!(run(&mut queue, &mut kernel), 6);
    // A failed completion does not say whether it was a send.
    let failed = completion(QPN, WcOpcode::RECV, WcStatus::WR_FLUSH_ERR);
    assert!(reports.put(failed));
    assert_eq!(run(&mut queue, &mut kernel), 5);
    // Nobody will take them any more.
    drop(cq);
    assert_eq!(run(&mut queue, &mut kernel), 7);
}

/// Would catch a queue that stays full after a reset, because of earlier failures; and one that also forgets
/// later completions, or forgets for ever.
#[test]
fn what_was_before_a_reset_counts_no_longer() {
    let (work, completions) = (Memory::ring(8, 7), Memory::ring(32, LOG2));
    let mut queue = producer(&work, 8).unwrap();
    let mut kernel = KernelConsumer::new(&work);
    let mut reports = KernelProducer::new(&completions);
    let mut cq = cq(&completions);
    queue.heed(Watch::new(cq.shared(), QPN, false));
    let failed = completion(QPN, WcOpcode::SEND, WcStatus::WR_FLUSH_ERR);
    assert_eq!(run(&mut queue, &mut kernel), 7);
    // More than once round the completion ring.
    for _ in 0..5 {
        for _ in 0..7 {
            assert!(reports.put(failed));
        }
        assert_eq!(run(&mut queue, &mut kernel), 0);
        cq.shared().forget(QPN);
        assert_eq!(run(&mut queue, &mut kernel), 7);
        for _ in 0..7 {
            assert!(reports.put(send()));
        }
        // The poller finds all of them, and the ones from before the reset free nothing.
        for free in [0, 0, 0, 0, 0, 0, 0, 1] {
            assert_eq!(run(&mut queue, &mut kernel), 0);
            let taken = cq.poll().unwrap().next().unwrap();
            assert_eq!(taken.status() == WcStatus::SUCCESS, free == 1);
            assert_eq!(run(&mut queue, &mut kernel), free);
        }
        assert!(reports.put(send()));
        let mut polled = cq.poll().unwrap();
        assert_eq!(std::iter::from_fn(|| polled.next()).count(), 7);
        assert_eq!(run(&mut queue, &mut kernel), 7);
    }
    assert!(cq.is_empty().unwrap());
}

/// Would catch a position that is not moved with the completions: those from before a reset that count again
/// in the new ring, and later ones that are forgotten.
#[test]
fn what_was_before_a_reset_stays_forgotten_in_another_ring() {
    // How many of the old ones have been taken by then, and at which index the new ring begins.
    for (taken, at) in [(0, 0), (1, 0), (2, 5), (6, 60), (7, 63)] {
        let (work, completions) = (Memory::ring(8, 7), Memory::ring_at(32, LOG2, 29));
        let mut queue = producer(&work, 8).unwrap();
        let mut kernel = KernelConsumer::new(&work);
        let mut reports = KernelProducer::new(&completions);
        let mut cq = cq(&completions);
        queue.heed(Watch::new(cq.shared(), QPN, false));
        assert_eq!(run(&mut queue, &mut kernel), 7);
        let failed = completion(QPN, WcOpcode::SEND, WcStatus::WR_FLUSH_ERR);
        (0..7).for_each(|_| assert!(reports.put(failed)));
        cq.shared().forget(QPN);
        assert_eq!(run(&mut queue, &mut kernel), 7);
        (0..3).for_each(|_| assert!(reports.put(send())));
        let mut polled = cq.poll().unwrap();
        assert_eq!(
            std::iter::from_fn(|| polled.next()).take(taken).count(),
            taken
        );

        let larger = Memory::ring_at(64, LOG2, at);
        let mut moved = KernelProducer::new(&larger);
        (taken..7).for_each(|_| assert!(moved.put(failed)));
        (0..3).for_each(|_| assert!(moved.put(send())));
        let ring = consumer(&larger, size_of::<Wc>()).unwrap();
        let moved = cq.replace(
            || {
                completions.set(CONSUMER_INDEX, completions.get(PRODUCER_INDEX));
                assert_eq!(run(&mut queue, &mut kernel), 0, "the new ring is not seen");
                Ok::<_, ()>(())
            },
            |()| Ok((ring, 63, None)),
        );
        moved.unwrap();
        assert_eq!(run(&mut queue, &mut kernel), 4, "{taken} {at}");
        for _ in taken..7 {
            assert!(cq.poll().unwrap().next().is_some());
            assert_eq!(run(&mut queue, &mut kernel), 4, "{taken} {at}");
        }
        for free in [5, 6, 7] {
            assert!(cq.poll().unwrap().next().is_some());
            assert_eq!(run(&mut queue, &mut kernel), free, "{taken} {at}");
        }
        assert!(cq.is_empty().unwrap());
    }
}

/// Would catch an overrun that nobody hears of who waits: the kernel has dropped what would end the waiting.
#[test]
fn an_empty_queue_reports_an_overrun_once() {
    let completions = Memory::ring(8, LOG2);
    let mut cq = cq(&completions);
    assert_eq!(cq.is_empty(), Ok(true));
    cq.shared().overran();
    assert_eq!(cq.is_empty(), Err(PollError::Overrun));
    assert_eq!(cq.is_empty(), Ok(true));
    cq.shared().overran();
    assert_eq!(cq.poll().map(drop), Err(PollError::Overrun));
    assert_eq!(cq.is_empty(), Ok(true));
}

/// Would catch a queue that finds nothing for ever: the kernel writes to a ring that could not be mapped.
#[test]
fn a_queue_that_is_lost_says_so_at_each_poll() {
    let completions = Memory::ring(8, LOG2);
    let mut cq = cq(&completions);
    let lost = cq.replace(|| Ok(()), |()| Err(()));
    assert_eq!(lost, Err(()));
    for _ in 0..2 {
        assert_eq!(cq.is_empty(), Err(PollError::QueueLost));
        assert_eq!(cq.poll().map(drop), Err(PollError::QueueLost));
    }
}

/// Would catch a poller that never stops looking closer.
#[test]
fn a_poll_is_as_usual_once_all_is_forgotten() {
    let completions = Memory::ring(8, LOG2);
    let mut reports = KernelProducer::new(&completions);
    let mut cq = cq(&completions);
    assert!(reports.put(send()));
    cq.shared().forget(QPN);
    assert!(cq.shared().needs_attention());
    assert!(cq.poll().unwrap().next().is_some());
    assert!(cq.poll().unwrap().next().is_none());
    assert!(!cq.shared().needs_attention());
    // Nothing waits.
    cq.shared().forget(QPN);
    assert!(!cq.shared().needs_attention());
}
