//! Posters, a device and a poller, each a thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uverbs_uapi::enums::QpType;

use super::super::format::cqe;
use super::device::{Pair, cap, completion, cq, take};
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
