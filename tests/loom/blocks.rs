//! Free blocks of a pool: who takes and waits against who gives back.

use std::sync::Arc as StdArc;
use std::task::{Context, Poll, Wake, Waker};

use libtest_mimic::Trial;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::numbers::{FreeList, Ticket};
use crate::sync::Place;
use crate::test;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("blocks::one_has_a_number", taken),
        test("blocks::who_waits_is_woken", awaited),
        test("blocks::each_of_two_that_wait_is_woken", both_awaited),
        test("blocks::who_leaves_takes_nobody_along", one_leaves),
    ]
}

/// Blocks, each with something in it that is its holder's.
struct Stock {
    free: FreeList,
    holders: [Place<u32>; 2],
}

impl Stock {
    fn new() -> Arc<Self> {
        let free = FreeList::new();
        free.reach(2);
        Arc::new(Self {
            free,
            holders: [Place::empty(), Place::empty()],
        })
    }

    /// loom fails if another thread does so at once, or if what it did is not seen.
    fn hold(&self, number: u32) {
        // SAFETY: that is what the model is about.
        unsafe { self.holders[number as usize].put(1) };
    }
}

/// Has a thread give a number back that it holds.
fn giving(stock: &Arc<Stock>, number: u32) -> thread::JoinHandle<()> {
    let stock = Arc::clone(stock);
    thread::spawn(move || {
        stock.hold(number);
        stock.free.give(number);
    })
}

/// Catches a number that two have, one that is lost, and one whose last holder is not done with it.
fn taken() {
    let stock = Stock::new();
    stock.free.give(0);
    stock.free.give(1);
    let others = [(); 2].map(|()| {
        let stock = Arc::clone(&stock);
        thread::spawn(move || {
            let Some(number) = stock.free.take() else {
                return;
            };
            stock.hold(number);
            stock.free.give(number);
        })
    });
    if let Some(number) = stock.free.take() {
        stock.hold(number);
        stock.free.give(number);
    }
    for other in others {
        other.join().unwrap();
    }
    let mut left = [stock.free.take(), stock.free.take()];
    left.sort();
    assert_eq!(left, [Some(0), Some(1)]);
    assert_eq!(stock.free.take(), None);
}

/// Notes in loom's memory that it was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: StdArc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Asks for a number; if there is none, what says whether it was woken.
fn ask(stock: &Stock) -> Result<u32, StdArc<Woken>> {
    let woken = StdArc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(StdArc::clone(&woken));
    let ticket = &mut Ticket::default();
    match stock
        .free
        .poll_take(&mut Context::from_waker(&waker), ticket)
    {
        Poll::Ready(number) => Ok(number),
        Poll::Pending => Err(woken),
    }
}

/// Catches who waits for a number that was given between a look for one and the wait.
fn awaited() {
    let stock = Stock::new();
    let other = giving(&stock, 0);
    let asked = ask(&stock);
    other.join().unwrap();
    match asked {
        Ok(number) => {
            stock.hold(number);
            assert_eq!(number, 0);
        }
        Err(woken) => {
            assert!(woken.0.load(Ordering::Acquire), "it waits for ever");
            assert_eq!(stock.free.take(), Some(0));
        }
    }
    assert_eq!(stock.free.take(), None);
}

/// The same of two threads that wait at once, each for one of two.
fn both_awaited() {
    let stock = Stock::new();
    let one = thread::spawn({
        let stock = Arc::clone(&stock);
        move || ask(&stock).err()
    });
    let other = giving(&stock, 0);
    let here = ask(&stock).err();
    let there = one.join().unwrap();
    other.join().unwrap();
    for waiting in [here, there].into_iter().flatten() {
        // Who took the number may have come before, and then nothing has come back since.
        let is_woken = waiting.0.load(Ordering::Acquire);
        assert!(is_woken || stock.free.take().is_none(), "it waits for ever");
    }
}

/// Catches a waker that is lost because another one of the same task leaves while a number is given back.
fn one_leaves() {
    let stock = Stock::new();
    let woken = StdArc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(StdArc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let mut tickets: [Ticket; 2] = Default::default();
    for ticket in &mut tickets {
        assert!(stock.free.poll_take(&mut cx, ticket).is_pending());
    }
    let other = giving(&stock, 0);
    stock.free.leave(&mut tickets[0]);
    other.join().unwrap();
    assert!(
        woken.0.load(Ordering::Acquire),
        "the other one waits for ever"
    );
    stock.free.leave(&mut tickets[1]);
    assert_eq!(StdArc::strong_count(&woken), 2, "a waker is left behind");
}
