//! Which slots are free: the poster takes, every thread may give back, without a lock.
//! There is one poster at a time, and it has a list of free slots of its own. Slots that are given back go to
//! a second list, which the poster takes as a whole when its own is empty. So taking a slot changes nothing
//! that other threads see, and giving one back is a single compare-and-swap.

use std::ptr::{self, NonNull};
use std::task::{Context, Poll, Waker};

use super::sync::{AtomicPtr, Mutex, MutexGuard, Ordering, Place};
use crate::callbacks::each;

/// A place that leads to another while it is free.
pub(super) trait Linked: Sized {
    /// The next that is free.
    fn next(&self) -> &AtomicPtr<Self>;
}

/// Bit of `back`: a task waits. Set only while no place has been given back.
const WAITED_FOR: usize = 1;

/// On a cache line of its own.
#[repr(align(64))]
struct Line<T>(T);

/// The places that are free, of those that were given to it.
pub(super) struct Free<T> {
    /// The first place of the poster's own list. Only the poster touches it.
    own: Line<Place<*mut T>>,
    /// The place that was given back last, which leads to the one before it, and so on. [`WAITED_FOR`] may be
    /// set.
    back: Line<AtomicPtr<T>>,
    /// The tasks that wait. Touched only where nothing is free.
    waiting: Mutex<Vec<Waker>>,
}

// SAFETY: its pointers are shared references to places, which it hands out.
unsafe impl<T: Sync> Send for Free<T> {}
// SAFETY: as above; only the poster touches what is not atomic, by the contracts of the functions.
unsafe impl<T: Sync> Sync for Free<T> {}

