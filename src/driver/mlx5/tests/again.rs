//! Requests of a shared receive queue that are posted again, since a page was missing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uverbs_uapi::enums::{QpType, WcStatus};

use super::super::cq::Cq;
use super::super::format::{Be32, Cqe, RECORD_RECEIVE, cqe};
use super::super::recv::SharedRecvQueue;
use super::super::srq::SrqRing;
use super::device::{Pair, Producer, cap, completion, cq, shared, take};
use crate::driver::contract::methods::*;
use crate::driver::contract::receiving;
use crate::work::{LocalKey, LocalSlice, PdTag, PollError, PostError};

/// The device, which goes from element to element.
struct Walk {
    ring: Arc<SrqRing>,
    head: u32,
    taken: u32,
}

impl Walk {
    fn of(srq: &SharedRecvQueue) -> Self {
        Self {
            ring: Arc::clone(srq.elements()),
            head: 0,
            taken: 0,
        }
    }

    /// How many requests it knows of and has not taken.
    fn left(&self) -> u32 {
        let counter = self.ring.record().counter(RECORD_RECEIVE);
        let told = u16::from_be(counter.load(Ordering::Acquire));
        u32::from(told).wrapping_sub(self.taken) & 0xffff
    }

    /// Takes the next element.
    fn take(&mut self) -> Option<u16> {
        if self.left() == 0 {
            return None;
        }
        let index = self.head;
        self.head = self.ring.link(index);
        self.taken = self.taken.wrapping_add(1);
        Some(index as u16)
    }

    /// The keys in an element: in its first slice.
    fn key(&self, index: u16) -> u32 {
        let bytes = self.ring.copy_of(index.into());
        u32::from_be_bytes(bytes[20..24].try_into().unwrap())
    }
}

fn page_fault(number: u32, index: u16) -> Cqe {
    let mut entry = completion(cqe::RESP_ERR, number, index);
    (entry.syndrome, entry.vendor_err_synd) = (0x22, 0x93);
    entry
}

fn received(number: u32, index: u16) -> Cqe {
    completion(cqe::RESP_SEND, number, index)
}

struct World {
    cq: Cq,
    producer: Producer,
    srq: SharedRecvQueue,
    pair: Pair,
    walk: Walk,
}

/// A queue of `elements` elements, one of which always stays free.
fn world(elements: u32) -> World {
    let (cq, producer) = cq(255, 64);
    let srq = shared(elements);
    World {
        pair: Pair::with(QpType::RC, cap(8, 1, 0), &cq, &cq, Some(&srq)),
        walk: Walk::of(&srq),
        cq,
        producer,
        srq,
    }
}

impl World {
    /// Posts a receive whose key is its id.
    fn post(&mut self, id: u64) {
        let mut batch = receiving(&mut self.srq);
        batch.write(id, &[slice(id)]).unwrap();
        batch.ring();
    }

    /// A message comes, finds a page missing or not, and the poller polls. Returns the id that is reported.
    fn message(&mut self, missing: bool) -> Option<u64> {
        let index = self.walk.take().expect("a request");
        let number = self.pair.number;
        self.producer.write(match missing {
            true => page_fault(number, index),
            false => received(number, index),
        });
        let key = self.walk.key(index);
        let taken = take(&mut self.cq)?;
        assert_eq!(taken.status(), WcStatus::SUCCESS);
        assert_eq!(u64::from(key), taken.wr_id(), "its slices are its own");
        Some(taken.wr_id())
    }

    fn progress(&self) -> (u32, u32) {
        self.srq.drawn().ledger.progress()
    }
}

fn slice(id: u64) -> LocalSlice<'static> {
    LocalSlice::new(0x1000, 8, LocalKey(id as u32), PdTag::new(3, 1))
}

/// Would catch a page fault that is reported, a request that is lost with it, and one that comes with the
/// slices or id of another.
#[test]
fn a_page_fault_is_not_told_and_its_request_is_posted_again() {
    let mut world = world(8);
    for id in 1..=3 {
        world.post(id);
    }
    assert_eq!(world.message(true), None);
    assert_eq!((world.srq.in_flight(), world.walk.left()), (3, 3));
    // Again and again, and after requests that were posted since.
    assert_eq!(world.message(false), Some(2));
    assert_eq!(world.message(true), None);
    assert_eq!(world.message(true), None);
    world.post(4);
    let rest = [(); 3].map(|()| world.message(false));
    assert_eq!(rest, [3, 1, 4].map(Some));
    assert_eq!((world.srq.in_flight(), world.walk.left()), (0, 0));
}

/// Would catch a request that finds no element when all others are posted, and an element that is lost.
#[test]
fn a_full_queue_has_room_for_its_own() {
    let mut world = world(4);
    for id in 1..=3 {
        world.post(id);
    }
    for round in 0..40 {
        let full = receiving(&mut world.srq).write(9, &[slice(9)]);
        assert_eq!(full, Err(PostError::QueueFull { capacity: 3 }));
        assert_eq!(world.message(true), None, "round {round}");
        if round % 4 == 3 {
            let id = world.message(false).unwrap();
            world.post(id);
        }
    }
    let mut rest = [(); 3].map(|()| world.message(false).unwrap());
    rest.sort_unstable();
    assert_eq!(rest, [1, 2, 3]);
}

