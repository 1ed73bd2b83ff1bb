//! Queue pairs that start again or are destroyed while completions of theirs wait, and rings that change
//! their size.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use uverbs_uapi::enums::QpType;

use super::super::cq::Cq;
#[cfg(feature = "c-abi")]
use super::super::dc::TargetCore;
use super::super::entries::Entries;
use super::super::format::{INDEX_MASK, cqe};
use super::super::memory::Memory;
use super::super::recv::SharedRecvQueue;
use super::device::{Pair, Producer, cap, completion, cq, shared, take};
use crate::alloc::{
    Allocation, Allocator, BufferCounts, BufferRequest, Buffers, Counting, GuardPages, ResourceType,
};
use crate::command::{CommandFd, QueryDevice, Route};
use crate::device::DriverId;
use crate::driver::contract::methods::*;
use crate::driver::contract::receiving;
use crate::error::AllocError;
use crate::owned::tests::Listener;
use crate::work::PostError;

fn send(pair: &mut Pair, id: u64) {
    pair.send_nothing(id).unwrap();
}

fn pair(cq: &Cq) -> Pair {
    Pair::new(QpType::RC, cap(8, 1, 0), cq, cq)
}

fn finish(producer: &mut Producer, pair: &Pair, index: u16) {
    producer.write(completion(cqe::REQ, pair.number, index));
}

fn ids(cq: &mut Cq) -> Vec<u64> {
    std::iter::from_fn(|| take(cq))
        .map(|taken| taken.wr_id())
        .collect()
}

/// Would catch entries from an agent's time that count as arrived, for the poller or for a look at what was
/// reported before a reset; and an index or a lap from which the queue cannot continue.
#[test]
fn what_an_agent_leaves_is_not_believed() {
    for (size, written) in [(64, 0), (64, 37), (128, 16), (64, 0xff_fff0)] {
        let (mut cq, mut producer) = cq(15, size);
        let mut pair = pair(&cq);
        send(&mut pair, 1);
        finish(&mut producer, &pair, 0);
        assert_eq!(ids(&mut cq), [1]);
        cq.leave(true);
        producer.next += written;
        // Places of all laps are filled, however many entries the agent has taken.
        for index in 0..32 {
            finish(&mut producer, &pair, index);
        }
        pair.core.reset(&mut pair.send, pair.recv.as_mut());
        cq.come_back(producer.next & INDEX_MASK);
        assert_eq!(producer.waiting(), 0);
        cq.told().unwrap();
        for id in 0..40 {
            assert!(ids(&mut cq).is_empty());
            send(&mut pair, id);
            finish(&mut producer, &pair, id as u16);
            assert_eq!(ids(&mut cq), [id]);
        }
    }
}

/// Would catch a completion from before a reset that passes for a later one, or that spoils the count of
/// requests.
#[test]
fn what_was_reported_before_a_reset_is_forgotten() {
    let (mut cq, mut producer) = cq(15, 64);
    let (mut first, mut other) = (pair(&cq), pair(&cq));
    for id in 0..3 {
        send(&mut first, id);
        finish(&mut producer, &first, id as u16);
    }
    send(&mut other, 50);
    finish(&mut producer, &other, 0);
    assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(0));
    first.core.reset(&mut first.send, first.recv.as_mut());
    assert_eq!((first.record(), first.send.in_flight()), ((0, 0), 0));
    send(&mut first, 100);
    finish(&mut producer, &first, 0);
    assert_eq!(ids(&mut cq), [50, 100]);
    assert_eq!(first.send.in_flight(), 0);
    cq.told().unwrap();
    send(&mut first, 101);
    finish(&mut producer, &first, 1);
    assert_eq!(ids(&mut cq), [101]);
}