impl<T: Linked> Free<T> {
    /// Without places.
    pub(super) fn new() -> Self {
        let own = Place::empty();
        // SAFETY: nobody else has it.
        unsafe { own.put(ptr::null_mut()) };
        Self {
            own: Line(own),
            back: Line(AtomicPtr::new(ptr::null_mut())),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// Takes a place, which is the caller's until it gives it back.
    ///
    /// # Safety
    /// No other thread takes, or waits to, at the same time. All places that were given back still exist at
    /// their addresses.
    #[inline(always)]
    pub(super) unsafe fn take(&self) -> Option<&T> {
        // SAFETY: by this function's contract `own` is the caller's. It always has a value, which is copied.
        let mut first = unsafe { self.own.0.copy() };
        if first.is_null() {
            first = self.take_back();
        }
        // SAFETY: it was given as a reference, and is still there, by this function's contract.
        let place = unsafe { NonNull::new(first)?.as_ref() };
        // Relaxed: written by this thread, or before the acquire in `take_back`.
        let behind = place.next().load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { self.own.0.put(behind) };
        Some(place)
    }

    /// Takes all that have come back.
    #[cold]
    #[inline(never)]
    fn take_back(&self) -> *mut T {
        // Relaxed: this only asks whether there are any. If so, no other thread takes them, and the bit is
        // not set.
        if !self.has_back() {
            return ptr::null_mut();
        }
        // Acquire: pairs with the release of each thread that gave one back. Their changes are
        // read-modify-writes, so this one acquire synchronizes with all of them.
        self.back.0.swap(ptr::null_mut(), Ordering::Acquire)
    }

    fn has_back(&self) -> bool {
        self.back.0.load(Ordering::Relaxed).addr() & !WAITED_FOR != 0
    }

    /// Gives back a place that was not free.
    #[inline(always)]
    pub(super) fn give(&self, place: &T) {
        if self.give_silently(place) {
            self.wake();
        }
    }

    /// Like [`give`](Self::give). True if a task waits: the caller then [wakes](Self::wake) it.
    #[inline(always)]
    pub(super) fn give_silently(&self, place: &T) -> bool {
        let mut last = self.back.0.load(Ordering::Relaxed);
        loop {
            let before = last.map_addr(|address| address & !WAITED_FOR);
            place.next().store(before, Ordering::Relaxed);
            // Release: pairs with the acquire in `take_back`.
            match self.back.0.compare_exchange_weak(
                last,
                ptr::from_ref(place).cast_mut(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => last = now,
            }
        }
        last.addr() & WAITED_FOR != 0
    }

    /// Waits until a place is free, without taking it.
    ///
    /// # Safety
    ///
    /// As for [`take`](Self::take).
    pub(super) unsafe fn poll_any(&self, cx: &mut Context<'_>) -> Poll<()> {
        // SAFETY: as in `take`.
        if !unsafe { self.own.0.copy() }.is_null() {
            return Poll::Ready(());
        }
        // Under the lock to the end: who takes the mark away then finds the task.
        let mut waiting = self.waiting();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        let mark = |last: *mut T| {
            let none = last.addr() & !WAITED_FOR == 0;
            none.then(|| last.map_addr(|address| address | WAITED_FOR))
        };
        // Relaxed: what is waited for is taken by `take` afterwards.
        match self
            .back
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, mark)
        {
            Ok(_) => Poll::Pending,
            Err(_) => Poll::Ready(()),
        }
    }

    /// All that wait, since each of them may have lost interest.
    #[cold]
    #[inline(never)]
    pub(super) fn wake(&self) {
        // Without the lock: a waker does as it likes.
        each(self.take_waiting(), Waker::wake);
    }

    /// Takes the wakers of all that wait: who asks from here on waits anew.
    pub(super) fn take_waiting(&self) -> Vec<Waker> {
        std::mem::take(&mut *self.waiting())
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waker>> {
        // A list of tasks is whole after each statement.
        self.waiting
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::task::Wake;

    use super::*;

    struct Numbered {
        next: AtomicPtr<Self>,
        held: AtomicBool,
    }

    impl Linked for Numbered {
        fn next(&self) -> &AtomicPtr<Self> {
            &self.next
        }
    }

    fn places(count: usize) -> Box<[Numbered]> {
        let place = || Numbered {
            next: AtomicPtr::default(),
            held: AtomicBool::new(false),
        };
        (0..count).map(|_| place()).collect()
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn take(free: &Free<Numbered>) -> Option<&Numbered> {
        // SAFETY: one thread does, and the places outlive the list.
        unsafe { free.take() }
    }

    #[test]
    fn each_place_is_given_out_once() {
        let (places, free) = (places(3), Free::new());
        places.iter().for_each(|place| free.give(place));
        for _ in 0..2 {
            let taken: Vec<_> = std::iter::from_fn(|| take(&free)).collect();
            assert_eq!(taken.len(), 3);
            for place in &taken {
                assert!(!place.held.swap(true, Ordering::Relaxed), "twice");
            }
            for place in taken {
                place.held.store(false, Ordering::Relaxed);
                free.give(place);
            }
        }
    }

    #[test]
    fn who_waits_is_woken_once() {
        let (places, free) = (places(1), Free::new());
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut cx = Context::from_waker(&waker);
        for round in 1..3 {
            // SAFETY: as in `take`.
            assert!(unsafe { free.poll_any(&mut cx) }.is_pending());
            // SAFETY: as in `take`.
            assert!(unsafe { free.poll_any(&mut cx) }.is_pending());
            assert!(take(&free).is_none(), "and that takes no mark away");
            free.give(&places[0]);
            assert_eq!(
                count.0.load(Ordering::Relaxed),
                round,
                "one task, woken once"
            );
            // SAFETY: as in `take`.
            assert!(unsafe { free.poll_any(&mut cx) }.is_ready());
            let place = take(&free).unwrap();
            free.give(place);
            assert_eq!(
                count.0.load(Ordering::Relaxed),
                round,
                "nobody waits any more"
            );
            take(&free).unwrap();
        }
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

        let (places, free) = (places(1), Free::new());
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let wakers = [
            Waker::from(Arc::clone(&counts[0])),
            Waker::from(Arc::new(Panics)),
            Waker::from(Arc::clone(&counts[1])),
        ];
        for waker in &wakers {
            let mut cx = Context::from_waker(waker);
            // SAFETY: as in `take`.
            assert!(unsafe { free.poll_any(&mut cx) }.is_pending());
        }
        assert!(catch_unwind(AssertUnwindSafe(|| free.give(&places[0]))).is_err());
        for count in counts {
            assert_eq!(count.0.load(Ordering::Relaxed), 1);
        }
    }

    /// Would catch a place in two hands: one thread takes and hands on, the others give back.
    #[test]
    fn threads_never_hold_the_same_place() {
        let (places, free) = (places(4), Free::new());
        places.iter().for_each(|place| free.give(place));
        let (hand, taken) = std::sync::mpsc::channel::<&Numbered>();
        let taken = std::sync::Mutex::new(taken);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let next = taken.lock().unwrap().recv();
                        let Ok(place) = next else { break };
                        place.held.store(false, Ordering::Relaxed);
                        free.give(place);
                    }
                });
            }
            let mut rounds = 0;
            while rounds < 20_000 {
                let Some(place) = take(&free) else {
                    std::thread::yield_now();
                    continue;
                };
                assert!(!place.held.swap(true, Ordering::Relaxed), "twice");
                hand.send(place).unwrap();
                rounds += 1;
            }
            drop(hand);
        });
        assert_eq!(std::iter::from_fn(|| take(&free)).count(), 4);
    }
}
