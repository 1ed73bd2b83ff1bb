//! Whose turn it is at a register that several queue pairs share.

use super::sync::{AtomicBool, Ordering, wait_a_little};

/// A lock that is held for a few stores.
#[derive(Debug)]
pub(crate) struct Turn(AtomicBool);

/// The turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Mine<'a>(&'a Turn);

impl Turn {
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits until no other thread has it.
    #[inline(always)]
    pub(crate) fn take(&self) -> Mine<'_> {
        if !self.has_taken() {
            self.wait();
        }
        Mine(self)
    }

    #[inline(always)]
    fn has_taken(&self) -> bool {
        // Acquire: sees the stores of the last holder, by the release in `drop`. Relaxed: nothing depends on
        // a failure.
        let taken = self
            .0
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut round = 0_u32;
        while !self.has_taken() {
            wait_a_little(round);
            round = round.saturating_add(1);
        }
    }
}

impl Drop for Mine<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the acquire in `has_taken`.
        self.0.0.store(false, Ordering::Release);
    }
}