/// Would catch completions from before a reset that pass for some that wait: a wait would end at once with
/// none, and the queue could not be handed over.
#[test]
fn what_is_forgotten_does_not_wait() {
    let (mut cq, mut producer) = cq(15, 64);
    let (mut first, mut other) = (pair(&cq), pair(&cq));
    let report = |producer: &mut Producer, pair: &mut Pair, id| {
        send(pair, id);
        finish(producer, pair, 0);
    };
    report(&mut producer, &mut first, 1);
    assert_eq!(cq.is_empty(), Ok(false));
    first.core.reset(&mut first.send, first.recv.as_mut());
    assert_eq!((cq.is_empty(), producer.waiting()), (Ok(true), 0));
    // Behind one that is told.
    report(&mut producer, &mut other, 2);
    report(&mut producer, &mut first, 3);
    first.core.reset(&mut first.send, first.recv.as_mut());
    assert_eq!((cq.is_empty(), producer.waiting()), (Ok(false), 2));
    assert_eq!(cq.begin().next().map(|taken| taken.wr_id()), Some(2));
    assert_eq!((cq.is_empty(), producer.waiting()), (Ok(true), 0));
    report(&mut producer, &mut first, 4);
    assert_eq!(cq.is_empty(), Ok(false));
    assert_eq!(ids(&mut cq), [4]);
}

/// Would catch memory that runs out because a queue pair starts again and again, as one does that finds no
/// peer, and nothing completes meanwhile.
#[test]
fn resets_without_completions_leave_nothing() {
    let reset = |pair: &mut Pair| {
        for _ in 0..1000 {
            pair.core.reset(&mut pair.send, pair.recv.as_mut());
        }
    };
    let (mut polled, mut producer) = cq(15, 64);
    let mut one = pair(&polled);
    reset(&mut one);
    send(&mut one, 1);
    finish(&mut producer, &one, 0);
    assert_eq!(ids(&mut polled), [1]);
    let (other, _producer) = cq(15, 64);
    let mut two = pair(&other);
    reset(&mut two);
    let changes = other.core().directory.hear().0;
    assert_eq!(changes.len(), 2, "its beginning, and the last start");
}

/// Would catch a completion that is lost with its queue pair, or that goes to the next queue pair with its
/// number.
#[test]
fn what_a_queue_pair_reported_outlives_it() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut first = pair(&cq);
    let number = first.number;
    send(&mut first, 1);
    finish(&mut producer, &first, 0);
    drop(first);
    let mut second = pair(&cq);
    assert_ne!(second.number, number, "its completion is still there");
    send(&mut second, 2);
    finish(&mut producer, &second, 0);
    assert_eq!(ids(&mut cq), [1, 2]);
    cq.told().unwrap();
    assert_eq!(pair(&cq).number, number, "now it is free");
}

/// For a C program that has destroyed a queue pair, and freed what its completions point to: would catch such
/// a completion that is reported, an element of a shared queue that is lost with it, and a number that never
/// becomes free.
#[cfg(feature = "c-abi")]
#[test]
fn what_a_queue_pair_reported_goes_with_it_where_asked_for() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut srq = shared(32);
    let (mut first, mut second) = (
        Pair::with(QpType::RC, cap(8, 1, 0), &cq, &cq, Some(&srq)),
        pair(&cq),
    );
    let number = first.number;
    for id in 0..2 {
        send(&mut first, id);
        finish(&mut producer, &first, id as u16);
    }
    receive_four(&mut srq, &mut producer, &first, &mut 0, 32);
    send(&mut second, 50);
    finish(&mut producer, &second, 0);
    assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(0));
    first.core.forget_unread();
    drop(first);
    assert_ne!(pair(&cq).number, number, "its completions are still there");
    assert_eq!(ids(&mut cq), [50]);
    assert_eq!(srq.in_flight(), 0);
    cq.told().unwrap();
    assert_eq!(pair(&cq).number, number, "now it is free");
}

