//! Queues: one thread posts, others poll.

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use crate::device::{Device, Places};
use crate::ledger::{About, LooseLedger, NumberedLedger, RecvLedger, SendLedger, SrqLedger};
use crate::sync::{AtomicU32, Ordering};
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("sends::each_completion_has_its_own_id", sends),
        test("sends::unsignaled_requests_are_finished_too", unsignaled),
        test("receives::each_completion_has_its_own_id", receives),
        test("receives::out_of_order", out_of_order),
        test("numbered::the_one_left_behind_keeps_its_number", numbered),
        test("shared_receives::no_element_is_lost_or_doubled", shared),
        test("room::comes_behind_the_index_that_makes_it", room),
    ]
}

/// Requests that are posted over a ring of [`RING`].
const REQUESTS: u32 = 3;
const RING: u32 = 2;

fn id(index: u32) -> u64 {
    100 + u64::from(index)
}

/// A ledger as its poster and its poller use it.
struct Queue<L> {
    ledger: L,
    done: fn(&L) -> u32,
    note: fn(&L, u32),
    finish: fn(&L, u32) -> u64,
    /// Of so many requests one completion tells.
    signaled: u32,
}

impl<L: Send + Sync + 'static> Queue<L> {
    /// How many requests are posted, or finished, when there have been so many doorbells or completions.
    fn requests(&self, doorbells: u32) -> u32 {
        REQUESTS.min(doorbells * self.signaled)
    }

    /// Has one thread post and another poll.
    fn run(self) {
        let shared = Arc::new((self, Device::default(), Places::<{ RING as usize }>::new()));
        let poller = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (queue, device, places) = &*shared;
                for seen in 0..REQUESTS.div_ceil(queue.signaled) {
                    device.wait(seen);
                    let end = queue.requests(seen + 1);
                    for index in queue.requests(seen)..end {
                        assert_eq!(places.read(index), id(index));
                    }
                    assert_eq!((queue.finish)(&queue.ledger, end - 1), id(end - 1));
                }
            })
        };
        let (queue, device, places) = &*shared;
        for index in 0..REQUESTS {
            while index.wrapping_sub((queue.done)(&queue.ledger)) == RING {
                thread::yield_now();
            }
            places.write(index, id(index));
            (queue.note)(&queue.ledger, index);
            let posted = index + 1;
            if posted % queue.signaled == 0 || posted == REQUESTS {
                device.ring(posted.div_ceil(queue.signaled));
            }
        }
        poller.join().unwrap();
        assert_eq!((queue.done)(&queue.ledger), REQUESTS);
    }
}

fn send_queue(signaled: u32) -> Queue<SendLedger> {
    Queue {
        ledger: SendLedger::new(RING),
        done: SendLedger::done,
        note: |ledger, index| ledger.note(index).write(id(index), index + 1),
        finish: |ledger, index| ledger.finish(index as u16).0,
        signaled,
    }
}

/// Would catch a place of the ring that is used again while the poller still reads its note, and an id of the
/// request that comes after.
fn sends() {
    send_queue(1).run();
}

/// Would catch the same where only the last of several requests is reported.
fn unsignaled() {
    send_queue(2).run();
}

/// Would catch what `sends` catches, of a receive queue, whose requests finish one by one.
fn receives() {
    let queue = Queue {
        ledger: RecvLedger::new(RING),
        done: RecvLedger::done,
        note: |ledger, index| {
            ledger.note(index, id(index));
        },
        finish: |ledger, _| ledger.finish(),
        signaled: 1,
    };
    queue.run();
}

/// Would catch a place of the ring that is used again while the request in it has been left behind by later
/// ones, or while the poller still reads its note.
fn out_of_order() {
    // Half as many requests are promised as there are elements.
    const ELEMENTS: u32 = 4;
    const PROMISED: u32 = 2;
    /// The first is left behind until the others have gone as far as they may. The last has its place.
    const ORDER: [u32; 5] = [1, 2, 3, 0, 4];
    let ledger = LooseLedger::new(ELEMENTS);
    let shared = Arc::new((ledger, Device::default(), Places::<4>::new()));
    let post = |index: u32| {
        let (ledger, device, places) = &*shared;
        while index.wrapping_sub(ledger.notes().done()) == PROMISED {
            thread::yield_now();
        }
        places.write(index, id(index));
        ledger.notes().note(index, id(index));
        device.ring(index + 1);
    };
    (0..PROMISED).for_each(post);
    let poller = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (ledger, device, places) = &*shared;
            for index in ORDER {
                device.wait(index);
                assert_eq!(places.read(index), id(index));
                assert_eq!(ledger.finish(index as u16), Some(id(index)));
            }
        })
    };
    (PROMISED..ORDER.len() as u32).for_each(post);
    poller.join().unwrap();
    assert_eq!(shared.0.before(), ORDER.len() as u32);
}

