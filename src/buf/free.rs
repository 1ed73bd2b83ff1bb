//! The free numbers of a stock: taken and given back without a lock. A task can wait when there are none.
//! Blocks of pools have such numbers, and so have slots of `aio`.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use super::growing::Growing;
use super::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};
use crate::callbacks::each;

/// No number.
pub(crate) const NONE: u32 = u32::MAX;

/// A task waits. Set only while no number is free.
const WAITED_FOR: u64 = 1 << 32;

/// One change. The count of changes has the bits above [`WAITED_FOR`].
const CHANGE: u64 = 1 << 33;

/// The list that a stock keeps in its owner's memory: a place per number, which holds the free number after
/// it.
pub(crate) trait Places {
    /// The place of a number, if the stock has it.
    fn next(&self, number: u32) -> Option<&AtomicU32>;
}

impl Places for Growing<AtomicU32> {
    #[inline(always)]
    fn next(&self, number: u32) -> Option<&AtomicU32> {
        self.get(number)
    }
}

/// The free numbers, the latest first. The methods must be given the same `places` every time, with a place
/// for each number. It is a Treiber stack: `head` is the number on top, and the place of each number holds
/// the one below it. The count of changes in `head` prevents the ABA problem: if a thread was interrupted in
/// [`take`](Self::take), it cannot install a `next` that has become wrong. The count has 31 bits: it would
/// fail only if exactly a multiple of 2^31 changes happened while the thread was interrupted.
#[derive(Debug)]
pub(crate) struct Stack {
    head: AtomicU64,
    /// The tasks that wait. Touched only where nothing is free.
    waiting: Mutex<Waiting>,
}

/// Tasks that wait, by number.
#[derive(Debug, Default)]
struct Waiting {
    tasks: BTreeMap<u64, Waker>,
    /// The last number that was given. None comes twice.
    last: u64,
}

impl Waiting {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

/// The number of who waits for one stack, once he waits; with it he [leaves](Stack::leave) when he gives up.
/// A waker would not do: two futures of a task have the same one.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Option<u64>);

impl Stack {
    /// A stock without numbers.
    pub(crate) fn empty() -> Self {
        Self {
            head: AtomicU64::new(u64::from(NONE)),
            waiting: Mutex::default(),
        }
    }