/// For a C program that destroys and resets queue pairs and does not poll: would catch a ring that fills with
/// what no poll tells of, an element of a shared queue that stays taken, a completion of another queue pair
/// that is lost or told as another's, and a number that waits for a poll.
#[cfg(feature = "c-abi")]
#[test]
fn cleaning_makes_room_in_the_ring() {
    let (mut cq, mut producer) = cq(15, 64);
    let mut srq = shared(32);
    let (mut stays, mut index) = (pair(&cq), 0);
    // More than once round the ring.
    for round in 0..10 {
        let mut goes = Pair::with(QpType::RC, cap(8, 1, 0), &cq, &cq, Some(&srq));
        let number = goes.number;
        receive_four(&mut srq, &mut producer, &goes, &mut index, 32);
        for id in 0..2 {
            send(&mut stays, 10 * round + id);
            finish(&mut producer, &stays, (2 * round + id) as u16);
            send(&mut goes, 1000 + id);
            finish(&mut producer, &goes, id as u16);
        }
        goes.core.forget_unread();
        drop(goes);
        let before = cq.core().directory.passed();
        cq.clean();
        assert_eq!(
            cq.core().directory.passed().wrapping_sub(before),
            6,
            "what is forgotten went back"
        );
        assert_eq!(srq.in_flight(), 0);
        assert_eq!(pair(&cq).number, number, "its number is free");
        assert_eq!(ids(&mut cq), [10 * round, 10 * round + 1]);
        cq.told().unwrap();
    }
}

/// Would catch a message to a target of dynamic connections that is told when a C program has destroyed it,
/// and the number perhaps is another's.
#[cfg(feature = "c-abi")]
#[test]
fn what_a_target_reported_goes_with_it_where_asked_for() {
    for forgets in [false, true] {
        let (mut cq, mut producer) = cq(15, 64);
        let mut srq = shared(32);
        let target = TargetCore::new(cq.core(), srq.drawn()).unwrap();
        if forgets {
            target.forget_unread();
        }
        let mut recv = receiving(&mut srq);
        recv.write(7, &[]).unwrap();
        recv.ring();
        // The first number, and the first element.
        producer.write(completion(cqe::RESP_SEND, 0, 0));
        drop(target);
        let expected: &[u64] = if forgets { &[] } else { &[7] };
        assert_eq!(ids(&mut cq), expected);
        assert_eq!(srq.in_flight(), 0);
        cq.told().unwrap();
        assert_eq!(pair(&cq).number, 0, "it is free");
    }
}

/// Would catch numbers, or memory, that run out where a program polls by itself: nobody here ever hears of
/// changes, and finished entries lie in the ring as if they waited. And a program that polls here all the
/// same and loses something.
#[cfg(all(feature = "c-abi", feature = "mlx5-direct"))]
#[test]
fn queue_pairs_of_a_program_that_polls_by_itself_leave_nothing() {
    let (cq, mut producer) = cq(15, 64);
    cq.core().place();
    for _ in 0..40 {
        let mut pair = pair(&cq);
        assert_eq!(pair.number, 0);
        send(&mut pair, 1);
        finish(&mut producer, &pair, 0);
        pair.core.reset(&mut pair.send, pair.recv.as_mut());
    }
    assert!(cq.core().directory.hear().0.is_empty());

    let (mut cq, mut producer) = self::cq(15, 64);
    cq.core().place();
    let mut first = pair(&cq);
    for id in 0..2 {
        send(&mut first, id);
        finish(&mut producer, &first, id as u16);
    }
    assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(0));
    drop(first);
    assert_eq!(ids(&mut cq), [1]);
}

/// Would catch numbers, or memory, that run out because nobody polls.
#[test]
fn queue_pairs_that_nobody_polls_for_leave_nothing() {
    let (cq, _producer) = cq(15, 64);
    for _ in 0..1000 {
        assert_eq!(pair(&cq).number, 0);
    }
    let survivor = pair(&cq);
    drop(cq);
    drop(survivor);
}

/// Would catch a number that is free in one completion queue and taken in the other.
#[test]
fn a_number_is_good_in_both_completion_queues() {
    let (mut sends, mut sent) = cq(15, 64);
    let (mut recvs, mut received) = cq(15, 64);
    let _one = pair(&sends);
    let _two = [pair(&recvs), pair(&recvs)];
    let mut both = Pair::new(QpType::RC, cap(4, 1, 0), &sends, &recvs);
    assert_eq!(both.number, 2);
    send(&mut both, 7);
    let mut recv = receiving(both.recv.as_mut().unwrap());
    recv.write(8, &[]).unwrap();
    recv.ring();
    finish(&mut sent, &both, 0);
    received.write(completion(cqe::RESP_SEND, both.number, 0));
    assert_eq!((ids(&mut sends), ids(&mut recvs)), (vec![7], vec![8]));
    // A completion of a receive makes no sense where only sends are reported.
    sent.write(completion(cqe::RESP_SEND, both.number, 0));
    assert!(take(&mut sends).is_none() && sends.told().is_err());
}

