//! Posters, a device and a poller, each a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uverbs_uapi::enums::QpType;

use super::super::format::cqe;
use super::device::{Pair, Producer, cap, completion, cq, take};
use crate::driver::contract::methods::*;
use crate::work::PostError;

/// Would catch ids that the poller sees before they are written or after they were overwritten, requests that
/// are finished twice, and a queue that stays full. The device completes every fourth request, as if the
/// others had not asked for it.
#[test]
fn posters_do_not_disturb_the_poller() {
    const POSTERS: usize = 3;
    const REQUESTS: u64 = 40_000;
    let (mut cq, mut producer) = cq(1023, 64);
    let mut pairs: Vec<Pair> = (0..POSTERS)
        .map(|_| Pair::new(QpType::RC, cap(16, 1, 0), &cq, &cq))
        .collect();
    let numbers: Vec<u32> = pairs.iter().map(|pair| pair.number).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel::<(usize, u64)>();
        for (poster, pair) in pairs.iter_mut().enumerate() {
            let tell = tell.clone();
            scope.spawn(move || {
                for request in 0..REQUESTS {
                    let id = (poster as u64) << 32 | request;
                    loop {
                        match pair.send_nothing(id) {
                            Ok(()) => break,
                            Err(PostError::QueueFull { .. }) => thread::yield_now(),
                            Err(other) => panic!("{other}"),
                        }
                    }
                    if request % 4 == 3 {
                        tell.send((poster, request)).unwrap();
                    }
                }
            });
        }
        drop(tell);
        let done = &done;
        scope.spawn(move || {
            for (poster, request) in told {
                producer.write(completion(cqe::REQ, numbers[poster], request as u16));
            }
            done.store(true, Ordering::Release);
        });
        let mut next = [3_u64; POSTERS];
        loop {
            let last = done.load(Ordering::Acquire);
            while let Some(taken) = take(&mut cq) {
                let (poster, request) =
                    ((taken.wr_id() >> 32) as usize, taken.wr_id() & 0xffff_ffff);
                assert_eq!(request, next[poster]);
                next[poster] += 4;
            }
            if last {
                break;
            }
            thread::yield_now();
        }
        assert_eq!(next, [REQUESTS + 3; POSTERS]);
    });
    for pair in &pairs {
        assert_eq!(pair.send.in_flight(), 0);
    }
}

/// For Miri: would catch a reset that stores whole words of the record while another thread, which drops a
/// region, loads half of one.
#[test]
fn a_reset_does_not_disturb_who_asks_for_requests_in_flight() {
    const ROUNDS: usize = 100;
    let (cq, _producer) = cq(15, 64);
    let mut pair = Pair::new(QpType::RC, cap(8, 1, 0), &cq, &cq);
    let core = Arc::clone(&pair.core);
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..ROUNDS {
                assert_eq!(core.receives().unwrap().in_flight(), 0);
            }
        });
        for _ in 0..ROUNDS {
            pair.core.reset(&mut pair.send, pair.recv.as_mut());
        }
    });
}

/// Requests that go through a queue of a few.
const LOAD: u64 = if cfg!(miri) { 300 } else { 4_000_000 };

/// Completes requests as they are rung for. False if the ring was full and a completion had no room.
fn complete(
    producer: &mut Producer,
    number: u32,
    sends: impl Fn() -> u16,
    room: u32,
    is_over: &AtomicBool,
) -> bool {
    for request in 0..LOAD {
        while sends() == request as u16 {
            if is_over.load(Ordering::Relaxed) {
                return true;
            }
            thread::yield_now();
        }
        if producer.waiting() >= room {
            return false;
        }
        producer.write(completion(cqe::REQ, number, request as u16));
    }
    true
}

/// Would catch a place in the queue that is given out before the completion that freed it has given its entry
/// back: a completion queue with an entry for each place then has none for the device.
#[test]
fn a_completion_queue_of_exactly_full_size_never_overruns() {
    let (mut cq, mut producer) = cq(31, 64);
    let mut pair = Pair::new(QpType::RC, cap(15, 1, 0), &cq, &cq);
    let (number, sends, room) = (pair.number, pair.sends(), pair.send.capacity());
    assert!(room <= producer.view.count());
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let poster = scope.spawn(move || {
            for request in 0..LOAD {
                while let Err(error) = pair.send_nothing(request) {
                    if !matches!(error, PostError::QueueFull { .. }) {
                        is_over.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    thread::yield_now();
                }
            }
            Ok(())
        });
        let device = scope.spawn(move || complete(&mut producer, number, sends, room, is_over));
        let (mut next, mut round) = (0, 0_usize);
        while next < LOAD {
            // Loaded before the look: if the device is done, the look sees all that it has written.
            let is_done = device.is_finished();
            let before = next;
            // Now one step, now several, now all.
            let mut polled = cq.begin();
            for _ in 0..[1, 2, usize::MAX, 7][round % 4] {
                let Some(completion) = polled.next() else {
                    break;
                };
                assert_eq!(completion.wr_id(), next);
                next += 1;
            }
            if is_done && next == before {
                break;
            }
            round += 1;
            if round.is_multiple_of(64) {
                thread::yield_now();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(device.join().unwrap(), "no room for a completion");
        poster.join().unwrap().unwrap();
        assert_eq!((next, cq.told()), (LOAD, Ok(())));
    });
}
