//! The building blocks of slots. `tests/loom` has its own version, which detects two threads in a place at
//! once.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;

pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(super) use std::thread::yield_now;

/// A place for a value. The state of its slot says whether there is one, and which party may access it.
pub(super) struct Place<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: only the unsafe functions access the value, and their callers have the place exclusively.
unsafe impl<T: Send> Sync for Place<T> {}

impl<T> Place<T> {
    /// A place without a value.
    pub(super) const fn empty() -> Self {
        Self(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Puts a value in. If there already is one, it is not dropped.
    ///
    /// # Safety
    ///
    /// The place belongs to the caller.
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
    /// The place belongs to the caller and has a value, which is not taken a second time.
    #[inline(always)]
    pub(super) unsafe fn take(&self) -> T {
        // SAFETY: by this function's contract.
        unsafe { (*self.0.get()).assume_init_read() }
    }
}
