//! What slots are made of. `tests/loom` has its own, which notices two threads in a place at once.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::thread::yield_now;

/// A place for a value. The state of its slot says whether there is one, and which party may touch it.
pub(super) struct Place<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: the value is reached by its unsafe functions alone, whose callers have the place to themselves.
unsafe impl<T: Send> Sync for Place<T> {}

impl<T> Place<T> {
    /// Without a value.
    pub(super) const fn empty() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Puts a value in. A value that is there is not dropped.
    ///
    /// # Safety
    ///
    /// The place is the caller's.
    #[inline(always)]
    pub(super) unsafe fn put(&self, value: T) {
        // SAFETY: by this function's contract.
        unsafe { (*self.0.get()).write(value) };
    }

    /// Lends the value.
    ///
    /// # Safety
    /// The place has a value, and no party changes or takes it meanwhile.
    #[inline(always)]
    pub(super) unsafe fn lend(&self) -> &T {
        // SAFETY: by this function's contract.
        unsafe { (*self.0.get()).assume_init_ref() }
    }

    /// Takes the value out.
    ///
    /// # Safety
    /// The place is the caller's and has a value, which is not taken a second time.
    #[inline(always)]
    pub(super) unsafe fn take(&self) -> T {
        // SAFETY: by this function's contract.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}
