//! Whose turn it is at a register that several queue pairs share.

use super::sync::{AtomicBool, Ordering, wait_a_little};

/// A lock that is held for a few stores.
#[derive(Debug)]
pub(super) struct Turn(AtomicBool);

/// The turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Mine<'a>(&'a Turn);

impl Turn {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Waits until nobody else has it.
    #[inline(always)]
    pub(super) fn take(&self) -> Mine<'_> {
        // Acquire: what the last one stored is seen, by the release in `drop`.
        if self.0.swap(true, Ordering::Acquire) {
            self.wait();
        }
        Mine(self)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) {
        let mut round = 0;
        // Acquire: as in `take`.
        while self.0.swap(true, Ordering::Acquire) {
            // Looks before it stores again, so that the line stays with who has the turn.
            while self.0.load(Ordering::Relaxed) {
                wait_a_little(round);
                round += 1;
            }
        }
    }
}

impl Drop for Mine<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: pairs with the acquire of who takes it next.
        self.0.0.store(false, Ordering::Release);
    }
}