    /// Takes a number, which is the caller's until it gives it back.
    #[inline]
    pub(crate) fn take(&self, places: &(impl Places + ?Sized)) -> Option<u32> {
        // Acquire: pairs with the release in `give`. All changes in between are read-modify-writes, so this
        // synchronizes with each of them.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let number = head as u32;
            let place = places.next(number)?;
            // Relaxed: if another thread has taken the number meanwhile, the count of changes differs and the
            // exchange fails.
            let behind = u64::from(place.load(Ordering::Relaxed));
            let new = (head & !0xffff_ffff).wrapping_add(CHANGE) | behind;
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Some(number),
                Err(now) => head = now,
            }
        }
    }

    /// Gives back a number that was not free; `place` is its place.
    #[inline]
    pub(crate) fn give(&self, number: u32, place: &AtomicU32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            place.store(head as u32, Ordering::Relaxed);
            let new = (head & !(0xffff_ffff | WAITED_FOR)).wrapping_add(CHANGE) | u64::from(number);
            // Release: pairs with the acquire in `take`.
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if head & WAITED_FOR != 0 {
            self.wake();
        }
    }

    /// Takes a number, or has the task woken when one is given back.
    fn poll_take(
        &self,
        places: &impl Places,
        cx: &mut Context<'_>,
        ticket: &mut Ticket,
    ) -> Poll<u32> {
        loop {
            if let Some(number) = self.take(places) {
                return Poll::Ready(number);
            }
            if self.wait(cx, ticket) {
                return Poll::Pending;
            }
        }
    }

    /// Whether a number is free at this moment.
    pub(crate) fn has_any(&self) -> bool {
        self.head.load(Ordering::Relaxed) as u32 != NONE
    }

    /// Waits until a number is free, without taking it.
    pub(crate) fn poll_any(&self, cx: &mut Context<'_>, ticket: &mut Ticket) -> Poll<()> {
        match self.has_any() || !self.wait(cx, ticket) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Has the task woken when a number is given back; false if one was meanwhile.
    fn wait(&self, cx: &mut Context<'_>, Ticket(ticket): &mut Ticket) -> bool {
        // Wakers are cloned and dropped without the lock: they do as they like.
        let waker = cx.waker().clone();
        // Under the lock to the end: who takes the mark away then finds the task.
        let mut waiting = self.waiting();
        let number = *ticket.get_or_insert_with(|| waiting.number());
        let before = waiting.tasks.insert(number, waker);
        let mark = |head: u64| (head as u32 == NONE).then_some(head | WAITED_FOR);
        // Relaxed: what is waited for is taken by `take` afterwards.
        let waits = self
            .head
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, mark)
            .is_ok();
        drop(waiting);
        drop(before);
        waits
    }

    /// Has a task not woken any more that wants nothing more. The ticket is of this stack.
    #[inline]
    pub(crate) fn leave(&self, Ticket(ticket): &mut Ticket) {
        if let Some(number) = ticket.take() {
            let waker = self.waiting().tasks.remove(&number);
            // Without the lock.
            drop(waker);
        }
    }

    /// Wakes all tasks that wait, since each of them may have lost interest.
    #[cold]
    fn wake(&self) {
        // Without the lock: a waker may do anything.
        each(self.take_waiting(), Waker::wake);
    }

    /// Takes the wakers of all that wait: who asks from here on waits anew.
    pub(crate) fn take_waiting(&self) -> impl Iterator<Item = Waker> {
        std::mem::take(&mut self.waiting().tasks).into_values()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // A list of tasks is whole after each statement.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The numbers of a stock that are free.
#[derive(Debug)]
pub(super) struct FreeList {
    stack: Stack,
    /// For each free number, the one below it.
    next: Growing<AtomicU32>,
}

impl FreeList {
    /// A list for no numbers yet.
    pub(super) fn new() -> Self {
        Self {
            stack: Stack::empty(),
            next: Growing::new(),
        }
    }

    /// Adds places up to `bound`: numbers below it may be given from now on.
    pub(super) fn reach(&self, bound: u32) {
        self.next.reach(bound);
    }

    /// Takes a number, which is the caller's until it gives it back.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        self.stack.take(&self.next)
    }

    /// Gives back a number that was not free.
    #[inline]
    pub(super) fn give(&self, number: u32) {
        match self.next.get(number) {
            Some(next) => self.stack.give(number, next),
            None => debug_assert!(false, "{number} is not of this list"),
        }
    }

    /// Has a task not woken any more that waits for a number. The ticket is of this list.
    #[inline]
    pub(super) fn leave(&self, ticket: &mut Ticket) {
        self.stack.leave(ticket);
    }

    /// Whether a number is free at this moment.
    pub(super) fn has_any(&self) -> bool {
        self.stack.has_any()
    }

    /// Takes a number, or has the task woken when one is given back.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>, ticket: &mut Ticket) -> Poll<u32> {
        self.stack.poll_take(&self.next, cx, ticket)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::task::Wake;

    use super::*;

    /// A list of all numbers below `bound`.
    fn full(bound: u32) -> FreeList {
        let list = FreeList::new();
        list.reach(bound);
        (0..bound).for_each(|number| list.give(number));
        list
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_number_is_given_out_once() {
        let list = full(3);
        let mut taken: Vec<_> = std::iter::from_fn(|| list.take()).collect();
        taken.sort();
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!(list.take(), None);
        list.give(1);
        assert_eq!(list.take(), Some(1));
        assert_eq!(FreeList::new().take(), None);
        assert_eq!(full(0).take(), None);
    }

    #[test]
    fn who_waits_is_woken_once() {
        let list = full(1);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let ticket = &mut Ticket::default();
        assert_eq!(list.poll_take(&mut cx, ticket), Poll::Ready(0));
        assert!(list.poll_take(&mut cx, ticket).is_pending());
        assert!(list.poll_take(&mut cx, ticket).is_pending());
        list.give(0);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "one task, woken once");
        assert_eq!(list.poll_take(&mut cx, ticket), Poll::Ready(0));
        list.give(0);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "nobody waits any more");
    }

    /// Would catch a task that is not woken because it has taken no number, and one that waits although a
    /// number is free.
    #[test]
    fn who_waits_for_any_takes_none() {
        let list = full(1);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let ticket = &mut Ticket::default();
        assert!(list.stack.poll_any(&mut cx, ticket).is_ready());
        assert_eq!(list.take(), Some(0), "it is still there");
        assert!(list.stack.poll_any(&mut cx, ticket).is_pending());
        assert_eq!(list.take(), None, "and that takes no mark away");
        list.give(0);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "one task, woken once");
        assert!(list.stack.poll_any(&mut cx, ticket).is_ready());
    }

    /// Would catch wakers that pile up where nothing comes back, and a future that is not woken because
    /// another one of its task gives up.
    #[test]
    fn who_gives_up_leaves_nothing() {
        let list = FreeList::new();
        list.reach(1);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        let mut tickets: [Ticket; 3] = Default::default();
        for ticket in &mut tickets {
            assert!(list.poll_take(&mut cx, ticket).is_pending());
            assert!(list.poll_take(&mut cx, ticket).is_pending());
        }
        assert_eq!(list.stack.waiting().tasks.len(), 3);
        list.leave(&mut tickets[0]);
        list.leave(&mut tickets[0]);
        list.leave(&mut tickets[2]);
        assert_eq!(list.stack.waiting().tasks.len(), 1);
        list.give(0);
        assert_eq!(count.0.load(Ordering::Relaxed), 1, "the other one is woken");

        // A ticket from before is nobody else's.
        assert_eq!(list.take(), Some(0));
        assert!(list.poll_take(&mut cx, &mut tickets[0]).is_pending());
        list.leave(&mut tickets[1]);
        assert_eq!(list.stack.waiting().tasks.len(), 1);
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker");
        }
    }

    /// Would catch tasks that wait for ever because of a waker before theirs that panics.
    #[test]
    fn a_waker_that_panics_costs_no_other_task() {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        let list = FreeList::new();
        list.reach(1);
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let wakers = [
            Waker::from(Arc::clone(&counts[0])),
            Waker::from(Arc::new(Panics)),
            Waker::from(Arc::clone(&counts[1])),
        ];
        for waker in &wakers {
            let mut cx = Context::from_waker(waker);
            let ticket = &mut Ticket::default();
            assert!(list.poll_take(&mut cx, ticket).is_pending());
        }
        assert!(catch_unwind(AssertUnwindSafe(|| list.give(0))).is_err());
        for count in counts {
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
        }
    }

    /// Would catch a number that two threads hold: each thread marks what it holds.
    #[test]
    fn threads_never_hold_the_same_number() {
        let list = full(4);
        let held: [AtomicBool; 4] = Default::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let Some(number) = list.take() else { continue };
                        let held = &held[number as usize];
                        assert!(!held.swap(true, Ordering::Relaxed), "{number} twice");
                        held.store(false, Ordering::Relaxed);
                        list.give(number);
                    }
                });
            }
        });
        assert_eq!(std::iter::from_fn(|| list.take()).count(), 4);
    }
}