/// Would catch completions that a resize loses, doubles or puts out of order, growing and shrinking, in any
/// lap.
#[test]
fn what_waits_moves_with_the_ring() {
    for size in [64, 128] {
        for before in 0..40 {
            let (mut cq, mut producer) = cq(15, size);
            let mut one = pair(&cq);
            let mut id = 0_u16;
            let mut next = |one: &mut Pair, producer: &mut Producer| {
                send(one, id.into());
                finish(producer, one, id);
                id += 1;
            };
            for _ in 0..before {
                next(&mut one, &mut producer);
                ids(&mut cq);
            }
            for _ in 0..5 {
                next(&mut one, &mut producer);
            }
            assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(before));
            for count in [64, 8] {
                let bytes = Entries::bytes(count, size);
                let memory = Memory::new(bytes, 4096, ResourceType::MLX5_CQ, None).unwrap();
                cq.resize(Entries::new(memory, count, size), |new| {
                    // The last entry of the old ring says that the device continues in the new one.
                    producer.write(completion(cqe::RESIZE, 0, 0));
                    producer.view = new.view();
                    Ok::<_, ()>(new)
                })
                .unwrap();
                assert_eq!(cq.capacity(), count - 1);
            }
            next(&mut one, &mut producer);
            assert_eq!(ids(&mut cq), (before + 1..before + 6).collect::<Vec<_>>());
        }
    }
}

/// Would catch an index from before a resize that is compared with one from after.
#[test]
fn a_reset_before_a_resize_is_remembered() {
    let (mut cq, mut producer) = cq(15, 64);
    let (mut one, mut other) = (pair(&cq), pair(&cq));
    send(&mut one, 1);
    finish(&mut producer, &one, 0);
    send(&mut other, 2);
    finish(&mut producer, &other, 0);
    one.core.reset(&mut one.send, one.recv.as_mut());
    let memory = Memory::new(64 * 32, 4096, ResourceType::MLX5_CQ, None).unwrap();
    cq.resize(Entries::new(memory, 32, 64), |new| {
        producer.write(completion(cqe::RESIZE, 0, 0));
        producer.view = new.view();
        Ok::<_, ()>(new)
    })
    .unwrap();
    send(&mut one, 3);
    finish(&mut producer, &one, 0);
    assert_eq!(ids(&mut cq), [2, 3]);
}

/// Posts four receives to a shared queue whose elements come back in order, and receives into them as the
/// device does; `index` is that of the next element.
fn receive_four(
    srq: &mut SharedRecvQueue,
    producer: &mut Producer,
    pair: &Pair,
    index: &mut u16,
    elements: u16,
) {
    let mut srq = receiving(srq);
    for id in 0..4 {
        srq.write(id, &[]).unwrap();
    }
    srq.ring();
    for _ in 0..4 {
        producer.write(completion(cqe::RESP_SEND, pair.number, *index));
        *index = (*index + 1) % elements;
    }
}

/// Would catch elements of a shared receive queue that are lost with completions from before a queue pair
/// started anew.
#[test]
fn elements_of_a_shared_queue_come_back_from_before_a_reset() {
    let (mut cq, mut producer) = cq(63, 64);
    let mut srq = shared(32);
    let mut one = Pair::with(QpType::RC, cap(8, 1, 0), &cq, &cq, Some(&srq));
    let mut index = 0;
    for round in 1..=8 {
        receive_four(&mut srq, &mut producer, &one, &mut index, 32);
        assert_eq!(srq.in_flight(), 4, "round {round}");
        one.core.reset(&mut one.send, None);
        assert!(take(&mut cq).is_none());
        assert_eq!(srq.in_flight(), 0, "round {round}");
    }
    receive_four(&mut srq, &mut producer, &one, &mut index, 32);
    assert_eq!(ids(&mut cq), [0, 1, 2, 3]);
    let mut srq = receiving(&mut srq);
    for id in 0..31 {
        srq.write(id, &[]).unwrap();
    }
    srq.ring();
    let full = srq.write(31, &[]).unwrap_err();
    assert_eq!(full, PostError::QueueFull { capacity: 31 });
}

