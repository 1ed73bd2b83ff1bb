//! A gate that one thread passes often, by plain stores, and that others close seldom, with the kernel's
//! help.
//!
//! Who passes tells that it is inside and then looks whether the gate is closed; who closes it does so and
//! then looks whether somebody is inside. One of the two has to see the other, which takes a barrier between
//! store and load on both sides. Instead of one in each passing, who closes has all threads of the process
//! make one (membarrier(2)).

use std::sync::PoisonError;

use super::sync::{
    AtomicBool, Mutex, MutexGuard, Ordering, order_everywhere, order_here, wait_a_little,
};

/// A gate with one thread at a time that passes it.
#[derive(Debug)]
pub(super) struct Gate {
    inside: AtomicBool,
    closed: AtomicBool,
    others: Mutex<()>,
}

/// Somebody is inside, until it is dropped.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Gate);

/// Nobody is inside, until it is dropped.
#[derive(Debug)]
pub(super) struct Closed<'a> {
    gate: &'a Gate,
    _others: MutexGuard<'a, ()>,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            inside: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            others: Mutex::new(()),
        }
    }

    /// Goes inside, when nobody else has closed the gate; for one thread at a time. What it does there is a
    /// few stores.
    #[inline(always)]
    pub(super) fn pass(&self) -> Inside<'_> {
        // Relaxed: `order_here` has it before the load.
        self.inside.store(true, Ordering::Relaxed);
        order_here();
        // Acquire: pairs with the release of `Closed`.
        if self.closed.load(Ordering::Acquire) {
            self.wait();
        }
        Inside(self)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut round = 0_u32;
        loop {
            // Release: nothing was done inside this time, but who has closed the gate may miss the release of
            // the time before.
            self.inside.store(false, Ordering::Release);
            while self.closed.load(Ordering::Relaxed) {
                wait_a_little(round);
                round = round.saturating_add(1);
            }
            self.inside.store(true, Ordering::Relaxed);
            order_here();
            // Acquire: as in `pass`.
            if !self.closed.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Keeps others from closing the gate; whoever passes it may do so.
    pub(super) fn keep(&self) -> MutexGuard<'_, ()> {
        // It guards nothing of its own.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate and waits until nobody is inside; none if the kernel cannot help.
    pub(super) fn close(&self) -> Option<Closed<'_>> {
        let closed = Closed {
            _others: self.keep(),
            gate: self,
        };
        // Relaxed: `order_everywhere` has it before the load.
        self.closed.store(true, Ordering::Relaxed);
        if !order_everywhere() {
            return None;
        }
        let mut round = 0_u32;
        // Acquire: pairs with the release of `Inside`.
        while self.inside.load(Ordering::Acquire) {
            wait_a_little(round);
            round = round.saturating_add(1);
        }
        Some(closed)
    }
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `close`.
        self.0.inside.store(false, Ordering::Release);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `pass`.
        self.gate.closed.store(false, Ordering::Release);
    }
}