/// Would catch a batch that loses a request, or its end, when the poller posts while it is being written; and
/// leftovers of such a batch that is never rung.
#[test]
fn a_batch_that_is_being_written_makes_room() {
    for (elements, size) in [(8, 1), (8, 3), (8, 5), (16, 4)] {
        for is_rung in [true, false] {
            let mut world = world(elements);
            world.post(1);
            world.post(2);
            let number = world.pair.number;
            let mut batch = receiving(&mut world.srq);
            for id in 3..3 + size {
                batch.write(id, &[slice(id)]).unwrap();
            }
            for _ in 0..2 {
                let index = world.walk.take().expect("1 or 2");
                world.producer.write(page_fault(number, index));
                assert!(take(&mut world.cq).is_none());
            }
            assert_eq!(batch.pending(), size as u32);
            let in_batch = if is_rung { size } else { 0 };
            if is_rung {
                batch.ring();
            }
            let told = 4 + in_batch as u32;
            assert_eq!(world.progress(), (told, 0));
            for id in 1..3 + in_batch {
                let what = format!("a batch of {size} of {elements}");
                assert_eq!(world.message(false), Some(id), "{what}");
            }
            assert_eq!(world.progress(), (told, told));
            world.post(20);
            assert_eq!(world.message(false), Some(20));
            assert_eq!((world.srq.in_flight(), world.walk.left()), (0, 0));
        }
    }
}

/// Would catch a region that is deregistered while a request that was posted again names it.
#[test]
fn a_region_waits_for_what_is_posted_again() {
    let mut world = world(8);
    world.post(1);
    world.post(2);
    assert_eq!(world.progress(), (2, 0));
    assert_eq!(world.message(true), None);
    assert_eq!(world.message(false), Some(2));
    // Of the three that the device knows of, the first is not finished.
    assert_eq!(world.progress(), (3, 0));
    assert_eq!(world.message(false), Some(1));
    assert_eq!(world.progress(), (3, 3));
}

/// Would catch a request that is posted again although the device does not have it, or never had it; and a
/// page fault that is not reported when nothing is posted again.
#[test]
fn only_what_the_device_has_is_posted_again() {
    let mut world = world(8);
    world.post(1);
    let number = world.pair.number;
    let mut batch = receiving(&mut world.srq);
    batch.write(2, &[slice(2)]).unwrap();
    for index in [5, 400] {
        world.producer.write(page_fault(number, index));
        assert!(take(&mut world.cq).is_none());
        let error = PollError::Unknown {
            code: cqe::RESP_ERR,
        };
        assert_eq!(world.cq.told(), Err(error));
    }
    batch.ring();
    assert_eq!(world.message(false), Some(1));
    assert_eq!(world.message(false), Some(2));
    // A queue of its own.
    let mut own = Pair::new(QpType::RC, cap(4, 1, 0), &world.cq, &world.cq);
    let mut recv = receiving(own.recv.as_mut().unwrap());
    recv.write(3, &[]).unwrap();
    recv.ring();
    world.producer.write(page_fault(own.number, 0));
    let told = take(&mut world.cq).unwrap();
    assert_eq!((told.wr_id(), told.status()), (3, WcStatus::REM_ABORT_ERR));
}

/// Would catch a request that is lost or doubled when a poller posts again while another thread posts.
#[test]
fn poster_and_poller_post_at_once() {
    const REQUESTS: u64 = 20_000;
    let World {
        mut cq,
        mut producer,
        mut srq,
        pair,
        mut walk,
    } = world(8);
    let number = pair.number;
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        // Batches of one to three requests, some of which are written and never rung.
        scope.spawn(move || {
            let (mut id, mut turn) = (0, 0);
            while id < REQUESTS {
                let mut batch = receiving(&mut srq);
                for next in id..id + 1 + turn % 3 {
                    while batch.write(next, &[slice(next)]).is_err() {
                        thread::yield_now();
                    }
                }
                if turn % 7 != 6 {
                    id += u64::from(batch.pending());
                    batch.ring();
                }
                turn += 1;
            }
        });
        // Every third message finds a page missing.
        scope.spawn(move || {
            let mut message = 0_u32;
            while !is_over.load(Ordering::Relaxed) {
                let Some(index) = walk.take() else {
                    thread::yield_now();
                    continue;
                };
                message += 1;
                let mut entry = match message % 3 {
                    0 => page_fault(number, index),
                    _ => received(number, index),
                };
                entry.byte_cnt = Be32::new(walk.key(index));
                producer.write(entry);
            }
        });
        let mut seen = vec![false; REQUESTS as usize];
        let mut left = REQUESTS;
        while left > 0 {
            let Some(taken) = take(&mut cq) else {
                assert_eq!(cq.told(), Ok(()));
                thread::yield_now();
                continue;
            };
            assert_eq!(u64::from(taken.byte_len()), taken.wr_id());
            let seen = seen.get_mut(taken.wr_id() as usize).expect("posted");
            assert!(!std::mem::replace(seen, true), "{} twice", taken.wr_id());
            left -= 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