/// Would catch a number that is given to a request while the poller still reads the note of the one that had
/// it, or while that one has been left behind by later ones; and a note of the request after.
fn numbered() {
    const CAPACITY: u32 = 2;
    /// The first is left behind, and the others have the other number one after the other.
    const ORDER: [u32; 5] = [1, 2, 3, 0, 4];
    let number_of = |index: u32| index.min(1);
    let ledger = NumberedLedger::new(CAPACITY, 0);
    let shared = Arc::new((ledger, Device::default(), Places::<2>::new()));
    let post = |index: u32| {
        let (ledger, device, places) = &*shared;
        while index == ledger.room(index) {
            thread::yield_now();
        }
        places.write(number_of(index), id(index));
        let about = About::new(index.is_multiple_of(2));
        let number = ledger.note(index, id(index), about, index);
        assert_eq!(u32::from(number), number_of(index));
        ledger.post(index + 1);
        device.ring(index + 1);
    };
    (0..CAPACITY).for_each(post);
    let poller = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (ledger, device, places) = &*shared;
            for index in ORDER {
                device.wait(index);
                let number = number_of(index);
                assert_eq!(places.read(number), id(index));
                let noted = ledger.finish(number as u16).expect("it is in flight");
                let told = (noted.id, noted.is_signaled, noted.bytes);
                assert_eq!(told, (id(index), index.is_multiple_of(2), index));
            }
        })
    };
    (CAPACITY..ORDER.len() as u32).for_each(post);
    poller.join().unwrap();
    let ledger = &shared.0;
    assert_eq!((ledger.progress().finished(), ledger.in_flight()), (5, 0));
}

/// Would catch a place for a request that the poster sees before the completion queue's index that makes room
/// for its completion (`take` in `src/driver/mlx5/cq/mod.rs`): the device, told by the poster, would find the
/// queue full.
fn room() {
    let shared = Arc::new((SendLedger::new(RING), Device::default(), AtomicU32::new(0)));
    let poller = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let (ledger, device, consumer) = &*shared;
            for index in 0..REQUESTS {
                device.wait(index);
                consumer.store(index + 1, Ordering::Release);
                ledger.finish(index as u16);
            }
        })
    };
    let (ledger, device, consumer) = &*shared;
    for index in 0..REQUESTS {
        while index.wrapping_sub(ledger.done()) == RING {
            thread::yield_now();
        }
        let done = ledger.done();
        // Relaxed, as the device may look.
        assert!(consumer.load(Ordering::Relaxed) >= done);
        ledger.note(index).write(id(index), index + 1);
        device.ring(index + 1);
    }
    poller.join().unwrap();
}

/// Would catch an element of a shared receive queue that is lost or comes twice when two pollers give
/// elements back at once, and one that is posted again while a poller still reads its note.
fn shared() {
    // One element always stays free, so three can be posted at a time.
    let ledger = Arc::new(SrqLedger::new(4));
    let places = Arc::new(Places::<4>::new());
    let mut head = 0;
    let mut post = |value: u32| {
        let next = loop {
            match ledger.behind(head) {
                Some(next) => break next,
                None => thread::yield_now(),
            }
        };
        let element = head;
        places.write(element, id(value));
        ledger.post(element, id(value), value);
        head = next;
        element
    };
    assert_eq!([post(0), post(1), post(2)], [0, 1, 2]);
    // The device has finished the first two, each for a completion queue of its own.
    let pollers = [0, 1].map(|element| {
        let (ledger, places) = (Arc::clone(&ledger), Arc::clone(&places));
        thread::spawn(move || {
            assert_eq!(places.read(element), id(element));
            assert_eq!(ledger.finish(element as u16), Some(id(element)));
        })
    });
    // Whichever comes back first is posted behind the element that stayed free.
    assert_eq!(post(3), 3);
    let again = post(4);
    assert!(again < 2, "element {again}");
    for poller in pollers {
        poller.join().unwrap();
    }
    assert_eq!(ledger.done(), 2);
    // One stays free, and what is posted comes back with its own id.
    assert_eq!(ledger.behind(1 - again), None);
    assert_eq!(
        [2, 3].map(|index| ledger.finish(index)),
        [2, 3].map(|at| Some(id(at)))
    );
    assert_eq!(ledger.finish(again as u16), Some(id(4)));
}
