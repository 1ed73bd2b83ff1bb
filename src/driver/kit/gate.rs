//! A gate that one thread passes often, by plain stores, and that other threads close rarely, with the
//! kernel's help.
//! The passing thread stores that it is inside and then loads whether the gate is closed. The closing thread
//! stores that the gate is closed and then loads whether a thread is inside. One of the two must see the
//! other, which takes a barrier between store and load on both sides. So that passing needs none, the closing
//! thread makes the kernel execute one in all threads of the process (membarrier(2)).

use std::sync::PoisonError;

use super::sync::{
    AtomicBool, Mutex, MutexGuard, Ordering, order_everywhere, order_here, wait_a_little,
};

/// A gate with one thread at a time that passes it.
#[derive(Debug)]
pub(crate) struct Gate {
    inside: AtomicBool,
    closed: AtomicBool,
    others: Mutex<()>,
}

/// A thread is inside, until this is dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a Gate);

/// The gate is closed and no thread is inside, until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a> {
    gate: &'a Gate,
    _others: MutexGuard<'a, ()>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self {
            inside: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            others: Mutex::new(()),
        }
    }

    /// Goes inside, once the gate is not closed. Only one thread at a time may call this; what it does inside
    /// is a few stores.
    #[inline(always)]
    pub(crate) fn pass(&self) -> Inside<'_> {
        match self.pass_if_open() {
            Some(inside) => inside,
            None => self.wait(),
        }
    }

    /// As [`Self::pass`]; `None` if the gate is closed.
    #[inline(always)]
    pub(crate) fn pass_if_open(&self) -> Option<Inside<'_>> {
        // Relaxed: `order_here` orders it before the load.
        self.inside.store(true, Ordering::Relaxed);
        let inside = Inside(self);
        order_here();
        // Acquire: pairs with the release of `Closed`.
        match self.closed.load(Ordering::Acquire) {
            true => None,
            false => Some(inside),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Inside<'_> {
        let mut round = 0_u32;
        loop {
            while self.closed.load(Ordering::Relaxed) {
                wait_a_little(round);
                round = round.saturating_add(1);
            }
            if let Some(inside) = self.pass_if_open() {
                return inside;
            }
        }
    }

    /// Keeps other threads from closing the gate. It may still be passed.
    pub(crate) fn keep(&self) -> MutexGuard<'_, ()> {
        // The mutex guards no data.
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the gate and waits until no thread is inside. `None` if the kernel has no membarrier(2).
    pub(crate) fn close(&self) -> Option<Closed<'_>> {
        let closed = Closed {
            _others: self.keep(),
            gate: self,
        };
        // Relaxed: `order_everywhere` orders it before the load.
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
        // Release: pairs with the acquire in `close`. If nothing was done inside this time, the closing
        // thread may still see this store instead of that of the previous time.
        self.0.inside.store(false, Ordering::Release);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        // Release: pairs with the acquire in `pass`.
        self.gate.closed.store(false, Ordering::Release);
    }
}