/// Would catch elements of a shared receive queue that are lost with a completion queue that nobody polls any
/// more, whatever completes later and whatever is dropped first.
#[test]
fn elements_of_a_shared_queue_come_back_when_a_completion_queue_goes() {
    let (cq, mut producer) = cq(63, 64);
    let mut srq = shared(32);
    let pair = |cq: &Cq| Pair::with(QpType::RC, cap(8, 1, 0), cq, cq, Some(&srq));
    let (mut one, other) = (pair(&cq), pair(&cq));
    let mut index = 0;
    let mut receive = |srq: &mut SharedRecvQueue, pair: &Pair| {
        receive_four(srq, &mut producer, pair, &mut index, 32);
    };
    receive(&mut srq, &one);
    receive(&mut srq, &other);
    assert_eq!(srq.in_flight(), 8);
    drop(cq);
    assert_eq!(srq.in_flight(), 0, "what was there");
    receive(&mut srq, &one);
    receive(&mut srq, &other);
    one.core.reset(&mut one.send, None);
    assert_eq!(srq.in_flight(), 0, "what came later, at a reset");
    receive(&mut srq, &one);
    receive(&mut srq, &other);
    drop(one);
    assert_eq!(srq.in_flight(), 0, "what came later, at the end of one");
    receive(&mut srq, &other);
    drop(other);
    assert_eq!(srq.in_flight(), 0, "at the end of the last");
}

/// An allocator that drops a queue pair when it gets a ring back, as a user's may.
#[derive(Default)]
struct Dropping(Mutex<Option<Pair>>);

// SAFETY: each buffer is leaked memory of its own; no test forks while the device uses it.
unsafe impl Allocator for Dropping {
    fn allocate(&self, request: &BufferRequest) -> Result<Allocation, AllocError> {
        let memory = vec![0_u64; (request.size + request.alignment) / 8 + 1].leak();
        let start = memory.as_mut_ptr().cast::<u8>();
        // SAFETY: there is room for the alignment.
        let start = unsafe { start.add(start.align_offset(request.alignment)) };
        let start = NonNull::new(start).unwrap();
        Ok(Allocation::Memory(NonNull::slice_from_raw_parts(
            start,
            request.size,
        )))
    }

    unsafe fn free(&self, _: NonNull<[u8]>, _: &BufferRequest) {
        self.drop_it();
    }
}

impl Dropping {
    fn drop_it(&self) {
        let pair = self.0.lock().unwrap().take();
        drop(pair);
    }
}

/// Would catch the rings of a queue pair with inline scatter that stay with the poller, who has not looked
/// since: their allocator would wait for them although the queue pair is gone.
#[test]
fn rings_go_with_their_queue_pair_whether_or_not_anybody_polls() {
    let allocator = Arc::new(Counting::new(GuardPages::new()));
    let buffers = Buffers::of(Arc::clone(&allocator) as Arc<dyn Allocator>);
    let live = || {
        allocator
            .counts()
            .values()
            .map(BufferCounts::live)
            .sum::<u64>()
    };
    let (mut cq, mut producer) = cq(15, 64);
    for resets in [false, true] {
        let mut one = Pair::inline_in(QpType::RC, cap(8, 1, 0), &cq, &buffers);
        send(&mut one, 1);
        finish(&mut producer, &one, 0);
        // The poller knows it from now on.
        assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(1));
        if resets {
            one.core.reset(&mut one.send, one.recv.as_mut());
        }
        assert_eq!(live(), 2);
        one.core.close();
        drop(one);
        assert_eq!(live(), 0);
    }
}

