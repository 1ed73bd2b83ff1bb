//! What `src/words/sync.rs` is in the library, and `src/driver/kit/sync.rs` for drivers.

pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use loom::thread::yield_now;

/// What the driver leaves to the compiler and to membarrier(2) is a fence on both sides here.
pub(crate) fn order_here() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

pub(crate) fn order_everywhere() -> bool {
    loom::sync::atomic::fence(Ordering::SeqCst);
    true
}

/// Has another thread go on.
pub(crate) fn wait_a_little(_: u32) {
    loom::thread::yield_now();
}

/// What `src/aio/sync.rs` has: loom fails where two threads are in a place at once.
pub(crate) struct Place<T>(loom::cell::UnsafeCell<std::mem::MaybeUninit<T>>);

// SAFETY: loom stops a test where two threads are in a place at once, and does not let them.
unsafe impl<T: Send> Sync for Place<T> {}

impl<T> Place<T> {
    pub(crate) fn empty() -> Self {
        Self(loom::cell::UnsafeCell::new(std::mem::MaybeUninit::uninit()))
    }

    /// # Safety
    ///
    /// As for the one that it stands for.
    pub(crate) unsafe fn put(&self, value: T) {
        // SAFETY: by this function's contract; loom ends the test where another thread is in the place.
        self.0.with_mut(|place| unsafe { (*place).write(value) });
    }

    /// # Safety
    ///
    /// As for the one that it stands for.
    pub(crate) unsafe fn lend(&self) -> &T {
        // SAFETY: as in `put`. loom sees the place at this moment only.
        self.0.with(|place| unsafe { (*place).assume_init_ref() })
    }

    /// # Safety
    ///
    /// As for the one that it stands for.
    pub(crate) unsafe fn take(&self) -> T {
        // SAFETY: as in `put`; taking changes the place, since the value is gone.
        self.0
            .with_mut(|place| unsafe { (*place).assume_init_read() })
    }
}