/// Runs code that may wait for a lock forever.
fn ends(body: impl FnOnce(&Arc<Dropping>, &Buffers) + Send + 'static) {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let allocator = Arc::new(Dropping::default());
        let buffers = Buffers::of(Arc::clone(&allocator) as Arc<dyn Allocator>);
        body(&allocator, &buffers);
        let left = allocator.0.lock().unwrap().is_some();
        tell.send(left).unwrap();
    });
    let left = told.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(left, Ok(false), "an allocator got nothing back, or waits");
}

/// Would catch a subscriber of traces that is notified of the command for another ring under a lock that it
/// needs for a queue pair.
#[test]
fn subscribers_may_drop_queue_pairs_during_a_resize() {
    ends(|allocator, _| {
        let (mut cq, mut producer) = cq(15, 64);
        *allocator.0.lock().unwrap() = Some(pair(&cq));
        let dropping = Arc::clone(allocator);
        let listener = Listener("uverbs::command", move |_| dropping.drop_it());
        let file = File::open("/dev/null").unwrap().into();
        let fd = CommandFd::new(file, DriverId::MLX5.0, Route::Best);
        let memory = Memory::new(64 * 32, 4096, ResourceType::MLX5_CQ, None).unwrap();
        tracing::subscriber::with_default(listener, || {
            cq.resize(Entries::new(memory, 32, 64), |new| {
                fd.execute(&QueryDevice).unwrap_err();
                producer.write(completion(cqe::RESIZE, 0, 0));
                producer.view = new.view();
                Ok::<_, ()>(new)
            })
            .unwrap();
        });
    });
}

/// Would catch rings that go back to their allocator under a lock that the allocator needs for another queue
/// pair.
#[test]
fn allocators_may_drop_queue_pairs_when_rings_come_back() {
    // The ring of a queue that gets another size.
    ends(|allocator, buffers| {
        let ring = |count| {
            let bytes = Entries::bytes(count, 64);
            let memory = Memory::new(bytes, 4096, ResourceType::MLX5_CQ, Some(buffers));
            Entries::new(memory.unwrap(), count, 64)
        };
        let (mut cq, mut producer) = cq(15, 64);
        let mut to = |cq: &mut Cq, count| {
            let switched = cq.resize(ring(count), |new| {
                producer.write(completion(cqe::RESIZE, 0, 0));
                producer.view = new.view();
                Ok::<_, ()>(new)
            });
            switched.unwrap();
        };
        to(&mut cq, 32);
        *allocator.0.lock().unwrap() = Some(pair(&cq));
        to(&mut cq, 64);
        // The ring that it does not get.
        *allocator.0.lock().unwrap() = Some(pair(&cq));
        cq.resize(ring(128), |_| Err(())).unwrap_err();
    });
    // The rings of a queue pair whose completions have all been taken, and of one on a queue that nobody
    // polls any more.
    for polls in [true, false] {
        ends(move |allocator, buffers| {
            let (mut cq, mut producer) = cq(15, 64);
            let mut first = Pair::inline_in(QpType::RC, cap(8, 1, 0), &cq, buffers);
            send(&mut first, 1);
            finish(&mut producer, &first, 0);
            if polls {
                assert_eq!(take(&mut cq).map(|taken| taken.wr_id()), Some(1));
            }
            *allocator.0.lock().unwrap() = Some(pair(&cq));
            first.core.close();
            drop(first);
            match polls {
                // One poll to learn of it, one to drop it.
                true => {
                    let mut other = pair(&cq);
                    send(&mut other, 2);
                    finish(&mut producer, &other, 0);
                    assert_eq!(ids(&mut cq), [2]);
                    cq.told().unwrap();
                }
                false => drop(cq),
            }
        });
    }
    // The rings of a queue pair that the poller has never known.
    ends(|allocator, buffers| {
        let (cq, _producer) = cq(15, 64);
        let first = Pair::inline_in(QpType::RC, cap(8, 1, 0), &cq, buffers);
        *allocator.0.lock().unwrap() = Some(pair(&cq));
        drop(first);
    });
}
